"""Specs, weighted composition and custom verifiers."""

import sys

import pytest

from jaxrl_vr.types import Example, Score, Step
from jaxrl_vr.verifiers.compose import Weighted
from jaxrl_vr.verifiers.custom import Custom
from jaxrl_vr.verifiers.exact import ExactMatch
from jaxrl_vr.verifiers.judgement import BadScore
from jaxrl_vr.verifiers.math_answer import MathAnswer
from jaxrl_vr.verifiers.spec import build, check_references, name, needs_reference

TASK = Example(id="0", prompt="q", reference="5")
BOTH = {
    "type": "weighted",
    "parts": [
        {"verifier": {"type": "math_answer"}, "weight": 1.0},
        {"verifier": {"type": "format", "tags": ["think", "answer"]}, "weight": 0.25},
    ],
}


def of_length(example: Example, response: str, *, limit: int = 10) -> bool:
    return len(response) <= limit


def half(example: Example, response: str) -> float:
    return 0.5


def stepwise(example: Example, response: str) -> Score:
    return Score(0.5, "wrong", {"first": 1.0}, "why", (Step(3, 0.5),))


def infinite(example: Example, response: str) -> float:
    return float("inf")


def nothing(example: Example, response: str) -> None:
    return None


def custom(name: str, **kwargs) -> Custom:
    return Custom(path=f"{__name__}:{name}", kwargs=kwargs)


def test_build_picks_the_type():
    assert build({"type": "math_answer"}) == MathAnswer()
    assert build({"type": "math_answer", "extract": "boxed"}) == MathAnswer(extract="boxed")
    assert build({"type": "exact", "after": ">"}) == ExactMatch(after=">")
    assert isinstance(build(BOTH), Weighted)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"type": "math_answers"}, "math_answer"),
        ({}, "type"),
        ({"type": "math_answer", "extractor": "boxed"}, "extractor"),
        ({"type": "weighted", "parts": []}, "parts"),
        ({**BOTH, "decides": "style"}, r"decides is 'style'.*'math_answer', 'format'"),
        ({"type": "weighted", "parts": BOTH["parts"][:1] * 2}, "set `name`"),
        ({"type": "custom", "path": "no_colon"}, "package.module:function"),
        ({"type": "custom", "path": "..x:f"}, r"\.\.x:f.*package.module:function"),
        ({"type": "custom", "path": "x:f:g"}, "package.module:function"),
        ({"type": "custom", "path": "x:"}, "package.module:function"),
        ({"type": "custom", "path": ":f"}, "package.module:function"),
        ({"type": "custom", "path": "a b:f"}, "package.module:function"),
        ({"type": "custom", "path": "class:f"}, "package.module:function"),
        (
            {"type": "weighted", "parts": [{"verifier": {"type": "math_answer"}, "weight": 1e7}]},
            "weight",
        ),
    ],
)
def test_wrong_spec_says_why(spec, said):
    with pytest.raises(ValueError, match=said):
        build(spec)


def test_building_imports_nothing(tmp_path, monkeypatch):
    (tmp_path / "mark_me.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = {"type": "custom", "path": "mark_me:f", "kwargs": {"x": 1}}
    for verifier in (build(spec), build({"type": "weighted", "parts": [{"verifier": spec}]})):
        assert verifier.answer(TASK, "x") is None
        assert "mark_me:f" in name(verifier)
    assert "mark_me" not in sys.modules


@pytest.mark.parametrize(
    ("path", "kwargs", "said"),
    [
        ("no_such_module:f", {}, "cannot import 'no_such_module'.*; install it, or start the run"),
        ("json.no_such:f", {}, "cannot import 'json.no_such'"),
        ("json:no_such", {}, "module 'json' has no 'no_such'; name a function of it"),
        ("json:load_", {}, "module 'json' has no 'load_'; did you mean 'load'?"),
        ("json:__name__", {}, "'__name__' is a str, not a function"),
        ("builtins:len", {}, r"cannot be called as function\(example, response, \*\*kwargs\): too"),
        (f"{__name__}:half", {"x": 1}, r"with kwargs \['x'\]: got an unexpected keyword argument"),
        (f"{__name__}:half", {"response": 1}, "multiple values for argument 'response'"),
    ],
)
def test_custom_that_does_not_load_says_why(path, kwargs, said):
    with pytest.raises(ValueError, match=f"^path '{path}': .*{said}"):
        Custom(path=path, kwargs=kwargs).load()


def test_compiled_functions_without_signature_are_taken():
    assert Custom(path="builtins:min").load() is min


def test_names_and_need_of_a_reference():
    specs = [
        ({"type": "math_answer"}, "math_answer", True),
        ({"type": "exact"}, "exact", True),
        ({"type": "format"}, "format", False),
        ({"type": "custom", "path": "a.b:f"}, "a.b:f", False),
        (BOTH, "weighted(math_answer, format)", True),
        ({"type": "weighted", "parts": BOTH["parts"][1:]}, "weighted(format)", False),
    ]
    for spec, called, needs in specs:
        assert (name(build(spec)), needs_reference(spec)) == (called, needs)


def test_an_example_without_the_reference_it_needs_is_named():
    def example(id: str, verifier: str, reference: str = "") -> Example:
        return Example(id, "q", reference, {"type": verifier}, source="sums")

    check_references([example("0", "math_answer", "5"), example("1", "format")])
    for reference in ("", " \n"):
        with pytest.raises(ValueError, match=r"source 'sums', example '2'.*'exact'.*reference"):
            check_references([example("0", "exact", "5"), example("2", "exact", reference)])


def test_weighted_sum():
    verifier = build(BOTH)
    # 1.0 * 1 + 0.25 * 1
    score = verifier(TASK, r"<think>t</think><answer>\boxed{5}</answer>")
    assert (score.value, score.verdict) == (1.25, "right")
    assert score.components == {"math_answer": 1.0, "format": 1.0}
    # right without the format: 1.0 * 1 + 0.25 * 0
    score = verifier(TASK, r"\boxed{5}")
    assert (score.value, score.verdict) == (1.0, "right")
    # format alone: 1.0 * 0 + 0.25 * 1; the math part decides
    score = verifier(TASK, r"<think>t</think><answer>\boxed{6}</answer>")
    assert (score.value, score.verdict) == (0.25, "wrong")
    assert verifier.answer(TASK, r"\boxed{6.0}") == "6"


def test_named_part_decides():
    verifier = build({**BOTH, "decides": "format"})
    assert verifier(TASK, r"<think>t</think><answer>6</answer>").verdict == "right"
    assert verifier(TASK, r"\boxed{5}").verdict == "wrong"


def test_unscorable_part_makes_all_unscorable():
    score = build({**BOTH, "decides": "format"})(Example(id="0", prompt="q"), "x")
    assert (score.verdict, score.value) == ("unscorable", 0.0)
    assert score.reason.startswith("math_answer: the reference")


def test_components_of_parts_are_kept():
    verifier = Weighted.model_validate(
        {"parts": [{"verifier": custom("stepwise"), "name": "prm", "weight": 2.0}]}
    )
    score = verifier(TASK, "abc")
    assert score == Score(1.0, "wrong", {"prm": 0.5, "prm/first": 1.0}, "why", (Step(3, 0.5),))


def test_custom_results():
    assert custom("of_length")(TASK, "short") == Score(1.0, "right")
    assert custom("of_length", limit=3)(TASK, "short") == Score(0.0, "wrong")
    assert custom("half")(TASK, "x") == Score(0.5, "wrong")
    assert custom("stepwise")(TASK, "x").steps == (Step(3, 0.5),)
    with pytest.raises(BadScore, match=f"{__name__}:infinite returned the value inf; return a fin"):
        custom("infinite")(TASK, "x")
    with pytest.raises(BadScore, match=f"{__name__}:nothing returned NoneType; return a Score"):
        custom("nothing")(TASK, "x")

"""Gate, product and first by data source; the weighted sum is in test_spec.py."""

import pytest

from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.spec import build, check_references, name, needs_reference

MATH, FORMAT = {"type": "math_answer"}, {"type": "format", "tags": ["answer"]}
GATE = {"type": "gate", "gates": [{"verifier": FORMAT}], "of": {"verifier": MATH, "name": "sum"}}
PRODUCT = {
    "type": "product",
    "parts": [{"verifier": MATH}, {"verifier": {"type": "language", "language": "en"}}],
}
FIRST = {
    "type": "first",
    "cases": [
        {"verifier": MATH, "sources": ["gsm8k", "math500"]},
        {"verifier": FORMAT, "sources": ["chat"]},
        {"verifier": {"type": "exact"}},
    ],
}
TASK = Example(id="0", prompt="q", reference="5")
ENGLISH = "The answer follows from the sum of all the numbers in the list."  # 13 words
GERMAN = "Die Antwort folgt aus der Summe aller Zahlen in der Liste hier jetzt."  # 13 words


def of(source: str, reference: str = "5") -> Example:
    return Example(id="0", prompt="q", reference=reference, source=source)


def test_gate():
    gate = build(GATE)
    score = gate(TASK, "<answer>5</answer>")
    assert (score.value, score.verdict) == (1.0, "right")
    assert score.components == {"format": 1.0, "sum": 1.0}
    score = gate(TASK, "so <answer>5</answer>")  # right, but not let through
    assert (score.value, score.verdict) == (0.0, "wrong")
    assert score.components == {"format": 0.0, "sum": 1.0}
    assert score.reason == "format: text before <answer>: 'so'"
    score = gate(TASK, "<answer>6</answer>")
    assert (score.value, score.verdict, score.components["sum"]) == (0.0, "wrong", 0.0)
    assert build({**GATE, "otherwise": -0.5})(TASK, "5").value == -0.5
    assert gate(of("", ""), "<answer>5</answer>").verdict == "unscorable"
    assert gate.answer(TASK, "<answer>5.0</answer>") == "5"


def test_product():
    product = build(PRODUCT)
    score = product(TASK, rf"{ENGLISH} {GERMAN} \boxed{{5}}")
    assert (score.value, score.verdict) == (0.5, "wrong")  # 1 * 13/26
    assert score.components == {"math_answer": 1.0, "language": 0.5}
    assert score.reason == "language: en 0.50, de 0.50"
    score = product(TASK, rf"{ENGLISH} \boxed{{5}}")
    assert (score.value, score.verdict) == (1.0, "right")
    score = product(TASK, rf"{ENGLISH} \boxed{{6}}")
    assert (score.value, score.verdict) == (0.0, "wrong")
    assert product(TASK, rf"{ENGLISH} \boxed{{}}").verdict == "no_answer"
    assert product(of("", ""), "x").reason.startswith("math_answer: the reference")
    assert product.answer(TASK, r"\boxed{5.0}") == "5"


def test_first_by_data_source():
    first = build(FIRST)
    assert first(of("math500"), r"\boxed{5.0}") == Score(
        1.0, "right", {"math_answer": 1.0}, "answer '5.0', same number"
    )
    assert first(of("chat"), "<answer>6</answer>").components == {"format": 1.0}
    assert first(of("other"), "5").components == {"exact": 1.0}
    assert first(of("other"), "5.0").verdict == "wrong"
    assert first.answer(of("gsm8k"), r"\boxed{5.0}") == "5"
    assert first.answer(of("other"), " 5.0") == "5.0"
    alone = build({"type": "first", "cases": FIRST["cases"][:1]})
    score = alone(of("chat"), "5")
    assert (score.verdict, alone.answer(of("chat"), "5")) == ("unscorable", None)
    assert score.reason == "no case is for the source 'chat': add one, or one without sources"


def test_names_and_need_of_a_reference():
    assert name(build(GATE)) == "gate(format, math_answer)"
    assert name(build(FIRST)) == "first(math_answer, format, exact)"
    for spec in (GATE, PRODUCT, FIRST):
        assert needs_reference(spec)
    examples = [Example("1", "q", "", FIRST, source="chat"), Example("2", "q", "", FIRST)]
    check_references(examples[:1])  # its case needs none
    with pytest.raises(ValueError, match="example '2'"):
        check_references(examples)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({**GATE, "gates": []}, "gates"),
        ({**GATE, "gates": [{"verifier": MATH, "name": "sum"}]}, "'sum', 'sum'.*set `name`"),
        ({"type": "product", "parts": PRODUCT["parts"][:1]}, "parts"),
        ({"type": "product", "parts": PRODUCT["parts"][:1] * 2}, "set `name`"),
        (
            {"type": "first", "cases": [FIRST["cases"][2], FIRST["cases"][0]]},
            "'math_answer' stands behind one without sources.*put that one last",
        ),
        (
            {
                "type": "first",
                "cases": [FIRST["cases"][0], {"verifier": FORMAT, "sources": ["gsm8k"]}],
            },
            r"the sources \['gsm8k'\] of 'format' are those of earlier cases",
        ),
        ({"type": "gate", "gates": [{"verifier": GATE}], "of": {"verifier": MATH}}, "gate"),
    ],
)
def test_wrong_spec_says_why(spec, said):
    with pytest.raises(ValueError, match=said):
        build(spec)

"""The constraints verifier: instructions from references and config, strict and loose."""

import json
from pathlib import Path

import pytest

from jaxrl_vr.cli import main
from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.constraints import Constraints, read
from jaxrl_vr.verifiers.spec import build, needs_reference

CASES = Path(__file__).parents[2] / "../shared/cases/ifeval_cases.jsonl"
NO_COMMA = {"constraint": "punctuation:no_comma", "kwargs": {}}


def example(reference: object, prompt: str = "q") -> Example:
    text = reference if isinstance(reference, str) else json.dumps(reference)
    return Example(id="0", prompt=prompt, reference=text)


def test_shared_cases(tmp_path, capsys):
    if not CASES.exists():
        pytest.skip("ifeval_cases.jsonl is not at hand beside the project")
    out = tmp_path / "out.jsonl"
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(CASES), "--verifier", "constraints", "--out", str(out)])
    assert ended.value.code == 0
    cases = [json.loads(line) for line in CASES.read_text().splitlines()]
    found = [json.loads(line) for line in out.read_text().splitlines()]
    labels = {case["id"]: case["ok"] for case in cases}
    assert {line["id"]: line["verdict"] == "right" for line in found} == labels
    assert f"all {len(cases)}" in " ".join(capsys.readouterr().out.split())
    assert next(line["value"] for line in found if line["id"] == "i063") == 0.5


def test_value_is_the_share_and_repeated_ids_count_by_position():
    words = "length_constraints:number_words"
    task = example(
        {
            "constraint": [words, words, "punctuation:no_comma", "made:up"],
            "kwargs": [
                {"num_words": 20, "relation": "at least"},
                {"num_words": 2, "relation": "at least"},
                {},
                {},
            ],
        }
    )
    score = Constraints()(task, "one two three")
    assert (score.value, score.verdict) == (0.5, "wrong")
    assert score.reason == f"not followed: {words} (1), made:up (4) is not known"
    assert Constraints().answer(task, "one") is None


@pytest.mark.parametrize(
    "reference",
    [
        NO_COMMA,
        [NO_COMMA],
        {"constraint": ["punctuation:no_comma"], "kwargs": [{}]},
        {"constraint": "punctuation:no_comma"},
        {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [None]},
        [{"instruction_id": ["punctuation:no_comma"], "kwargs": [{"num_words": None}]}],
    ],
)
def test_forms_of_references(reference):
    assert Constraints()(example(reference), "a b").verdict == "right"
    assert Constraints()(example(reference), "a, b").verdict == "wrong"


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("", "the reference is not JSON; write {"),
        ("[" * 10_000, "the reference is not JSON"),
        ([], "has no instruction"),
        ({}, "has no 'constraint' among []"),
        ([1], "holds '1'; write an object"),
        ({"constraint": ["a:b", "c:d"], "kwargs": [{}]}, "has 1 kwargs for 2 instructions"),
        ({"constraint": "punctuation:no_comma", "kwargs": [[1]]}, "kwargs that are no object"),
        ({"constraint": [1]}, "has the instruction '1'"),
        ({"constraint": "startend:end_checker"}, "needs the argument 'end_phrase'"),
    ],
)
def test_faulty_references_are_unscorable(reference, said):
    score = Constraints()(example(reference), "text")
    assert (score.value, score.verdict) == (0.0, "unscorable")
    assert said in score.reason


def test_loose_takes_away_first_and_last_lines_and_asterisks():
    task = example({"constraint": "startend:quotation"})
    for response in ('Sure!\n"Hi"', '"Hi"\nBye', 'Sure!\n"Hi"\nBye', '*"Hi"*', 'Sure:\n**"Hi"**'):
        assert Constraints()(task, response).verdict == "wrong"
        assert Constraints(mode="loose")(task, response).verdict == "right"
    assert Constraints(mode="loose")(task, 'A\nB\n"Hi"').verdict == "wrong"
    assert Constraints(mode="loose")(example(NO_COMMA), "a, b").verdict == "wrong"


def test_only_what_follows_the_thinking_is_judged():
    task = example(NO_COMMA)
    assert Constraints()(task, "<think>a, b</think>c").verdict == "right"
    assert Constraints()(task, "<think>a b").verdict == "no_answer"
    assert Constraints()(example(NO_COMMA, "q <think>"), "a b").verdict == "no_answer"
    assert Constraints()(task, "<think>a</think> \n").verdict == "no_answer"


def test_instructions_from_the_config():
    spec = {
        "type": "constraints",
        "ids": ["punctuation:no_comma", "startend:end_checker"],
        "kwargs": [{}, {"end_phrase": "bye"}],
    }
    assert not needs_reference(spec) and needs_reference({"type": "constraints"})
    assert build(spec)(example(""), "so bye").value == 1.0
    assert build(spec)(example(""), "so, bye").value == 0.5


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"ids": ["punctuation:no_coma"]}, "did you mean 'punctuation:no_comma'"),
        ({"ids": ["startend:end_checker"]}, "needs the argument 'end_phrase'"),
        ({"ids": ["punctuation:no_comma"], "kwargs": [{}, {}]}, "kwargs has 2 tables for 1 ids"),
        ({"kwargs": [{}]}, "kwargs has 1 tables for 0 ids"),
        ({"mode": "exact"}, "mode"),
    ],
)
def test_wrong_configs_say_why(spec, said):
    with pytest.raises(ValueError, match=said):
        build({"type": "constraints", **spec})


def test_other_field_names(tmp_path, capsys):
    line = {"ids": ["punctuation:no_comma"], "args": [{}], "text": "a b", "good": True}
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(line) + "\n")
    names = {"constraint": "ids", "kwargs": "args", "response": "text", "label": "good"}
    given = [f"fields.{key}={value}" for key, value in names.items()]
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(path), "--verifier", "constraints", *given])
    assert ended.value.code == 0
    assert "all 1 1 0 0 0 1.000 0 0" in " ".join(capsys.readouterr().out.split())


def test_read_pairs_ids_with_their_arguments():
    reference = json.dumps([NO_COMMA, {"constraint": ["a:b"], "kwargs": [{"n": 1}]}])
    assert read(reference) == [("punctuation:no_comma", {}), ("a:b", {"n": 1})]

"""Countdown: solvable problems, disjoint splits, and a checker that only counts the game."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from jaxrl_vr.data.countdown import CountdownSource, countdown_score
from jaxrl_vr.data.sources import load
from jaxrl_vr.types import Example

TASK = Example("0", "", json.dumps({"numbers": [3, 5, 7, 7], "target": 36}))


def score(answer, task=TASK):
    return countdown_score(task, f"<think>hm</think><answer>{answer}</answer>")


@given(st.integers(0, 10**6), st.sampled_from(["train", "heldout"]))
def test_every_problem_is_solved_by_its_demonstration(index, split):
    source = CountdownSource(name="c", split=split)
    example = source.example(index, 0)
    given_ = json.loads(example.reference)
    assert 10 <= given_["target"] <= 100
    assert len(given_["numbers"]) == example.difficulty
    assert str(given_["target"]) in example.prompt
    result = countdown_score(example, example.completion)
    assert (result.value, result.verdict) == (1.0, "right")
    assert example == source.example(index, 0)


def test_the_splits_are_disjoint_and_heldout_does_not_repeat():
    sides = {}
    for split in ("train", "heldout"):
        # few numbers, so that the same problems come up often
        source = CountdownSource(name="c", split=split, numbers=(2, 2), largest=20)
        problems = [json.loads(source.example(i, 0).reference) for i in range(1500)]
        sides[split] = {(*sorted(p["numbers"]), p["target"]) for p in problems}
    assert sides["train"].isdisjoint(sides["heldout"])
    assert len(sides["heldout"]) >= 10
    held = load(CountdownSource(name="c", split="heldout", limit=300), seed=4)
    assert len({e.id for e in held.items}) == 300


@pytest.mark.parametrize("answer", ["3*5+7*(7-4)", "(3*5)+7+7+7", "36", "5*7+1", "5*7+3/(7-7)"])
def test_not_the_game(answer):
    assert (score(answer).value, score(answer).verdict) == (0.0, "wrong")


@pytest.mark.parametrize(
    "answer",
    ["5*7+7/7 - 0*3", "5 * 7 + 7 / 7 * 1", "7*(5+7/7)-6"],
)
def test_numbers_that_are_not_given(answer):
    assert "more often than given" in score(answer).reason


@pytest.mark.parametrize(
    "answer", ["3*(5+7)", " 3 * (7 + 5) ", "3×(5+7)", "3*(5+7) = 36", "(5+7)\n*3"]
)
def test_right(answer):
    result = score(answer)
    assert (result.value, result.verdict) == (1.0, "right"), result.reason


def test_fractions_are_exact():
    task = Example("0", "", json.dumps({"numbers": [1, 3, 3, 8, 8], "target": 24}))
    assert score("8/(3-8/3)", task).value == 1.0
    assert score("(1/3+8/3)*8", task).value == 1.0
    assert score("(1/3+8/3)*8", TASK).value == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        "3**5",
        "36.0",
        "7//5",
        "-5+7",
        "3(5+7)",
        "0x24",
        "1_0",
        "__import__('os').system('x')",
        "[36][0]",
        "36 if 1 else 0",
        "7 7",
        "",
        "(" * 250 + "7" + ")" * 249,
        "1+" * 5000 + "1",
        "3*(5+7) = 35",
        "3*(5+7) = 36 = 36",
    ],
    ids=lambda answer: answer[:16],
)
def test_refused(answer):
    assert (score(answer).value, score(answer).verdict) == (0.0, "wrong")


def test_deep_expressions_are_bounded():
    deep = "(" * 200 + "7" + ")" * 200
    assert score(deep).verdict == "wrong"
    assert score("1+" * 240 + "1").verdict == "wrong"
    assert score("9*" * 240 + "9").verdict == "wrong"


def test_only_the_last_answer_behind_the_thinking_counts():
    right, wrong = "<answer>3*(5+7)</answer>", "<answer>3+5</answer>"
    assert countdown_score(TASK, wrong + right).value == 1.0
    assert countdown_score(TASK, right + wrong).value == 0.0
    assert countdown_score(TASK, right + "</think> 36").verdict == "no_answer"
    assert countdown_score(TASK, "3*(5+7)").verdict == "no_answer"


@pytest.mark.parametrize("reference", ["", "36", "{}", '{"numbers": 3, "target": 1}', "[1]"])
def test_a_bad_reference_is_our_fault(reference):
    result = countdown_score(Example("0", "", reference), "<answer>1</answer>")
    assert result.verdict == "unscorable"


@given(st.text(alphabet="0123456789+-*/() \n=<>answer", max_size=60))
def test_never_raises(text):
    assert score(text).value in (0.0, 1.0)


def test_the_checker_needs_no_jax():
    code = "import jaxrl_vr.data.countdown, sys; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"numbers": (1, 3)}, "use 2 <= fewest <= most <= 8"),
        ({"numbers": (4, 3)}, "use 2 <= fewest"),
        ({"target": (50, 55)}, "at least ten targets"),
    ],
)
def test_impossible_settings(fields, message):
    with pytest.raises(ValidationError, match=message):
        CountdownSource(name="c", **fields)

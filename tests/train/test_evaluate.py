"""What evaluations say, against hand-made answers."""

import json
import types
from dataclasses import replace

import pytest

from jaxrl_vr.data.fakes import ByteTokenizer
from jaxrl_vr.data.sources import JsonlSource, load
from jaxrl_vr.train.evaluate import summarise, write_answers
from jaxrl_vr.types import Example, Group, Message, Rollout, Score

TOKENIZER = ByteTokenizer()
MATH = {"type": "math_answer", "extract": "last_number"}


def rollout(text, verdict, *, finish="stop"):
    ids = tuple(TOKENIZER.encode(text))
    n = len(ids)
    score = Score(1.0 if verdict == "right" else 0.0, verdict, reason="why")
    return Rollout(0, (1,), ids, (-1.0,) * n, ("sampled",) * n, (0,) * n, None, finish, score)


def group(*rollouts, id="a", verifier=MATH):
    example = Example(id, "What?", "5", verifier=verifier, source="s")
    return Group(example, tuple(replace(r, id=i) for i, r in enumerate(rollouts)))


def found(*groups):
    ctx = types.SimpleNamespace(decode=TOKENIZER.decode)
    return summarise(groups, "task", "stage", 3, ctx)


def test_greedy_accuracy_length_and_truncation():
    result = found(
        group(rollout("5", "right")),
        group(rollout("is 4", "wrong")),
        group(rollout("I think", "no_answer", finish="length")),
        group(rollout("55", "wrong")),
    )
    assert (result.stage, result.step, result.task) == ("stage", 3, "task")
    assert (result.n, result.samples, result.unscorable) == (4, 1, 0)
    assert result.accuracy == 1 / 4 and result.pass_at_k == {"1": 1 / 4}
    assert result.maj_at_k is None
    assert result.truncated_rate == 1 / 4
    assert result.mean_length == (1 + 4 + 7 + 2) / 4


def test_average_pass_and_majority_of_several_samples():
    result = found(
        # 2 of 4 right; the vote: 5 twice, 4 and 6 once each.
        group(
            rollout("5", "right"),
            rollout("4", "wrong"),
            rollout("x = 5", "right"),
            rollout("6", "wrong"),
        ),
        # 1 of 4 right; the vote: 4 twice.
        group(
            rollout("4", "wrong"),
            rollout("4.0", "wrong"),
            rollout("5", "right"),
            rollout("hm", "no_answer"),
        ),
    )
    assert result.accuracy == (2 / 4 + 1 / 4) / 2
    # pass@2: 1 - C(2,2)/C(4,2) = 5/6 and 1 - C(3,2)/C(4,2) = 1/2.
    assert result.pass_at_k == pytest.approx({"1": 3 / 8, "2": (5 / 6 + 1 / 2) / 2, "4": 1.0})
    assert result.maj_at_k == (1 + 0) / 2


def test_unscorable_answers_are_left_out():
    fault = rollout("5555", "unscorable", finish="length")
    result = found(
        group(rollout("5", "right"), fault, rollout("4", "wrong"), fault),
        group(fault, fault, fault, fault),
    )
    assert (result.n, result.samples, result.unscorable) == (1, 4, 6)
    assert result.accuracy == 1 / 2
    # Two scorable samples are all there are to draw from for k = 4.
    assert result.pass_at_k == {"1": 1 / 2, "2": 1.0, "4": 1.0}
    assert result.truncated_rate == 0 and result.mean_length == 1
    # 5 and 4 have one vote each; the first one wins.
    assert result.maj_at_k == 1.0


def test_nothing_scorable_is_zero_and_not_nan():
    result = found(group(rollout("5", "unscorable")))
    assert (result.n, result.unscorable) == (0, 1)
    assert (result.accuracy, result.mean_length, result.truncated_rate) == (0, 0, 0)
    assert result.pass_at_k == {"1": 0.0}
    json.dumps(vars(result), allow_nan=False)


def test_answers_that_have_no_vote_have_no_majority():
    verifier = {"type": "custom", "path": "operator:eq"}
    one = group(rollout("5", "right"), rollout("5", "right"), verifier=verifier)
    assert found(one).maj_at_k is None
    assert found(one).accuracy == 1.0


def test_written_answers_are_data(tmp_path):
    ctx = types.SimpleNamespace(decode=TOKENIZER.decode)
    chat = Group(
        Example("b", (Message("user", "Hi"),), "5", verifier=MATH, source="s"),
        (rollout("5é", "right"),),
    )
    write_answers(ctx, tmp_path, [group(rollout("5", "right"), rollout("4", "wrong")), chat])
    every = [json.loads(x) for x in (tmp_path / "output.jsonl").read_text().splitlines()]
    assert [r["id"] for r in every] == ["s/a/0", "s/a/1", "s/b/0"]
    assert every[1] == {
        "id": "s/a/1",
        "prompt": "What?",
        "completion": "4",
        "reference": "5",
        "finish": "stop",
        "value": 0.0,
        "verdict": "wrong",
        "reason": "why",
    }
    fields = {"prompt": "prompt", "completion": "completion", "reference": "reference", "id": "id"}
    (tmp_path / "right.jsonl").write_text(
        (tmp_path / "right.jsonl").read_text().splitlines()[0] + "\n"
    )
    source = JsonlSource(name="right", path=str(tmp_path / "right.jsonl"), fields=fields)
    (example,) = load(source, seed=0).items
    assert (example.id, example.prompt, example.completion) == ("s/a/0", "What?", "5")

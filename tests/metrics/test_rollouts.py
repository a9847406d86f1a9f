"""Rollouts as JSON Lines."""

import json
import math

import numpy as np

from jaxrl_vr.metrics.rollouts import RolloutLog
from jaxrl_vr.types import Example, Group, Rollout, Score


def rollout(id, text, logp, source, score, finish="stop"):
    return Rollout(
        id=id,
        prompt_ids=tuple(map(ord, "1+1=")),
        token_ids=tuple(map(ord, text)),
        logp=logp,
        source=source,
        version=(4, 5)[: len(text)],
        kept_mass=None,
        finish=finish,
        score=score,
    )


RIGHT = Score(1.0, "right", {"math_answer": 1.0, "format": math.nan}, "2 equals 2")
GROUP = Group(
    Example("e1", "1+1=", "2", source="sums"),
    (
        rollout(7, "2.", (-0.5, -1.5), ("sampled", "forced"), RIGHT),
        rollout(8, "é", (-2.0,), ("sampled",), Score(0.0, "wrong", {}, "é is no number"), "length"),
        rollout(9, "", (), (), None, "aborted"),
    ),
)


def decode(ids):
    return "".join(map(chr, ids))


def read(path):
    return [
        json.loads(line, parse_constant=lambda _: 1 / 0) for line in path.read_text().splitlines()
    ]


def test_a_line_says_what_was_sampled_and_why_it_scored(tmp_path):
    path = RolloutLog(tmp_path / "rollouts").write(
        12, [GROUP], decode, np.array([[0.5, -0.5, 0.0]], np.float32)
    )
    assert path == tmp_path / "rollouts" / "step-000012.jsonl"
    first, second, third = read(path)
    assert first == {
        "example": "e1",
        "source": "sums",
        "sample": 0,
        "prompt": "1+1=",
        "text": "2.",
        "reference": "2",
        "finish": "stop",
        "num_tokens": 2,
        "logp_mean": -0.5,  # the forced token is not the model's choice
        "tokens": [50, 46],
        "versions": [4, 5],
        "score": {
            "value": 1.0,
            "verdict": "right",
            "components": {"math_answer": 1.0, "format": None},
            "reason": "2 equals 2",
        },
        "advantage": 0.5,
    }
    assert (second["text"], second["finish"], second["advantage"]) == ("é", "length", -0.5)
    assert (third["logp_mean"], third["num_tokens"], "score" in third) == (None, 0, False)


def test_a_step_done_again_is_written_over(tmp_path):
    log = RolloutLog(tmp_path)
    log.write(1, [GROUP, GROUP], decode)
    path = log.write(1, [GROUP], decode)
    assert [line["sample"] for line in read(path)] == [0, 1, 2]
    assert "advantage" not in read(path)[0]
    assert [p.name for p in tmp_path.iterdir()] == ["step-000001.jsonl"]

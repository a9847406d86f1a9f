"""Runs whose updates compute what rows begin with alike once, beside runs that do not."""

import numpy as np
import pytest
from inprocess import config, judged, lines, rl, train

from jaxrl_vr.rollout import batch as packed

ROWS = 'micro = { rows = 8, row_length = 64%s }\nobjective = { type = "%s" }\n%s'
CRITIC = """
advantage = { type = "gae" }
critic = { optimizer = { type = "adamw", learning_rate = 1e-2 } }
old_logp = "recomputed"
kl = { where = "loss", coef = 0.1 }
"""


def numbers(folder):
    """What every step reported, but for sampling and clocks."""
    return [
        {
            k: v
            for k, v in line.items()
            if k.partition("/")[0] in ("reward", "loss", "policy", "optimizer", "value", "mismatch")
        }
        for line in lines(folder / "run" / "metrics.jsonl")
    ]


@pytest.fixture
def shares(monkeypatch):
    """The share of a micro-batch that is computed, batch by batch."""
    found = []
    distinct = packed.distinct_tokens

    def watched(tokens, segment_ids, parts):
        result = distinct(tokens, segment_ids, parts)
        found.append(1.0 if result is None else result[0][0].size / tokens[0].size)
        return result

    monkeypatch.setattr(packed, "distinct_tokens", watched)
    return found


@pytest.mark.parametrize("more", [CRITIC, ""], ids=["critic_and_reference", "grpo"])
def test_a_run_is_the_same_with_and_without(tmp_path, verifier, shares, more):
    verifier("""
    def is_odd(example, response):
        return ord(response[:1] or "0") % 2
    """)
    reports = []
    for name, option in (("with", ""), ("without", ", share_prefixes = false")):
        (tmp_path / name).mkdir()
        stage = rl("rl", steps=2, more=ROWS % (option, "ppo_clip", more))
        train(config(tmp_path / name, stage, data=judged("is_odd")), "stages.0.samples=8")
        reports.append(numbers(tmp_path / name))
    # 32 rollouts of 8 to 10 tokens fill 5 or 6 of 8 rows, of which half are prompts and padding.
    assert shares and max(shares) < 0.8
    ours, plain = reports
    assert len(ours) == len(plain) == 2
    for a, b in zip(ours, plain, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            np.testing.assert_allclose(a[key], b[key], rtol=2e-3, atol=2e-4, err_msg=key)
    assert ours[1]["optimizer/grad_norm"] > 0


def test_rows_over_context_share_nothing(tmp_path, shares):
    stage = rl("rl", more=ROWS % ("", "ppo_clip", ""))
    train(config(tmp_path, stage), "mesh.context=2", "mesh.data=4", "mesh.fsdp=1")
    assert shares == []

"""Partial rollouts: a step's sampling is cut at a budget, and goes on in the next."""

import json
import signal

import pytest
from inprocess import call, config, rl, train

from jaxrl_vr.train.interrupt import Interrupt, Interrupted


def run(tmp_path, *overrides, more="partial = { tokens = 24 }"):
    tmp_path.mkdir(exist_ok=True)
    path = config(tmp_path, rl("rl", steps=4, more=more))
    # 8 completions of up to 10 tokens, 4 at a time: the budget ends a step before they are done.
    small = "engine.slots=4", "engine.steps_per_call=2", "stages.rl.sampling.max_new_tokens=10"
    train(path, "mesh.data=4", "mesh.tensor=2", *small, *overrides)
    folder = tmp_path / "run"
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    files = sorted((folder / "stages/rl/rollouts").glob("*.jsonl"))
    return steps, [[json.loads(line) for line in f.read_text().splitlines()] for f in files]


def test_what_is_cut_goes_on_in_the_next_step(tmp_path):
    steps, rollouts = run(tmp_path)
    assert len(steps) == len(rollouts) == 4
    waiting = [step["rollout/waiting"] for step in steps]
    assert waiting[0] > 0
    for step, lines, before in zip(steps, rollouts, [0, *waiting], strict=False):
        # Groups of two; those that wait make room for fewer new prompts.
        assert len(lines) % 2 == 0
        assert len(lines) // 2 + step["rollout/waiting"] == max(4, before)
    assert steps[0]["rollout/staleness"] == 0
    assert max(step["rollout/staleness"] for step in steps[1:]) > 0
    assert all(step["mismatch/max"] < 1e-4 for step in steps[:1])


def test_a_large_budget_changes_nothing(tmp_path):
    _, whole = run(tmp_path / "whole", more="")
    _, large = run(tmp_path / "large", more="partial = { tokens = 1_000_000 }")
    assert whole == large


def test_a_resumed_run_has_the_same_rollouts(tmp_path, monkeypatch):
    _, whole = run(tmp_path / "whole")
    metrics, check = tmp_path / "cut/run/metrics.jsonl", Interrupt.check

    def stops_in_the_third_step(interrupt):
        check(interrupt)
        if metrics.is_file() and len(metrics.read_text().splitlines()) == 2:
            raise Interrupted(signal.SIGINT)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Interrupt, "check", stops_in_the_third_step)
        run(tmp_path / "cut")
    _, resumed = run(tmp_path / "cut")
    assert resumed == whole


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("partial = {}", "partial without a budget never cuts; give it tokens or seconds"),
        (
            "partial = { tokens = 5 }\ndynamic_sampling = {}",
            "partial with dynamic_sampling: both decide how long a step samples; leave one out",
        ),
    ],
)
def test_what_cannot_act_is_refused(tmp_path, capsys, more, message):
    path = config(tmp_path, rl("rl", more=more))
    assert message in call(capsys, "train", path, "--dry-run", code=2)

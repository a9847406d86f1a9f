"""Schedules of learning rates and updates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inprocess import call, config, rl

from jaxrl_vr.config import load, parse
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.optimizer import Schedule
from jaxrl_vr.train.rl_stage import RlStage

RL = {
    "name": "grpo",
    "data": ["ones"],
    "steps": 5,
    "prompts": 4,
    "samples": 2,
    "sampling": {"max_new_tokens": 4},
    "optimizer": {"learning_rate": 1e-2},
}


@pytest.mark.parametrize(
    "schedule, expected",
    [
        (Schedule(), [1, 1, 1, 1, 1]),
        (Schedule(warmup_steps=3), [1 / 4, 2 / 4, 3 / 4, 1, 1]),
        (Schedule(type="linear"), [1, 3 / 4, 2 / 4, 1 / 4, 0]),
        (
            Schedule(type="linear", warmup_steps=2, end_fraction=0.5),
            [1 / 3, 2 / 3, 1, 3 / 4, 1 / 2],
        ),
        (Schedule(type="linear", total_steps=2), [1, 1 / 2, 0, 0, 0]),
        # Half a cosine over 4 steps: 1/2 + cos(pi i / 4) / 2.
        (Schedule(type="cosine"), [1, 0.5 + 0.5**1.5, 1 / 2, 0.5 - 0.5**1.5, 0]),
    ],
    ids=["constant", "warmup", "linear", "warmup-linear", "total", "cosine"],
)
def test_schedule(schedule, expected):
    assert [schedule(step, 4) for step in range(5)] == pytest.approx(expected)


def test_updates_of_a_schedule_add_up(tmp_path):
    more = "updates = [{ step = 0, updates = 1 }, { step = 2, updates = 3 }]"
    (stage,) = load(RunConfig, [config(tmp_path, rl("grpo", steps=5, more=more))]).stages
    assert [stage.updates_at(step) for step in range(5)] == [1, 1, 3, 3, 3]
    assert stage.total_updates == 11


@given(
    st.dictionaries(st.integers(1, 12), st.integers(1, 4), max_size=4),
    st.integers(1, 4),
    st.integers(0, 15),
)
def test_updates_before_a_step_are_the_sum_of_those_at_each(later, first, step):
    schedule = [{"step": s, "updates": u} for s, u in sorted({0: first, **later}.items())]
    stage = parse(RlStage, {**RL, "updates": schedule})
    assert stage.updates_before(step) == sum(stage.updates_at(s) for s in range(step))
    assert parse(RlStage, {**RL, "updates": first}).updates_before(step) == first * step


def test_a_billion_steps_are_counted_without_going_through_them(tmp_path, capsys):
    more = "updates = [{ step = 0, updates = 1 }, { step = 4, updates = 2 }]"
    path = config(tmp_path, rl("grpo", steps=10**9, more=more))
    said = call(capsys, "train", path, "--dry-run")
    assert f"{4 + 2 * (10**9 - 4)} in all" in said

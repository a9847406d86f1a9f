"""The stopwatch, with a clock that the test turns."""

import pytest

from jaxrl_vr.metrics.throughput import Phases


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def phases(clock):
    return Phases(clock)


def test_seconds_and_tokens_add_up(phases, clock):
    for seconds, tokens in [(2.0, 100), (3.0, 300)]:
        with phases("rollout"):
            clock.now += seconds
            phases.tokens("rollout", tokens)
        clock.now += 50.0
    assert phases.seconds() == {"rollout": 5.0}
    assert phases.step() == {"speed/rollout_s": 5.0, "speed/rollout_tokens_per_s": 80.0}


def test_step_reports_what_is_new(phases, clock):
    with phases("rollout"):
        clock.now += 2.0
    phases.tokens("rollout", 100)
    assert phases.step() == {"speed/rollout_s": 2.0, "speed/rollout_tokens_per_s": 50.0}
    with phases("rollout"):
        clock.now += 1.0
    phases.tokens("rollout", 200)
    with phases("update"):
        clock.now += 4.0
    assert phases.step() == {
        "speed/rollout_s": 1.0,
        "speed/rollout_tokens_per_s": 200.0,
        "speed/update_s": 4.0,
    }
    assert phases.step() == {}
    assert phases.seconds() == {"rollout": 3.0, "update": 4.0}


def test_a_phase_that_raises_is_counted(phases, clock):
    with pytest.raises(KeyError), phases("update"):
        clock.now += 1.5
        raise KeyError
    assert phases.seconds() == {"update": 1.5}


def test_a_phase_inside_itself_counts_once(phases, clock):
    with phases("eval"):
        clock.now += 1.0
        with phases("eval"):
            clock.now += 1.0
        clock.now += 1.0
    assert phases.seconds() == {"eval": 3.0}


def test_phases_that_overlap_each_count_their_own_time(phases, clock):
    with phases("rollout"):
        clock.now += 1.0
        with phases("verify"):
            clock.now += 2.0
    assert phases.seconds() == {"verify": 2.0, "rollout": 3.0}


def test_tokens_without_time_have_no_speed(phases):
    phases.tokens("rollout", 5)
    assert phases.step() == {}

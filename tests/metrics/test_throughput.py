"""The stopwatch, with a clock that the test turns."""

import contextlib
import functools

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


@contextlib.contextmanager
def noted(names, name):
    """Notes when a name begins and ends."""
    names.append(f"{name} begins")
    yield
    names.append(f"{name} ends")


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


def test_flops_have_a_rate_and_an_mfu_where_the_peak_is_known(clock):
    for peak, more in ((None, {}), (1e4, {"speed/update_mfu": 0.015})):
        phases = Phases(clock, peak_flops=peak)
        with phases("update"):
            clock.now += 4.0
            phases.flops("update", 400)
            phases.flops("update", 200)
        rates = {"speed/update_flops": 600, "speed/update_flops_per_s": 150.0}
        assert phases.step() == {"speed/update_s": 4.0, **rates, **more}


def test_waits_belong_to_the_open_phase(phases, clock):
    with phases("rollout"):
        clock.now += 1.0
        with phases.waiting("rewards"):
            clock.now += 2.0
        phases.waited("device", 0.5)
    with phases("update"), phases.waiting("device"):
        clock.now += 3.0
    assert phases.step() == {
        "speed/rollout_s": 3.0,
        "speed/rollout_wait_for_rewards_s": 2.0,
        "speed/rollout_wait_for_device_s": 0.5,
        "speed/update_s": 3.0,
        "speed/update_wait_for_device_s": 3.0,
    }
    with phases("rollout"):
        clock.now += 1.0
    # What it once waited for is there, also where it did not wait.
    assert phases.step() == {
        "speed/rollout_s": 1.0,
        "speed/rollout_wait_for_rewards_s": 0.0,
        "speed/rollout_wait_for_device_s": 0.0,
    }


def test_devices_idle_while_they_have_no_work(phases, clock):
    with phases("update"):
        clock.now += 1.0  # packs
        with phases.fetching():
            clock.now += 4.0
        clock.now += 0.5
        with phases.fetching():
            clock.now += 2.0
    with phases("rollout"):
        clock.now += 5.0
        phases.busy(4.5)
    assert phases.step() == {
        "speed/update_s": 7.5,
        "speed/update_wait_for_device_s": 6.0,
        "speed/update_idle_s": 1.5,
        "speed/rollout_s": 5.0,
        "speed/rollout_idle_s": 0.5,
    }


def test_a_wait_that_raises_is_counted(phases, clock):
    with pytest.raises(KeyError), phases("rollout"), phases.waiting("rewards"):
        clock.now += 1.5
        raise KeyError
    assert phases.step() == {"speed/rollout_s": 1.5, "speed/rollout_wait_for_rewards_s": 1.5}


def test_phases_and_waits_are_annotated(clock):
    names = []
    phases = Phases(clock, annotate=functools.partial(noted, names))
    with phases("rollout"), phases.waiting("rewards"):
        pass
    assert names == [
        "rollout begins",
        "wait for rewards begins",
        "wait for rewards ends",
        "rollout ends",
    ]

"""How long devices have work and the host waits: by a turned clock, and of a real engine."""

from engines import engine_of, prompt

from jaxrl_vr.sampler.occupancy import Occupancy


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_devices_have_work_from_the_first_program_to_the_fetch():
    clock = Clock()
    found = Occupancy(clock)
    clock.now += 1  # plans
    found.handed_over()
    clock.now += 2  # plans on while they work
    found.handed_over()
    clock.now += 4
    with found.fetching():
        clock.now += 8
    clock.now += 16
    found.handed_over()
    clock.now += 32
    found.ended()  # dropped
    clock.now += 64
    found.ended()
    assert (found.waited_s, found.busy_s) == (8, 2 + 4 + 8 + 32)


def test_a_fetch_that_raises_is_counted():
    clock = Clock()
    found = Occupancy(clock)
    found.handed_over()
    try:
        with found.fetching():
            clock.now += 3
            raise KeyError
    except KeyError:
        pass
    assert (found.waited_s, found.busy_s) == (3, 3)


def test_an_engine_has_work_while_it_samples_and_none_behind(thin, one_device, make_request):
    engine = engine_of(thin, one_device)
    clock = Clock()

    def tick():
        clock.now += 1
        return clock.now

    engine.occupancy = found = Occupancy(tick)
    assert (found.waited_s, found.busy_s) == (0, 0)
    engine.submit([make_request(i, prompt(i, 4), limit=12, stop_ids=()) for i in range(3)])
    while engine.num_unfinished:
        engine.step()
    # Three chunks of 5 steps for 12 tokens, each fetched once. A look at the clock takes a second:
    # one when a program is handed over, one at each end of the wait, one behind it.
    assert (found.waited_s, found.busy_s) == (3, 3 * 3)
    clock.now += 1000
    engine.free()
    assert found.busy_s == 3 * 3


def test_work_that_is_dropped_ends(thin, one_device, make_request):
    engine = engine_of(thin, one_device)
    clock = Clock()
    engine.occupancy = found = Occupancy(clock)
    engine.submit([make_request(0, prompt(0, 4), limit=12, stop_ids=())])
    engine.step()  # launches, lands and launches again
    before = found.busy_s
    clock.now += 7
    engine.free()
    clock.now += 100
    engine.free()
    assert found.busy_s - before == 7

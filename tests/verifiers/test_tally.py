"""Counts of what happened to responses, and the end of a run that cannot score them."""

import pytest

from jaxrl_vr.types import Max, Mean, Score
from jaxrl_vr.verifiers.tally import Result, Tally, TooManyUnscorable, UnscorableRate, cause, limit

RIGHT = Score(1.0, "right")


def unscorable(reason: str) -> Score:
    return Score(0.0, "unscorable", reason=reason)


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        ("the reference '' is empty or its braces do not close", "reference"),
        ("math_answer: the reference '{' is empty", "reference"),
        ("line 5: no field", "reference"),
        ("the verifier does not load: path 'x:f'", "load"),
        ("the verifier raised KeyError: 'x'", "raised"),
        ("m:f returned NoneType; return a Score", "result"),
        ("no idea", "other"),
    ],
)
def test_causes(reason, named):
    assert cause(unscorable(reason)) == named
    assert cause(Score(0.0, "wrong", reason=reason)) == ""


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        ("limit: no result after 1 s, twice", "timeout"),
        ("limit: out of memory, twice", "memory"),
        ("limit: the worker died (exit status 3), twice", "crash"),
        ("limit: 102 characters, more than max_chars = 100", "size"),
        ("limit: test 2: cpu = 5 s of CPU time", "timeout"),
        ("limit: wall = 5 s by the clock", "timeout"),
        ("limit: https://judge: timeout = 3 s, each time", "timeout"),
        ("limit: the search took more than 1 s", "timeout"),
        ("limit: memory = 1024 bytes", "memory"),
        ("limit: test 1: output = 10 bytes", "size"),
        ("answer '5'", ""),
    ],
)
def test_limits(reason, named):
    assert limit(Score(0.0, "wrong", reason=reason)) == named


def test_a_tally_counts_since_it_was_last_taken():
    tally = Tally()
    tally.add(Result(0, RIGHT, 0.25))
    tally.add(Result(1, Score(0.0, "wrong", reason="limit: no result after 1 s, twice"), 1.0, 2))
    tally.add(Result(2, unscorable("the verifier raised X"), 0.75))
    found = tally.taken()
    assert found["speed/verify_s"] == Mean(2.0, 3)
    assert found["speed/verify_s_max"] == Max(1.0)
    assert found["verify/timeout"] == found["verify/retried"] == Mean(1, 3)
    assert found["verify/crash"] == found["verify/memory"] == Mean(0, 3)
    assert found["verify/unscorable_raised"] == Mean(1, 3)
    assert found["verify/unscorable_reference"] == Mean(0, 3)
    assert tally.taken() == {}


def test_a_watch_ends_above_its_rate_and_shows_the_worst():
    watch = UnscorableRate(0.1)
    watch.see([(f"a{i}", unscorable("no reference")) for i in range(9)])
    watch.see([(f"b{i}", RIGHT) for i in range(90)])  # 9 of 99: too few to say
    watch.see([("c", unscorable("raised"))])  # 10 of 100 is not above
    with pytest.raises(TooManyUnscorable) as error:
        watch.see([("d", unscorable("raised"))])
    assert str(error.value).splitlines() == [
        "11 of 101 answers could not be scored, more than verifiers.max_unscorable = 0.1: mend the "
        "references or the verifier, or raise max_unscorable",
        "  9 x no reference (first: a0)",
        "  2 x raised (first: c)",
    ]


def test_a_watch_of_rate_one_never_ends():
    watch = UnscorableRate(1.0)
    watch.see([(str(i), unscorable("x")) for i in range(1000)])

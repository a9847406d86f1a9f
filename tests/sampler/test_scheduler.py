"""The scheduler: first come, first served, and refusing what cannot be sampled."""

import subprocess
import sys

import pytest

from jaxrl_vr.sampler.scheduler import MAX_STOP_IDS, Scheduler, start
from jaxrl_vr.types import Prefix, Request, Sampling

NONE = Prefix()


def request(id, prompt=(1,), key=(0, 0, 0, 0), prefix=NONE, **values):
    return Request(id, prompt, key, Sampling(**{"max_new_tokens": 4, **values}), prefix)


def emit(live, *tokens, kept=0.0):
    live.extend(tokens, [-float(t) for t in tokens], [kept] * len(tokens), "sampled", 0)


def scheduler(slots):
    return Scheduler(slots, vocab_size=10, max_length=20)


def admitted(s):
    return [(slot, r.id) for slot, r in s.admit()]


def test_imports_no_jax():
    code = (
        "import sys, jaxrl_vr.sampler.scheduler; print(sorted({'jax', 'numpy'} & {*sys.modules}))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"


def test_first_come_first_served():
    s = scheduler(2)
    s.submit([request(5), request(3)])
    s.submit([request(9), request(1)])
    assert s.num_unfinished == 4
    assert admitted(s) == [(0, 5), (1, 3)]
    assert admitted(s) == []
    assert s.finish(1, "length").id == 3
    assert admitted(s) == [(1, 9)]
    s.finish(0, "stop")
    s.finish(1, "stop")
    assert [id for _, id in admitted(s)] == [1]
    assert s.num_unfinished == 1


def test_finish_keeps_what_was_emitted():
    s = scheduler(1)
    s.submit([request(4, prompt=(8, 9))])
    s.admit()
    emit(s.live[0], 2, 7)
    assert s.live[0].position == 4
    rollout = s.finish(0, "stop")
    assert (rollout.id, rollout.prompt_ids, rollout.token_ids) == (4, (8, 9), (2, 7))
    assert rollout.logp == (-2.0, -7.0)
    assert rollout.source == ("sampled", "sampled")
    assert rollout.version == (0, 0)
    assert rollout.finish == "stop"
    assert s.num_unfinished == 0


@pytest.mark.parametrize("values", [{"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}], ids=str)
def test_kept_mass_is_given_where_the_support_is_cut(values):
    cut, uncut = start(request(0, **values)), start(request(0))
    for live in (cut, uncut):
        emit(live, 1, kept=-0.5)
    assert cut.rollout("stop").kept_mass == (-0.5,)
    assert uncut.rollout("stop").kept_mass is None


def test_abort_frees_running_and_drops_waiting():
    s = scheduler(2)
    s.submit([request(i) for i in range(5)])
    s.admit()
    emit(s.live[1], 6)
    rollouts, slots = s.abort([1, 3, 77])
    assert [(r.id, r.token_ids, r.finish) for r in rollouts] == [
        (1, (6,), "aborted"),
        (3, (), "aborted"),
    ]
    assert slots == [1]
    assert [r.id for r in s.pending] == [2, 4]
    assert admitted(s) == [(1, 2)]


def test_pause_puts_the_running_before_the_queue_with_what_they_have():
    s = scheduler(2)
    s.submit([request(i, key=(1, 2, 3, i)) for i in range(4)])
    s.admit()
    emit(s.live[0], 5)
    emit(s.live[1], 6, 7)
    s.pause_all()
    assert s.num_unfinished == 4
    assert not s.live
    assert [(r.id, r.prefix.token_ids, r.key) for r in s.pending] == [
        (0, (5,), (1, 2, 3, 0)),
        (1, (6, 7), (1, 2, 3, 1)),
        (2, (), (1, 2, 3, 2)),
        (3, (), (1, 2, 3, 3)),
    ]
    assert s.pending[1].prefix == Prefix((6, 7), (-6.0, -7.0), None, ("sampled",) * 2, (0, 0))
    assert admitted(s) == [(0, 0), (1, 1)]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (request(8, prompt=()), "request 8: the prompt is empty"),
        (request(8, max_new_tokens=0), "max_new_tokens = 0 leaves nothing"),
        (
            request(8, prefix=Prefix((1,) * 4, (0.0,) * 4, None, ("sampled",) * 4, (0,) * 4)),
            "max_new_tokens = 4 leaves nothing to sample after a prefix of 4 tokens",
        ),
        (
            request(8, prompt=(1,) * 17),
            r"request 8: prompt of 17 tokens \+ max_new_tokens = 4 exceeds .* context of 20",
        ),
        (request(8, prompt=(1, 10)), "request 8: token id 10 is outside .* vocabulary of 10"),
        (request(8, prompt=(1, -1)), "request 8: token id -1 is outside"),
        (
            request(8, prefix=Prefix((12,), (0.0,), None, ("sampled",), (0,))),
            "request 8: token id 12 is outside",
        ),
        (
            request(8, prefix=Prefix((1, 2), (0.0,), None, ("sampled",) * 2, (0, 0))),
            r"request 8: prefix.logp has 1 entries for 2 tokens",
        ),
        (request(8, stop_ids=tuple(range(9))), "request 8: 9 stop ids; give at most 8"),
        (request(8, key=(0, -1, 0, 0)), r"request 8: key \(0, -1, 0, 0\) must be"),
        (request(8, key=(0, 0, 2**32, 0)), "request 8: key .*4294967296.* must be"),
        (request(3), "request id 3 is already in progress"),
        (request(4), "request id 4 is already in progress"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_refuses_with_the_request_and_the_numbers(bad, message):
    s = scheduler(1)
    s.submit([request(3), request(4)])
    s.admit()
    with pytest.raises(ValueError, match=message):
        s.submit([request(5), bad])
    assert s.num_unfinished == 2  # none of the call is taken
    s.submit([request(5)])


def test_ids_are_unique_within_a_call_and_free_again_after():
    s = scheduler(1)
    with pytest.raises(ValueError, match="request id 2 "):
        s.submit([request(2), request(2)])
    s.submit([request(2)])
    s.admit()
    s.finish(0, "stop")
    s.submit([request(2)])
    assert s.num_unfinished == 1


def test_takes_what_just_fits():
    s = scheduler(1)
    s.submit(
        [
            request(0, prompt=(9,) * 16, stop_ids=tuple(range(MAX_STOP_IDS))),
            request(1, key=(2**32 - 1, 0, 0, 0)),
        ]
    )
    assert s.num_unfinished == 2

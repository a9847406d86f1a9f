"""The contract that every engine keeps, checked on the real engine, a fake model, a fake engine."""

import dataclasses
import math
from typing import Any

import jax
import pytest
from engines import letters

from jaxrl_vr.models.fakes import UniformModel
from jaxrl_vr.models.params import init
from jaxrl_vr.sampler.contract import Engine
from jaxrl_vr.sampler.engine import SlotEngine
from jaxrl_vr.sampler.fakes import UniformEngine
from jaxrl_vr.sampler.sizes import EngineConfig
from jaxrl_vr.sharding import TRAIN_RULES
from jaxrl_vr.types import Forced, Prefix

SLOTS, STEPS, VOCAB, CONTEXT = 3, 5, 32, 96


@dataclasses.dataclass(frozen=True)
class Case:
    """An engine with two sets of weights."""

    engine: Engine
    params: Any
    other_params: Any


@pytest.fixture(scope="module")
def uniform_engine():
    return UniformEngine(VOCAB, slots=SLOTS, steps_per_call=STEPS, max_length=CONTEXT)


@pytest.fixture(scope="module")
def uniform_model(one_device):
    model = UniformModel(VOCAB, max_length=CONTEXT)
    params = init(model.declare(), jax.random.key(0), TRAIN_RULES, one_device)
    config = EngineConfig(slots=SLOTS, steps_per_call=STEPS)
    return SlotEngine(model, params, config, one_device, decode=letters), params


@pytest.fixture(params=["transformer", "uniform-model", "uniform-engine"])
def case(request, small, other_params):
    """Each engine in turn, with nothing in it, at version 0."""
    match request.param:
        case "transformer":
            engine = request.getfixturevalue("shared_engine")
            case = Case(engine, small.params, other_params)
        case "uniform-model":
            engine, params = request.getfixturevalue("uniform_model")
            case = Case(engine, params, params)
        case _:
            case = Case(request.getfixturevalue("uniform_engine"), None, None)
    case.engine.abort(range(10_000))
    case.engine.step()
    case.engine.set_params(case.params, 0)
    return case


def test_every_request_comes_back_once(case, make_request, drain):
    requests = [
        make_request(i, prompt=range(1, 2 + i % 4), limit=1 + (i * 7) % 13, stop_ids=(0, 5))
        for i in range(11)
    ]
    assert len(requests) > SLOTS
    done = drain(case.engine, requests)
    assert sorted(done) == list(range(11))
    assert case.engine.num_unfinished == 0
    assert case.engine.step() == []
    for r in requests:
        rollout = done[r.id]
        n = len(rollout.token_ids)
        assert rollout.prompt_ids == r.prompt_ids
        assert len(rollout.logp) == len(rollout.source) == len(rollout.version) == n
        assert all(0 <= token < VOCAB for token in rollout.token_ids)
        assert all(-math.inf < logp <= 0 for logp in rollout.logp)
        assert set(rollout.source) == {"sampled"}
        assert set(rollout.version) == {0}
        assert rollout.kept_mass is None


def test_finish_reasons_and_stop_ids(case, make_request, drain):
    stop_ids = (0, 3, 9, 17)
    limit = 12
    requests = [make_request(i, limit=limit, stop_ids=stop_ids) for i in range(48)]
    done = drain(case.engine, requests)
    met = set()
    for rollout in done.values():
        *before, last = rollout.token_ids
        assert not set(before) & set(stop_ids)
        if rollout.finish == "stop":
            assert last in stop_ids  # kept
            met.add(last)
        else:
            assert rollout.finish == "length"
            assert last not in stop_ids
            assert len(rollout.token_ids) == limit
    assert len(met) >= 2
    assert {r.finish for r in done.values()} == {"stop", "length"}


def test_a_stop_id_as_the_last_allowed_token_is_a_stop(case, make_request, drain):
    free = drain(case.engine, [make_request(0, limit=9, stop_ids=())])[0]
    stop = next(t for i, t in enumerate(free.token_ids[1:], 1) if t not in free.token_ids[:i])
    limit = free.token_ids.index(stop) + 1
    again = drain(case.engine, [make_request(0, limit=limit, stop_ids=(stop,))])[0]
    assert (again.token_ids, again.finish) == (free.token_ids[:limit], "stop")


def test_limits_are_exact(case, make_request, drain):
    limits = [1, 2, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS, 17]
    requests = [make_request(i, limit=n, stop_ids=()) for i, n in enumerate(limits)]
    done = drain(case.engine, requests)
    assert [len(done[i].token_ids) for i in range(len(limits))] == limits
    assert {r.finish for r in done.values()} == {"length"}


def test_the_whole_context_can_be_filled(case, make_request, drain):
    requests = [
        make_request(0, prompt=[4] * (CONTEXT - 1), limit=1, stop_ids=()),
        make_request(1, prompt=[4], limit=CONTEXT - 1, stop_ids=()),
    ]
    done = drain(case.engine, requests)
    assert [len(done[i].token_ids) for i in (0, 1)] == [1, CONTEXT - 1]


def test_step_is_bounded(case, make_request):
    case.engine.submit([make_request(i, limit=40, stop_ids=()) for i in range(SLOTS)])
    assert case.engine.step() == []
    case.engine.abort(range(SLOTS))
    assert [len(r.token_ids) for r in case.engine.step()] == [STEPS] * SLOTS


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prompt": ()}, "request 5: the prompt is empty"),
        ({"limit": 0}, "request 5: max_new_tokens = 0 leaves nothing"),
        (
            {"limit": 2, "prefix": Prefix((1, 2), (0.0,) * 2, None, ("sampled",) * 2, (0,) * 2)},
            "request 5: max_new_tokens = 2 leaves nothing to sample after a prefix of 2 tokens",
        ),
        (
            {"prompt": (1,) * 90, "limit": 7},
            r"request 5: prompt of 90 tokens \+ max_new_tokens = 7 exceeds .* context of 96",
        ),
        ({"prompt": (1, 32)}, "request 5: token id 32 is outside the model's vocabulary of 32"),
        ({"prompt": (-3, 1)}, "request 5: token id -3 is outside"),
        (
            {"prefix": Prefix((40,), (0.0,), None, ("sampled",), (0,))},
            "request 5: token id 40 is outside",
        ),
        ({"stop_ids": range(9)}, "request 5: 9 stop ids; give at most 8"),
        ({"key": (0, 0, 0, -1)}, "request 5: key"),
    ],
    ids=["empty", "limit", "prefix", "long", "vocabulary", "negative", "prefix-id", "stops", "key"],
)
def test_refuses_bad_requests_and_takes_none_of_the_call(case, make_request, values, message):
    with pytest.raises(ValueError, match=message):
        case.engine.submit([make_request(4), make_request(5, **values)])
    assert case.engine.num_unfinished == 0


def test_ids_are_unique_among_what_is_in_progress(case, make_request, drain):
    case.engine.submit([make_request(i, limit=40, stop_ids=()) for i in range(SLOTS + 1)])
    case.engine.step()
    for id in (0, SLOTS):  # running, waiting
        with pytest.raises(ValueError, match=f"request id {id} is already in progress"):
            case.engine.submit([make_request(id)])
    with pytest.raises(ValueError, match="request id 70 "):
        case.engine.submit([make_request(70), make_request(70)])
    assert sorted(drain(case.engine)) == list(range(SLOTS + 1))
    assert sorted(drain(case.engine, [make_request(0)])) == [0]


# Stop strings and forced tokens


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_stop_string_ends_at_the_token_that_completes_it(case, make_request, drain, length):
    """Wherever it stands in a chunk and over the border of two."""
    free = drain(case.engine, [make_request(0, limit=20, stop_ids=())])[0]
    for end in range(length, 17):
        stop = letters(free.token_ids[end - length : end])
        first = letters(free.token_ids).index(stop) + length
        again = drain(case.engine, [make_request(0, limit=20, stop_ids=(), stop=("XY", stop))])[0]
        assert (again.token_ids, again.finish) == (free.token_ids[:first], "stop")
        assert again.logp == pytest.approx(free.logp[:first], abs=1e-5)
        assert len(again.source) == len(again.version) == first


def test_a_stop_string_that_is_never_written_ends_nothing(case, make_request, drain):
    requests = [make_request(i, limit=9, stop_ids=(), stop=("XY",)) for i in range(SLOTS)]
    assert {r.finish for r in drain(case.engine, requests).values()} == {"length"}


@pytest.mark.parametrize("after", [1, STEPS - 1, STEPS, STEPS + 1, 11])
def test_tokens_are_forced_once_a_completion_is_so_long(case, make_request, drain, after):
    free = drain(case.engine, [make_request(0, limit=16, stop_ids=())])[0]
    text = (3, 1, 4, 1, 5)
    rule = Forced(after, text, unless="never")
    request = make_request(0, limit=after + 9, stop_ids=(4,), forced=(rule,), stop=("dbe",))
    clear = dataclasses.replace(request.sampling, stop_ids=())
    done = drain(case.engine, [dataclasses.replace(request, sampling=clear)])[0]
    assert done.token_ids[:after] == free.token_ids[:after]
    assert done.token_ids[after : after + 5] == text  # stops that stand in it end nothing
    assert done.source == ("sampled",) * after + ("forced",) * 5 + ("sampled",) * 4
    assert done.logp[after : after + 5] == (0.0,) * 5
    assert (done.num_forced, done.finish, len(done.token_ids)) == (5, "length", after + 9)
    # What follows is drawn as behind the same tokens in a prefix.
    n = after + 5
    prefix = Prefix(done.token_ids[:n], done.logp[:n], None, done.source[:n], done.version[:n])
    plain = make_request(0, limit=after + 9, stop_ids=(), prefix=prefix)
    assert drain(case.engine, [plain])[0].token_ids == done.token_ids


def test_nothing_is_forced_where_the_text_stands_already(case, make_request, drain):
    free = drain(case.engine, [make_request(0, limit=16, stop_ids=())])[0]
    for unless, is_there in ((free.token_ids[2:4], True), (free.token_ids[6:9], False)):
        rule = Forced(6, (1, 2), letters(unless))
        assert (letters(unless) in letters(free.token_ids[:6])) == is_there
        request = make_request(0, limit=16, stop_ids=(), forced=(rule,))
        done = drain(case.engine, [request])[0]
        assert (done.num_forced == 0) == is_there
        assert (done.token_ids == free.token_ids) == is_there


def test_forced_tokens_outlive_a_cut_and_new_weights(case, make_request, drain):
    rules = Forced(3, (9, 9), "never"), Forced(8, (7,), "never")
    request = make_request(0, limit=14, stop_ids=(), forced=rules)
    whole = drain(case.engine, [request])[0]
    assert [i for i, s in enumerate(whole.source) if s == "forced"] == [3, 4, 8]
    for length in sorted({*range(1, 14)} - {4}):  # an engine never ends within a forced text
        sampled = {n: getattr(whole, n)[:length] for n in ("token_ids", "logp", "source")}
        prefix = Prefix(**sampled, kept_mass=None, version=(0,) * length)
        again = drain(case.engine, [dataclasses.replace(request, prefix=prefix)])[0]
        assert (again.token_ids, again.source) == (whole.token_ids, whole.source)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stop": ("",)}, "request 5: an empty stop string"),
        ({"forced": (Forced(6, (1, 2), "x"),)}, "request 5: 2 tokens forced after 6 leave nothing"),
        ({"forced": (Forced(2, (40,), "x"),)}, "request 5: forced token id 40 is outside"),
        (
            {"forced": (Forced(2, (1, 1), "x"), Forced(3, (1,), "x"))},
            "request 5: tokens are forced after 3 tokens, .* end at 4; raise it to 4",
        ),
    ],
    ids=["empty", "limit", "vocabulary", "order"],
)
def test_refuses_ends_that_cannot_act(case, make_request, values, message):
    with pytest.raises(ValueError, match=message):
        case.engine.submit([make_request(4), make_request(5, **values)])
    assert case.engine.num_unfinished == 0


def test_text_needs_a_decoder(small, one_device, make_request):
    engine = SlotEngine(small.model, small.params, EngineConfig(slots=1), one_device)
    with pytest.raises(ValueError, match="request 0: stop strings .* give the engine `decode`"):
        engine.submit([make_request(0, stop=("x",))])


def test_abort_returns_what_there_is_and_frees_the_slot(case, make_request, drain):
    requests = [make_request(i, limit=30, stop_ids=()) for i in range(SLOTS + 2)]
    whole = drain(case.engine, requests)
    case.engine.submit(requests)
    case.engine.step()
    running, waiting = 1, SLOTS
    case.engine.abort([running, waiting, 999])  # ids it does not know are ignored
    assert case.engine.num_unfinished == SLOTS + 2
    done = drain(case.engine)
    assert sorted(done) == list(range(SLOTS + 2))
    assert done[running].finish == done[waiting].finish == "aborted"
    assert done[running].token_ids == whole[running].token_ids[:STEPS]
    assert done[running].logp == pytest.approx(whole[running].logp[:STEPS], abs=1e-5)
    assert len(done[running].source) == len(done[running].version) == STEPS
    assert (done[waiting].token_ids, done[waiting].logp) == ((), ())
    for i in {*range(SLOTS + 2)} - {running, waiting}:
        assert (done[i].token_ids, done[i].finish) == (whole[i].token_ids, "length")


def test_abort_of_everything_and_again(case, make_request, drain):
    requests = [make_request(i, limit=30) for i in range(2 * SLOTS)]
    case.engine.submit(requests)
    case.engine.abort(range(2 * SLOTS))
    assert [(r.id, r.finish) for r in case.engine.step()] == [
        (i, "aborted") for i in range(2 * SLOTS)
    ]
    assert case.engine.num_unfinished == 0
    assert sorted(drain(case.engine, requests)) == list(range(2 * SLOTS))


def test_set_params_midway_goes_on_and_says_so(case, make_request, drain):
    """Tokens from before stay; those after equal a fresh request with them as its prefix."""
    requests = [make_request(i, limit=20, stop_ids=()) for i in range(SLOTS + 1)]
    whole = drain(case.engine, requests)
    case.engine.submit(requests)
    case.engine.step()
    case.engine.set_params(case.other_params, 7)
    done = drain(case.engine)
    for i in range(SLOTS):
        assert done[i].token_ids[:STEPS] == whole[i].token_ids[:STEPS]
        assert done[i].version == (0,) * STEPS + (7,) * (20 - STEPS)
    assert done[SLOTS].version == (7,) * 20
    prefixes = [
        Prefix(r.token_ids[:STEPS], r.logp[:STEPS], None, ("sampled",) * STEPS, (0,) * STEPS)
        for r in (done[i] for i in range(SLOTS))
    ]
    fresh = drain(
        case.engine,
        [dataclasses.replace(requests[i], prefix=p) for i, p in enumerate(prefixes)],
    )
    for i in range(SLOTS):
        assert fresh[i].token_ids == done[i].token_ids
        assert fresh[i].version == done[i].version
        assert fresh[i].logp == pytest.approx(done[i].logp, abs=1e-5)


def test_set_params_with_the_same_weights_changes_no_token(case, make_request, drain):
    requests = [make_request(i, limit=10 + i) for i in range(SLOTS + 2)]
    whole = drain(case.engine, requests)
    case.engine.submit(requests)
    done = {}
    version = 0
    while case.engine.num_unfinished:
        done |= {r.id: r for r in case.engine.step()}
        version += 1
        case.engine.set_params(case.params, version)
    for i, rollout in done.items():
        assert (rollout.token_ids, rollout.finish) == (whole[i].token_ids, whole[i].finish)
        assert rollout.logp == pytest.approx(whole[i].logp, abs=1e-5)
        assert list(rollout.version) == sorted(rollout.version)
    assert sorted(done) == list(range(SLOTS + 2))


def test_a_prefix_is_kept_as_it_was_given(case, make_request, drain):
    prefix = Prefix(
        (4, 5, 6), (-1.0, -2.0, -3.0), None, ("sampled", "forced", "observation"), (3,) * 3
    )
    (rollout,) = drain(case.engine, [make_request(0, limit=9, stop_ids=(), prefix=prefix)]).values()
    assert len(rollout.token_ids) == 9
    assert rollout.token_ids[:3] == (4, 5, 6)
    assert rollout.logp[:3] == (-1.0, -2.0, -3.0)
    assert rollout.source == ("sampled", "forced", "observation") + ("sampled",) * 6
    assert rollout.version == (3,) * 3 + (0,) * 6
    assert rollout.kept_mass is None


def test_kept_mass_of_a_prefix_is_kept(case, make_request, drain):
    prefix = Prefix((4, 5), (-1.0, -2.0), (-0.25, -0.5), ("sampled",) * 2, (0,) * 2)
    request = make_request(0, limit=5, stop_ids=(), top_k=32, prefix=prefix)
    (rollout,) = drain(case.engine, [request]).values()
    assert rollout.kept_mass == pytest.approx((-0.25, -0.5, 0, 0, 0), abs=1e-6)


def test_an_aborted_rollout_resumes_to_the_whole_one(case, make_request, drain):
    request = make_request(0, limit=23, stop_ids=())
    whole = drain(case.engine, [request])[0]
    for calls in (1, 3):
        case.engine.submit([request])
        for _ in range(calls):
            case.engine.step()
        case.engine.abort([0])
        (cut,) = case.engine.step()
        assert len(cut.token_ids) == calls * STEPS
        prefix = Prefix(cut.token_ids, cut.logp, cut.kept_mass, cut.source, cut.version)
        resumed = drain(case.engine, [dataclasses.replace(request, prefix=prefix)])[0]
        assert resumed.token_ids == whole.token_ids
        assert resumed.logp == pytest.approx(whole.logp, abs=1e-5)
        assert resumed.finish == "length"


def test_keys_decide(case, make_request, drain):
    keys = [(1, 2, 3, 4), (9, 2, 3, 4), (1, 9, 3, 4), (1, 2, 9, 4), (1, 2, 3, 9), (1, 2, 3, 4)]
    requests = [make_request(i, key=key, limit=12, stop_ids=()) for i, key in enumerate(keys)]
    done = drain(case.engine, requests)
    texts = [done[i].token_ids for i in range(len(keys))]
    assert texts[0] == texts[-1]
    assert len(set(texts)) == len(keys) - 1
    again = drain(case.engine, [dataclasses.replace(r, id=9 - r.id) for r in reversed(requests)])
    assert [again[9 - i].token_ids for i in range(len(keys))] == texts

"""The engine against the full forward: tokens, log-probs, kept mass, programs and memory."""

import dataclasses
import functools
import math
import random
import re
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_vr.models.params import shardings
from jaxrl_vr.rollout.batch import Shape, Trajectory, build
from jaxrl_vr.sampler import decode
from jaxrl_vr.sampler.engine import SlotEngine
from jaxrl_vr.sampler.sizes import EngineConfig
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh, place, to_host
from jaxrl_vr.train.update import row_logprobs
from jaxrl_vr.types import Forced


def letters(ids):
    """Text of token ids: a is 0, and so on."""
    return "".join(chr(97 + i) for i in ids)


TEMPERATURES = (1.0, 0.7, 1.3, 0.0)


def prompt(seed, length):
    return tuple(random.Random(seed).choices(range(32), k=length))


def engine_of(small, mesh, slots=3, steps=5, params=None, **rest):
    config = EngineConfig(slots=slots, steps_per_call=steps, **rest)
    params = small.params if params is None else params
    return SlotEngine(small.model, params, config, mesh, decode=letters)


@pytest.fixture(scope="module")
def thin(make_small):
    """One layer: for tests that compile engines of their own."""
    return make_small(layers=1)


def assert_equals_slow(rollout, slow):
    tokens, logp, mass = slow
    assert list(rollout.token_ids) == tokens
    np.testing.assert_allclose(rollout.logp, logp, atol=1e-5)
    if rollout.kept_mass is not None:
        np.testing.assert_allclose(rollout.kept_mass, mass, atol=1e-5)


@functools.partial(jax.jit, static_argnums=0)
def _logits(model, params, tokens):
    positions = jnp.arange(tokens.shape[1])[None]
    hidden = model.hidden(params, tokens, positions, jnp.ones_like(tokens))
    return hidden[0] @ model.head(params).T


def logits_of(small, tokens):
    """The full forward's logits at each of the tokens."""
    row = np.zeros((1, 64), np.int32)
    row[0, : len(tokens)] = tokens
    return np.asarray(_logits(small.model, small.params, row))[: len(tokens)]


# Against the full forward


@pytest.mark.parametrize(
    "sizes",
    [
        {"kv_heads": 1, "tied": True},
        {"family": "qwen2"},
        {"family": "qwen3", "kv_heads": 4, "head_dim": 6},
    ],
    ids=["llama", "qwen2", "qwen3"],
)
def test_greedy_decode_equals_the_argmax_of_the_full_forward(
    make_small, make_request, drain, one_device, sizes
):
    model = make_small(layers=1, **sizes)
    engine = engine_of(model, one_device)
    requests = [
        make_request(i, prompt(i, n), limit=20, stop_ids=(), temperature=0.0)
        for i, n in enumerate((1, 7, 30))
    ]
    done = drain(engine, requests)

    for request in requests:
        tokens = list(request.prompt_ids)
        for token in done[request.id].token_ids:
            assert token == np.argmax(logits_of(model, tokens)[-1])
            tokens.append(token)
        assert len(tokens) == len(request.prompt_ids) + 20


@functools.partial(jax.jit, static_argnums=0)
def _score(model, params, micro):
    return row_logprobs(model, params, micro)[0]


def learner_logprobs(model, params, rollouts, temperature):
    """The sampler's log-probs and the learner's, of the same tokens in packed rows."""
    trajectories = []
    for r in rollouts:
        n, m = len(r.prompt_ids), len(r.token_ids)
        trajectories.append(
            Trajectory(
                np.array(r.prompt_ids + r.token_ids),
                np.arange(n + m) >= n,
                logp=np.array((0.0,) * n + r.logp),
                temperature=temperature,
            )
        )
    batch = build(trajectories, np.ones(len(rollouts), np.float32), Shape(row_length=96, rows=2))
    micros = [jax.tree.map(lambda a, m=m: a[m], batch) for m in range(len(batch.tokens))]
    logp = np.stack([_score(model, params, micro) for micro in micros])
    assert batch.mask.sum() == sum(len(r.token_ids) for r in rollouts)
    return batch.sampler_logp[batch.mask], logp[batch.mask]


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("cuts", [{}, {"top_k": 6, "top_p": 0.9, "min_p": 0.02}], ids=str)
def test_logp_equals_the_learners(engine, small, make_request, drain, temperature, cuts):
    requests = [
        make_request(i, prompt(i, 1 + 5 * i), limit=25, temperature=temperature, **cuts)
        for i in range(6)
    ]
    done = drain(engine, requests)
    sampler, learner = learner_logprobs(
        small.model, small.params, list(done.values()), temperature or 1.0
    )
    np.testing.assert_allclose(sampler, learner, atol=1e-5)
    assert temperature == 0 or np.std(sampler) > 0.4


@pytest.mark.parametrize(
    "cuts", [{"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 9, "top_p": 0.8}], ids=str
)
def test_kept_mass_is_the_log_of_the_kept_probability(engine, small, make_request, drain, cuts):
    request = make_request(0, prompt(3, 4), limit=20, stop_ids=(), temperature=0.9, **cuts)
    rollout = drain(engine, [request])[0]
    logits = logits_of(small, request.prompt_ids + rollout.token_ids).astype(np.float64) / 0.9
    for n, (token, mass) in enumerate(zip(rollout.token_ids, rollout.kept_mass, strict=True)):
        z = logits[len(request.prompt_ids) + n - 1]
        probs = np.sort(np.exp(z - z.max()) / np.exp(z - z.max()).sum())[::-1]
        last = float(np.exp(z[token] - z.max()) / np.exp(z - z.max()).sum())
        kept = probs[: cuts.get("top_k") or len(probs)]
        before = np.cumsum(kept / kept.sum()) - kept / kept.sum()
        kept = kept[before < cuts.get("top_p", 1.0)]
        kept = kept[kept >= cuts.get("min_p", 0.0) * probs[0]]
        assert mass == pytest.approx(np.log(kept.sum()), abs=1e-5)
        assert last >= kept[-1] * (1 - 1e-5)  # never a token outside the support


def test_entropy_is_that_of_the_uncut_distribution(small, make_request, drain, one_device):
    config = EngineConfig(slots=2, steps_per_call=5, entropy=True)
    engine = SlotEngine(small.model, small.params, config, one_device, decode=letters)
    rule = (Forced(4, (3, 3), "never"),)
    request = make_request(
        0, prompt(3, 4), limit=20, stop_ids=(), temperature=0.7, top_k=3, forced=rule
    )
    whole = drain(engine, [request])[0]
    logits = logits_of(small, request.prompt_ids + whole.token_ids).astype(np.float64) / 0.7
    for n, (nats, source) in enumerate(zip(whole.entropy, whole.source, strict=True)):
        z = logits[len(request.prompt_ids) + n - 1]
        probs = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        expected = -(probs * np.log(probs)).sum() if source == "sampled" else 0.0
        assert nats == pytest.approx(expected, abs=1e-5)
    # It outlives a cut; without the entropy of its first tokens a completion has none.
    engine.submit([request])
    engine.step()
    engine.abort([0])
    (cut,) = engine.step()
    assert cut.entropy == pytest.approx(whole.entropy[: len(cut.token_ids)], abs=1e-5)
    resumed = drain(engine, [dataclasses.replace(request, prefix=cut.as_prefix())])[0]
    assert resumed.entropy == pytest.approx(whole.entropy, abs=1e-5)
    blank = dataclasses.replace(cut.as_prefix(), entropy=None)
    assert drain(engine, [dataclasses.replace(request, prefix=blank)])[0].entropy is None


@pytest.fixture(scope="module")
def crowded_engine(small, one_device):
    """Small pages, and so few that requests wait for them."""
    config = EngineConfig(slots=4, steps_per_call=5, page_tokens=4, cache_tokens=96)
    return SlotEngine(small.model, small.params, config, one_device, decode=letters)


@pytest.mark.parametrize("name", ["engine", "crowded_engine"])
@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_equals_the_slow_sampler(
    request, small, other_params, make_request, drain, seed, name
):
    """Random requests, aborts, pauses and resumes; every token as the full forward draws it."""
    engine = request.getfixturevalue(name)
    engine.set_params(small.params, 0)
    rng = random.Random(seed)
    requests = {i: random_request(rng, i, make_request) for i in range(8)}
    weights = {0: small.params}
    waiting = list(requests.values())
    done = {}
    while waiting or engine.num_unfinished:
        arriving = rng.randrange(1, 5)
        engine.submit(waiting[:arriving])
        del waiting[:arriving]
        if rng.random() < 0.3:
            engine.abort([rng.randrange(8)])
        if rng.random() < 0.3:
            version = len(weights)
            weights[version] = rng.choice([small.params, other_params])
            engine.set_params(weights[version], version)
        done |= {r.id: r for r in engine.step()}
    cut = [r for r in done.values() if r.finish == "aborted"]
    for rollout in cut:
        check_against_slow(small, requests[rollout.id], rollout, weights)
    engine.submit(dataclasses.replace(requests[r.id], prefix=r.as_prefix()) for r in cut)
    done |= drain(engine)
    for rollout in done.values():
        check_against_slow(small, requests[rollout.id], rollout, weights)
        last, limit = rollout.token_ids[-1], requests[rollout.id].sampling.max_new_tokens
        sampling = requests[rollout.id].sampling
        written = letters(rollout.token_ids)
        is_stop = last in sampling.stop_ids or any(s in written for s in sampling.stop)
        assert rollout.finish == ("stop" if is_stop else "length")
        assert is_stop or len(rollout.token_ids) == limit
    assert sorted(done) == list(range(8))


def random_request(rng, id, make_request):
    limit = rng.randrange(1, 30)
    return make_request(
        id,
        # Some have their prompt in common.
        prompt(rng.choice([rng.random(), 1, 2]), rng.randrange(1, 30)),
        key=tuple(rng.randrange(2**32) for _ in range(4)),
        limit=limit,
        stop_ids=tuple(rng.sample(range(32), rng.randrange(4))),
        temperature=rng.choice(TEMPERATURES),
        top_k=rng.choice([0, 0, 3]),
        top_p=rng.choice([1.0, 1.0, 0.8]),
        min_p=rng.choice([0.0, 0.0, 0.1]),
        stop=rng.choice([(), (), ("bc", "d"), ("aa",)]),
        forced=random_rules(rng, limit),
    )


def random_rules(rng, limit):
    """At most one text, behind some of the tokens."""
    if limit < 6 or rng.random() < 0.5:
        return ()
    ids = tuple(rng.choices(range(32), k=rng.randrange(1, 4)))
    return (Forced(rng.randrange(1, limit - 4), ids, rng.choice("abcZ")),)


def check_against_slow(small, request, rollout, weights):
    """Token n is drawn from the weights of the version it names."""
    n = len(rollout.token_ids)
    assert list(rollout.version) == sorted(rollout.version)
    if n == 0:
        return
    sampling = dataclasses.replace(request.sampling, max_new_tokens=n)
    slow = small.slow(
        dataclasses.replace(request, sampling=sampling), lambda n: weights[rollout.version[n]]
    )
    assert_equals_slow(rollout, slow)


# Keys decide


def test_tokens_depend_on_nothing_but_the_key(small, make_request, drain, one_device, engine):
    requests = [
        make_request(
            i,
            prompt(i, 1 + i),
            limit=6 + 2 * i,
            temperature=TEMPERATURES[i % 3],
            top_k=5 * (i % 2),
        )
        for i in range(10)
    ]
    shuffled = random.Random(0).sample(requests, 10)
    runs = [
        drain(engine, requests),
        drain(engine, requests),
        drain(engine, shuffled),
        drain(engine_of(small, one_device, slots=1, steps=1), shuffled),
        drain(engine_of(small, one_device, slots=8, steps=16), requests),
        {id: r for request in requests for id, r in drain(engine, [request]).items()},
    ]
    for run in runs[1:]:
        for id, first in runs[0].items():
            assert run[id].token_ids == first.token_ids
            np.testing.assert_allclose(run[id].logp, first.logp, atol=1e-5)


# One prefill a prompt


@pytest.mark.parametrize("G", [2, 3, 8])  # below, at and above the slots
def test_the_samples_of_a_prompt_share_one_prefill(engine, make_request, drain, G):
    before = dataclasses.replace(engine.counters)
    prompts = [prompt(100 + p, 3 + p) for p in range(4)]
    requests = [
        make_request(p * G + g, prompts[p], key=(0, 0, p, g), limit=7, stop_ids=())
        for p in range(4)
        for g in range(G)
    ]
    done = drain(engine, requests)
    assert engine.counters.prefilled_prompts - before.prefilled_prompts == 4
    assert engine.counters.prefilled_tokens - before.prefilled_tokens == 3 + 4 + 5 + 6
    assert engine.counters.sampled_tokens - before.sampled_tokens == 4 * G * 7
    assert len({r.token_ids for r in done.values()}) > 3 * G  # seven tokens may agree


def test_new_weights_are_prefilled_anew(engine, small, other_params, make_request, drain):
    """Nothing that the old weights computed is used after `set_params`."""
    requests = [make_request(i, (5, 6, 7), limit=30, stop_ids=()) for i in range(4)]
    engine.submit(requests)
    engine.step()  # the fourth waits for a row that is prefilled
    engine.set_params(other_params, 1)
    before = engine.counters.prefilled_prompts
    done = drain(engine)
    assert engine.counters.prefilled_prompts - before == 4  # three have tokens of their own now
    slow = small.slow(requests[3], lambda n: other_params)
    assert_equals_slow(done[3], slow)


def test_a_long_prompt_does_not_stall_the_rest(make_small, make_request, drain, one_device):
    long = make_small(layers=1, max_length=6000)
    config = EngineConfig(slots=2, steps_per_call=4)
    engine = SlotEngine(long.model, long.params, config, one_device)
    short = make_request(0, prompt(0, 3), limit=40, stop_ids=())
    engine.submit([short, make_request(1, prompt(1, 5000), limit=4, stop_ids=())])
    engine.step()
    before = engine.counters.prefilled_tokens
    assert before < 5000  # a part of it, and decoding goes on
    done = drain(engine)
    assert engine.counters.prefilled_tokens - before > 500
    assert engine.counters.decode_steps >= 40
    assert len(done[0].token_ids) == 40 and len(done[1].token_ids) == 4
    tokens = done[1].prompt_ids + done[1].token_ids
    positions = jnp.arange(len(tokens))[None]
    hidden = long.model.hidden(
        long.params, jnp.asarray([tokens]), positions, jnp.ones_like(positions)
    )
    logits = hidden[0, 4999:-1] @ long.model.head(long.params).T
    expected = jax.nn.log_softmax(logits)[jnp.arange(4), jnp.asarray(done[1].token_ids)]
    np.testing.assert_allclose(done[1].logp, expected, atol=1e-5)


def test_the_cache_holds_what_lives_and_not_the_longest_possible(thin, make_request, one_device):
    """Eight slots of up to 90 tokens in a cache of 200: those that are short never wait."""
    config = EngineConfig(slots=8, steps_per_call=4, page_tokens=4, cache_tokens=200)
    engine = SlotEngine(thin.model, thin.params, config, one_device, decode=letters)
    short = [make_request(i, prompt(i, 4), limit=12, stop_ids=()) for i in range(16)]
    engine.submit([*short, make_request(99, prompt(9, 4), limit=90, stop_ids=())])
    done, at_once = {}, 0
    while engine.num_unfinished:
        at_once = max(at_once, len(engine._decoding))
        done |= {r.id: r for r in engine.step()}
    assert at_once == 8
    assert len(done[99].token_ids) == 90
    with pytest.raises(ValueError, match=r"request 7: .* need 96 .* raise engine.cache_tokens"):
        big = SlotEngine(
            thin.model,
            thin.params,
            EngineConfig(slots=1, page_tokens=4, cache_tokens=64),
            one_device,
        )
        big.submit([make_request(7, prompt(0, 4), limit=90)])


# Programs and memory


@contextmanager
def compilations():
    """Counts the programs compiled inside."""
    names = []

    def listen(name, seconds, **_):
        if name.endswith("backend_compile_duration"):
            names.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_few_programs_and_none_for_other_values(thin, make_request, drain, one_device):
    with compilations() as all_of_them:
        engine = engine_of(thin, one_device, slots=4, steps=4)
        # The most that will be asked first: the cache grows to it.
        drain(engine, [make_request(i, prompt(i, 66), limit=30) for i in range(9)])
        # Few and many slots in use, short and long prompts, an abort, new weights.
        drain(engine, [make_request(0, (1,), limit=2)])
        drain(engine, [make_request(i, prompt(i, 2), limit=2) for i in range(2)])
        drain(engine, [make_request(i, prompt(i, 2), limit=2) for i in range(9)])
        engine.submit([make_request(99, prompt(1, 60), limit=36, stop_ids=())])
        engine.step()
        engine.abort([99])
        engine.set_params(thin.params, 1)
        drain(engine, [make_request(i, prompt(i, 66), limit=8) for i in range(4)])
    assert 0 < len(all_of_them) <= 12
    assert engine.num_compiled <= 12
    rng = random.Random(0)
    with compilations() as more:
        for _ in range(200):
            drain(
                engine, [random_request(rng, i, make_request) for i in range(rng.randrange(1, 9))]
            )
    assert more == []


def copies(text, shape):
    """Instructions of a compiled program that copy an array of this shape."""
    sizes = ",".join(map(str, shape))
    return re.findall(rf"= \w+\[{sizes}\]\S* copy\(.*", text)


@pytest.mark.parametrize(
    "axes", [{"data": 1}, {"data": 2, "tensor": 2}], ids=["one device", "four devices"]
)
def test_the_cache_is_written_in_place(thin, make_request, axes):
    mesh, params = on_mesh(thin, **axes)
    engine = engine_of(thin, mesh, slots=4 * axes["data"], params=params)
    engine.submit([make_request(i) for i in range(4 * axes["data"])])
    engine.step()
    state, arguments = engine._state, engine._decode_arguments()[1:]
    local = [a.addressable_shards[0].data.shape for a in (state.pages.k[0], state.pages.v[0])]
    pages = engine._sizes.pages // axes["data"]
    kv_heads = thin.model.arch.kv_heads // axes.get("tensor", 1)
    assert local == [(pages, kv_heads, 4, 64), (pages, kv_heads, 64, 4)]
    programs = engine._programs
    with jax.set_mesh(mesh):
        text = programs._decode.lower(engine._view, state, *arguments).compile().as_text()
    assert f"f32[{','.join(map(str, local[0]))}]" in text
    assert [copies(text, shape) for shape in local] == [[], []]
    if len(axes) == 1:
        # Where nothing is donated the first write has to copy, and the search finds it.
        kept = jax.jit(programs._decode_of).lower(engine._view, state, *arguments)
        found = [copies(kept.compile().as_text(), shape) for shape in local]
        assert [len(of_shape) for of_shape in found] == [thin.model.arch.layers] * 2


def test_nothing_is_held_once_it_is_freed(small, make_request, drain, engine):
    keys = (engine._sizes.pages, small.model.arch.kv_heads, small.model.arch.head_dim, 64)

    def num_caches():
        return sum(a.shape == keys for a in jax.live_arrays())

    engine.free()
    before = num_caches()
    engine.submit([make_request(i, limit=30, stop_ids=()) for i in range(5)])
    engine.step()
    assert num_caches() > before
    engine.abort(range(5))
    engine.step()
    engine.free()
    assert num_caches() == before
    drain(engine, [make_request(0)])
    engine.free()
    assert num_caches() == before


# Several devices, and the learner's buffers


def on_mesh(small, **axes):
    """A mesh of the first devices, and the small model's parameters as a learner there has them."""
    mesh = make_mesh(MeshConfig(**axes), jax.devices()[: math.prod(axes.values())])
    declared = shardings(small.model.declare(), TRAIN_RULES, mesh)
    return mesh, place(to_host(small.params), declared)


@pytest.fixture(scope="module")
def thin_slow(thin, make_request):
    """More requests than slots, each with its slow completion."""
    requests = [
        make_request(i, prompt(i % 8, 9), limit=18, stop_ids=(), temperature=float(i % 2))
        for i in range(11)
    ]
    return [(request, thin.slow(request)) for request in requests]


@pytest.mark.parametrize(
    "axes",
    [{"data": 1}, {"data": 8}, {"data": 2, "fsdp": 2, "tensor": 2}, {"data": 2, "tensor": 4}],
    ids=["one device", "data", "fsdp and tensor", "fewer kv heads than tensor"],
)
def test_sharded_equals_one_device_and_outlives_the_learners_buffers(thin, thin_slow, drain, axes):
    mesh, params = on_mesh(thin, **axes)
    sharded = engine_of(thin, mesh, slots=8, steps=5, params=params)
    sharded.set_params(params, 1)
    # What an update does to the parameters that it replaces.
    jax.jit(lambda p: jax.tree.map(lambda w: 0 * w, p), donate_argnums=0)(params)
    assert all(w.is_deleted() for w in jax.tree.leaves(params))
    done = drain(sharded, [request for request, _ in thin_slow])
    for request, slow in thin_slow:
        assert_equals_slow(done[request.id], slow)


@pytest.mark.parametrize(
    "axes",
    [{"data": 1}, {"data": 2, "tensor": 2}, {"tensor": 4}],
    ids=["one device", "four devices", "fewer kv heads than tensor"],
)
def test_the_kernels_sample_what_the_slow_sampler_does(thin, thin_slow, drain, axes):
    mesh, params = on_mesh(thin, **axes)
    # Pages that several items hold, with the last one in part.
    rest = {"attention": "pallas", "page_tokens": 2}
    engine = engine_of(thin, mesh, slots=4, steps=5, params=params, **rest)
    assert engine._sizes.item_pages == 8 and not engine._sizes.keys_across
    done = drain(engine, [request for request, _ in thin_slow])
    for request, slow in thin_slow:
        assert_equals_slow(done[request.id], slow)


# Faults


def test_weights_that_are_not_finite_are_reported(small, make_request, drain, engine):
    bad = {**small.params, "norm": small.params["norm"].at[3].set(jnp.nan)}
    request = make_request(41, limit=30, stop_ids=())
    engine.submit([request])
    engine.step()
    engine.set_params(bad, 1)
    with pytest.raises(FloatingPointError, match="request 41: .* at completion token 5;"):
        engine.step()
    # With sound weights it goes on.
    engine.set_params(small.params, 2)
    assert_equals_slow(drain(engine)[41], small.slow(request))


def test_a_request_key_is_its_words_in_order():
    words = np.array([[1, 2, 3, 4], [1, 2, 4, 3], [2, 1, 3, 4], [1, 2, 3, 5]], np.uint32)
    keys = np.asarray(jax.vmap(decode.request_key)(words))
    assert len({tuple(k) for k in keys.tolist()}) == 4
    expected = jax.random.key(1)
    for word in (2, 3, 4):
        expected = jax.random.fold_in(expected, word)
    np.testing.assert_array_equal(keys[0], jax.random.key_data(expected))

"""What the engine prefills, holds and compiles: pages, prompts, programs, memory."""

import dataclasses
import gc
import random
import re
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines import (
    assert_equals_slow,
    engine_of,
    letters,
    on_mesh,
    prompt,
    random_request,
)

from jaxrl_vr.sampler.engine import SlotEngine
from jaxrl_vr.sampler.sizes import EngineConfig


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


def test_prompts_that_most_slots_wait_for_are_prefilled_before_the_others_decode(
    make_small, make_request, drain, one_device
):
    """Steps for a quarter of the slots would cost what those for all of them do."""
    long = make_small(layers=1, max_length=4000)
    engine = SlotEngine(
        long.model, long.params, EngineConfig(slots=16, steps_per_call=4), one_device
    )
    engine.submit(
        make_request(4 * p + g, prompt(p, 3000), limit=12, stop_ids=())
        for p in range(4)
        for g in range(4)
    )
    done = drain(engine)
    assert engine.counters.decode_steps == 12
    assert {len(rollout.token_ids) for rollout in done.values()} == {12}


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
    requests = [make_request(i, limit=30, stop_ids=()) for i in range(5)]
    drain(engine, requests)  # now the cache is as large as they need
    keys = (engine._sizes.pages, small.model.arch.kv_heads, small.model.arch.head_dim, 64)

    def num_caches():
        gc.collect()  # engines of other tests may hold caches of this shape until then
        return sum(a.shape == keys for a in jax.live_arrays())

    engine.free()
    before = num_caches()
    engine.submit(requests)
    engine.step()
    assert num_caches() > before
    engine.abort(range(5))
    engine.step()
    engine.free()
    assert num_caches() == before
    drain(engine, [make_request(0)])
    engine.free()
    assert num_caches() == before


def test_requests_that_come_one_by_one_find_as_much_room(thin, make_request, one_device):
    requests = [make_request(i, prompt(i, 40), limit=50, stop_ids=()) for i in range(4)]
    engines = [engine_of(thin, one_device, slots=4) for _ in range(2)]
    engines[0].submit(requests)
    for request in requests:
        engines[1].submit([request])
    for engine in engines:
        engine.step()
    assert [len(engine._decoding) for engine in engines] == [4, 4]
    assert engines[0]._sizes == engines[1]._sizes


def test_freed_weights_come_back_with_the_next_ones(small, one_device, make_request, drain):
    engine = engine_of(small, one_device)
    request = make_request(0, prompt(0, 9), limit=12, stop_ids=())
    assert_equals_slow(drain(engine, [request])[0], small.slow(request))
    engine.free(with_weights=True)
    engine.submit([request])
    with pytest.raises(RuntimeError, match="weights were freed; call set_params first"):
        engine.step()
    engine.set_params(small.params, 1)
    assert_equals_slow(drain(engine, [])[0], small.slow(request))

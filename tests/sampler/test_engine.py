"""The engine against the full forward: tokens, log-probs, kept mass, entropy; faults."""

import dataclasses
import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines import (
    TEMPERATURES,
    assert_equals_slow,
    engine_of,
    letters,
    prompt,
    random_request,
)

from jaxrl_vr.models.rope_scaling import YarnScaling
from jaxrl_vr.rollout.batch import Shape, Trajectory, build
from jaxrl_vr.sampler import decode
from jaxrl_vr.sampler.engine import SlotEngine
from jaxrl_vr.sampler.sizes import EngineConfig
from jaxrl_vr.train.update import row_logprobs
from jaxrl_vr.types import Forced

# Completions of 20 tokens go beyond its original length.
YARN = YarnScaling(factor=8.0, original_length=12, beta_fast=1.5, beta_slow=0.1)


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


@pytest.mark.parametrize(
    "sizes",
    [
        {"kv_heads": 1, "tied": True},
        {"family": "qwen2"},
        {"family": "qwen3", "kv_heads": 4, "head_dim": 6},
        {"family": "qwen2", "head_dim": 8, "rope_theta": 100.0, "rope_scaling": YARN},
    ],
    ids=["llama", "qwen2", "qwen3", "yarn"],
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

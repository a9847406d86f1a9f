"""Drawing tokens: the exact distribution, by chi-square with fixed seeds, and a test with power."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxrl_vr.sampler.support import SamplingValues, asked_of, smallest_kept
from jaxrl_vr.sampler.token import (
    draw,
    draw_next,
    logit_temperature,
    padded_vocabulary,
)
from jaxrl_vr.sharding import MeshConfig, make_mesh

N = 20_000
OFF = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
CUTS = {
    "plain": {},
    "T=0.7": {"temperature": 0.7},
    "top-k": {"top_k": 8},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.1},
    "top-k, top-p": {"top_k": 12, "top_p": 0.9, "temperature": 1.3},
    "all": {"top_k": 12, "top_p": 0.9, "min_p": 0.03, "temperature": 1.3},
}


def random_logits(V, seed=0):
    """Spread 2, and no order in the vocabulary."""
    return 2 * np.random.default_rng(seed).normal(size=V).astype(np.float32)


def exact(logits, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """The distribution by plain loops in float64, and the log of the kept mass."""
    probs = np.exp(np.asarray(logits, np.float64) / temperature)
    probs /= probs.sum()
    order = np.argsort(-probs, kind="stable")
    if top_k:
        order = order[:top_k]
    total, before, kept = probs[order].sum(), 0.0, []
    for token in order:
        if kept and before >= top_p:
            break
        if probs[token] >= min_p * probs.max():
            kept.append(token)
        before += probs[token] / total
    cut = np.zeros_like(probs)
    cut[kept] = probs[kept]
    return cut / cut.sum(), np.log(cut.sum())


def keys_of(num):
    return jax.vmap(lambda i: jax.random.fold_in(jax.random.key(0), i))(jnp.arange(num))


@functools.partial(jax.jit, static_argnums=1)
def _draws(logits, num, values):
    # One slot, mapped over keys alone: its support is cut once and not `num` times.
    logits = logits[None] / logit_temperature(values)[:, None]
    out = jax.vmap(lambda key: draw(logits, key[None], values))(keys_of(num))
    return out.token[:, 0], out.logp[:, 0], out.kept_mass[:, 0]


def draws(logits, num=N, **values):
    """Tokens, log-probs and kept mass of `num` draws from one vector of logits, [V]."""
    out = _draws(np.asarray(logits, np.float32), num, sampling_values([values]))
    return tuple(np.asarray(a) for a in out)


@functools.cache
def tokens_of(kind):
    """Draws of one of `CUTS` from 32 random logits, shared by the tests."""
    return draws(random_logits(32), **CUTS[kind])


@jax.jit
def _draw_slots(logits, values):
    logits = logits / logit_temperature(values)[:, None]
    out = draw(logits, keys_of(logits.shape[0]), values)
    return out.token, out.logp, out.kept_mass


def draw_slots(logits, kinds):
    """The same of one draw a slot: logits [S, V], and each slot's values."""
    out = _draw_slots(np.asarray(logits, np.float32), sampling_values(kinds))
    return tuple(np.asarray(a) for a in out)


def sampling_values(kinds):
    """Columns of a list of values, one a slot."""
    columns = {
        n: np.asarray([{**OFF, **kind}[n] for kind in kinds], np.int32 if n == "top_k" else "f4")
        for n in OFF
    }
    return SamplingValues(**columns)


def p_value(tokens, probs):
    """Of chi-square; 0 when a token without probability was drawn. Rare tokens share a bin."""
    counts = np.bincount(tokens, minlength=len(probs))
    if counts[probs == 0].any():
        return 0.0
    order = np.argsort(probs)
    rare = order[np.cumsum(probs[order]) * len(tokens) < 5]
    common = np.setdiff1d(order, rare)
    common = common[probs[common] > 0]
    observed = np.append(counts[common], counts[rare].sum())
    expected = np.append(probs[common], probs[rare].sum()) * len(tokens)
    if expected[-1] < 5:  # too rare even together: with the least of the others
        least = np.argmin(expected[:-1])
        observed[least] += observed[-1]
        expected[least] += expected[-1]
        observed, expected = observed[:-1], expected[:-1]
    statistic = ((observed - expected) ** 2 / expected).sum()
    return stats.chi2.sf(statistic, len(expected) - 1)


# The distribution


@pytest.mark.parametrize("kind", CUTS)
def test_draws_from_the_exact_distribution(kind):
    logits, values = random_logits(32), CUTS[kind]
    probs, mass = exact(logits, **values)
    tokens, logp, kept = tokens_of(kind)
    assert p_value(tokens, probs) > 0.001
    assert (probs[tokens] > 0).all()
    # The log-prob stays that of the whole distribution.
    whole, _ = exact(logits, temperature=values.get("temperature", 1.0))
    np.testing.assert_allclose(logp, np.log(whole[tokens]), atol=1e-5)
    np.testing.assert_allclose(kept, mass, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("plain", {"temperature": 1.05}),
        ("plain", {"temperature": 0.95}),
        ("T=0.7", {"temperature": 0.7 * 1.05}),
        ("T=0.7", {"temperature": 0.7 / 1.05}),
        ("top-k", {"top_k": 7}),
        ("top-k", {"top_k": 9}),
        ("top-p", {"top_p": 0.85}),
        ("min-p", {"min_p": 0.15}),
        ("min-p", {}),
    ],
    ids=str,
)
def test_the_chi_square_finds_what_is_slightly_wrong(kind, wrong):
    assert p_value(tokens_of(kind)[0], exact(random_logits(32), **wrong)[0]) < 0.001


@pytest.mark.parametrize("V", [5, 128, 129, 1000])
@pytest.mark.parametrize("values", [{}, {"top_p": 0.9, "temperature": 1.2}], ids=["plain", "cut"])
def test_vocabularies_of_every_size(V, values):
    logits = random_logits(V, seed=V)
    tokens, _, _ = draws(logits, **values)
    assert tokens.min() >= 0
    assert tokens.max() < V
    assert p_value(tokens, exact(logits, **values)[0]) > 0.001


def test_one_call_serves_slots_of_different_values():
    logits = random_logits(32)
    kinds = list(CUTS.values())
    num = 3000
    tokens, _, kept = draw_slots(np.tile(logits, (len(kinds) * num, 1)), kinds * num)
    for i, values in enumerate(kinds):
        probs, mass = exact(logits, **values)
        assert p_value(tokens[i :: len(kinds)], probs) > 0.001
        np.testing.assert_allclose(kept[i :: len(kinds)], mass, atol=1e-6)


# Corners


def test_all_mass_in_one_token():
    where = np.array([0, 7, 127, 128, 299] * 12 + [1] * 4)
    logits = np.zeros((64, 300), np.float32)
    logits[np.arange(64), where] = 200.0
    tokens, logp, _ = draw_slots(logits, [{}] * 64)
    np.testing.assert_array_equal(tokens, where)
    np.testing.assert_array_equal(logp, 0.0)


def test_tiny_probabilities_are_not_lost():
    """5,120 tokens of 1e-6 behind one of the rest: 204.8 of 40,000 draws, spread evenly."""
    num = 40_000
    probs = np.full(5121, 1e-6)
    probs[0] = 1 - probs[1:].sum()
    counts = np.bincount(draws(np.log(probs), num=num)[0], minlength=len(probs))
    expected = 5120e-6 * num
    assert abs(counts[1:].sum() - expected) < 4 * expected**0.5
    for quarter in counts[1:].reshape(4, 1280):
        assert abs(quarter.sum() - expected / 4) < 4 * (expected / 4) ** 0.5
    assert counts[1:].max() <= 3


def test_greedy_takes_the_first_of_the_largest():
    logits = random_logits(300)
    logits[[40, 41, 290]] = logits.max() + 1
    tokens, logp, kept = draw_slots([logits] * 64, [{"temperature": 0.0}] * 64)
    assert (tokens == 40).all()
    np.testing.assert_allclose(logp, np.log(exact(logits)[0][40]), atol=1e-5)
    assert (kept == 0).all()


def test_ties_with_the_last_kept_token_stay():
    logits = np.array([0.0, 2.0, 1.0, 1.0, 1.0], np.float32)
    probs, _ = exact(logits)
    for values in ({"top_k": 2}, {"top_p": (probs[1] + 0.01)}):
        tokens, _, kept = draws(logits, **values)
        tied = np.where(np.arange(5) > 0, probs, 0)
        assert p_value(tokens, tied / tied.sum()) > 0.001
        np.testing.assert_allclose(kept, np.log(tied.sum()), atol=1e-6)
    # A tie over several blocks of the draw: each gets its share.
    tokens, _, _ = draws(np.zeros(1000, np.float32), top_k=1)
    assert p_value(tokens, np.full(1000, 1e-3)) > 0.001


def kept_by_sorting(logits, top_k, top_p, min_p):
    """The smallest logit of one slot that stays, in float64 by the definition."""
    ordered = np.sort(logits.astype(np.float64))[::-1]
    best = ordered[: top_k or None]
    probs = np.exp(best - best[0]) / np.exp(best - best[0]).sum()
    before = np.cumsum(probs) - probs
    stays = best[(before < top_p) | (top_p >= 1) | (np.arange(len(best)) == 0)]
    return max(stays[-1], best[0] + np.log(min_p) if min_p else -np.inf)


@pytest.mark.parametrize("spread", [0.3, 3.0, 30.0])
@pytest.mark.parametrize("V", [2, 300, 5000])
def test_the_smallest_logit_that_stays_is_that_of_sorting(V, spread):
    rng = np.random.default_rng(V)
    slots = [
        {"top_k": k, "top_p": p, "min_p": m}
        for k in (0, 1, 2, 50, V)
        for p in (1.0, 0.97, 0.55, 0.01)
        for m in (0.0, 0.03)
    ]
    # Off the values where a cut could fall between two tokens by rounding alone, none is tied.
    logits = (spread * rng.normal(size=(len(slots), V))).astype(np.float32)
    logits[::3, : V // 2] = logits[::3, V // 2 :][:, : V // 2]  # but these are, two by two
    values = sampling_values(slots)
    found = smallest_kept(logits, logits.max(axis=1), values, asked_of(values), V, lambda a: a)
    for row, cut, level in zip(logits, slots, found, strict=True):
        expected = kept_by_sorting(row, **cut)
        is_cut = cut["top_k"] or cut["top_p"] < 1 or cut["min_p"]
        if not is_cut:
            assert level == -np.inf
        # The same tokens stay.
        np.testing.assert_array_equal(row >= level, row >= np.float32(expected), err_msg=cut)


def test_the_most_likely_token_always_stays():
    logits = random_logits(300)
    kinds = [{"top_p": 1e-6}, {"top_k": 1}, {"min_p": 1.0}, {"top_p": 0.0}] * 16
    tokens, _, kept = draw_slots([logits] * 64, kinds)
    assert (tokens == logits.argmax()).all()
    np.testing.assert_allclose(kept, np.log(exact(logits)[0].max()), atol=1e-6)


def test_a_top_k_of_the_whole_vocabulary_cuts_nothing():
    logits = np.stack([random_logits(300, seed) for seed in range(64)])
    free, free_logp, _ = draw_slots(logits, [{}] * 64)
    for top_k in (300, 301, 10_000):
        tokens, logp, kept = draw_slots(logits, [{"top_k": top_k}] * 64)
        np.testing.assert_array_equal(tokens, free)
        np.testing.assert_array_equal(logp, free_logp)
        np.testing.assert_allclose(kept, 0.0, atol=1e-6)


def test_the_key_decides_and_the_company_does_not():
    logits = np.stack([random_logits(300, seed) for seed in range(64)])
    tokens, logp, _ = draw_slots(logits, [{}] * 64)
    np.testing.assert_array_equal(tokens, draw_slots(logits, [{}] * 64)[0])
    # Slot i has key i: the same draw in other company.
    np.testing.assert_array_equal(tokens[:8], draw_slots(logits[:8], [{}] * 8)[0])
    # A neighbour that cuts its support changes nothing for the others.
    beside, beside_logp, kept = draw_slots(logits, [{}] * 5 + [{"top_k": 3}] + [{}] * 58)
    others = np.arange(64) != 5
    np.testing.assert_array_equal(beside[others], tokens[others])
    np.testing.assert_allclose(beside_logp[others], logp[others], atol=1e-6)
    np.testing.assert_allclose(kept[5], exact(logits[5], top_k=3)[1], atol=1e-6)
    assert (kept[others] == 0).all()


# A vocabulary that is split over devices


ALIKE = [*CUTS.values(), {"temperature": 0.0}] * 8
# What one of the parts of the slots asks for, the other does not.
APART = [{"top_k": 3}] * 8 + [{"min_p": 0.1}] * 24 + [{"top_p": 0.5}] * 8 + [{}] * 24


@pytest.mark.parametrize("kinds", [ALIKE, APART], ids=["alike", "apart"])
@pytest.mark.parametrize("axes", [{"tensor": 2}, {"data": 2, "tensor": 4}], ids=str)
@pytest.mark.parametrize("V", [5, 300, 1000])
def test_a_split_vocabulary_draws_the_same(V, axes, kinds):
    hidden = np.random.default_rng(V).normal(size=(64, 8)).astype(np.float32)
    head = np.random.default_rng(V + 1).normal(size=(V, 8)).astype(np.float32)
    values = sampling_values(kinds)
    key_data = jax.random.key_data(keys_of(64))

    def drawn_on(mesh):
        rows = padded_vocabulary(V, mesh.shape["tensor"])
        padded = np.pad(head, ((0, rows - V), (0, 0)), constant_values=9.0)
        with jax.set_mesh(mesh):
            parts = mesh.shape["data"]
            arguments = hidden, padded, key_data, values
            return jax.jit(lambda *a: draw_next(*a, V, parts, with_entropy=True))(*arguments)

    split = drawn_on(make_mesh(MeshConfig(**axes), jax.devices()[: math.prod(axes.values())]))
    whole = drawn_on(make_mesh(MeshConfig(), jax.devices()[:1]))
    np.testing.assert_array_equal(split.token, whole.token)
    for a, b in zip(jax.tree.leaves(split), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=0)


def test_the_entropy_is_that_of_the_uncut_distribution():
    logits = np.stack([random_logits(300, seed) for seed in range(64)])
    logits[0, :290] = -np.inf
    drawn = draw(logits, keys_of(64), sampling_values([{"top_k": 3}, {}] * 32), with_entropy=True)
    for row, entropy in zip(logits, drawn.entropy, strict=True):
        probs, _ = exact(row)
        probs = probs[probs > 0]
        np.testing.assert_allclose(entropy, -(probs * np.log(probs)).sum(), atol=1e-5)

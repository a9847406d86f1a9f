"""Drawing from a large vocabulary: what rounding does to the tokens and to their log-probs."""

import jax
import numpy as np
import pytest

from jaxrl_vr.losses.logprobs import token_logprob
from jaxrl_vr.sampler.support import SamplingValues
from jaxrl_vr.sampler.token import draw

V = 151_936
N = 10_000
NOISE = 1e-5  # about what rounding in a model's products adds to a logit
PLAIN = SamplingValues(np.ones(1, "f4"), np.zeros(1, "i4"), np.ones(1, "f4"), np.zeros(1, "f4"))
spreads = pytest.mark.parametrize("spread", [0.0, 2.5], ids=["flat", "usual"])


@jax.jit
def draws(logits, key):
    """Tokens and log-probs of N draws from one vector of logits, [V]."""
    # Mapped over keys alone: the vocabulary is gone over once and not N times.
    drawn = jax.vmap(lambda key: draw(logits[None], key[None], PLAIN))(jax.random.split(key, N))
    return drawn.token[:, 0], drawn.logp[:, 0]


@jax.jit
def losses_logprob(logits, token):
    """The log-prob of each of a few tokens, one at a time."""
    return jax.lax.map(lambda one: token_logprob(logits[None], one[None])[0], token)


def logits_of(spread):
    return (spread * np.random.default_rng(0).normal(size=V)).astype(np.float32)


def with_noise(logits, seed):
    noise = NOISE * np.random.default_rng([1, seed]).normal(size=V)
    return (logits + noise).astype(np.float32)


def running_sum_draws(logits, seed):
    """N draws of another kind: where a float32 running sum over all first exceeds a uniform."""
    running = np.cumsum(np.exp(logits - logits.max()), dtype=np.float32)
    uniform = np.random.default_rng([2, seed]).random(N, np.float32)
    return np.searchsorted(running, uniform * running[-1], side="right")


@spreads
def test_rounding_of_the_logits_hardly_ever_changes_a_token(spread):
    logits, repeats = logits_of(spread), 4
    changed = by_running_sum = 0
    for seed in range(repeats):
        noisy, key = with_noise(logits, seed), jax.random.key(seed)
        changed += np.sum(np.asarray(draws(logits, key)[0]) != draws(noisy, key)[0])
        by_running_sum += np.sum(running_sum_draws(logits, seed) != running_sum_draws(noisy, seed))
    assert changed / (repeats * N) < 1e-4
    # Why there is none: every logit moves the borders of all tokens behind it.
    assert by_running_sum / (repeats * N) > 1e-2


@spreads
def test_the_log_prob_is_that_of_the_losses(spread):
    logits = logits_of(spread)
    token, logp = draws(logits, jax.random.key(0))
    expected = losses_logprob(logits, token[:64])
    np.testing.assert_allclose(logp[:64], expected, atol=1e-6, rtol=0)
    exact = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    np.testing.assert_allclose(logp, exact[token], atol=2e-6, rtol=0)


def test_blocks_with_little_mass_are_drawn_as_often_as_they_should():
    """One token with nearly all mass, and 1,186 blocks of 1e-5: 474 of 40,000 draws."""
    logits = np.full(V, np.log(1e-5 / 128), np.float32)
    logits[:128] = -np.inf
    logits[5] = np.log(1 - 1186e-5)
    tokens = np.concatenate([draws(logits, jax.random.key(seed))[0] for seed in range(4)])
    counts = np.bincount(tokens // 128, minlength=V // 128)
    assert set(tokens[tokens < 128].tolist()) == {5}
    expected = 593e-5 * len(tokens)
    for half in (counts[1:594], counts[594:]):
        assert abs(half.sum() - expected) < 4 * expected**0.5
    assert counts[1:].max() <= 5  # 0.4 each

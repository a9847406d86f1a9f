"""Advantages and returns of tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.losses import (
    advantages,
    discounted_return,
    gae,
    length_adaptive_lambda,
    reinforce_plus_plus,
    returns,
    whiten,
)

T = 7
GAE = jax.jit(gae, static_argnames="chunk")
RETURN = jax.jit(discounted_return, static_argnames="chunk")


def draw(seed, rows=3):
    rng = np.random.default_rng(seed)
    reward, value = rng.normal(size=(2, rows, T)).astype(np.float32)
    return reward, value, rng.random((rows, T)) < 0.6


seeds = st.integers(0, 2**32 - 1)
numbers = st.floats(0, 1, width=32)


def test_gae_by_hand():
    # errors: 0 + 0.5 x 3 - 2 = -0.5; 1 + 0.5 x 4 - 3 = 0; 2 - 4 = -2
    # advantages, with 0.5 x 0.5: -2; 0 + 0.25 x -2 = -0.5; -0.5 + 0.25 x -0.5 = -0.625
    reward, value = jnp.array([[0.0, 1.0, 2.0]]), jnp.array([[2.0, 3.0, 4.0]])
    adv, found = gae(reward, value, jnp.ones((1, 3), bool), gamma=0.5, lam=0.5)
    assert adv.tolist() == [[-0.625, -0.5, -2.0]]
    assert found.tolist() == [[1.375, 2.5, 2.0]]
    # the same three tokens with observations between, which cost no discount
    mask = jnp.array([[False, True, False, False, True, True, False]])
    reward = jnp.array([[9.0, 0.0, 9.0, 9.0, 1.0, 2.0, 9.0]])
    value = jnp.array([[9.0, 2.0, 9.0, 9.0, 3.0, 4.0, 9.0]])
    adv, _ = gae(reward, value, mask, gamma=0.5, lam=0.5)
    assert adv.tolist() == [[0, -0.625, 0, 0, -0.5, -2.0, 0]]


def test_bootstrap_by_hand():
    # the last error of the cut row: 2 + 0.5 x 8 - 4 = 2; the other row ended: 2 - 4
    reward, value = jnp.array([[0.0, 2.0]] * 2), jnp.array([[0.0, 4.0]] * 2)
    mask = jnp.array([[True, True]] * 2)
    call = functools.partial(gae, reward, value, mask, gamma=0.5, lam=1.0)
    # and the first: 0 + 0.5 x 4 - 0 = 2, plus half of the next
    expected = [[3.0, 2.0], [1.0, -2.0]]
    assert call(bootstrap=jnp.array([8.0, 0.0]))[0].tolist() == expected
    # [B, T] is read at the last trained token and nowhere else
    nan = jnp.nan
    assert call(bootstrap=jnp.array([[nan, 8.0], [nan, 0.0]]))[0].tolist() == expected


def test_packed_sequences_by_hand():
    # sequence 1 holds tokens 0 and 1, sequence 2 token 2: no value and no advantage crosses
    adv, found = gae(
        jnp.array([[0.0, 1.0, 5.0]]),
        jnp.array([[1.0, 2.0, 3.0]]),
        jnp.ones((1, 3), bool),
        bootstrap=jnp.array([[9.0, 4.0, 0.0]]),
        segment_ids=jnp.array([[1, 1, 2]]),
    )
    # errors 0 + 2 - 1 = 1; 1 + 4 - 2 = 3; 5 - 3 = 2
    assert adv.tolist() == [[4.0, 3.0, 2.0]]
    assert found.tolist() == [[5.0, 5.0, 5.0]]


@given(seeds, numbers)
def test_gae_at_lambda_0_is_the_one_step_error(seed, gamma):
    reward, value, mask = draw(seed)
    adv = np.asarray(GAE(reward, value, mask, gamma=gamma, lam=0.0)[0])
    for b in range(len(mask)):
        at = np.flatnonzero(mask[b])
        after = np.append(value[b, at[1:]], 0.0)[: len(at)]
        error = reward[b, at] + np.float64(gamma) * after - value[b, at]
        np.testing.assert_allclose(adv[b, at], error, atol=1e-5)


@given(seeds)
def test_gae_at_lambda_and_gamma_1_is_return_minus_value(seed):
    reward, value, mask = draw(seed)
    adv, found = GAE(reward, value, mask, gamma=1.0, lam=1.0)
    later = np.cumsum(np.where(mask, reward, 0)[:, ::-1], axis=1)[:, ::-1]
    np.testing.assert_allclose(adv, np.where(mask, later - value, 0), atol=1e-5)
    np.testing.assert_allclose(found, RETURN(reward, mask, gamma=1.0), atol=1e-5)


@given(seeds, numbers, numbers)
def test_observations_are_skipped(seed, gamma, lam):
    reward, value, mask = draw(seed, rows=1)
    at = np.flatnonzero(mask[0])
    # the trained tokens alone, at the front of the row
    order = np.append(at, np.flatnonzero(~mask[0]))
    close = np.arange(T)[None] < len(at)
    apart = GAE(reward, value, mask, gamma=gamma, lam=lam)
    together = GAE(reward[:, order], value[:, order], close, gamma=gamma, lam=lam)
    for x, y in zip(apart, together, strict=True):
        np.testing.assert_allclose(np.asarray(x)[:, order], y, atol=1e-6)


@given(seeds, st.integers(1, T - 1), numbers)
def test_packing_changes_nothing(seed, cut, lam):
    reward, value, mask = draw(seed, rows=1)
    ids = np.where(np.arange(T) < cut, 1, 2)[None]
    after = np.full((1, T), 0.5, np.float32)
    call = functools.partial(GAE, reward, value, gamma=0.9, lam=lam, bootstrap=after)
    packed = call(mask, segment_ids=ids)
    for i in (1, 2):
        alone = call(mask & (ids == i))
        for x, y in zip(packed, alone, strict=True):
            np.testing.assert_allclose(np.where(ids == i, x, 0), y, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
def test_chunks_change_nothing(chunk):
    with jax.enable_x64(True):
        for seed in range(3):
            reward, value, mask = draw(seed)
            reward, value = reward.astype(np.float64), value.astype(np.float64)
            ids = np.array([[1] * 3 + [2] * 4] * 3)
            kinds = {"gamma": 0.9, "segment_ids": ids}
            plain = GAE(reward, value, mask, lam=0.8, **kinds)
            found = GAE(reward, value, mask, lam=0.8, chunk=chunk, **kinds)
            for x, y in zip(found, plain, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-13, atol=1e-13)
            np.testing.assert_allclose(
                RETURN(reward, mask, chunk=chunk, **kinds), RETURN(reward, mask, **kinds), 1e-13
            )


def test_long_rows():
    # 4096 rewards of 1: the return of the first token is 4096, and with gamma 1/2 close to 2
    reward, mask = jnp.ones((1, 4096)), jnp.ones((1, 4096), bool)
    for gamma, first in ((1.0, 4096.0), (0.5, 2.0)):
        for chunk in (None, 512):
            assert float(RETURN(reward, mask, gamma=gamma, chunk=chunk)[0, 0]) == first


def test_lambda_of_each_rollout():
    reward, value, mask = draw(0)
    lam = jnp.array([0.0, 0.5, 1.0])
    together = GAE(reward, value, mask, lam=lam)[0]
    for b in range(3):
        alone = GAE(*(x[b : b + 1] for x in (reward, value, mask)), lam=lam[b])[0]
        np.testing.assert_allclose(together[b : b + 1], alone, rtol=1e-6)


def test_length_adaptive_lambda_by_hand():
    # 1 - 1 / (0.05 x 40) = 0.5; 1 - 1 / (0.05 x 1000) = 0.98; at 20 tokens 0, and not below
    lam = length_adaptive_lambda(jnp.array([0, 10, 20, 40, 1000]))
    np.testing.assert_allclose(lam, [0, 0, 0, 0.5, 0.98], rtol=1e-6)


def test_discounted_return_by_hand():
    # 4; 2 + 0.5 x 4 = 4; 1 + 0.5 x 4 = 3; the third token is no step
    reward, mask = jnp.array([[1.0, 2.0, 9.0, 4.0]]), jnp.array([[True, True, False, True]])
    assert discounted_return(reward, mask, gamma=0.5).tolist() == [[3.0, 4.0, 0.0, 4.0]]


def test_whiten_by_hand():
    # 1, 3, 8, 0 masked: mean 4, squares 9 + 1 + 16 = 26, variance 26 / 3
    x, mask = jnp.array([[1.0, 3.0], [8.0, 0.0]]), jnp.array([[True, True], [True, False]])
    scale = np.sqrt(3 / 26)
    white = [[-3 * scale, -scale], [4 * scale, 0]]
    np.testing.assert_allclose(whiten(x, mask), white, rtol=1e-6)
    kept = [[4 - 3 * scale, 4 - scale], [4 + 4 * scale, 0]]
    np.testing.assert_allclose(whiten(x, mask, shift_mean=False), kept, rtol=1e-6)


@given(seeds, st.sampled_from([0.0, 1e-8, 1e-4]))
def test_equal_values_whiten_to_zero(seed, eps):
    _, _, mask = draw(seed)
    x = np.full((3, T), 0.1, np.float32)
    np.testing.assert_array_equal(WHITEN(x, mask, eps=eps), 0.0)
    kept = np.where(mask, x, 0)
    np.testing.assert_allclose(WHITEN(x, mask, eps=eps, shift_mean=False), kept, rtol=1e-6)


WHITEN = jax.jit(whiten)


def test_reinforce_plus_plus_by_hand():
    # returns 3, 2 and 1, 0: mean 1.5, variance (2.25 + 0.25 + 0.25 + 2.25) / 4 = 1.25
    adv = reinforce_plus_plus(jnp.array([[1.0, 2.0], [1.0, 0.0]]), jnp.ones((2, 2), bool))
    np.testing.assert_allclose(adv, np.array([[1.5, 0.5], [-0.5, -1.5]]) / np.sqrt(1.25), 1e-6)


@pytest.mark.parametrize("name", ["bootstrap", "lam"])
def test_packed_rows_need_values_per_token(name):
    reward, value, mask = draw(0)
    ids = np.ones(mask.shape, np.int32)
    with pytest.raises(ValueError, match=rf"{name}: rows with segment_ids .* shape \[B, T\], got"):
        gae(reward, value, mask, segment_ids=ids, **{name: jnp.ones(3)})


def test_no_tokens_at_a_time():
    reward, value, mask = draw(0)
    with pytest.raises(ValueError, match="chunk: expected at least 1 token at a time, got 0"):
        gae(reward, value, mask, chunk=0)


def test_names_are_among_the_advantages():
    names = "gae discounted_return reinforce_plus_plus whiten length_adaptive_lambda".split()
    assert all(getattr(advantages, name) is getattr(returns, name) for name in names)

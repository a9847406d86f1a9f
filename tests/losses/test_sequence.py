"""Losses of whole sequences and of preference pairs by hand; see test_every_loss.py too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_vr.losses import (
    dpo,
    gmpo,
    gspo,
    gspo_token,
    online_mirror_descent,
    online_mirror_descent_squared,
    packed_dpo,
    ppo_clip,
    preference_pairs,
    sequence_mean,
)

RNG = np.random.default_rng(0)
OLD = RNG.uniform(-3, -1, (4, 6)).astype(np.float32)
LOGP = (OLD + RNG.uniform(-0.5, 0.5, OLD.shape)).astype(np.float32)
ADV = np.array([1.0, -0.5, 2.0, -1.5], np.float32)
MASK = RNG.random(OLD.shape) < 0.7
ALL = jnp.ones((1, 2), bool)
CLIP = {"clip_low": 0.2, "clip_high": 0.28}


def summed(loss, mask=MASK, weight=None):
    """logp -> the loss of a step, each sequence once if weighted so."""
    weight = jnp.ones(len(mask)) if weight is None else weight
    return lambda logp: jnp.sum(weight[:, None] * loss(logp)[0])


def test_gspo_by_hand():
    # s = exp((0.4 - 0.2) / 2) = 1.10517; cut at 1.1 for A = 2, not for A = -2
    old, new = jnp.array([[-1.0, -1.0]]), jnp.array([[-0.6, -1.2]])
    for adv, expected, num_cut in ((2.0, -2.2, 2), (-2.0, 2.21034, 0)):
        loss, metrics = gspo(new, old, jnp.array([adv]), ALL, clip_low=0.1, clip_high=0.1)
        np.testing.assert_allclose(loss, [[expected] * 2], rtol=1e-5)
        assert float(metrics["policy/clip_frac"].sum) == num_cut
        assert float(metrics["policy/ratio_max_seq"].value) == pytest.approx(1.10517, rel=1e-5)
        assert float(metrics["policy/ratio_max"].value) == pytest.approx(np.exp(0.4), rel=1e-5)


@settings(max_examples=20)
@given(st.lists(st.floats(-3, 0, width=32), min_size=8, max_size=8), st.booleans())
def test_gspo_of_one_token_is_ppo_clip(logps, is_trained):
    new, old = np.array(logps, np.float32).reshape(2, 4, 1)
    mask = np.full((4, 1), is_trained)
    mask[0] = True
    for loss in (gspo, gspo_token):
        found, expected = loss(new, old, ADV, mask, **CLIP), ppo_clip(new, old, ADV, mask, **CLIP)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
        for name, metric in expected[1].items():
            np.testing.assert_allclose(found[1][name], metric, rtol=1e-6)


def test_gspo_token_has_the_gradient_of_gspo_under_sequence_weights():
    weight = sequence_mean(jnp.sum(MASK, axis=1))
    value, grad = zip(
        *(
            jax.value_and_grad(summed(lambda x, f=f: f(x, OLD, ADV, MASK, **CLIP), weight=weight))(
                LOGP
            )
            for f in (gspo, gspo_token)
        ),
        strict=True,
    )
    np.testing.assert_allclose(*value, rtol=1e-6)
    np.testing.assert_allclose(*grad, rtol=1e-4, atol=1e-8)


def test_gmpo_by_hand():
    # log ratios 1 and -0.3, range 0.4: A > 0 cuts the first: exp((0.4 - 0.3) / 2) = 1.05127; A < 0
    # cuts neither: exp(0.35) = 1.41907. Ratios 1 and -1: A < 0 cuts the second: exp(0.3).
    old = jnp.array([[-3.0, -3.0]])
    for new, adv, expected, num_cut in (
        ((-2.0, -3.3), 1.0, -1.05127, 1),
        ((-2.0, -3.3), -1.0, 1.41907, 0),
        ((-2.0, -4.0), -1.0, 1.34986, 1),
    ):
        loss, metrics = gmpo(jnp.array([new]), old, jnp.array([adv]), ALL)
        np.testing.assert_allclose(loss, [[expected] * 2], rtol=1e-5)
        assert float(metrics["policy/clip_frac"].sum) == num_cut


def test_online_mirror_descent_by_hand():
    # L = 0.5 + 1 = 1.5; -2 x 1.5 + 0.2 x 2.25 = -2.55; (2 - 0.4 x 1.5)^2 = 1.96
    old, new = jnp.array([[-2.0, -2.0]]), jnp.array([[-1.5, -1.0]])
    adv = jnp.array([2.0])
    loss, _ = online_mirror_descent(new, old, adv, ALL, tau=0.4)
    np.testing.assert_allclose(loss, [[-2.55] * 2], rtol=1e-6)
    loss, _ = online_mirror_descent_squared(new, old, adv, ALL, tau=0.4)
    np.testing.assert_allclose(loss, [[1.96] * 2], rtol=1e-6)


@pytest.mark.parametrize("tau", [0.05, 1.0])
def test_squared_mirror_descent_has_2_tau_times_the_gradient(tau):
    arrays = (OLD, ADV, MASK)
    grad = jax.grad(summed(lambda x: online_mirror_descent(x, *arrays, tau=tau)))(LOGP)
    squared = jax.grad(summed(lambda x: online_mirror_descent_squared(x, *arrays, tau=tau)))(LOGP)
    np.testing.assert_allclose(squared, 2 * tau * grad, rtol=1e-4, atol=1e-6)
    # The paper's gradient: -(A - tau L) on each token, times the tokens that carry the value.
    total = np.sum((LOGP - OLD) * MASK, axis=1)
    expected = -(ADV - tau * total) * MASK.sum(axis=1)
    np.testing.assert_allclose(grad, expected[:, None] * MASK, rtol=1e-4, atol=1e-6)


def test_mirror_descent_counts_a_sequence_once_without_its_length():
    # Two sequences with equal L = 0.5 and 1 or 3 tokens: under sequence weights the same loss.
    old = jnp.full((2, 3), -2.0)
    new, mask = old.at[:, 0].add(0.5), jnp.array([[True, False, False], [True, True, True]])
    loss, _ = online_mirror_descent(new, old, jnp.array([1.0, 1.0]), mask, tau=0.1)
    each = jnp.sum(sequence_mean(jnp.array([1, 3]))[:, None] * loss, axis=1)
    np.testing.assert_allclose(each, [0.5 * (-0.5 + 0.05 * 0.25)] * 2, rtol=1e-6)


def test_dpo_by_hand():
    # L = (0.5 + 0.5) - (-1) = 2, beta 0.5: log(1 + e^-1) = 0.31326; second pair lacks an answer
    chosen, rejected = jnp.array([[-1.0, -1.0], [-1.0, -1.0]]), jnp.array([[-3.0], [-3.0]])
    mask, one = jnp.array([[True, True], [False, False]]), jnp.ones((2, 1), bool)
    loss, metrics = dpo(chosen, rejected, chosen - 0.5, rejected + 1.0, mask, one, beta=0.5)
    np.testing.assert_allclose(loss, [0.313262, 0], rtol=1e-5)
    assert [float(x) for x in metrics["dpo/accuracy"]] == [1, 1]
    assert [float(x) for x in metrics["dpo/margin"]] == [1, 1]


def test_packed_dpo_is_dpo():
    # Rows 0 and 1 are the answers of a pair, and rows 2 and 3; packed they share a row.
    ref = OLD - 0.1 * LOGP
    masks = MASK[0::2], MASK[1::2]
    loss, metrics = dpo(LOGP[0::2], LOGP[1::2], ref[0::2], ref[1::2], *masks, beta=0.3)
    sign = np.broadcast_to(np.array([1.0, -1.0, 1.0, -1.0], np.float32)[:, None], MASK.shape)
    pair = np.broadcast_to(np.array([1, 1, 2, 2], np.int32)[:, None], MASK.shape)
    packed = [x.reshape(1, -1) for x in (LOGP, ref, sign, MASK, pair)]  # 4, 6 -> 1, 24
    value, packed_metrics = packed_dpo(*packed, beta=0.3)
    expected = np.where(MASK, np.repeat(loss, 2)[:, None], 0)
    np.testing.assert_allclose(value.reshape(4, 6), expected, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), packed_metrics, metrics)


def test_dpo_far_from_the_reference_is_finite():
    far, one = jnp.array([[-1e4]]), jnp.ones((1, 1), bool)
    loss, _ = dpo(far, far * 0, far * 0, far, one, one)
    np.testing.assert_allclose(loss, [2e3])  # 0.1 x (1e4 + 1e4)


def test_preference_pairs_by_hand():
    reward = jnp.array([[0.0, 1.0, 1.0], [1.0, 1.0, 1.0], [0.5, 2.0, -1.0], [1.0, 0.0, 0.0]])
    chosen, rejected, has_pair = preference_pairs(reward)
    assert chosen.tolist() == [1, 0, 1, 0]
    assert rejected.tolist() == [0, 0, 2, 1]
    assert has_pair.tolist() == [True, False, True, True]


def test_preference_pairs_leave_out_the_invalid():
    reward = jnp.array([[0.0, 1.0, jnp.nan], [0.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    valid = jnp.array([[True, True, False], [False, True, True], [False, False, False]])
    chosen, rejected, has_pair = preference_pairs(reward, valid)
    assert (int(chosen[0]), int(rejected[0])) == (1, 0)
    assert has_pair.tolist() == [True, False, False]


def test_wrong_shapes():
    ids = np.zeros((4, 5), np.int32)
    with pytest.raises(ValueError, match=r"segment_ids: expected shape \[B, T\] with T = 6"):
        gspo(LOGP, OLD, ADV, MASK, ids)
    with pytest.raises(ValueError, match=r"preference: expected shape \[B, T\]"):
        packed_dpo(LOGP, OLD, ADV, MASK)

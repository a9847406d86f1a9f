"""Supervised losses by hand; see test_every_loss.py too."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_vr.losses import (
    bradley_terry,
    cross_entropy,
    label_smoothing,
    pretraining_mix,
    step_cross_entropy,
    z_loss,
)

LOGP = jnp.array([[-0.5, -1.0, -0.25], [-2.0, -0.1, -3.0]])
MASK = jnp.array([[False, True, True], [True, False, True]])


def test_by_hand():
    loss, metrics = cross_entropy(LOGP, MASK)
    assert loss.tolist() == [[0, 1.0, 0.25], [2.0, 0, 3.0]]
    assert float(metrics["sft/nll"].sum) == 6.25  # 1 + 0.25 + 2 + 3
    assert int(metrics["sft/nll"].count) == 4


def test_wrong_shape():
    with pytest.raises(ValueError, match=r"mask: expected shape \[B, T\] with T = 3"):
        cross_entropy(LOGP, MASK[:, :2])


def test_label_smoothing_by_hand():
    logits = jnp.log(jnp.array([[[0.5, 0.25, 0.125, 0.125]]]))
    mask = jnp.ones((1, 1), bool)
    # log 2 = 0.6931 for the target; mean of log 2, log 4, log 8, log 8: (1 + 2 + 3 + 3) / 4 log 2
    loss, metrics = label_smoothing(logits, jnp.array([[0]]), mask, epsilon=0.2)
    np.testing.assert_allclose(loss, [[(0.8 + 0.2 * 2.25) * 0.693147]], rtol=1e-5)
    assert float(metrics["sft/nll"].sum) == pytest.approx(0.693147, rel=1e-5)
    plain, _ = label_smoothing(logits, jnp.array([[2]]), mask, epsilon=0.0)
    np.testing.assert_allclose(plain, [[3 * 0.693147]], rtol=1e-5)  # without: the cross-entropy


def test_label_smoothing_ignores_the_target_of_padding():
    loss, _ = label_smoothing(
        jnp.zeros((1, 2, 3)), jnp.array([[1, -100]]), jnp.array([[True, False]])
    )
    np.testing.assert_allclose(loss, [[np.log(3), 0]], rtol=1e-6)


def test_z_loss_by_hand():
    loss, metrics = z_loss(jnp.array([[3.0, -2.0, 7.0]]), MASK[:1] != MASK[1:], coef=0.5)
    np.testing.assert_allclose(loss, [[4.5, 2.0, 0.0]])  # 0.5 x 9, 0.5 x 4, masked
    assert [float(x) for x in metrics["sft/log_z"]] == [1, 2]  # 3 - 2


def test_pretraining_mix_by_hand():
    loss, metrics = pretraining_mix(LOGP, MASK, coef=2.0)
    assert loss.tolist() == [[0, 2.0, 0.5], [4.0, 0, 6.0]]
    assert [float(x) for x in metrics["lm/nll"]] == [6.25, 4]  # without the coefficient


def test_bradley_terry_by_hand():
    chosen, rejected = jnp.array([2.0, 1.0, 0.0, 9.0]), jnp.array([1.0, 1.0, 3.0, 0.0])
    loss, metrics = bradley_terry(chosen, rejected, jnp.array([True, True, True, False]))
    # log(1 + e^-1), log 2, log(1 + e^3), padding
    np.testing.assert_allclose(loss, [0.313262, 0.693147, 3.048587, 0], rtol=1e-5)
    assert [float(x) for x in metrics["reward_model/accuracy"]] == [1, 3]  # a tie is no success
    assert [float(x) for x in metrics["reward_model/margin"]] == [-2, 3]  # 1 + 0 - 3
    np.testing.assert_array_equal(bradley_terry(chosen, rejected)[0][:3], loss[:3])


def test_step_cross_entropy_by_hand():
    logit = jnp.array([[1.0, 9.0, -2.0, 0.5]])
    end = jnp.array([[True, False, True, True]])
    loss, metrics = step_cross_entropy(logit, jnp.array([[1.0, 0.0, 1.0, 0.0]]), end)
    # log(1 + e^-1), no step's end, log(1 + e^2), log(1 + e^0.5)
    np.testing.assert_allclose(loss, [[0.313262, 0, 2.126928, 0.974077]], rtol=1e-5)
    assert [float(x) for x in metrics["reward_model/step_accuracy"]] == [1, 3]


def test_scores_far_apart_are_finite():
    far = jnp.array([1e4, -1e4])
    np.testing.assert_allclose(bradley_terry(far, -far)[0], [0, 2e4])
    end = jnp.ones((1, 2), bool)
    loss, _ = step_cross_entropy(far[None], jnp.array([[0.0, 1.0]]), end)
    np.testing.assert_allclose(loss, [[1e4, 1e4]])

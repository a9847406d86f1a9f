"""Losses of the critic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_vr.losses import clipped_value_loss, explained_variance, huber_value_loss

ALL = jnp.ones((1, 4), bool)


def test_clipped_value_loss_by_hand():
    # clip 0.5 about old 1. Targets 2 and 0.
    # 1.2 to 2: inside, 0.8^2 / 2 = 0.32. 1.8 to 2: cut at 1.5, 0.5^2 / 2 = 0.125 instead of 0.02.
    # 1.8 to 0: the bad way, 1.8^2 / 2 = 1.62. 0.2 to 0: cut at 0.5, 0.125 instead of 0.02.
    value = jnp.array([[1.2, 1.8, 1.8, 0.2]])
    returns = jnp.array([[2.0, 2.0, 0.0, 0.0]])
    old = jnp.ones((1, 4))
    loss, metrics = clipped_value_loss(value, old, returns, ALL, clip=0.5)
    np.testing.assert_allclose(loss, [[0.32, 0.125, 1.62, 0.125]], rtol=1e-5)
    assert int(metrics["value/clip_frac"].sum) == 2
    assert float(metrics["value/mean"].sum) == pytest.approx(5.0)
    assert float(metrics["value/return"].sum) == pytest.approx(4.0)
    assert [int(metric.count) for metric in metrics.values()] == [4, 4, 4]
    grad = jax.grad(lambda x: jnp.sum(clipped_value_loss(x, old, returns, ALL, clip=0.5)[0]))(value)
    np.testing.assert_allclose(grad, [[-0.8, 0.0, 1.8, 0.0]], rtol=1e-5)  # value - target, or cut


def test_an_infinite_clip_is_the_squared_error():
    value, old = jnp.array([[5.0, -3.0, 0.0, 1.0]]), jnp.zeros((1, 4))
    loss, metrics = clipped_value_loss(value, old, jnp.ones((1, 4)), ALL, clip=jnp.inf)
    np.testing.assert_allclose(loss, [[8, 8, 0.5, 0]])
    assert int(metrics["value/clip_frac"].sum) == 0


def test_huber_by_hand():
    # delta 2: 0.5; 2; 2 x (3 - 1); 2 x (4 - 1)
    value = jnp.array([[1.0, -2.0, 3.0, -4.0]])
    loss, metrics = huber_value_loss(value, jnp.zeros((1, 4)), ALL, delta=2.0)
    np.testing.assert_allclose(loss, [[0.5, 2, 4, 6]])
    assert float(metrics["value/mean"].sum) == -2.0
    assert float(metrics["value/return"].sum) == 0.0


@pytest.mark.parametrize(
    "value, expected",
    [
        ((1.0, 2.0, 3.0, 4.0), 1.0),
        ((6.0, 7.0, 8.0, 9.0), 1.0),  # all off by 5: a wrong mean is forgiven
        ((2.5, 2.5, 2.5, 2.5), 0.0),
        ((2.0, 2.0, 3.0, 3.0), 0.6),  # errors -1, 0, 0, 1: variance 0.5; of the returns 1.25
        ((4.0, 3.0, 2.0, 1.0), -3.0),  # errors -3, -1, 1, 3: variance 5
    ],
)
def test_explained_variance_by_hand(value, expected):
    returns = jnp.array([[1.0, 2.0, 3.0, 4.0]])
    found = explained_variance(jnp.array([value]), returns, ALL)
    assert float(found) == pytest.approx(expected, abs=1e-6)


def test_constant_returns_have_nothing_to_explain():
    value, returns = jnp.array([[1.0, 2.0, 3.0, 4.0]]), jnp.full((1, 4), 0.1)
    assert float(explained_variance(value, returns, ALL)) == 0.0


def test_metrics_carry_no_gradient():
    def metric(value):
        zero = jnp.zeros((1, 4))
        metrics = clipped_value_loss(value, zero, zero, ALL)[1]
        metrics |= huber_value_loss(value, zero, ALL)[1]
        return sum(metric.sum for name, metric in metrics.items() if name != "value/clip_frac")

    assert not jax.grad(metric)(jnp.ones((1, 4))).any()

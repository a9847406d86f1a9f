"""What is outside a mask is never read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_vr.losses.masked import fixed, masked, masked_log_ratio, per_token

X = np.array([[1.0, 2.0, 4.0, 8.0], [1.0, 1.0, 3.0, 5.0]], np.float32)
IDS = np.array([[1, 1, 2, 0], [1, 2, 2, 2]], np.int32)
MASK = np.array([[True, True, True, False], [False, True, True, False]])


@pytest.mark.parametrize("poison", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize("function, slope", [(masked, 1.0), (fixed, 0.0)], ids=["masked", "fixed"])
def test_values_and_gradients_by_hand(function, slope, poison):
    dirty = np.where(MASK, X, np.float32(poison))
    np.testing.assert_array_equal(function(dirty, MASK), np.where(MASK, X, 0))
    grad = jax.grad(lambda x: jnp.sum(function(x, MASK)))(dirty)
    np.testing.assert_array_equal(grad, np.where(MASK, slope, 0))


def test_log_ratio_by_hand():
    old = np.where(MASK, 0.5 * X, np.float32(np.nan))
    np.testing.assert_array_equal(masked_log_ratio(X, old, MASK), np.where(MASK, 0.5 * X, 0))
    grads = jax.grad(lambda new, old: jnp.sum(masked_log_ratio(new, old, MASK)), (0, 1))(X, old)
    np.testing.assert_array_equal(grads[0], MASK)
    np.testing.assert_array_equal(grads[1], 0 * X)


def test_a_value_of_each_rollout_and_of_each_token():
    expected = np.where(MASK, [[1.0], [2.0]], 0)
    np.testing.assert_array_equal(per_token(np.array([1.0, 2.0]), MASK), expected)
    np.testing.assert_array_equal(per_token(X, MASK, IDS), np.where(MASK, X, 0))
    np.testing.assert_array_equal(per_token(np.array([True, False]), MASK)[0], MASK[0])
    with pytest.raises(ValueError, match=r"lam: rows with segment_ids hold several sequences"):
        per_token(np.ones(2), MASK, IDS, name="lam")
    with pytest.raises(ValueError, match=r"adv: expected shape \[B\] with B = 2"):
        per_token(np.ones(3), MASK)


def test_float64_stays_and_lower_precision_is_lifted():
    assert masked(jnp.asarray(X, jnp.bfloat16), MASK).dtype == jnp.float32
    with jax.enable_x64(True):
        assert fixed(jnp.asarray(X, jnp.float64), MASK).dtype == jnp.float64


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"x: expected shape \[B, T\] with B = 2"):
        masked(X[:1], MASK)

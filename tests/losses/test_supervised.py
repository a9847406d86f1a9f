"""Maximum likelihood of demonstrations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxrl_vr.losses import cross_entropy

LOGP = jnp.array([[-0.5, -1.0, -0.25], [-2.0, -0.1, -3.0]])
MASK = jnp.array([[False, True, True], [True, False, True]])


def total(logp, mask=MASK):
    return jnp.sum(cross_entropy(logp, mask)[0])


def test_by_hand():
    loss, metrics = cross_entropy(LOGP, MASK)
    assert loss.tolist() == [[0, 1.0, 0.25], [2.0, 0, 3.0]]
    assert float(metrics["sft/nll"].sum) == 6.25  # 1 + 0.25 + 2 + 3
    assert int(metrics["sft/nll"].count) == 4


def test_equals_the_loop():
    np.testing.assert_array_equal(cross_entropy(LOGP, MASK)[0], reference.cross_entropy(LOGP, MASK))


def test_gradient_is_minus_the_mask():
    np.testing.assert_array_equal(jax.grad(total)(LOGP), -MASK.astype(jnp.float32))


def test_metric_carries_no_gradient():
    grad = jax.grad(lambda logp: cross_entropy(logp, MASK)[1]["sft/nll"].sum)(LOGP)
    np.testing.assert_array_equal(grad, jnp.zeros_like(LOGP))


@pytest.mark.parametrize("poison", [jnp.nan, jnp.inf, -jnp.inf], ids=str)
def test_padding_does_not_matter(poison):
    poisoned = jnp.where(MASK, LOGP, poison)
    loss, metrics = cross_entropy(poisoned, MASK)
    np.testing.assert_array_equal(loss, cross_entropy(LOGP, MASK)[0])
    assert float(metrics["sft/nll"].sum) == 6.25
    np.testing.assert_array_equal(jax.grad(total)(poisoned), jax.grad(total)(LOGP))


def test_nothing_to_train():
    none = jnp.zeros_like(MASK)
    loss, metrics = cross_entropy(LOGP, none)
    assert not loss.any()
    assert (float(metrics["sft/nll"].sum), int(metrics["sft/nll"].count)) == (0.0, 0)
    assert not jax.grad(total)(LOGP, none).any()


def test_jit():
    loss, metrics = jax.jit(cross_entropy)(LOGP, MASK)
    np.testing.assert_array_equal(loss, cross_entropy(LOGP, MASK)[0])
    assert float(metrics["sft/nll"].sum) == 6.25


def test_wrong_shape():
    with pytest.raises(ValueError, match=r"mask: expected shape \[B, T\] with T = 3"):
        cross_entropy(LOGP, MASK[:, :2])

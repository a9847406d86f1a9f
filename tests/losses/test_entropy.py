"""The entropy bonus and its controller by hand; see test_every_loss.py too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_vr.losses import adaptive_entropy, entropy_bonus


def test_bonus_by_hand():
    entropy, mask = jnp.array([[2.0, 1.0, 7.0]]), jnp.array([[True, True, False]])
    loss, metrics = entropy_bonus(entropy, mask, coef=0.25)
    assert loss.tolist() == [[-0.5, -0.25, 0.0]]
    assert [float(x) for x in metrics["policy/entropy"]] == [3, 2]


@pytest.mark.parametrize(
    "coef, entropy, expected",
    [
        (0.01, 0.1, (0.015, 0.01)),  # too low: rises, and acts
        (0.01, 0.3, (0.005, 0.0)),  # too high: falls, and rests
        (0.01, 0.2, (0.01, 0.01)),  # on target: stays
        (0.002, 0.3, (0.0, 0.0)),  # not below 0
        (0.0, 0.1, (0.005, 0.0)),  # the start
    ],
)
def test_controller_by_hand(coef, entropy, expected):
    np.testing.assert_allclose(adaptive_entropy(coef, entropy), expected, rtol=1e-6)
    jitted = jax.jit(adaptive_entropy)(jnp.float32(coef), jnp.float32(entropy))
    np.testing.assert_allclose(jitted, expected, rtol=1e-6)


def test_controller_finds_the_coefficient_that_keeps_the_target():
    # A policy whose entropy is 4 times the coefficient, scanned as a state.
    def update(coef, _):
        new, _ = adaptive_entropy(coef, 4.0 * coef, target=0.2, step=0.005)
        return new, new

    _, coefs = jax.lax.scan(update, jnp.zeros(()), length=40)
    np.testing.assert_allclose(coefs[-10:], 0.05, atol=0.0051)  # 4 x 0.05 = 0.2


def test_controller_takes_scalars():
    with pytest.raises(ValueError, match="entropy: expected shape"):
        adaptive_entropy(0.1, jnp.zeros(3))

"""One reward from the scores of steps."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_vr.losses import advantages, steps

ALL = jnp.ones((1, 3), bool)


@pytest.mark.parametrize(
    "name, expected",
    [("step_min", 0.0), ("step_product", 0.0), ("step_mean", 0.6667)],  # (1 + 1 + 0) / 3
)
def test_by_hand(name, expected):
    function = getattr(advantages, name)
    assert function is getattr(steps, name)
    found = function(jnp.array([[1.0, 1.0, 0.0]]), ALL)
    np.testing.assert_allclose(found, [expected], atol=5e-5)


def test_of_some_steps_by_hand():
    score = jnp.array([[0.5, 0.25, 9.0], [2.0, -1.0, 3.0]])
    mask = jnp.array([[True, True, False], [True, True, True]])
    assert steps.step_min(score, mask).tolist() == [0.25, -1.0]
    assert steps.step_product(score, mask).tolist() == [0.125, -6.0]  # 0.5 x 0.25, 2 x -1 x 3
    np.testing.assert_allclose(steps.step_mean(score, mask), [0.375, 4 / 3], rtol=1e-6)


@pytest.mark.parametrize("function", [steps.step_min, steps.step_product, steps.step_mean])
def test_no_steps_gain_nothing(function):
    assert function(jnp.array([[1.0, 1.0, 1.0]]), ~ALL).tolist() == [0.0]
    assert function(jnp.ones((2, 0)), jnp.ones((2, 0), bool)).tolist() == [0.0, 0.0]

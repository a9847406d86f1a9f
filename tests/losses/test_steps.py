"""Rewards and advantages from the scores of steps."""

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


def test_process_supervision_by_hand():
    # steps of the group 1, 0 | 1, and a missing one: mean 2/3, std 0.4714: 0.7071, -1.4142, 0.7071.
    # First rollout: the steps end at 1 and 3, so tokens 0, 1 get both, 2 and 3 the last, 4 none.
    adv = steps.process_group_norm(
        jnp.array([[[1.0, 0.0], [1.0, 5.0]]]),
        jnp.array([[[1, 3], [4, 2]]]),
        jnp.array([[[True, True], [True, False]]]),
        jnp.array([[True] * 5, [False] + [True] * 4]),
        eps=0.0,
    )
    both, last, second = 0.7071 - 1.4142, -1.4142, 0.7071
    np.testing.assert_allclose(
        adv, [[both, both, last, last, 0], [0, second, second, second, second]], atol=1e-4
    )


def test_process_supervision_of_the_wrong_number_of_rows():
    step = jnp.ones((2, 3, 1))
    with pytest.raises(ValueError, match=r"mask: expected B = P x G = 6 rows, .*, got 4"):
        steps.process_group_norm(step, step.astype(jnp.int32), step > 0, jnp.ones((4, 5), bool))

"""TRPO's step against the natural gradient in closed form."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from jaxrl_vr.losses import trpo_step

A, S = 4, 8  # actions, states
RNG = np.random.default_rng(0)
ADV = RNG.normal(size=(S, A)).astype(np.float32)
PARAMS = {
    "table": RNG.normal(size=(S, A)).astype(np.float32),
    "shared": {"bias": RNG.normal(size=A).astype(np.float32)},
}


def log_probs(params):
    return jax.nn.log_softmax(params["table"] + params["shared"]["bias"][None], axis=-1)


def objective(params, old):
    """Mean over states of the expected advantage, as an importance-weighted sum."""
    ratio = jnp.exp(log_probs(params) - log_probs(old))
    return jnp.mean(jnp.sum(jnp.exp(log_probs(old)) * ratio * ADV, axis=-1))


def kl(params, old):
    """Mean over states of KL(old || new)."""
    before = log_probs(old)
    return jnp.mean(jnp.sum(jnp.exp(before) * (before - log_probs(params)), axis=-1))


@functools.partial(jax.jit, static_argnames="factor")
def step(params, factor=1.0, **numbers):
    return trpo_step(
        lambda new: factor * objective(new, params), lambda new: kl(new, params), params, **numbers
    )


def fisher(params):
    """The Fisher matrix [n, n]: mean over states of E[score score^T], and the gradient [n]."""
    flat, unravel = ravel_pytree(params)
    score = jax.jacobian(lambda x: log_probs(unravel(x)))(flat)  # [S, A, n]
    probs = jnp.exp(log_probs(params))
    matrix = np.einsum("sa,san,sam->nm", probs, score, score) / S
    grad = jax.grad(lambda x: objective(unravel(x), params))(flat)
    return matrix, np.asarray(grad), unravel, flat


def test_is_the_natural_gradient():
    matrix, grad, _, flat = fisher(PARAMS)
    damped = matrix + 0.1 * np.eye(len(grad))
    direction = np.linalg.solve(damped, grad)
    scale = np.sqrt(2 * 1e-3 / (direction @ damped @ direction))
    new, metrics = step(PARAMS, max_kl=1e-3, damping=0.1, cg_iters=40, backtracks=5)
    found = ravel_pytree(new)[0] - flat
    np.testing.assert_allclose(found, scale * direction, rtol=1e-3, atol=1e-5)
    assert float(metrics["trpo/step_frac"].sum) == 1.0


def test_a_fisher_matrix_is_the_second_derivative_of_the_kl():
    matrix, grad, unravel, flat = fisher(PARAMS)
    hessian = jax.hessian(lambda x: kl(unravel(x), PARAMS))(flat)
    np.testing.assert_allclose(hessian, matrix, atol=1e-6)


@pytest.mark.parametrize("max_kl", [1e-4, 1e-2, 1.0])
def test_bound_holds_and_the_objective_rises(max_kl):
    new, metrics = step(PARAMS, max_kl=max_kl)
    found, gained = kl(new, PARAMS), objective(new, PARAMS) - objective(PARAMS, PARAMS)
    assert 0 < float(found) <= max_kl
    assert float(gained) > 0
    np.testing.assert_allclose(metrics["trpo/kl"].sum, found, rtol=1e-4)
    np.testing.assert_allclose(metrics["trpo/improvement"].sum, gained, rtol=1e-4, atol=1e-6)
    assert float(metrics["trpo/step_frac"].sum) in [2.0**-n for n in range(11)]


def test_line_search_backs_off():
    # The KL is 0.5 x^2 to second order but 8 x^4 far out: the full step is sqrt(2 max_kl) = 1,
    # where 0.5 + 8 is too much; halved once 0.125 + 0.5, still; twice 0.03125 + 0.03125.
    def kl_fn(x):
        return 0.5 * x**2 + 8 * x**4

    start = jnp.array(0.0)
    new, metrics = trpo_step(lambda x: x, kl_fn, start, max_kl=0.5, damping=0.0)
    assert float(new) == pytest.approx(0.25)
    assert float(metrics["trpo/step_frac"].sum) == 0.25
    assert float(metrics["trpo/kl"].sum) == pytest.approx(0.0625)
    # One halving is too few: the parameters stay.
    new, metrics = trpo_step(lambda x: x, kl_fn, start, max_kl=0.5, damping=0.0, backtracks=1)
    assert float(new) == 0.0
    assert all(float(metric.sum) == 0 for metric in metrics.values())


def test_line_search_wants_the_objective_to_rise():
    # x - 2 x^2 rises to 0.25 and is negative from 0.5 on; the full step is 1.
    new, _ = trpo_step(lambda x: x - 2 * x**2, lambda x: 0.25 * x**2, jnp.array(0.0), max_kl=0.3)
    assert 0 < float(new) < 0.5


@pytest.mark.parametrize("objective_fn", [lambda x: 0.0 * x, lambda x: jnp.log(x) * jnp.nan])
def test_without_a_direction_parameters_stay(objective_fn):
    new, metrics = trpo_step(objective_fn, lambda x: 0.5 * (x - 1.0) ** 2, jnp.array(1.0))
    assert float(new) == 1.0
    assert float(metrics["trpo/step_frac"].sum) == 0.0


def test_sharded_equals_plain():
    mesh = jax.make_mesh((8,), ("data",))
    place = {
        "table": jax.NamedSharding(mesh, jax.P("data")),
        "shared": {"bias": jax.NamedSharding(mesh, jax.P())},
    }
    new, metrics = step(jax.device_put(PARAMS, place))
    expected, expected_metrics = step(PARAMS)
    assert new["table"].sharding.is_equivalent_to(place["table"], 2)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, (new, metrics), (expected, expected_metrics))


def test_bfloat16_parameters_keep_their_dtype():
    low = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), PARAMS)

    def in_float32(function):
        return lambda new: function(
            *(jax.tree.map(lambda x: x.astype(jnp.float32), p) for p in (new, low))
        )

    new, metrics = trpo_step(in_float32(objective), in_float32(kl), low, max_kl=0.1)
    assert {x.dtype for x in jax.tree.leaves(new)} == {jnp.dtype(jnp.bfloat16)}
    assert 0 < float(metrics["trpo/kl"].sum) <= 0.1


def test_steps_learn():
    params = PARAMS
    for _ in range(40):
        params, _ = step(params, max_kl=0.1)
    best = np.mean(ADV.max(axis=1))
    learnt = jnp.mean(jnp.sum(jnp.exp(log_probs(params)) * ADV, axis=-1))
    assert float(learnt) > 0.9 * best

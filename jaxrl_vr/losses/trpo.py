"""The natural-gradient step of TRPO, on any pytree of parameters.

The losses that go into it, as of any policy gradient, are in policy.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import Mean, Metrics, at_least_float32

Params = Any
"""A pytree of float arrays."""


def trpo_step(
    objective_fn: Callable[[Params], jax.Array],
    kl_fn: Callable[[Params], jax.Array],
    params: Params,
    *,
    max_kl: float | jax.Array = 0.01,
    damping: float | jax.Array = 0.1,
    cg_iters: int | jax.Array = 10,
    backtracks: int | jax.Array = 10,
) -> tuple[Params, Metrics]:
    """One step of TRPO: the natural gradient, as far as the KL bound and the objective allow.

    x solves (F + damping I) x = g by conjugate gradient, g the objective's gradient and F the
    KL's second derivative at `params`, the Fisher matrix; it only ever appears as a product with
    a vector, forward over reverse. The step is s x with s = sqrt(2 max_kl / x (F + damping I) x),
    halved until the objective rises and KL(old || new), computed anew, is at most `max_kl`; if
    `backtracks` halvings do not reach that, the parameters stay.

    Source: Trust Region Policy Optimization, https://arxiv.org/abs/1502.05477, appendix C. The
    damping is of the authors' code, with its values of `max_kl` and `cg_iters`.

    Args:
      objective_fn: params -> scalar to maximise, such as the mean of r_t A_t over a batch
        (minus the weighted sum of `ppo_clip` with a wide range).
      kl_fn: params -> scalar mean KL(old || new), the old policy being that of `params`, computed
        beforehand as a constant.
      params: pytree of float arrays, in any sharding.
      max_kl: the bound, in nats.
      damping: added to the diagonal of F.
      cg_iters: most iterations of conjugate gradient, each two passes through the model.
      backtracks: most halvings, each a forward pass.

    Returns:
      The new parameters, and `trpo/kl` (KL(old || new) of the step), `trpo/improvement` (of the
      objective), `trpo/step_frac` (part of the full step that was taken, 0 if none).

    >>> params = {"x": jnp.array(0.0)}
    >>> new, metrics = trpo_step(
    ...     lambda p: p["x"], lambda p: 0.5 * p["x"] ** 2, params, max_kl=0.02, damping=1.0)
    >>> print(new["x"].round(4))  # (1 + 1) x = 1; 0.5 sqrt(0.04 / (0.5 x 2 x 0.5))
    0.1414
    """
    before, grad = jax.value_and_grad(objective_fn)(params)

    def damped_fisher(vector: Params) -> Params:
        tangent = jax.tree.map(lambda p, v: v.astype(p.dtype), params, vector)
        product = jax.jvp(jax.grad(kl_fn), (params,), (tangent,))[1]
        return jax.tree.map(
            lambda fv, v: at_least_float32(fv) + damping * at_least_float32(v), product, vector
        )

    direction = _conjugate_gradient(damped_fisher, _floats(grad), cg_iters)
    curvature = _dot(direction, damped_fisher(direction))
    is_up = curvature > 0
    scale = jnp.where(is_up, jnp.sqrt(2.0 * max_kl / jnp.where(is_up, curvature, 1.0)), 0.0)

    def moved(frac: jax.Array) -> Params:
        step = frac * scale.astype(frac.dtype)
        return jax.tree.map(
            lambda p, d: (at_least_float32(p) + step * d).astype(p.dtype), params, direction
        )

    def outcome(frac: jax.Array) -> tuple[jax.Array, jax.Array]:
        new = moved(frac)
        return objective_fn(new) - before, kl_fn(new)

    def is_refused(improvement: jax.Array, kl: jax.Array) -> jax.Array:
        return ~((improvement > 0) & (kl <= max_kl))  # true for NaN too

    def halve(state):
        tries, frac, _, _ = state
        return tries + 1, frac / 2, *outcome(frac / 2)

    full = jnp.ones((), scale.dtype)
    tries, frac, improvement, kl = jax.lax.while_loop(
        lambda state: is_refused(*state[2:]) & (state[0] < backtracks),
        halve,
        (jnp.zeros((), jnp.int32), full, *outcome(full)),
    )
    is_taken = ~is_refused(improvement, kl)
    new = jax.tree.map(lambda n, p: jnp.where(is_taken, n, p), moved(frac), params)
    metrics: Metrics = {
        "trpo/kl": Mean(jnp.where(is_taken, kl, 0.0), 1),
        "trpo/improvement": Mean(jnp.where(is_taken, improvement, 0.0), 1),
        "trpo/step_frac": Mean(jnp.where(is_taken, frac, 0.0), 1),
    }
    return new, jax.lax.stop_gradient(metrics)


def _conjugate_gradient(
    product: Callable[[Params], Params], target: Params, iters: int | jax.Array
) -> Params:
    """x with product(x) = target, from 0; stops where nothing of the target is left."""
    smallest = 1e-10 * _dot(target, target)

    def is_unsolved(state):
        num, _, _, _, rest = state
        return (num < iters) & (rest > smallest)

    def improve(state):
        num, x, residual, search, rest = state
        image = product(search)
        length = rest / _dot(search, image)
        x = jax.tree.map(lambda a, b: a + length * b, x, search)
        residual = jax.tree.map(lambda a, b: a - length * b, residual, image)
        new_rest = _dot(residual, residual)
        search = jax.tree.map(lambda r, s: r + new_rest / rest * s, residual, search)
        return num + 1, x, residual, search, new_rest

    zero = jax.tree.map(jnp.zeros_like, target)
    start = (jnp.zeros((), jnp.int32), zero, target, target, _dot(target, target))
    return jax.lax.while_loop(is_unsolved, improve, start)[1]


def _floats(tree: Params) -> Params:
    return jax.tree.map(at_least_float32, tree)


def _dot(a: Params, b: Params) -> jax.Array:
    products = jax.tree.map(lambda x, y: jnp.sum(x * y), a, b)
    return jax.tree.reduce(jnp.add, products)

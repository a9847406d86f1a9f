"""Probability ratios of tokens, and the metrics that ratio losses share.

The parts that the losses of policy.py, sequence.py and selection.py have in common; the losses
themselves are there.

B rows, T tokens of a row.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import Max, Mean, Metrics, check

# exp of this is the largest ratio we form; beyond it float32 would overflow to inf.
_MAX_LOG_RATIO = 20.0


def bounded_exp(log_ratio: jax.Array) -> jax.Array:
    """exp of a log ratio, at most exp(20), so that float32 stays finite.

    Args:
      log_ratio: float, of any shape.

    Returns:
      The ratio, of the same shape and dtype.

    >>> bounded_exp(jnp.array([0.0, -jnp.inf])).tolist()
    [1.0, 0.0]
    """
    return jnp.exp(jnp.minimum(log_ratio, _MAX_LOG_RATIO))


def attached(weight: jax.Array, logp: jax.Array) -> jax.Array:
    """A weight without gradient, times p_t / stop_gradient(p_t): its gradient is w d log p_t.

    Args:
      weight: [B, T] float; carries no gradient.
      logp: [B, T] float, finite.

    Returns:
      [B, T], equal to the weight.

    >>> float(jax.grad(lambda x: attached(jnp.array([[3.0]]), x)[0, 0])(jnp.array([[-1.0]]))[0, 0])
    3.0
    """
    return jax.lax.stop_gradient(weight) * jnp.exp(logp - jax.lax.stop_gradient(logp))


def ratio_metrics(log_ratio: jax.Array, is_cut: jax.Array, mask: jax.Array) -> Metrics:
    """The metrics of a loss over ratios of tokens.

    Args:
      log_ratio: [B, T] float, log p_t - log p_old_t, finite.
      is_cut: [B, T] bool, whether the loss removed the token's gradient.
      mask: [B, T] bool, true where a token trains.

    Returns:
      `policy/clip_frac`, `policy/approx_kl` (k3 of old against new), `policy/ratio_max`.

    >>> mask = jnp.ones((1, 2), bool)
    >>> ratio_metrics(jnp.zeros((1, 2)), jnp.array([[True, False]]), mask)["policy/ratio_max"]
    Max(value=Array(1., dtype=float32))
    """
    check("BT, BT, BT", log_ratio=log_ratio, is_cut=is_cut, mask=mask)
    count = jnp.sum(mask)
    bounded = jnp.minimum(log_ratio, _MAX_LOG_RATIO)
    k3 = jnp.expm1(bounded) - log_ratio
    metrics: Metrics = {
        "policy/clip_frac": Mean(jnp.sum(mask & is_cut), count),
        "policy/approx_kl": Mean(jnp.sum(jnp.where(mask, k3, 0.0)), count),
        "policy/ratio_max": Max(jnp.max(jnp.where(mask, jnp.exp(bounded), 0.0))),
    }
    return jax.lax.stop_gradient(metrics)

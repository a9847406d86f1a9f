"""Probability ratios of tokens, advantages as [B, T], and the metrics that ratio losses share.

The parts that the losses of policy.py, sequence.py and selection.py have in common; the losses
themselves are there.

B rows, T tokens of a row.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import Max, Mean, Metrics, at_least_float32, check

# exp of this is the largest ratio we form; beyond it float32 would overflow to inf.
_MAX_LOG_RATIO = 20.0


def masked(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Floats of at least float32, 0 outside the mask, so that nothing is read there.

    Args:
      x: [B, T] float.
      mask: [B, T] bool.

    Returns:
      [B, T] float32 (float64 for float64 input).

    >>> masked(jnp.array([[1.0, jnp.nan]]), jnp.array([[True, False]])).tolist()
    [[1.0, 0.0]]
    """
    check("BT, BT", x=x, mask=mask)
    return jnp.where(mask, at_least_float32(x), 0.0)


def per_token(x: jax.Array, mask: jax.Array, *, name: str = "adv") -> jax.Array:
    """Values [B] of rollouts or [B, T] of tokens as [B, T], without gradient, 0 outside the mask.

    Args:
      x: [B] or [B, T], such as advantages; bool becomes 0 and 1.
      mask: [B, T] bool.
      name: what an error calls `x`.

    Returns:
      [B, T] float32 (float64 for float64 input).

    Raises:
      ValueError: `x` has neither shape.

    >>> per_token(jnp.array([2.0]), jnp.array([[True, False]])).tolist()
    [[2.0, 0.0]]
    """
    x = jax.lax.stop_gradient(at_least_float32(x))
    if x.ndim == 1:
        check("BT, B", mask=mask, **{name: x})
        x = jnp.broadcast_to(x[:, None], mask.shape)
    check("BT, BT", mask=mask, **{name: x})
    return jnp.where(mask, x, 0.0)


def masked_log_ratio(logp: jax.Array, old_logp: jax.Array, mask: jax.Array) -> jax.Array:
    """log p_t - log p_old_t, 0 outside the mask; the old log-prob carries no gradient.

    Args:
      logp: [B, T] float, log-prob of each token under the current policy.
      old_logp: [B, T] float, the same under the policy the ratio is taken against.
      mask: [B, T] bool.

    Returns:
      [B, T] float32 (float64 for float64 input).

    >>> mask = jnp.array([[True, False]])
    >>> masked_log_ratio(jnp.array([[-1.0, -1.0]]), jnp.array([[-3.0, jnp.nan]]), mask).tolist()
    [[2.0, 0.0]]
    """
    return masked(logp, mask) - jax.lax.stop_gradient(masked(old_logp, mask))


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

"""Losses of a critic. Its targets, the returns, come from `losses.advantages`.

B rows, T tokens of a row.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import Mean, Metrics, check
from jaxrl_vr.losses.masked import fixed, masked


def clipped_value_loss(
    value: jax.Array,
    old_value: jax.Array,
    returns: jax.Array,
    mask: jax.Array,
    *,
    clip: float | jax.Array = 0.2,
) -> tuple[jax.Array, Metrics]:
    """Squared error of a value that may move only so far from the one while sampling.

    loss_t = 1/2 max((V_t - R_t)^2, (clip(V_t, V_old_t - clip, V_old_t + clip) - R_t)^2).

    Source: PPO's code, https://github.com/openai/baselines; AlpacaFarm, https://arxiv.org/abs/
    2305.14387. The paper of PPO, https://arxiv.org/abs/1707.06347, has the plain squared error:
    clip = inf. verl's default clip is 0.5, TRL's and AlpacaFarm's 0.2.

    Args:
      value: [B, T] float32, value of the state in which each token is chosen.
      old_value: [B, T] float32, the same from the critic while sampling; carries no gradient.
      returns: [B, T] float32, what the value should be; carries no gradient.
      mask: [B, T] bool, true where a token trains.
      clip: how far the value may move.

    Returns:
      [B, T] float32 (float64 for float64 input) loss, 0 outside the mask; `value/mean`,
      `value/return` and `value/clip_frac` (share of trained tokens whose gradient is cut).

    >>> one = lambda x: jnp.array([[x]])
    >>> loss, metrics = clipped_value_loss(one(1.0), one(0.5), one(2.0), one(True), clip=0.25)
    >>> print(loss, metrics["value/clip_frac"].sum)
    [[0.78125]] 1
    """
    check("BT, BT, BT, BT", value=value, old_value=old_value, returns=returns, mask=mask)
    value, returns = masked(value, mask), fixed(returns, mask)
    old_value = fixed(old_value, mask)
    free = jnp.square(value - returns)
    bounded = jnp.square(jnp.clip(value, old_value - clip, old_value + clip) - returns)
    is_cut = bounded > free
    count = jnp.sum(mask)
    metrics: Metrics = {
        "value/mean": Mean(jnp.sum(value), count),
        "value/return": Mean(jnp.sum(returns), count),
        "value/clip_frac": Mean(jnp.sum(is_cut), count),
    }
    return 0.5 * jnp.where(is_cut, bounded, free), jax.lax.stop_gradient(metrics)


def huber_value_loss(
    value: jax.Array, returns: jax.Array, mask: jax.Array, *, delta: float | jax.Array = 1.0
) -> tuple[jax.Array, Metrics]:
    """Squared error near the target and absolute error far from it.

    loss_t = e^2 / 2 where |e| <= delta, else delta (|e| - delta / 2), with e = V_t - R_t.

    Source: Huber 1964, https://doi.org/10.1214/aoms/1177703732.

    Args:
      value: [B, T] float32, value of the state in which each token is chosen.
      returns: [B, T] float32, what the value should be; carries no gradient.
      mask: [B, T] bool, true where a token trains.
      delta: the error at which the gradient stops growing.

    Returns:
      [B, T] float32 (float64 for float64 input) loss, 0 outside the mask; `value/mean` and
      `value/return`.

    >>> mask = jnp.ones((1, 2), bool)
    >>> huber_value_loss(jnp.array([[0.5, 3.0]]), jnp.zeros((1, 2)), mask)[0].tolist()
    [[0.125, 2.5]]
    """
    check("BT, BT, BT", value=value, returns=returns, mask=mask)
    value, returns = masked(value, mask), fixed(returns, mask)
    error = jnp.abs(value - returns)
    near = jnp.minimum(error, delta)
    count = jnp.sum(mask)
    metrics: Metrics = {
        "value/mean": Mean(jnp.sum(value), count),
        "value/return": Mean(jnp.sum(returns), count),
    }
    # Both pieces in one: near is e up to delta, and delta beyond it.
    return near * (error - 0.5 * near), jax.lax.stop_gradient(metrics)


def explained_variance(value: jax.Array, returns: jax.Array, mask: jax.Array) -> jax.Array:
    """The share of the returns' variance that the values explain: 1 - var(R - V) / var(R).

    1 for a perfect critic, 0 for a constant one, below 0 for one that is worse. It is a ratio of
    sums: of a whole batch, and not to be averaged over micro-batches.

    Source: the coefficient of determination, with an error of the mean forgiven; VAPO,
    https://arxiv.org/abs/2504.05118, section 4.1, watches it while a critic warms up.

    Args:
      value: [B, T] float32, value of the state in which each token is chosen.
      returns: [B, T] float32, what the value should be.
      mask: [B, T] bool, true where a token trains.

    Returns:
      Scalar float32 (float64 for float64 input), without gradient; 0 where the returns do not
      vary.

    >>> mask = jnp.ones((1, 2), bool)
    >>> print(explained_variance(jnp.array([[0.0, 1.0]]), jnp.array([[0.0, 2.0]]), mask))
    0.75
    """
    check("BT, BT, BT", value=value, returns=returns, mask=mask)
    value, returns = fixed(value, mask), fixed(returns, mask)
    spread = _squares(returns, mask)
    rest = _squares(returns - value, mask)
    return jnp.where(spread > 0, 1.0 - rest / jnp.where(spread > 0, spread, 1.0), 0.0)


def _squares(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Sum of squares about the mean; 0 exactly where all are equal."""
    low = jnp.min(jnp.where(mask, x, jnp.inf))
    above = jnp.where(mask, x - low, 0.0)
    mean = jnp.sum(above) / jnp.maximum(jnp.sum(mask), 1).astype(x.dtype)
    return jnp.sum(jnp.square(jnp.where(mask, above - mean, 0.0)))

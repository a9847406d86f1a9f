"""Arrays whose places outside a mask are never read: the first step of every loss.

B rows, T tokens of a row.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import at_least_float32, check


def masked(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Floats of at least float32, 0 outside the mask, so that nothing is read there.

    Args:
      x: float of any shape, such as [B, T].
      mask: bool of the same shape.

    Returns:
      float32 (float64 for float64 input) of that shape.

    >>> masked(jnp.array([[1.0, jnp.nan]]), jnp.array([[True, False]])).tolist()
    [[1.0, 0.0]]
    """
    letters = "BTVX"[: jnp.ndim(mask)]
    check(f"{letters}, {letters}", mask=mask, x=x)
    return jnp.where(mask, at_least_float32(x), 0.0)


def fixed(x: jax.Array, mask: jax.Array) -> jax.Array:
    """`masked`, without gradient: a target, an advantage, an old log-prob.

    >>> fixed(jnp.array([2.0, jnp.inf]), jnp.array([True, False])).tolist()
    [2.0, 0.0]
    """
    return jax.lax.stop_gradient(masked(x, mask))


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
    return masked(logp, mask) - fixed(old_logp, mask)


def per_token(
    x: jax.Array, mask: jax.Array, segment_ids: jax.Array | None = None, *, name: str = "adv"
) -> jax.Array:
    """Values [B] of rollouts or [B, T] of tokens as [B, T], without gradient, 0 outside the mask.

    Args:
      x: [B] or [B, T], such as advantages; bool becomes 0 and 1.
      mask: [B, T] bool.
      segment_ids: [B, T] int, where rows hold several sequences, which cannot share a value.
      name: what an error calls `x`.

    Returns:
      [B, T] float32 (float64 for float64 input).

    Raises:
      ValueError: [B] with segment_ids, or `x` has neither shape.

    >>> per_token(jnp.array([2.0]), jnp.array([[True, False]])).tolist()
    [[2.0, 0.0]]
    """
    x = jnp.asarray(x)
    if x.ndim == 1:
        check("BT, B", mask=mask, **{name: x})
        if segment_ids is not None:
            raise ValueError(
                f"{name}: rows with segment_ids hold several sequences and need shape [B, T], got "
                f"{list(x.shape)}; repeat each sequence's value at its tokens"
            )
        x = jnp.broadcast_to(x[:, None], mask.shape)
    check("BT, BT", mask=mask, **{name: x})
    return fixed(x, mask)

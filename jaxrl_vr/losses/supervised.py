"""Losses on demonstrations. B rows, T tokens of a row."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import Mean, Metrics, check


def cross_entropy(logp: jax.Array, mask: jax.Array) -> tuple[jax.Array, Metrics]:
    """Negative log-likelihood of each demonstrated token.

    Args:
      logp: [B, T] float32, log-prob of each token.
      mask: [B, T] bool, true where a token trains.

    Returns:
      [B, T] float32 loss, 0 outside the mask; `sft/nll`, the mean per trained token.

    >>> loss, _ = cross_entropy(jnp.array([[-1.0, -2.0]]), jnp.array([[True, False]]))
    >>> loss.tolist()
    [[1.0, 0.0]]
    """
    check("BT, BT", logp=logp, mask=mask)
    loss = jnp.where(mask, -logp, 0.0)
    return loss, {"sft/nll": Mean(jax.lax.stop_gradient(jnp.sum(loss)), jnp.sum(mask))}

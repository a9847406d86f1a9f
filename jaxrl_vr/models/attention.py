"""Attention in plain XLA: the oracle that defines right, and the backend of the CPU.

B rows, T query tokens, C key tokens, H query heads, K kv heads, R = H / K, Q head dim.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import check

# Finite, so that a row with nothing to attend to (padding) gives a mean and not NaN.
_MASKED = -1e30


def attention(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Grouped-query attention with an explicit mask; softmax in float32.

    Args:
      q: [B, T, H, Q], rotated queries.
      k: [B, K, C, Q], rotated keys. Heads before length: TPU tiles the last two axes, and K is
        often 2.
      v: [B, K, C, Q], values.
      mask: [B, T, C] bool, true where a query may see a key.

    Returns:
      [B, T, H, Q], in q's dtype.
    """
    check("BTHQ, BKCQ, BKCQ, BTC", q=q, k=k, v=v, mask=mask)
    B, T, H, Q = q.shape
    K = k.shape[1]
    grouped = q.reshape(B, T, K, H // K, Q)  # H -> K, R
    scores = jnp.einsum("BTKRQ,BKCQ->BKRTC", grouped, k, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None, None], scores * Q**-0.5, _MASKED)
    probs = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    return jnp.einsum("BKRTC,BKCQ->BTKRQ", probs, v).reshape(B, T, H, Q)  # K, R -> H


def segment_mask(segment_ids: jax.Array) -> jax.Array:
    """Causal mask within the segments of packed rows.

    Args:
      segment_ids: [B, T] int32; 0 is padding, which sees only itself and its kind.

    Returns:
      [B, T, T] bool.
    """
    T = segment_ids.shape[1]
    causal = jnp.tril(jnp.ones((T, T), bool))
    return causal[None] & (segment_ids[:, :, None] == segment_ids[:, None, :])

"""Sums over the sequences that share a packed row, and steps from token to token within one.

B rows, T tokens of a row. A row without segment ids holds one sequence.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import at_least_float32, check


def segment_total(x: jax.Array, mask: jax.Array, segment_ids: jax.Array | None = None) -> jax.Array:
    """The sum over the masked tokens of each token's own sequence, at each of its tokens.

    Args:
      x: [B, T] float; what is masked out is never read.
      mask: [B, T] bool, true where a token counts.
      segment_ids: [B, T] int, from 0 to T, which sequence of its row a token belongs to. None: a
        row is one sequence.

    Returns:
      [B, T] float32 (float64 for float64 input), also where the mask is false.

    >>> x, mask = jnp.array([[1.0, 2.0, 4.0]]), jnp.ones((1, 3), bool)
    >>> segment_total(x, mask, jnp.array([[1, 1, 2]])).tolist()
    [[3.0, 3.0, 4.0]]
    """
    check("BT, BT, BT", x=x, mask=mask, segment_ids=segment_ids)
    kept = jnp.where(mask, at_least_float32(x), 0.0)
    if segment_ids is None:
        return jnp.broadcast_to(jnp.sum(kept, axis=1, keepdims=True), kept.shape)

    def of_row(kept: jax.Array, ids: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(kept, ids, num_segments=ids.shape[0] + 1)[ids]

    return jax.vmap(of_row)(kept, segment_ids)


def segment_mean(x: jax.Array, mask: jax.Array, segment_ids: jax.Array | None = None) -> jax.Array:
    """The mean over the masked tokens of each token's own sequence, at each of its tokens.

    Args:
      x: [B, T] float; what is masked out is never read.
      mask: [B, T] bool, true where a token counts.
      segment_ids: [B, T] int, from 0 to T; None: a row is one sequence.

    Returns:
      [B, T] float32 (float64 for float64 input); 0 for a sequence without a masked token.

    >>> x, mask = jnp.array([[1.0, 2.0, 4.0]]), jnp.ones((1, 3), bool)
    >>> segment_mean(x, mask, jnp.array([[1, 1, 2]])).tolist()
    [[1.5, 1.5, 4.0]]
    """
    total = segment_total(x, mask, segment_ids)
    count = segment_total(mask.astype(total.dtype), mask, segment_ids)
    return total / jnp.maximum(count, 1.0)


def next_in_segment(
    mask: jax.Array, segment_ids: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Where each token's next masked token in its own sequence is, and whether there is one.

    Args:
      mask: [B, T] bool, true where a token counts; the others are stepped over.
      segment_ids: [B, T] int; the tokens of a sequence stand together. None: a row is one
        sequence.

    Returns:
      [B, T] int32, an index into the row, to be read only where the second result is true; and
      [B, T] bool. The last masked token of each sequence is where `mask` is true and this is not.

    >>> index, has_next = next_in_segment(jnp.array([[True, False, True]]))
    >>> int(index[0, 0]), has_next.tolist()
    (2, [[True, True, False]])
    """
    sizes = check("BT, BT", mask=mask, segment_ids=segment_ids)
    num_tokens = sizes["T"]
    position = jnp.where(mask, jnp.arange(num_tokens, dtype=jnp.int32)[None], num_tokens)
    here_or_later = jax.lax.cummin(position, axis=1, reverse=True)
    later = jnp.pad(here_or_later[:, 1:], ((0, 0), (0, 1)), constant_values=num_tokens)
    index = jnp.minimum(later, num_tokens - 1)
    has_next = later < num_tokens
    if segment_ids is not None:
        ids = jnp.asarray(segment_ids)
        has_next &= jnp.take_along_axis(ids, index, axis=1) == ids
    return index, has_next

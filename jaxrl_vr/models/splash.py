"""Causal attention of packed rows by jax's splash kernels: the backend of the TPU.

The oracle is blockwise.py.

B rows, T query tokens, C key tokens, K kv heads, R query heads of a kv head, Q head dim.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as splash_kernel,
)
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_mask

from jaxrl_vr.models.blockwise import ATTENDED, causal_with_sums

LANES = 128
"""Of tokens that the kernels want."""
_LARGEST_BLOCK = 512


def takes(num_queries: int, num_keys: int) -> bool:
    """Whether the kernels take rows of these tokens: whose blocks are multiples of 128."""
    return num_queries % LANES == 0 and num_keys % LANES == 0


def splash(
    num_heads: int,
    num_queries: int,
    num_keys: int,
    *,
    start: int = 0,
    parts: int = 1,
    with_sums: bool = False,
    interpret: bool = False,
) -> Any:
    """The kernel of one kv head and its queries.

    Args:
      num_heads: R.
      num_queries: of all devices that split them.
      num_keys: C.
      start: place of the first query among the keys.
      parts: devices that split the queries; each gets its part by `manual_sharding_spec`.
      with_sums: whether the log-sum-exp is returned too; then it has no gradient.
      interpret: whether to run without a TPU, which is slow and for tests.
    """
    of_queries = _block(num_queries // parts)
    of_keys = _block(num_keys)
    sizes = splash_kernel.BlockSizes(
        block_q=of_queries,
        block_kv=of_keys,
        block_q_dkv=of_queries,
        block_kv_dkv=of_keys,
        block_q_dq=of_queries,
        block_kv_dq=of_keys,
    )
    mask = splash_mask.MultiHeadMask(
        [splash_mask.CausalMask((num_queries, num_keys), offset=start) for _ in range(num_heads)]
    )
    return splash_kernel.make_splash_mqa(
        mask,
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=parts,
        save_residuals=with_sums,
        residual_checkpoint_name=ATTENDED,
        interpret=interpret,
    )


def from_the_last(kernel: Any, parts: int) -> Any:
    """The kernel whose first part of the queries is the last of `kernel`, and so on."""

    def turned(a: jax.Array) -> jax.Array:
        axis = 0 if a.ndim == 1 else 1  # places of queries; or heads, blocks of queries, of keys
        size = a.shape[axis] // parts
        in_parts = a.reshape(*a.shape[:axis], parts, size, *a.shape[axis + 1 :])
        return jnp.flip(in_parts, axis).reshape(a.shape)  # parts, blocks of one -> blocks

    return jax.tree.map(turned, kernel)


def splash_attention(
    kernel: Any,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    query_segments: jax.Array | None = None,
    key_segments: jax.Array | None = None,
) -> Any:
    """Softmax attention; a query sees keys of its own segment up to its own place.

    Args:
      kernel: from `splash`.
      q: [B, K, R, T, Q] rotated queries.
      k: [B, K, C, Q] rotated keys.
      v: [B, K, C, Q] values.
      query_segments: [B, T] int32; default: one segment.
      key_segments: [B, C] int32.

    Returns:
      [B, K, R, T, Q] in q's dtype; with sums, the log-sum-exp [B, K, R, T] float32 behind it.
    """
    q = (q * q.shape[-1] ** -0.5).astype(q.dtype)

    def row(q: jax.Array, k: jax.Array, v: jax.Array, segments: Any) -> Any:
        return jax.vmap(lambda q, k, v: kernel(q, k, v, segments))(q, k, v)

    segments = None
    if query_segments is not None and key_segments is not None:
        segments = splash_kernel.SegmentIds(q=query_segments, kv=key_segments)
    found = jax.vmap(row)(q, k, v, segments)
    if isinstance(found, tuple):
        out, (logsumexp,) = found
        return out.astype(q.dtype), logsumexp.astype(jnp.float32)
    return found.astype(q.dtype)


def splash_chunk(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows of one segment, with what merges them with attention to other keys; no gradient.

    Compiled on TPU; elsewhere interpreted, which is slow and for tests. Rows that the kernels do
    not take are left to plain XLA.

    Args:
      q: [B, K, R, T, Q] rotated queries.
      k: [B, K, T, Q] rotated keys.
      v: [B, K, T, Q] values.

    Returns:
      [B, K, R, T, Q] in q's dtype, and the log-sum-exp of the scores, [B, K, R, T] float32.
    """
    R, T = q.shape[2:4]
    if not takes(T, T):
        return causal_with_sums(q, k, v)

    def attend(interpret: bool, q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        kernel = splash(R, T, T, with_sums=True, interpret=interpret)
        return splash_attention(kernel, q, k, v)

    return jax.lax.platform_dependent(
        *(q, k, v),
        tpu=functools.partial(attend, False),
        default=functools.partial(attend, True),
    )


def _block(tokens: int) -> int:
    """The largest power of two times 128 up to the limit that divides them."""
    size = _LARGEST_BLOCK
    while size > LANES and tokens % size:
        size //= 2
    return size

"""Causal attention of packed rows by cuDNN's flash kernels: the backend of NVIDIA's GPUs.

The oracle is blockwise.py.

B rows, T tokens, K kv heads, R query heads of a kv head, H = K R query heads, Q head dim, M
segments of a row.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jaxrl_vr.models.blockwise import ATTENDED

MOST_SEGMENTS = 64
"""Sequences of a row, padding aside: the kernel's statistics have room for each as for a row."""
_HOPPER = 9  # compute capability; earlier GPUs have no kernel for packed rows
_LARGEST_HEAD = 256


def why_not(dtype: Any, head_dim: int, device: Any) -> str | None:
    """Why the kernels cannot run on a device of jax, to end a sentence; None: they can."""
    capability = str(getattr(device, "compute_capability", ""))
    # AMD's names of architectures start with letters.
    major = capability.split(".")[0]
    if device.platform != "gpu" or not major.isdigit() or int(major) < _HOPPER:
        return f"they want an NVIDIA GPU of Hopper or later, and this is {device.device_kind}"
    if head_dim % 8 or head_dim > _LARGEST_HEAD:
        return f"they want heads of a multiple of 8 up to {_LARGEST_HEAD}, and these are {head_dim}"
    if jnp.dtype(dtype).itemsize != 2:
        return f"they want 16 bits, and the model computes in {jnp.dtype(dtype).name}"
    return None


def cudnn_attention(q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Softmax attention; a token sees those of its own segment up to itself.

    Args:
      q: [B, K, R, T, Q] rotated queries, bfloat16 or float16.
      k: [B, K, T, Q] rotated keys.
      v: [B, K, T, Q] values.
      segment_ids: [B, T] int32; tokens of a segment lie one behind the other. Padding is a segment
        too, so that each token has a value. NaN is returned where a row has more than
        `MOST_SEGMENTS` beside it.

    Returns:
      [B, K, R, T, Q] in q's dtype.
    """
    fused = _fused()
    R = q.shape[2]
    starts, lengths, fits = _segments(segment_ids, MOST_SEGMENTS + 1)
    # jax 0.10 takes a kv head's stride for that of a query head, so each query head has its own
    # (jax-ml/jax#39521).
    k, v = (jnp.repeat(a, R, axis=1) for a in (k, v))
    out = fused.dot_product_attention(
        _tokens_first(_flat(q)),
        _tokens_first(k),
        _tokens_first(v),
        q_seqlen=lengths,
        kv_seqlen=lengths,
        q_offsets=starts,
        kv_offsets=starts,
        scale=q.shape[-1] ** -0.5,
        mask_type=fused.MaskType.PADDING_CAUSAL,
    )
    out = jnp.where(fits[:, None, None, None], out, jnp.nan)
    return checkpoint_name(_tokens_first(out).reshape(q.shape), ATTENDED)


def cudnn_chunk(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows of one segment, with what merges them with attention to other keys; no gradient.

    Args:
      q: [B, K, R, T, Q] rotated queries, bfloat16 or float16.
      k: [B, K, T, Q] rotated keys.
      v: [B, K, T, Q] values.

    Returns:
      [B, K, R, T, Q] in q's dtype, and the log-sum-exp of the scores, [B, K, R, T] float32.
    """
    fused = _fused()
    out, sums = fused.dot_product_attention(
        *map(_tokens_first, (_flat(q), k, v)),
        scale=q.shape[-1] ** -0.5,
        mask_type=fused.MaskType.CAUSAL,
        return_residual=True,
    )
    return _tokens_first(out).reshape(q.shape), sums.reshape(q.shape[:-1])


def _fused() -> Any:
    # What jax.nn has of it takes no segments, and rounds the log-sum-exp.
    from jax._src.cudnn import fused_attention_stablehlo

    return fused_attention_stablehlo


def _flat(q: jax.Array) -> jax.Array:
    """K, R -> H."""
    B, K, R, T, Q = q.shape
    return q.reshape(B, K * R, T, Q)


def _tokens_first(a: jax.Array) -> jax.Array:
    """[B, H, T, Q] -> [B, T, H, Q], and back."""
    return a.swapaxes(1, 2)


def _segments(segment_ids: jax.Array, most: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """First token and length of each segment, as cuDNN wants them: [B, M + 1] and [B, M] int32, -1
    behind the last; and whether each row has no more, [B] bool."""
    T = segment_ids.shape[1]
    before = jnp.pad(segment_ids[:, :-1], [(0, 0), (1, 0)], constant_values=-1)
    is_first = segment_ids != before
    firsts = jax.vmap(lambda row: jnp.nonzero(row, size=most, fill_value=T)[0])(is_first)
    ends = jnp.pad(firsts[:, 1:], [(0, 0), (0, 1)], constant_values=T)
    is_there = firsts < T
    starts = jnp.pad(jnp.where(is_there, firsts, -1), [(0, 0), (0, 1)], constant_values=-1)
    lengths = jnp.where(is_there, ends - firsts, -1)
    fits = jnp.sum(is_first, axis=1) <= most
    return starts.astype(jnp.int32), lengths.astype(jnp.int32), fits

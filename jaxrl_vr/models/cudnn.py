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

from jaxrl_vr.arrays import check
from jaxrl_vr.models.blockwise import ATTENDED

MOST_SEGMENTS = 32
"""Sequences of a row, padding aside: the kernel's statistics have room for each as for a row, four
bytes a head and token."""
_HOPPER = 9  # compute capability; earlier GPUs have no kernel for packed rows


def why_not(dtype: Any, head_dim: int, device: Any) -> str | None:
    """Why the kernels cannot run on a device of jax, as a clause; None: they can."""
    capability = str(getattr(device, "compute_capability", ""))
    # AMD's names of architectures start with letters.
    major = capability.split(".")[0]
    if device.platform != "gpu" or not major.isdigit() or int(major) < _HOPPER:
        return f"cuDNN wants an NVIDIA GPU of Hopper or later, and this is {device.device_kind}"
    # Later GPUs have no backward pass for larger ones.
    largest = 256 if int(major) == _HOPPER else 128
    if head_dim % 8 or head_dim > largest:
        return f"cuDNN wants heads of a multiple of 8 up to {largest}, and these are {head_dim}"
    if jnp.dtype(dtype).itemsize != 2:
        return f"cuDNN wants 16 bits, and the model computes in {jnp.dtype(dtype).name}"
    return None


def cudnn_attention(q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Softmax attention; a token sees those of its own segment up to itself.

    Args:
      q: [B, K, R, T, Q] rotated queries, bfloat16 or float16.
      k: [B, K, T, Q] rotated keys.
      v: [B, K, T, Q] values.
      segment_ids: [B, T] int32; tokens of a segment lie one behind the other. Padding is a segment
        too, so that each token has a value. Of more than `MOST_SEGMENTS` + 1 in a row, all of the
        row is NaN.

    Returns:
      [B, K, R, T, Q] in q's dtype.
    """
    check("BKRTQ, BKTQ, BKTQ, BT", q=q, k=k, v=v, segment_ids=segment_ids)
    starts, lengths, fits = _segments(segment_ids, MOST_SEGMENTS + 1)
    out: jax.Array = _attend(q, k, v, starts, lengths)
    return jnp.where(fits[:, None, None, None, None], out, jnp.nan)


@jax.custom_vjp
def _attend(
    q: jax.Array, k: jax.Array, v: jax.Array, starts: jax.Array, lengths: jax.Array
) -> jax.Array:
    return _attend_forward(q, k, v, starts, lengths)[0]


def _attend_forward(
    q: jax.Array, k: jax.Array, v: jax.Array, starts: jax.Array, lengths: jax.Array
) -> tuple[jax.Array, Any]:
    fused = _fused()
    out, sums = fused.dot_product_attention(
        *_one_kv_head_each(q, k, v),
        q_seqlen=lengths,
        kv_seqlen=lengths,
        q_offsets=starts,
        kv_offsets=starts,
        scale=q.shape[-1] ** -0.5,
        mask_type=fused.MaskType.PADDING_CAUSAL,
        return_residual=True,
    )
    out, sums = (checkpoint_name(a, ATTENDED) for a in (out, sums))
    return _tokens_first(out).reshape(q.shape), (q, k, v, starts, lengths, out, sums)


def _attend_backward(kept: Any, gradient: jax.Array) -> tuple[Any, ...]:
    # By jax's own rule, whose forward pass would keep the repeated keys and values, and would not
    # let them be named for those who choose what is kept.
    fused = _fused()
    q, k, v, starts, lengths, out, sums = kept
    B, K, R, T, Q = q.shape
    unused = jnp.zeros(0, q.dtype)
    rest = lengths, lengths, starts, starts, unused, unused, sums, out
    settings = Q**-0.5, 42, 0.0, (False, False), fused.MaskType.PADDING_CAUSAL
    of_q, *of_kv = fused._dot_product_attention_bwd_rule(
        *settings,
        fused.AttentionLayout.BTNH.value,
        None,
        fused.check_cudnn_version(),
        False,
        (*_one_kv_head_each(q, k, v), unused, *rest),
        _tokens_first(_flat(gradient)),
    )[:3]

    def summed(a: jax.Array) -> jax.Array:
        of_each = _tokens_first(a).reshape(B, K, R, T, Q)  # H -> K, R
        return jnp.sum(of_each, axis=2, dtype=jnp.float32).astype(a.dtype)

    return _tokens_first(of_q).reshape(q.shape), *map(summed, of_kv), None, None


_attend.defvjp(_attend_forward, _attend_backward)


def _one_kv_head_each(
    q: jax.Array, k: jax.Array, v: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """[B, T, H, Q] each. jax 0.10 takes a kv head's stride for that of a query head, so each query
    head has its own (jax-ml/jax#39521)."""
    R = q.shape[2]
    k, v = (jnp.repeat(a, R, axis=1) for a in (k, v))
    return _tokens_first(_flat(q)), _tokens_first(k), _tokens_first(v)


def cudnn_chunk(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows of one segment, with what merges them with attention to other keys; no gradient.

    Args:
      q: [B, K, R, T, Q] rotated queries, bfloat16 or float16.
      k: [B, K, T, Q] rotated keys.
      v: [B, K, T, Q] values.

    Returns:
      [B, K, R, T, Q] in q's dtype, and the log-sum-exp of the scores, [B, K, R, T] float32.
    """
    check("BKRTQ, BKTQ, BKTQ", q=q, k=k, v=v)
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

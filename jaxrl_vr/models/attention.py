"""Causal attention of packed rows, on the devices of a mesh, by the backend that is asked for.

Rows are split over `data` and `fsdp`, heads over `tensor`; where its devices do not divide the kv
heads, the query heads of each are, or each kv head goes to several devices. Of a row that is split
over `context` each device has its own queries and gathers the keys and values of the whole, which
grouped heads make small. Blocks that lie behind all queries are skipped, so rows are best dealt
(dealt.py).

B rows, T tokens, H query heads, K kv heads, R = H / K, Q head dim.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jaxrl_vr.arrays import check
from jaxrl_vr.models.blockwise import blockwise_attention
from jaxrl_vr.models.cudnn import cudnn_attention
from jaxrl_vr.models.dealt import can_deal, in_order, num_parts
from jaxrl_vr.models.splash import LANES, from_the_last, splash, splash_attention, takes
from jaxrl_vr.sharding import TRAIN_RULES, current_mesh, spec

Backend = Literal["xla", "splash", "splash_interpreted", "cudnn"]
"""Plain XLA by blocks, the TPU's kernels (interpreted they run anywhere, slowly), or the GPU's,
which take rows that are not split."""


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segment_ids: jax.Array,
    backend: Backend = "xla",
    *,
    is_dealt: bool = False,
) -> jax.Array:
    """Grouped-query attention; a token sees those of its own segment up to itself.

    Softmax in float32; no array has T x T elements.

    Args:
      q: [B, T, H, Q], rotated queries.
      k: [B, T, K, Q], rotated keys.
      v: [B, T, K, Q], values.
      segment_ids: [B, T] int32; 0 is padding, which sees only itself and its kind.
      backend: static.
      is_dealt: static; whether tokens lie as `deal` lays them, where `takes_dealt` says so.

    Returns:
      [B, T, H, Q], in q's dtype and the same order.
    """
    check("BTHQ, BTKQ, BTKQ, BT", q=q, k=k, v=v, segment_ids=segment_ids)
    B, T, H, Q = q.shape
    if (copies := _copies(H, k.shape[2])) > 1:
        k, v = (jnp.repeat(a, copies, axis=2) for a in (k, v))
    K = k.shape[2]
    grouped = q.reshape(B, T, K, H // K, Q).transpose(0, 2, 3, 1, 4)  # H -> K, R
    out = _on_devices(grouped, k.swapaxes(1, 2), v.swapaxes(1, 2), segment_ids, backend, is_dealt)
    return out.transpose(0, 3, 1, 2, 4).reshape(q.shape)  # K, R -> H


def _copies(num_heads: int, num_kv_heads: int) -> int:
    """Of each kv head, so that the mesh that is set can split them, where it can split neither them
    nor the query heads of each: else all its devices would attend with all heads."""
    mesh = current_mesh()
    split = 1 if mesh is None else mesh.shape.get("tensor", 1)
    if num_kv_heads % split == 0 or num_heads // num_kv_heads % split == 0 or num_heads % split:
        return 1
    return math.lcm(num_kv_heads, split) // num_kv_heads


def takes_dealt(num_tokens: int, backend: Backend) -> bool:
    """Whether rows of these tokens are to be dealt, on the mesh that is set."""
    # The kernels may take the part of a device and not the half of it.
    by_kernel = has_kernel(backend, num_tokens // num_parts(num_tokens), num_tokens)
    return can_deal(num_tokens, LANES if by_kernel else 1)


def _on_devices(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segment_ids: jax.Array,
    backend: Backend,
    is_dealt: bool,
) -> jax.Array:
    R, T = q.shape[2:4]
    mesh = current_mesh()
    if mesh is None or mesh.size == 1:
        if backend == "cudnn":
            return cudnn_attention(q, k, v, segment_ids)
        return _local(q, k, v, segment_ids, kernels(backend, R, T, 1, False), None, False)
    axes = ("batch", "kv_heads", "heads", "length", None)
    of_q = spec(axes, TRAIN_RULES, mesh, q.shape)
    of_k = spec(("batch", "kv_heads", "length", None), TRAIN_RULES, mesh, k.shape)
    of_segments = spec(("batch", "length"), TRAIN_RULES, mesh, segment_ids.shape)
    _, _, heads, context, _ = (*of_q, *[None] * (5 - len(of_q)))
    parts = mesh.shape[context] if context else 1
    if backend == "cudnn" and parts == 1:
        return jax.shard_map(
            cudnn_attention,
            mesh=mesh,
            in_specs=(of_q, of_k, of_k, of_segments),
            out_specs=of_q,
            check_vma=False,
        )(q, k, v, segment_ids)
    found = kernels(backend, R // (mesh.shape[heads] if heads else 1), T, parts, is_dealt)
    sharding = NamedSharding(mesh, PartitionSpec(None, context))
    of_kernels = tuple(
        None if kernel is None else kernel.manual_sharding_spec(sharding) for kernel in found
    )
    return jax.shard_map(
        functools.partial(_local, context=context, is_dealt=is_dealt),
        mesh=mesh,
        in_specs=(of_q, of_k, of_k, of_segments, of_kernels),
        out_specs=of_q,
        check_vma=False,
    )(q, k, v, segment_ids, found)


def kernels(
    backend: Backend, num_heads: int, num_tokens: int, parts: int, is_dealt: bool
) -> tuple[Any, ...]:
    """The TPU's for rows that are split into parts, one for each chunk that a device has of a row;
    None in its place where plain XLA attends."""
    if not has_kernel(backend, num_tokens // parts, num_tokens):
        return (None, None) if is_dealt else (None,)
    make = functools.partial(
        splash, num_heads, parts=parts, interpret=backend == "splash_interpreted"
    )
    if not is_dealt:
        return (make(num_tokens, num_tokens),)
    half = num_tokens // 2
    return make(half, num_tokens), from_the_last(make(half, num_tokens, start=half), parts)


def has_kernel(backend: Backend, num_queries: int, num_keys: int) -> bool:
    """Whether a TPU kernel attends so many queries and keys of a row; plain XLA does otherwise."""
    return backend.startswith("splash") and takes(num_queries, num_keys)


def _local(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segment_ids: jax.Array,
    of_chunks: Sequence[Any],
    context: str | None,
    is_dealt: bool,
) -> jax.Array:
    """What each device does, [B, K, R, T, Q]; `context` is the mesh axis that splits the rows, and
    each of its chunks has a kernel or None."""
    if context is None:
        return _attend(of_chunks[0], q, k, v, segment_ids, segment_ids, 0)
    parts, mine = jax.lax.axis_size(context), jax.lax.axis_index(context)

    def whole(a: jax.Array, axis: int) -> jax.Array:
        gathered = jax.lax.all_gather(a, context, axis=axis, tiled=True)
        return in_order(gathered, axis, parts) if is_dealt else gathered

    k, v, keys = whole(k, 2), whole(v, 2), whole(segment_ids, 1)
    places = (mine, 2 * parts - 1 - mine) if is_dealt else (mine,)
    tokens = q.shape[3] // len(places)
    out = []
    for i, (kernel, place) in enumerate(zip(of_chunks, places, strict=True)):
        chunk = slice(i * tokens, (i + 1) * tokens)
        queries, segments = q[:, :, :, chunk], segment_ids[:, chunk]
        out.append(_attend(kernel, queries, k, v, segments, keys, place * tokens))
    return jnp.concatenate(out, axis=3)


def _attend(
    kernel: Any,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    query_segments: jax.Array,
    key_segments: jax.Array,
    start: jax.Array | int,
) -> jax.Array:
    if kernel is None:
        return blockwise_attention(q, k, v, query_segments, key_segments, start)
    return splash_attention(kernel, q, k, v, query_segments, key_segments)

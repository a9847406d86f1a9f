"""Causal attention of packed rows, on the devices of a mesh, by the backend that is asked for.

Rows are split over `data` and `fsdp`, heads over `tensor`; where kv heads are fewer than its
devices, the query heads of each are. Of a row that is split over `context` each device has its own
queries and gathers the keys and values of the whole, which grouped heads make small.

B rows, T tokens, H query heads, K kv heads, R = H / K, Q head dim.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxrl_vr.arrays import check
from jaxrl_vr.models.blockwise import blockwise_attention
from jaxrl_vr.models.splash import splash, splash_attention, takes
from jaxrl_vr.sharding import TRAIN_RULES, current_mesh, spec

Backend = Literal["xla", "splash", "splash_interpreted"]
"""Plain XLA by blocks, or TPU kernels; interpreted they run anywhere, slowly."""


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segment_ids: jax.Array,
    backend: Backend = "xla",
) -> jax.Array:
    """Grouped-query attention; a token sees those of its own segment up to itself.

    Softmax in float32; no array has T x T elements.

    Args:
      q: [B, T, H, Q], rotated queries.
      k: [B, T, K, Q], rotated keys.
      v: [B, T, K, Q], values.
      segment_ids: [B, T] int32; 0 is padding, which sees only itself and its kind.
      backend: static.

    Returns:
      [B, T, H, Q], in q's dtype.
    """
    check("BTHQ, BTKQ, BTKQ, BT", q=q, k=k, v=v, segment_ids=segment_ids)
    B, T, H, Q = q.shape
    K = k.shape[2]
    grouped = q.reshape(B, T, K, H // K, Q).transpose(0, 2, 3, 1, 4)  # H -> K, R
    out = _on_devices(grouped, k.swapaxes(1, 2), v.swapaxes(1, 2), segment_ids, backend)
    return out.transpose(0, 3, 1, 2, 4).reshape(q.shape)  # K, R -> H


def _on_devices(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, backend: Backend
) -> jax.Array:
    R, T = q.shape[2:4]
    mesh = current_mesh()
    if mesh is None or mesh.size == 1:
        return _local(q, k, v, segment_ids, _kernel(backend, R, T, 1), None)
    axes = ("batch", "kv_heads", "heads", "length", None)
    of_q = spec(axes, TRAIN_RULES, mesh, q.shape)
    of_k = spec(("batch", "kv_heads", "length", None), TRAIN_RULES, mesh, k.shape)
    of_segments = spec(("batch", "length"), TRAIN_RULES, mesh, segment_ids.shape)
    _, _, heads, context, _ = (*of_q, *[None] * (5 - len(of_q)))
    parts = mesh.shape[context] if context else 1
    kernel = _kernel(backend, R // (mesh.shape[heads] if heads else 1), T, parts)
    of_kernel = None
    if kernel is not None:
        sharding = NamedSharding(mesh, PartitionSpec(None, context))
        of_kernel = kernel.manual_sharding_spec(sharding)
    return jax.shard_map(
        functools.partial(_local, context=context),
        mesh=mesh,
        in_specs=(of_q, of_k, of_k, of_segments, of_kernel),
        out_specs=of_q,
        check_vma=False,
    )(q, k, v, segment_ids, kernel)


def _kernel(backend: Backend, num_heads: int, num_tokens: int, parts: int) -> Any:
    """The TPU's for rows that are split into parts; None where plain XLA attends."""
    if backend == "xla" or not takes(num_tokens // parts, num_tokens):
        return None
    interpret = backend == "splash_interpreted"
    return splash(num_heads, num_tokens, num_tokens, parts=parts, interpret=interpret)


def _local(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segment_ids: jax.Array,
    kernel: Any,
    context: str | None,
) -> jax.Array:
    """What each device does, [B, K, R, T, Q]; `context` is the mesh axis that splits the rows."""
    mine, start = segment_ids, 0
    if context:
        start = jax.lax.axis_index(context) * q.shape[3]
        k, v, segment_ids = (
            jax.lax.all_gather(a, context, axis=axis, tiled=True)
            for a, axis in ((k, 2), (v, 2), (segment_ids, 1))
        )
    if kernel is None:
        return blockwise_attention(q, k, v, mine, segment_ids, start)
    return splash_attention(kernel, q, k, v, mine, segment_ids)

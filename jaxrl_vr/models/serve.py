"""Attention of the sampler, one layer of it: what is new goes into the pages, then is attended.

With several devices each works on its own slots and pages, so nothing of the cache travels. Kv
heads are split over `tensor`; where they are fewer than its devices, the query heads of each are.

S slots, N rows of a prefill, T tokens of a row, P pages, C tokens of a page, K kv heads, R query
heads of a kv head, Q head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxrl_vr.models.blockwise import causal_with_sums
from jaxrl_vr.models.cudnn import cudnn_chunk
from jaxrl_vr.models.paged import DecodePlan, ExtendPlan, Layer, ListReads, write
from jaxrl_vr.models.paged_attention import (
    Part,
    attend_own,
    attend_shared,
    attend_table,
    merge,
)
from jaxrl_vr.models.paged_kernel import attend_lists
from jaxrl_vr.models.paged_write import Turn, write_tokens
from jaxrl_vr.models.splash import splash_chunk
from jaxrl_vr.sharding import SAMPLE_RULES, current_mesh, entry, num_shards, spec

New = tuple[jax.Array, jax.Array, jax.Array]
"""q, k and v of new tokens."""

_ATTEND_CHUNK = {"xla": causal_with_sums, "splash": splash_chunk, "cudnn": cudnn_chunk}


def decode_attention(
    new: New,
    layer: Layer,
    across: bool,
    position: jax.Array,
    plan: DecodePlan,
    turn: Turn | None,
) -> tuple[jax.Array, Layer]:
    """One token a slot.

    Args:
      new: [S, K, R, Q] queries, [S, K, Q] keys, [S, K, Q] values.
      layer: keys and values of all pages.
      across: how the keys lie.
      position: [S] position of the token.
      plan: where its page and its prompt are.
      turn: what is still to be done to queries and keys, where kernels attend; None: nothing.

    Returns:
      [S, K, R, Q] in the queries' dtype; the layer's pages after.
    """

    def local(
        new: New, layer: Layer, position: Any, plan: DecodePlan, turn: Turn | None
    ) -> tuple[Any, Layer]:
        q, k, v = new
        C, columns = layer[1].shape[2], plan.write_page.shape[1]
        own = position - plan.shared_len
        column = own // C - plan.first_page
        listed = jnp.minimum(column, columns - 1)[:, None]
        page = jnp.take_along_axis(plan.write_page, listed, axis=1)[:, 0]
        # What a slot that is done writes may lie behind its pages.
        page = jnp.where(column < columns, page, layer[1].shape[0])
        reads = plan.reads
        if isinstance(reads, ListReads):
            assert turn is not None, "the kernel turns the heads"
            rows = q.reshape(len(q), -1, q.shape[-1])  # K, R -> H
            rows, layer = write_tokens(layer, page, own % C, (rows, k, v), turn)
            out = attend_lists(rows, layer, reads, own + 1, plan.shared_len)
            return out.reshape(q.shape), layer
        assert turn is None, "plain XLA attends heads that are turned"
        layer = write(layer, across, page, own % C, (k, v))
        q = q * q.shape[-1] ** -0.5
        with jax.named_scope("own"):
            of_own = attend_own(q, layer, across, reads, own)
        with jax.named_scope("shared"):
            of_prompt = attend_shared(q, layer, across, reads)
        return merge(of_own, of_prompt).astype(q.dtype), layer

    q, k, v = new
    S, K, R, Q = q.shape
    if isinstance(plan.reads, ListReads) and _are_split_alike(K, K * R):
        # In one axis the heads keep the layout that the products around have them in.
        new = q.reshape(S, K * R, Q), k, v  # K, R -> H
    out, layer = _on_shards(local, new, layer, (position, plan, turn), plan.num_parts)
    return out.reshape(q.shape), layer  # H -> K, R


def extend_attention(
    new: New, layer: Layer, across: bool, plan: ExtendPlan
) -> tuple[jax.Array, Layer]:
    """A chunk of tokens a row, which see each other and what comes before.

    Args:
      new: [N, K, R, T, Q] rotated queries, [N, K, T, Q] rotated keys, [N, K, T, Q] values.
      layer: keys and values of all pages.
      across: how the keys lie.
      plan: where they go and what comes before.

    Returns:
      [N, K, R, T, Q] in the queries' dtype; the layer's pages after.
    """

    def local(new: New, layer: Layer, plan: ExtendPlan) -> tuple[Any, Layer]:
        q, k, v = new
        N, K, R, T, Q = q.shape
        keys, values = (a.swapaxes(1, 2).reshape(N * T, K, Q) for a in (k, v))
        layer = write(
            layer, across, plan.page.reshape(N * T), plan.offset.reshape(N * T), (keys, values)
        )
        with jax.named_scope("chunk"):
            out, sums = _ATTEND_CHUNK[plan.attention](q, k, v)
        # A row's own tokens and those before lie in pages of their own, so none is seen twice.
        columns = plan.num_columns[0]
        rows = (q * Q**-0.5).reshape(N, K, R * T, Q)
        before = attend_table(rows, layer, across, plan.table, plan.count, columns)
        flat = sums.reshape(N, K, R * T)
        mine = Part(flat, jnp.ones_like(flat), out.reshape(rows.shape).astype(jnp.float32))
        return merge(mine, before).astype(q.dtype).reshape(q.shape), layer

    return _on_shards(local, new, layer, (plan,), len(plan.num_columns))


def _are_split_alike(kv_heads: int, heads: int) -> bool:
    """Whether each device has the query heads of its kv heads, and no others."""
    of_kv = num_shards(("kv_heads",), (kv_heads,), SAMPLE_RULES)
    return of_kv == num_shards(("heads",), (heads,), SAMPLE_RULES)


def _on_shards(
    local: Callable[..., Any], new: New, layer: Layer, rest: tuple[Any, ...], parts: int
) -> Any:
    """`local` for the slots, pages and heads of each device; slots and pages are in D parts."""
    mesh = current_mesh()
    if mesh is None or all(mesh.shape[name] == 1 for name in mesh.axis_names):
        return local(new, layer, *rest)
    q, k, _ = new
    # Not by the size of each array: more of them than of the slots may divide the devices.
    slots = entry("slots", parts, SAMPLE_RULES, mesh)

    def of(a: jax.Array, *axes: str | None) -> PartitionSpec:
        heads = spec(axes, SAMPLE_RULES, mesh, a.shape[1 : 1 + len(axes)])
        return PartitionSpec(slots, *heads)

    of_q = ("kv_heads", "heads") if q.ndim > k.ndim else ("heads",)
    heads = of(q, *of_q), of(k, "kv_heads")
    pages = of(layer[1], "kv_heads")
    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=((heads[0], heads[1], heads[1]), (pages, pages), *jax.tree.map(of, rest)),
        out_specs=(heads[0], (pages, pages)),
        check_vma=False,
    )(new, layer, *rest)

"""Attention over pages in plain XLA: the oracle of the paged kernels, and the backend of the CPU.

S slots, P pages of the pool, C tokens of a page, B pages of a block, E shared entries, W members of
an entry, J pages of a table's row, K kv heads, R query heads of a kv head, Q head dim.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import check
from jaxrl_vr.models.paged import Layer, PoolReads

MASKED = -1e30  # finite, so that what attends to nothing gives a mean and not NaN
TILE = 8  # shared entries attended at once


class Part(NamedTuple):
    """Attention over some of the keys, still to be merged with that over the rest."""

    peak: jax.Array  # [..., M] largest score
    sum: jax.Array  # [..., M] of exp(score - peak)
    out: jax.Array  # [..., M, Q] values weighted by exp(score - peak)


def attend_own(q: jax.Array, layer: Layer, across: bool, reads: PoolReads, last: jax.Array) -> Part:
    """Each slot's attention to its own tokens: over the pool as it lies, block by block.

    Nothing is gathered by slot: each page meets the query of its slot, and a product with the
    one-hot matrix of owners sums the pages of a slot. So the cost follows the blocks in use.

    Args:
      q: [S, K, R, Q], scaled.
      layer: keys and values of all pages.
      across: how the keys lie.
      reads: its `page_slot`, `page_start` and `blocks` are read.
      last: [S] own index of the newest token, which is attended too; -1 for none.

    Returns:
      [S, K, R] and [S, K, R, Q].
    """
    keys, values = layer
    S, K, R, Q = q.shape
    P, _, C, _ = values.shape
    B = P // reads.blocks.shape[1]
    places = jnp.arange(C)

    def one(i: jax.Array, part: Part) -> Part:
        def mine(a: jax.Array) -> jax.Array:
            if B == P:
                return a
            return jax.lax.dynamic_slice_in_dim(a, reads.blocks[0, i] * B, B)

        slot, start = mine(reads.page_slot), mine(reads.page_start)
        is_owner = slot[None] == jnp.arange(S)[:, None]  # S, B
        owner = is_owner.astype(jnp.float32)
        scores = _scores(q[slot], mine(keys), across)
        seen = start[:, None] + places[None] <= last[slot][:, None]
        scores = jnp.where(seen[:, None, None], scores, MASKED)
        peaks = jnp.where(is_owner[:, :, None, None], jnp.max(scores, axis=-1)[None], MASKED)
        peak = jnp.maximum(part.peak, jnp.max(peaks, axis=1))
        weight = jnp.exp(scores - peak[slot][..., None])
        weight = jnp.where(seen[:, None, None], weight, 0.0)
        out, total = _weighted(weight, mine(values)), jnp.sum(weight, axis=-1)
        # What is not finite would spread to every slot in the products with the owners: its own
        # slot shows it by its peak.
        is_finite = jnp.isfinite(total) & jnp.all(jnp.isfinite(out), axis=-1)
        broken = jnp.any(is_owner[:, :, None, None] & ~is_finite[None], axis=1)
        total = jnp.where(is_finite, total, 0.0)
        out = jnp.where(is_finite[..., None], out, 0.0).astype(values.dtype)
        summed = jnp.einsum("SP,PX->SX", owner, total.reshape(B, K * R))
        of_slot = jnp.einsum(
            "SP,PX->SX",
            owner.astype(values.dtype),
            out.reshape(B, K * R * Q),
            preferred_element_type=jnp.float32,
        )
        peak = jnp.where(broken, jnp.nan, peak)
        new = Part(peak, summed.reshape(S, K, R), of_slot.reshape(S, K, R, Q))
        return _add(part, new)

    if B == P:
        return one(jnp.int32(0), _nothing(q))
    return jax.lax.fori_loop(0, reads.num_blocks[0], one, _nothing(q))


def attend_shared(q: jax.Array, layer: Layer, across: bool, reads: PoolReads) -> Part:
    """Each slot's attention to its prompt, the members of an entry as one product.

    Args:
      q: [S, K, R, Q], scaled.
      layer: keys and values of all pages.
      across: how the keys lie.
      reads: its `members`, `table` and `count` are read.

    Returns:
      [S, K, R] and [S, K, R, Q].
    """
    S, K, R, Q = q.shape
    half = reads.members.shape[1] // 2

    def one(i: jax.Array, part: Part) -> Part:
        def mine(a: jax.Array) -> jax.Array:
            return jax.lax.dynamic_slice_in_dim(a, i * TILE, TILE)

        table, count = mine(reads.table), mine(reads.count)

        def attend(members: jax.Array) -> Part:
            W = members.shape[1]
            of_entry = q[jnp.minimum(members, S - 1)]  # S -> E, W
            of_entry = of_entry.swapaxes(1, 2).reshape(TILE, K, W * R, Q)
            columns = reads.num_columns[0, i]
            new = attend_table(of_entry, layer, across, table, count, columns)

            def put(target: jax.Array, a: jax.Array) -> jax.Array:
                a = a.reshape(TILE, K, W, *target.shape[2:]).swapaxes(1, 2)
                return target.at[members].set(a, mode="drop")

            return jax.tree.map(put, part, new)

        # Every page of an entry is fetched once for all of its members; places without one cost
        # their products all the same.
        members = mine(reads.members)
        is_full = jnp.any(members[:, half:] < S)
        return jax.lax.cond(is_full, attend, lambda members: attend(members[:, :half]), members)

    return jax.lax.fori_loop(0, reads.num_tiles[0], one, _nothing(q))


def attend_table(
    q: jax.Array,
    layer: Layer,
    across: bool,
    table: jax.Array,
    count: jax.Array,
    num_columns: jax.Array,
) -> Part:
    """Attention of a row's queries to all tokens of the pages that the row lists.

    Args:
      q: [N, K, M, Q], scaled.
      layer: keys and values of all pages.
      across: how the keys lie.
      table: [N, J] pages.
      count: [N, J] tokens in each; 0 leaves a page out.
      num_columns: scalar, entries of the longest row.

    Returns:
      [N, K, M] and [N, K, M, Q].
    """
    check("NKMQ, NJ, NJ", q=q, table=table, count=count)
    keys, values = layer
    places = jnp.arange(values.shape[2])
    product = "NKMQ,NKQC->NKMC" if across else "NKMQ,NKCQ->NKMC"

    # A page of each row at a time: products over several would move them into another order first,
    # which costs more on CPU than the products.
    def one(j: jax.Array, part: Part) -> Part:
        at = jax.lax.dynamic_index_in_dim(table, j, axis=1, keepdims=False)
        tokens = jax.lax.dynamic_index_in_dim(count, j, axis=1, keepdims=False)
        seen = (places[None] < tokens[:, None])[:, None, None]  # N, 1, 1, C
        v = values[at]
        scores = jnp.einsum(product, q, keys[at], preferred_element_type=jnp.float32)
        scores = jnp.where(seen, scores, MASKED)
        peak = jnp.maximum(part.peak, jnp.max(scores, axis=-1))
        weight = jnp.where(seen, jnp.exp(scores - peak[..., None]), 0.0)
        out = jnp.einsum(
            "NKMC,NKCQ->NKMQ", weight.astype(v.dtype), v, preferred_element_type=jnp.float32
        )
        return _add(part, Part(peak, jnp.sum(weight, axis=-1), out))

    return jax.lax.fori_loop(0, num_columns, one, _nothing(q))


def merge(a: Part, b: Part) -> jax.Array:
    """Attention over the keys of both parts, [..., Q]."""
    peak = jnp.maximum(a.peak, b.peak)
    at_a, at_b = jnp.exp(a.peak - peak), jnp.exp(b.peak - peak)
    out = a.out * at_a[..., None] + b.out * at_b[..., None]
    return out / (a.sum * at_a + b.sum * at_b)[..., None]


def _add(before: Part, new: Part) -> Part:
    """`new`, whose peak is not below that of `before`, and `before` together."""
    scale = jnp.exp(before.peak - new.peak)
    return Part(new.peak, before.sum * scale + new.sum, before.out * scale[..., None] + new.out)


def _nothing(q: jax.Array) -> Part:
    zeros = jnp.zeros(q.shape[:-1], jnp.float32)
    return Part(zeros + MASKED, zeros, jnp.zeros(q.shape, jnp.float32))


def _scores(q: jax.Array, keys: jax.Array, across: bool) -> jax.Array:
    product = "PKRQ,PKQC->PKRC" if across else "PKRQ,PKCQ->PKRC"
    return jnp.einsum(product, q, keys, preferred_element_type=jnp.float32)


def _weighted(weight: jax.Array, values: jax.Array) -> jax.Array:
    return jnp.einsum(
        "PKRC,PKCQ->PKRQ",
        weight.astype(values.dtype),
        values,
        preferred_element_type=jnp.float32,
    )

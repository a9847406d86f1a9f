"""Keys and values in pages of a pool, and the plans that say which page holds what.

A pool holds the tokens that live and no more. A page belongs either to a prompt, which the samples
of a group attend together as one product, or to one slot, which alone attends it. A slot's own
tokens begin where the shared prompt ends.

S slots, P pages of the pool, C tokens of a page, B pages of a block, E shared entries, W members of
an entry, J pages of a table's row, I items of a list, G pages of an item, K kv heads, R query heads
of a kv head, Q head dim, L layers.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import pytree_dataclass

Layer = tuple[jax.Array, jax.Array]
"""Keys and values of one layer."""

ChunkAttention = Literal["xla", "splash", "cudnn"]
"""Who attends the tokens of a prefill among each other."""


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["k", "v"], meta_fields=["keys_across"]
)
@dataclasses.dataclass(frozen=True)
class Pages:
    """The pool: a list of layers, so that decoding updates each in place.

    TPU tiles the last two axes and K is often 2, so heads come before tokens. `keys_across` puts
    a page's keys as columns, [Q, C]: the product with queries then takes half the time on CPU.
    """

    k: list[jax.Array]  # L x [P, K, C, Q] or [P, K, Q, C], rotated
    v: list[jax.Array]  # L x [P, K, C, Q]
    keys_across: bool = False


@pytree_dataclass
class PoolReads:
    """What plain XLA reads: own pages block by block over the pool, prompts by a table."""

    page_slot: jax.Array  # [P] slot whose own tokens the page holds
    page_start: jax.Array  # [P] own index of its first token; beyond any for pages of no slot
    blocks: jax.Array  # [D, P / B] blocks with own pages
    num_blocks: jax.Array  # [D]
    members: jax.Array  # [E, W] slots that attend an entry; S for none
    table: jax.Array  # [E, J] pages of an entry
    count: jax.Array  # [E, J] tokens in them
    num_tiles: jax.Array  # [D] entries in use, in tiles
    num_columns: jax.Array  # [D, E / tile] pages of the longest entry of a tile


@pytree_dataclass
class PageList:
    """Pages to attend, an item of G at a time: an owner's items stand together and in order.

    A place behind an owner's last page repeats the page of the item before, so that a kernel that
    keeps its last blocks fetches nothing for it.
    """

    page: jax.Array  # [I, G]
    owner: jax.Array  # [I]
    start: jax.Array  # [I] which of the owner's tokens is the first of the item
    num_items: jax.Array  # [D]


@pytree_dataclass
class ListReads:
    """What the kernel reads: the pages that live, listed."""

    own: PageList  # owners are slots
    shared: PageList  # owners are entries
    length: jax.Array  # [E] tokens of an entry
    members: jax.Array  # [E, W] slots that attend it; S for none
    place: jax.Array  # [S] where a slot stands among the members, E x W


@pytree_dataclass
class DecodePlan:
    """Where decoding writes and reads; the same for all steps of a chunk.

    The axis in front of each array is split over the devices that hold different slots, and every
    index counts within one of the D parts.
    """

    write_page: jax.Array  # [S, A] pages of the coming own tokens; P drops what is written
    first_page: jax.Array  # [S] which of the slot's own pages is the first of these
    shared_len: jax.Array  # [S] tokens of the slot that lie in a shared entry
    reads: PoolReads | ListReads

    @property
    def num_parts(self) -> int:
        """D."""
        reads = self.reads
        return len(reads.num_blocks if isinstance(reads, PoolReads) else reads.own.num_items)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["start", "length", "table", "count", "num_columns", "page", "offset"],
    meta_fields=["attention"],
)
@dataclasses.dataclass(frozen=True)
class ExtendPlan:
    """Where a chunk of prefill writes and what comes before it; rows are split like slots."""

    start: jax.Array  # [N] position of the first token
    length: jax.Array  # [N] tokens of the row; 0 for rows that hold nothing
    table: jax.Array  # [N, J] pages of what comes before
    count: jax.Array  # [N, J] tokens in them
    num_columns: jax.Array  # [D] pages of the longest row
    page: jax.Array  # [N, T] page of each token; P drops it
    offset: jax.Array  # [N, T] place in its page
    attention: ChunkAttention = "xla"  # static; who attends the chunk


def empty_pages(
    layers: int, shape: tuple[int, int, int, int], dtype: Any, keys_across: bool
) -> Pages:
    """A pool of zeros, from its [P, K, C, Q]."""
    P, K, C, Q = shape
    of_keys = (P, K, Q, C) if keys_across else shape
    return Pages(
        [jnp.zeros(of_keys, dtype) for _ in range(layers)],
        [jnp.zeros(shape, dtype) for _ in range(layers)],
        keys_across,
    )


def write(layer: Layer, across: bool, page: jax.Array, offset: jax.Array, new: Layer) -> Layer:
    """Puts keys and values of tokens into one layer's pages.

    Args:
      layer: keys and values of all pages.
      across: how the keys lie.
      page: [N]; a page beyond the pool drops the token.
      offset: [N] place in the page.
      new: keys and values, each [N, K, Q].

    Returns:
      The layer's pages after.
    """
    keys, values = layer
    k, v = (a.astype(values.dtype) for a in new)
    if across:
        keys = keys.at[page, :, :, offset].set(k, mode="drop")
        return keys, values.at[page, :, offset].set(v, mode="drop")
    return _rows(keys, page, offset, k), _rows(values, page, offset, v)


def _rows(target: jax.Array, page: jax.Array, offset: jax.Array, new: jax.Array) -> jax.Array:
    # As rows of one table: with several indices the TPU compiler moves the whole pool into another
    # layout before the loop and back behind it.
    P, K, C, Q = target.shape
    row = (page[:, None] * K + jnp.arange(K)[None]) * C + offset[:, None]
    table = target.reshape(P * K * C, Q)
    return table.at[row.reshape(-1)].set(new.reshape(-1, Q), mode="drop").reshape(P, K, C, Q)

"""Decode attention over listed pages as Pallas kernels: the backend of the TPU.

One gives each shared prompt to all its members at once, and one goes on from there with each slot's
own pages, the new tokens among them (paged_write.py). The pool is read where it lies, each listed
page once, and nothing of it is gathered or copied. The oracle is paged_attention.py.

S slots, E shared entries, W members of an entry, I items of a list, G pages of an item, P pages of
the pool, C tokens of a page, H query heads, K kv heads, R query heads of a kv head, M rows of
queries to one kv head, Q head dim.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxrl_vr.arrays import check
from jaxrl_vr.models.paged import Layer, ListReads, PageList
from jaxrl_vr.models.paged_attention import MASKED

_LANES = 128  # of a vector register
_SUBLANES = 8


def attend_lists(
    q: jax.Array, layer: Layer, reads: ListReads, own_len: jax.Array, shared_len: jax.Array
) -> jax.Array:
    """Each slot's attention to its prompt and its own tokens.

    Compiled on TPU; elsewhere interpreted, which is slow and for tests.

    Args:
      q: [S, H, Q], those of a kv head together.
      layer: keys and values of all pages, both [P, K, C, Q].
      reads: which pages.
      own_len: [S] tokens of the slot's own.
      shared_len: [S] tokens of its prompt; 0 where it shares none.

    Returns:
      [S, H, Q] in the values' dtype, undefined for slots without pages of their own.
    """
    check("SHQ, S, S", q=q, own_len=own_len, shared_len=shared_len)
    return jax.lax.platform_dependent(
        *(q, *layer, reads, own_len, shared_len),
        tpu=functools.partial(_attend, interpret=False),
        default=functools.partial(_attend, interpret=True),
    )


def _attend(
    q: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    reads: ListReads,
    own_len: jax.Array,
    shared_len: jax.Array,
    *,
    interpret: bool,
) -> jax.Array:
    S, (_, K, _, Q) = len(q), values.shape
    E, W = reads.members.shape
    G = reads.own.page.shape[1]
    # A kernel's operand that fits into VMEM the compiler may move there as a whole.
    if not interpret:
        keys, values = (pltpu.with_memory_space_constraint(a, pltpu.HBM) for a in (keys, values))
    pages = [*[keys] * G, *[values] * G]
    M = padded_heads(q.shape[1], K)
    members = jnp.minimum(reads.members, S - 1).reshape(-1)
    of_prompts = pl.pallas_call(
        functools.partial(_prompt_item, W, G),
        grid_spec=prompt_grid(q.shape, values.shape, W, reads.shared, G),
        out_shape=[
            jax.ShapeDtypeStruct((E, K, W * M, _LANES), jnp.float32),
            jax.ShapeDtypeStruct((E, K, W * M, Q), jnp.float32),
        ],
        interpret=interpret,
        name="attend_prompts",
    )(*_scalars(reads.shared), reads.length, members, *[q] * W, *pages)
    return pl.pallas_call(
        functools.partial(_own_item, G),
        grid_spec=own_grid(q.shape, values.shape, W, reads.own, G),
        out_shape=jax.ShapeDtypeStruct(q.shape, values.dtype),
        interpret=interpret,
        name="attend_own",
    )(*_scalars(reads.own), own_len, shared_len, reads.place, q, *of_prompts, *pages)


def padded_heads(heads: int, kv_heads: int) -> int:
    """M: rows in which the query heads of a kv head begin a register of float32."""
    return -(-heads // kv_heads // _SUBLANES) * _SUBLANES


def _scalars(pages: PageList) -> tuple[jax.Array, ...]:
    return pages.page.reshape(-1), pages.owner, pages.start


# Index maps get the step and the arrays of scalars: page, owner, start, and what each kernel adds.


def prompt_grid(
    q: tuple[int, ...], values: tuple[int, ...], W: int, pages: PageList, G: int
) -> pltpu.PrefetchScalarGridSpec:
    """The steps of the kernel for prompts, and the blocks that each reads and writes.

    Args:
      q: [S, H, Q].
      values: [P, K, C, Q].
      W: members of an entry.
      pages: the list; its number of items is the number of steps.
      G: pages of an item.
    """
    (_, H, Q), K = q, values[1]
    M = padded_heads(H, K)

    def of_member(w: int, i: Any, page: Any, owner: Any, start: Any, length: Any, slot: Any) -> Any:
        return slot[owner[i] * W + w], 0, 0

    def of_owner(i: Any, page: Any, owner: Any, *_: Any) -> Any:
        return owner[i], 0, 0, 0

    return pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=5,
        grid=(pages.num_items[0],),
        in_specs=[
            *[pl.BlockSpec((1, H, Q), functools.partial(of_member, w)) for w in range(W)],
            *_page_blocks(values, G),
        ],
        out_specs=[
            pl.BlockSpec((1, K, W * M, _LANES), of_owner),
            pl.BlockSpec((1, K, W * M, Q), of_owner),
        ],
        scratch_shapes=[pltpu.VMEM((K, W * M, Q), jnp.float32)],
    )


def own_grid(
    q: tuple[int, ...], values: tuple[int, ...], W: int, pages: PageList, G: int
) -> pltpu.PrefetchScalarGridSpec:
    """The steps of the kernel for own tokens, and the blocks that each reads and writes."""
    (_, H, Q), K = q, values[1]
    M = padded_heads(H, K)

    def of_owner(i: Any, page: Any, owner: Any, *_: Any) -> Any:
        return owner[i], 0, 0

    def of_place(i: Any, page: Any, owner: Any, start: Any, own: Any, shared: Any, at: Any) -> Any:
        place = at[owner[i]]
        # Python's division asks for the sign, and Pallas for the device to compile that.
        return jax.lax.div(place, W), 0, jax.lax.rem(place, W), 0

    return pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=6,
        grid=(pages.num_items[0],),
        in_specs=[
            pl.BlockSpec((1, H, Q), of_owner),
            pl.BlockSpec((1, K, M, _LANES), of_place),
            pl.BlockSpec((1, K, M, Q), of_place),
            *_page_blocks(values, G),
        ],
        out_specs=pl.BlockSpec((1, H, Q), of_owner),
        scratch_shapes=[
            pltpu.VMEM((K, M, Q), jnp.float32),
            pltpu.VMEM((K, M, _LANES), jnp.float32),
            pltpu.VMEM((K, M, Q), jnp.float32),
        ],
    )


def _page_blocks(values: tuple[int, ...], G: int) -> list[pl.BlockSpec]:
    """Blocks of the keys of an item's pages, then of their values."""

    def of_page(g: int, i: Any, page: Any, *_: Any) -> Any:
        return page[i * G + g], 0, 0, 0

    blocks = [pl.BlockSpec((1, *values[1:]), functools.partial(of_page, g)) for g in range(G)]
    return blocks * 2


def _prompt_item(W: int, G: int, *refs: Any) -> None:
    """One item of a prompt: the results stay in VMEM until the owner changes."""
    (_, owner, start, length, _), refs = refs[:5], refs[5:]
    q, keys, values, (stats, out, rows) = refs[:W], refs[W : W + G], refs[W + G : -3], refs[-3:]
    K, M = rows.shape[0], rows.shape[1] // W
    i = pl.program_id(0)

    @pl.when(start[i] == 0)
    def _() -> None:
        for w, of_member in enumerate(q):
            _put_heads(of_member, rows, w * M)
        stats[0] = _nothing(stats.shape[1:])
        out[...] = jnp.zeros_like(out)

    left = length[owner[i]] - start[i]
    for k in range(K):
        before = stats[0, k], out[0, k]
        stats[0, k], out[0, k] = _add(before, rows[k], k, keys, values, left)


def _own_item(G: int, *refs: Any) -> None:
    """One item of a slot, behind its prompt or the items before."""
    (_, owner, start, own_len, shared_len, _), refs = refs[:6], refs[6:]
    (q, prompt_stats, prompt_out), refs = refs[:3], refs[3:]
    keys, values, (out, rows, stats, total) = refs[:G], refs[G : 2 * G], refs[2 * G :]
    K = rows.shape[0]
    R = q.shape[1] // K
    i = pl.program_id(0)

    @pl.when(start[i] == 0)
    def _() -> None:
        _put_heads(q, rows, 0)
        # Of a slot that shares no prompt the block is another's, or undefined.
        is_shared = shared_len[owner[i]] > 0
        stats[...] = jnp.where(is_shared, prompt_stats[0], _nothing(stats.shape))
        total[...] = jnp.where(is_shared, prompt_out[0], 0.0)

    left = own_len[owner[i]] - start[i]
    for k in range(K):
        stats[k], total[k] = _add((stats[k], total[k]), rows[k], k, keys, values, left)
        mean = total[k] / stats[k][:, 1:2]
        out[0, k * R : (k + 1) * R] = mean[:R].astype(out.dtype)


def _put_heads(q: Any, rows: Any, first: int) -> None:
    """The query heads of a slot, [1, H, Q], into rows of their kv heads; others stay undefined."""
    K = rows.shape[0]
    R = q.shape[1] // K
    heads = q[0].astype(jnp.float32)
    for k in range(K):
        rows[k, first : first + R] = heads[k * R : (k + 1) * R]


def _nothing(shape: tuple[int, ...]) -> jax.Array:
    """Statistics of no tokens: the largest score in lane 0, the sum in lane 1."""
    return jnp.where(_lane(shape) == 0, MASKED, 0.0)


def _add(
    before: tuple[jax.Array, jax.Array],
    q: jax.Array,
    k: int,
    keys: Sequence[Any],
    values: Sequence[Any],
    left: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Adds the tokens of an item to statistics and weighted values, [M, lanes] and [M, Q].

    Args:
      before: what the items before gave.
      q: [M, Q].
      k: kv head.
      keys: of each page, [1, K, C, Q].
      values: likewise.
      left: tokens from the item's first on; what stands behind is not the owner's.
    """
    stats, out = before
    C = values[0].shape[2]
    peak, total = stats[:, :1], stats[:, 1:2]
    of_item = jnp.concatenate([ref[0, k] for ref in keys])
    scores = _product(q.astype(of_item.dtype), of_item, 1) * q.shape[1] ** -0.5
    seen = _lane(scores.shape) < left
    scores = jnp.where(seen, scores, MASKED)
    new_peak = jnp.maximum(peak, jnp.max(scores, axis=1, keepdims=True))
    weight = jnp.where(seen, jnp.exp(scores - new_peak), 0.0)
    scale = jnp.exp(peak - new_peak)
    # Behind an owner's pages stand those of another, of which nothing may come through: 0 x inf
    # would be NaN.
    v = jnp.concatenate([jnp.where(g * C < left, ref[0, k], 0) for g, ref in enumerate(values)])
    out = out * scale + _product(weight.astype(v.dtype), v, 0)
    total = total * scale + jnp.sum(weight, axis=1, keepdims=True)
    return jnp.where(_lane(stats.shape) == 0, new_peak, total), out


def _product(a: jax.Array, b: jax.Array, axis: int) -> jax.Array:
    """Contracts the last axis of `a` with one of `b`, in float32."""
    return jax.lax.dot_general(
        a, b, (((1,), (axis,)), ((), ())), preferred_element_type=jnp.float32
    )


def _lane(shape: tuple[int, ...]) -> jax.Array:
    return jax.lax.broadcasted_iota(jnp.int32, shape, len(shape) - 1)

"""The arrays that tell the jitted programs which page holds what, built on the host.

The cache is in D parts, one for each set of devices that hold slots of their own; every index in a
plan counts within its part. Letters are those of models.paged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_vr.models.paged import (
    ChunkAttention,
    DecodePlan,
    ExtendPlan,
    ListReads,
    PageList,
    PoolReads,
)
from jaxrl_vr.models.paged_attention import TILE
from jaxrl_vr.sampler.chunks import Chunk
from jaxrl_vr.sampler.decode import Admission
from jaxrl_vr.sampler.page_pool import NO_TOKEN
from jaxrl_vr.sampler.residents import Own, Residents, Shared, Text
from jaxrl_vr.sampler.scheduler import MAX_STOP_IDS, Live
from jaxrl_vr.sampler.support import SamplingValues

POOL_MEMBERS = 16
"""Samples of a prompt that attend it as one product; more are so many products. Plain XLA leaves
the second half of an entry's places out where it is empty."""
_LIST_MEMBERS = 8  # of the kernels


def admission(
    slots: Sequence[int],
    lives: Sequence[Live],
    kept: Sequence[int],
    limits: Sequence[int],
    num_slots: int,
) -> Admission:
    """What the device is told of requests that begin in their slots.

    Args:
      slots: of all parts together.
      lives: what runs in each.
      kept: which kept hidden state its first token is drawn from.
      limits: completion tokens at which each ends or pauses.
      num_slots: S, entries of the arrays; those beyond the given ones fill nothing.
    """
    pad = num_slots - len(slots)
    requests = [live.request for live in lives]

    # numpy arrays, which the jitted program takes to the devices
    def column(values: Iterable[Any], fill: Any, dtype: Any) -> Any:
        return np.array([*values, *[fill] * pad], dtype)

    stop_ids: Any = np.full((num_slots, MAX_STOP_IDS), -1, np.int32)
    for i, request in enumerate(requests):
        stop_ids[i, : len(request.sampling.stop_ids)] = request.sampling.stop_ids
    return Admission(
        slot=column(slots, num_slots, np.int32),
        kept=column(kept, 0, np.int32),
        words=column((r.key for r in requests), (0, 0, 0, 0), np.uint32),
        position=column((live.position for live in lives), 0, np.int32),
        num_new=column((len(live.token_ids) for live in lives), 0, np.int32),
        limit=column(limits, 0, np.int32),
        values=SamplingValues(
            temperature=column((r.sampling.temperature for r in requests), 1, np.float32),
            top_k=column((r.sampling.top_k for r in requests), 0, np.int32),
            top_p=column((r.sampling.top_p for r in requests), 1, np.float32),
            min_p=column((r.sampling.min_p for r in requests), 0, np.float32),
        ),
        stop_ids=stop_ids,
    )


def decode_plan(
    parts: Sequence[Residents],
    rows: Sequence[Sequence[int]],
    positions: dict[tuple[int, int], int],
    num_rows: int,
    num_steps: int,
    longest: int,
    item_pages: int | None,
) -> DecodePlan:
    """The plan of one chunk of decode steps.

    Args:
      parts: the cache, in its D parts.
      rows: the slots of each part that are decoded, in the order of their rows.
      positions: tokens so far, by (part, slot).
      num_rows: rows of a part's program, at least those in use.
      num_steps: steps of the chunk.
      longest: tokens of the longest request.
      item_pages: G of the lists that the kernel reads; None for plain XLA.

    Returns:
      Arrays on the host.
    """
    made = []
    for d, (part, of_part) in enumerate(zip(parts, rows, strict=True)):
        at = [positions[d, slot] for slot in of_part]
        write_page, first_page, shared_len = _writes(part, of_part, at, num_rows, num_steps)
        row_of = np.full(part.num_slots, -1, np.int32)
        row_of[list(of_part)] = np.arange(len(of_part))
        if item_pages is None:
            reads = _pool_reads(part, row_of, num_rows, longest)
        else:
            reads = _list_reads(part, of_part, row_of, num_rows, longest, item_pages)
        made.append(DecodePlan(write_page, first_page, shared_len, reads))
    return jax.tree.map(lambda *arrays: np.concatenate(arrays), *made)


def _writes(
    part: Residents,
    slots: Sequence[int],
    positions: Sequence[int],
    num_rows: int,
    num_steps: int,
) -> tuple[Any, ...]:
    C = part.pool.page_tokens
    ahead = (num_steps + C - 2) // C + 1  # pages that so many tokens may touch
    write_page = np.full((num_rows, ahead), len(part.pool.slot), np.int32)
    first_page, shared_len = np.zeros((2, num_rows), np.int32)
    for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
        own = part.of_slot[slot]
        shared_len[row] = own.base
        first_page[row] = (position - own.base) // C
        pages = own.pages[first_page[row] :][:ahead]
        write_page[row, : len(pages)] = pages
    return write_page, first_page, shared_len


def _pool_reads(part: Residents, row_of: np.ndarray, num_rows: int, longest: int) -> PoolReads:
    pool, C = part.pool, part.pool.page_tokens
    num_pages = len(pool.slot)
    owner = row_of[pool.slot]
    start = np.where(owner < 0, NO_TOKEN, pool.start).astype(np.int32)
    blocks = np.zeros((1, num_pages // pool.block_pages), np.int32)
    in_use = pool.blocks()
    blocks[0, : len(in_use)] = in_use

    entries = _entries(part, row_of, POOL_MEMBERS)
    members = _members(entries, num_rows, POOL_MEMBERS)
    table = np.zeros((len(members), pool.pages_for(longest)), np.int32)
    count = np.zeros_like(table)
    columns = np.zeros((1, len(members) // TILE), np.int32)
    for e, (shared, _) in enumerate(entries):
        _list_pages(shared, len(shared.ids), C, table[e], count[e])
        columns[0, e // TILE] = max(columns[0, e // TILE], len(shared.pages))
    arrays: list[Any] = [
        np.maximum(owner, 0),
        start,
        blocks,
        np.array([len(in_use)], np.int32),
        members,
        table,
        count,
        np.array([-(-len(entries) // TILE)], np.int32),
        columns,
    ]
    return PoolReads(*arrays)


def _list_reads(
    part: Residents,
    slots: Sequence[int],
    row_of: np.ndarray,
    num_rows: int,
    longest: int,
    item_pages: int,
) -> ListReads:
    G, C, num_pages = item_pages, part.pool.page_tokens, len(part.pool.slot)
    own = [part.of_slot[slot].pages for slot in slots]
    entries = _entries(part, row_of, _LIST_MEMBERS)
    members = _members(entries, num_rows, _LIST_MEMBERS)
    length = np.zeros(len(members), np.int32)
    place = np.zeros(num_rows, np.int32)
    for e, (shared, rows) in enumerate(entries):
        length[e] = len(shared.ids)
        place[rows] = e * _LIST_MEMBERS + np.arange(len(rows))
    # A prompt is listed once for all members that it has in full, and once for the others.
    most = num_pages + num_rows // _LIST_MEMBERS * part.pool.pages_for(longest)
    arrays: list[Any] = [
        _page_list(own, num_rows + num_pages // G, G, C),
        _page_list([shared.pages for shared, _ in entries], len(members) + most // G, G, C),
        length,
        members,
        place,
    ]
    return ListReads(*arrays)


def _page_list(owners: Sequence[Sequence[int]], num_items: int, G: int, C: int) -> PageList:
    """The pages of each owner, in items of G; at least one, for a kernel runs a step or more."""
    page = np.zeros((num_items, G), np.int32)
    owner, start = np.zeros((2, num_items), np.int32)
    i = 0
    for o, pages in enumerate(owners):
        for first in range(0, len(pages), G):
            mine = pages[first : first + G]
            page[i] = page[max(i - 1, 0)]
            page[i, : len(mine)] = mine
            owner[i], start[i] = o, first * C
            i += 1
    arrays: list[Any] = [page, owner, start, np.array([max(i, 1)], np.int32)]
    return PageList(*arrays)


def _entries(part: Residents, row_of: np.ndarray, most: int) -> list[tuple[Shared, list[int]]]:
    """Prompts and the rows that attend them, the longest first: those of a tile are alike."""
    entries = []
    for shared in sorted(part.prompts.values(), key=lambda p: -len(p.pages)):
        rows = sorted(int(row_of[slot]) for slot in shared.slots if row_of[slot] >= 0)
        entries += [(shared, rows[i : i + most]) for i in range(0, len(rows), most)]
    return entries


def _members(entries: Sequence[tuple[Shared, list[int]]], num_rows: int, most: int) -> np.ndarray:
    members = np.full((-(-num_rows // TILE) * TILE, most), num_rows, np.int32)
    for e, (_, rows) in enumerate(entries):
        members[e, : len(rows)] = rows
    return members


def extend_plan(
    chunks: Sequence[Chunk],
    parts: Sequence[Residents],
    rows: int,
    width: int,
    longest: int,
    num_kept: int,
    attention: ChunkAttention,
) -> tuple[np.ndarray, ExtendPlan, np.ndarray]:
    """The tokens, the plan and the places of the hidden states of a prefill program.

    Args:
      chunks: at most `rows` of each part, of at most `width` tokens.
      parts: the cache, in its D parts.
      rows: N / D.
      width: T.
      longest: tokens of the longest request.
      num_kept: hidden states that a part keeps.
      attention: who attends the chunks.

    Returns:
      tokens [N, T], the plan, and [N] where each row's hidden state goes, of all parts together;
      beyond them for the rows whose state nobody needs.
    """
    pool = parts[0].pool
    C, num_pages, N = pool.page_tokens, len(pool.slot), rows * len(parts)
    tokens = np.zeros((N, width), np.int32)
    kept = np.full(N, num_kept * len(parts), np.int32)
    start, length = np.zeros((2, N), np.int32)
    table = np.zeros((N, pool.pages_for(longest) + 1), np.int32)
    count = np.zeros_like(table)
    columns = np.zeros(len(parts), np.int32)
    page = np.full((N, width), num_pages, np.int32)
    offset = np.zeros((N, width), np.int32)
    used = [0] * len(parts)
    for chunk in chunks:
        n = chunk.part * rows + used[chunk.part]
        used[chunk.part] += 1
        text, first, size = chunk.text, chunk.start, chunk.count
        tokens[n, :size] = text.ids[first : first + size]
        start[n], length[n] = text.base + first, size
        num_columns = 0
        if isinstance(text, Own) and text.shared is not None:
            num_columns = _list_pages(text.shared, text.base, C, table[n], count[n])
        behind = slice(num_columns, None)
        num_columns += _list_pages(text, first, C, table[n, behind], count[n, behind])
        columns[chunk.part] = max(columns[chunk.part], num_columns)
        at = np.arange(first, first + size)
        page[n, :size] = np.asarray(text.pages)[at // C]
        offset[n, :size] = at % C
        if chunk.is_last:
            kept[n] = chunk.part * num_kept + text.row
    plan: list[Any] = [start, length, table, count, columns, page, offset]
    return tokens, ExtendPlan(*plan, attention=attention), kept


def _list_pages(text: Text, tokens: int, C: int, table: np.ndarray, count: np.ndarray) -> int:
    """Lists the pages of a text's first tokens; returns how many there are."""
    pages = -(-tokens // C)
    table[:pages] = text.pages[:pages]
    count[:pages] = np.minimum(tokens - C * np.arange(pages), C)
    return pages

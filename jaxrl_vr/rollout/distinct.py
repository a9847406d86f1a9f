"""Which tokens of packed rows repeat others: prompts within a group, and padding.

M micro-batches, b rows, T tokens of a row, R parts of a micro-batch's rows, n = b T / R places of a
part, U distinct tokens of one.
"""

from __future__ import annotations

import math

import numpy as np

# Sizes of U are multiples of this share of n, so that few programs are compiled.
_STEPS = 16
# The most of them that pay for bringing tokens into rows and back, by the TPU's compiler.
_MOST = 12


def distinct_tokens(
    tokens: np.ndarray, segment_ids: np.ndarray, parts: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """One place of every token that differs from all others, by itself or in what precedes it.

    Args:
      tokens: [M, b, T] int32.
      segment_ids: [M, b, T] int32; 0 is padding, of which all is one token.
      parts: R, into which a micro-batch's rows are split, one behind the other.

    Returns:
      [M, R, U] a place of each distinct token of a part, and [M, b, T] which of them stands at each
      place; None where too few tokens repeat others for that to pay.

    Raises:
      ValueError: `parts` does not divide the rows.
    """
    M, b, T = tokens.shape
    if b % parts:
        raise ValueError(f"{b} rows cannot be split into {parts} parts")
    n = b * T // parts
    of_each = [
        _of_part(part_tokens, part_segments)
        for part_tokens, part_segments in zip(
            tokens.reshape(M * parts, b // parts, T),
            segment_ids.reshape(M * parts, b // parts, T),
            strict=True,
        )
    ]
    most = max(len(place) for place, _ in of_each)
    steps = math.ceil(most / n * _STEPS)
    if steps > _MOST:
        return None
    size = math.ceil(steps * n / _STEPS)
    # What is behind the distinct ones has the place 0, and no place asks for it.
    place = np.stack([np.pad(place, (0, size - len(place))) for place, _ in of_each])
    token = np.stack([token for _, token in of_each])
    return place.reshape(M, parts, size), token.reshape(M, b, T)


def _of_part(tokens: np.ndarray, segment_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[rows, T] -> places [u] of its tokens, and [rows T] which of them is where."""
    flat, segments = tokens.ravel(), segment_ids.ravel()
    row = np.repeat(np.arange(len(tokens)), tokens.shape[1])
    is_start = np.ones(len(flat), bool)
    is_start[1:] = (segments[1:] != segments[:-1]) | (row[1:] != row[:-1])
    starts = np.flatnonzero(is_start)
    stops = np.append(starts[1:], len(flat))
    token = np.zeros(len(flat), np.int32)
    is_padding = segments == 0
    places = [np.flatnonzero(is_padding)[:1]]  # all padding is the token 0
    used = len(places[0])
    # In the order of their tokens, a sequence shares most with the one before.
    sequences = sorted(
        (flat[start:stop].astype(">i4").tobytes(), start, stop)
        for start, stop in zip(starts, stops, strict=True)
        if not is_padding[start]
    )
    before, of_before = np.zeros(0, flat.dtype), np.zeros(0, np.int32)
    for _, start, stop in sequences:
        own = flat[start:stop]
        both = min(len(own), len(before))
        differs = np.flatnonzero(own[:both] != before[:both])
        shared = int(differs[0]) if len(differs) else both
        new = len(own) - shared
        of_own = np.append(of_before[:shared], np.arange(used, used + new, dtype=np.int32))
        token[start:stop] = of_own
        places.append(np.arange(start + shared, stop))
        used += new
        before, of_before = own, of_own
    return np.concatenate(places).astype(np.int32), token

"""Keyed orders: every shuffle is a pure function of its key, so a position is all a resume needs.

Two kinds: `epoch_order` lists a whole permutation (finite sources), `permuted` looks one entry
up without listing the others (problem spaces of any size). Keys are hashed from names and numbers;
Python's own `hash` differs between processes and is not used.
"""

from __future__ import annotations

import hashlib

import numpy as np

ROUNDS = 6  # of the Feistel network; four already make a pseudo-random permutation


def key(*parts: str | int) -> int:
    """64-bit key of a tuple of names and numbers, the same in every process."""
    text = "\0".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def uniform(*parts: str | int) -> float:
    """A number in [0, 1) that is a pure function of `parts`."""
    return (key(*parts) >> 11) / (1 << 53)


def permuted(index: int, size: int, permutation: int) -> int:
    """Entry `index` of the permutation of `range(size)` that the key `permutation` names.

    A Feistel network over the smallest even number of bits that holds `size`; entries outside the
    range are sent through again until they fall inside, which keeps it a bijection.
    """
    if not 0 <= index < size:
        raise ValueError(f"index {index} is outside a permutation of {size} entries")
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    low = (1 << half) - 1
    while True:
        left, right = index >> half, index & low
        for round_ in range(ROUNDS):
            left, right = right, left ^ (_mix(right, permutation + round_) & low)
        index = (left << half) | right
        if index < size:
            return index


def _mix(value: int, salt: int) -> int:
    # splitmix64's finaliser: cheap, and every input bit reaches every output bit
    x = (value + salt * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return x ^ (x >> 31)


def epoch_order(size: int, seed: int, name: str, epoch: int) -> np.ndarray:
    """Order of one epoch over a finite source.

    Any `size // 3` draws in a row are distinct, also across the border of two epochs: what the
    last third of the epoch before held is moved out of the first third of this one. The last third
    itself is never touched, so an epoch depends on the one before it and on no earlier one.

    Returns:
      order: [size] int64, a permutation of `range(size)`.
    """
    order = _shuffled(size, seed, name, epoch)
    third = size // 3
    if epoch == 0 or third == 0:
        return order
    recent = np.isin(order, _shuffled(size, seed, name, epoch - 1)[size - third :])
    head = np.flatnonzero(recent[:third])
    # enough of them: outside the last third at most size - 2 * third entries are not recent ...
    free = third + np.flatnonzero(~recent[third : size - third])[: len(head)]
    assert len(free) == len(head), "fewer free entries than the counting argument promises"
    order[head], order[free] = order[free], order[head]
    return order


def _shuffled(size: int, seed: int, name: str, epoch: int) -> np.ndarray:
    philox = np.random.Philox(key=[key("epoch order", seed, name), epoch])
    return np.random.Generator(philox).permutation(size)

"""From token sequences to the packed arrays of one optimizer step.

M micro-batches, b rows of a micro-batch, T tokens of a row, B sequences.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_vr.arrays import pytree_dataclass


@pytree_dataclass
class Batch:
    """One optimizer step's tokens, packed. What belongs to a token stands at that token.

    Each micro-batch loss is sum(weight * loss): the normaliser is folded into `weight`.
    """

    tokens: jax.Array  # [M, b, T] int32
    positions: jax.Array  # [M, b, T] int32, place of the token in its sequence
    segment_ids: jax.Array  # [M, b, T] int32, 1, 2, ... within a row; 0 is padding
    mask: jax.Array  # [M, b, T] bool, true where a token trains
    weight: jax.Array  # [M, b, T] float32
    adv: jax.Array  # [M, b, T] float32, advantage
    old_logp: jax.Array  # [M, b, T] float32, under the policy the ratio is taken against
    sampler_logp: jax.Array  # [M, b, T] float32, as the sampler reported it
    ref_logp: jax.Array | None  # [M, b, T] float32, under the reference; None: no reference
    temperature: jax.Array  # [M, b, T] float32
    group: jax.Array  # [M, b, T] int32, which group of the step
    version: jax.Array  # [M, b, T] int32, version of the weights that sampled the token


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """One sequence to train on, with what is known of each of its tokens; never split."""

    token_ids: np.ndarray  # [n] int
    mask: np.ndarray  # [n] bool; the first token of a sequence has no log-prob and cannot train
    logp: np.ndarray | None = None  # [n] float32, as the sampler reported it; None: not sampled
    version: np.ndarray | None = None  # [n] int
    adv: float = 0.0
    temperature: float = 1.0
    group: int = 0

    @property
    def num_trained(self) -> int:
        """Trained tokens."""
        return int(self.mask.sum())


@dataclasses.dataclass(frozen=True)
class Shape:
    """How batches are cut: the static shape of the learner's programs."""

    row_length: int  # T
    rows: int  # b

    @property
    def tokens(self) -> int:
        """Token places of a micro-batch."""
        return self.row_length * self.rows


def pack(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Places sequences into rows, the longest first, each into the first row with room.

    A function of the lengths alone, so that the same rollouts always give the same rows.

    Args:
      lengths: tokens of each sequence.
      row_length: tokens of a row.

    Returns:
      Indices of the sequences in each row.

    Raises:
      ValueError: a sequence is longer than a row.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if lengths[i] > row_length:
            raise ValueError(
                f"a sequence of {lengths[i]} tokens does not fit a row of row_length = "
                f"{row_length}; raise row_length, or lower the prompt and completion limits"
            )
        row = next((r for r, free in enumerate(room) if free >= lengths[i]), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(row_length)
        rows[row].append(i)
        room[row] -= lengths[i]
    return rows


def build(trajectories: Sequence[Trajectory], weight: np.ndarray, shape: Shape) -> Batch:
    """Packs one optimizer step.

    The number of micro-batches is rounded up to a power of two, so that few programs are compiled;
    the learner skips micro-batches that hold nothing.

    Args:
      trajectories: B sequences.
      weight: [B] float32, weight of each trained token of a sequence.
      shape: rows and their length.

    Returns:
      A batch of numpy arrays; `old_logp` is the sampler's, `ref_logp` is None.

    Raises:
      ValueError: no sequence, one that does not fit a row, or one whose first token trains.
    """
    if not trajectories:
        raise ValueError("build: no trajectories; an optimizer step needs at least one")
    rows = pack([len(t.token_ids) for t in trajectories], shape.row_length)
    num_micro = -(-len(rows) // shape.rows)
    num_micro = 1 << (num_micro - 1).bit_length()
    size = (num_micro * shape.rows, shape.row_length)
    ints = {n: np.zeros(size, np.int32) for n in ("tokens", "positions", "segment_ids")}
    ints |= {n: np.zeros(size, np.int32) for n in ("group", "version")}
    floats = {n: np.zeros(size, np.float32) for n in ("weight", "adv", "sampler_logp")}
    floats["temperature"] = np.ones(size, np.float32)
    mask = np.zeros(size, bool)
    for row, members in enumerate(rows):
        start = 0
        for segment, i in enumerate(members, start=1):
            t = trajectories[i]
            n = len(t.token_ids)
            if t.mask[0]:
                raise ValueError(f"trajectory {i}: its first token trains, but has no log-prob")
            at = (row, slice(start, start + n))
            start += n
            ints["tokens"][at] = t.token_ids
            ints["positions"][at] = np.arange(n)
            ints["segment_ids"][at] = segment
            ints["group"][at] = t.group
            mask[at] = t.mask
            floats["weight"][at] = np.where(t.mask, weight[i], 0.0)
            floats["adv"][at] = t.adv
            floats["temperature"][at] = t.temperature
            if t.version is not None:
                ints["version"][at] = t.version
            if t.logp is not None:
                floats["sampler_logp"][at] = t.logp

    def cut(a: np.ndarray) -> Any:  # numpy until the batch is placed on devices
        return a.reshape(num_micro, shape.rows, shape.row_length)  # M b, T -> M, b, T

    arrays = {name: cut(a) for name, a in (ints | floats | {"mask": mask}).items()}
    return Batch(**arrays, old_logp=arrays["sampler_logp"], ref_logp=None)

"""From token sequences to the packed arrays of one optimizer step.

M micro-batches, b rows of a micro-batch, T tokens of a row, B sequences.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_vr.arrays import pytree_dataclass
from jaxrl_vr.rollout.distinct import distinct_tokens


@pytree_dataclass
class Batch:
    """One optimizer step's tokens, packed. What belongs to a token stands at that token.

    Each micro-batch loss is sum(weight * loss) + sum(imitation * -logp): the normalisers are folded
    into `weight` and `imitation`.
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
    old_value: jax.Array | None  # [M, b, T] float32, the critic's before the step; None: no critic
    returns: jax.Array | None  # [M, b, T] float32, what values are trained towards; None: no critic
    imitation: jax.Array | None  # [M, b, T] float32, weight of -logp beside the loss; None: none
    selected: jax.Array | None  # [M, b, T] bool, tokens that the objective treats apart; None: none
    temperature: jax.Array  # [M, b, T] float32
    version: jax.Array  # [M, b, T] int32, version of the weights that sampled the token
    # Tokens that repeat others (distinct.py); None: each is computed where it stands.
    distinct_place: jax.Array | None  # [M, R, U] int32, a place of each
    distinct_token: jax.Array | None  # [M, b, T] int32, which of them stands where


_OPTIONAL = "ref_logp", "old_value", "returns", "imitation", "selected"
_DISTINCT = "distinct_place", "distinct_token"


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """One sequence to train on, with what is known of each of its tokens; never split."""

    token_ids: np.ndarray  # [n] int
    mask: np.ndarray  # [n] bool; the first token of a sequence has no log-prob and cannot train
    logp: np.ndarray | None = None  # [n] float32, as the sampler reported it; None: not sampled
    old_logp: np.ndarray | None = None  # [n] float32, under the old policy; None: the sampler's
    ref_logp: np.ndarray | None = None  # [n] float32, under the reference
    teacher_logp: np.ndarray | None = None  # [n] float32, under the teacher
    old_value: np.ndarray | None = None  # [n] float32, the critic's
    returns: np.ndarray | None = None  # [n] float32, what values are trained towards
    version: np.ndarray | None = None  # [n] int
    entropy: np.ndarray | None = None  # [n] float32, of the choice of each token
    counts: np.ndarray | None = None  # [n] bool, tokens whose loss is not left out; None: all
    selected: np.ndarray | None = None  # [n] bool, tokens that the objective treats apart
    imitation: np.ndarray | None = None  # [n] float32, weight of -logp beside the loss
    adv: float | np.ndarray = 0.0  # of every token, or [n] of each
    temperature: float = 1.0
    group: int = 0  # which group of the step
    num_prompt: int = 0  # tokens before the completion

    @property
    def num_trained(self) -> int:
        """Trained tokens."""
        return int(self.mask.sum())


@dataclasses.dataclass(frozen=True)
class Shape:
    """How batches are cut: the static shape of the learner's programs."""

    row_length: int  # T
    rows: int  # b
    parts: int | None = None
    """R, equal parts of the rows, one for each of the devices that share them: tokens that stand
    in a part more than once behind the same prefix are computed once. None: none is looked for."""
    sequences: int | None = None
    """Most sequences of a row. None: as many as its tokens hold."""

    @property
    def tokens(self) -> int:
        """Token places of a micro-batch."""
        return self.row_length * self.rows


def pack(
    lengths: Sequence[int],
    row_length: int,
    groups: Sequence[int] | None = None,
    most: int | None = None,
) -> list[list[int]]:
    """Places sequences into rows, the longest first, each into the first row with room.

    A function of its arguments alone, so that the same rollouts always give the same rows.

    Args:
      lengths: tokens of each sequence.
      row_length: tokens of a row.
      groups: of each sequence, its group; those of one come one behind the other, the group of the
        longest first. It takes a few rows more and, where groups repeat a prompt, far fewer tokens.
        None: it does not matter who lies beside whom.
      most: sequences of a row; None: as many as its tokens hold.

    Returns:
      Indices of the sequences in each row.

    Raises:
      ValueError: a sequence is longer than a row.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    of_all = [0] * len(lengths) if groups is None else groups
    longest: dict[int, int] = {}
    for group, length in zip(of_all, lengths, strict=True):
        longest[group] = max(length, longest.get(group, 0))
    for i in sorted(
        range(len(lengths)), key=lambda i: (-longest[of_all[i]], of_all[i], -lengths[i], i)
    ):
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
        if len(rows[row]) == most:
            room[row] = 0
    return rows


def build(
    trajectories: Sequence[Trajectory],
    weight: np.ndarray,
    shape: Shape,
    *,
    together: int = 1,
    deal: Sequence[int] | None = None,
) -> Batch:
    """Packs one optimizer step.

    The number of micro-batches is rounded up to a power of two, so that few programs are compiled;
    the learner skips micro-batches that hold nothing.

    Args:
      trajectories: B sequences.
      weight: [B] float32, weight of each trained token of a sequence.
      shape: rows and their length.
      together: so many sequences in a row of the list share a packed row, one behind the other: 2
        for pairs, whose segments are then 1 and 2, 3 and 4, and so on.
      deal: a seed by which rows are dealt to micro-batches at random, so that none has the longest
        of them; None: as they were packed, the longest first.

    Returns:
      A batch of numpy arrays; an optional one is None where no trajectory has it.

    Raises:
      ValueError: no sequence, one that does not fit a row, one whose first token trains, or one
        that lacks an optional array which another has.
    """
    if not trajectories:
        raise ValueError("build: no trajectories; an optimizer step needs at least one")
    for i, t in enumerate(trajectories):
        if t.mask[0] or (t.imitation is not None and t.imitation[0]):
            raise ValueError(f"trajectory {i}: its first token trains, but has no log-prob")
    num_micro, places = _places(trajectories, shape, together, deal)

    def packed(of_each: Sequence[Any], dtype: Any, empty: float = 0) -> Any:
        rows = np.full((num_micro * shape.rows, shape.row_length), empty, dtype)
        for place, values in zip(places, of_each, strict=True):
            rows[place] = values
        return rows.reshape(num_micro, shape.rows, shape.row_length)  # M b, T -> M, b, T

    def optional(name: str, dtype: Any = np.float32) -> Any:
        found = [getattr(t, name) for t in trajectories]
        missing = [i for i, values in enumerate(found) if values is None]
        if len(missing) == len(found):
            return None
        if missing:
            raise ValueError(f"trajectory {missing[0]}: has no {name}, but others have")
        return packed(found, dtype)

    def each(name: str) -> list[Any]:
        found = [getattr(t, name) for t in trajectories]
        return [0 if values is None else values for values in found]

    sampler_logp = packed(each("logp"), np.float32)
    old_logp = optional("old_logp")
    masks = [t.mask for t in trajectories]
    counts = [t.mask if t.counts is None else t.mask & t.counts for t in trajectories]
    tokens, segment_ids = packed(each("token_ids"), np.int32), packed(_segments(places), np.int32)
    found: Any = None if shape.parts is None else distinct_tokens(tokens, segment_ids, shape.parts)
    distinct_place, distinct_token = found or (None, None)
    return Batch(
        tokens=tokens,
        positions=packed([np.arange(len(m)) for m in masks], np.int32),
        segment_ids=segment_ids,
        mask=packed(masks, bool),
        weight=packed(
            [np.where(c, w, 0.0) for c, w in zip(counts, weight, strict=True)], np.float32
        ),
        adv=packed(each("adv"), np.float32),
        old_logp=sampler_logp if old_logp is None else old_logp,
        sampler_logp=sampler_logp,
        ref_logp=optional("ref_logp"),
        old_value=optional("old_value"),
        returns=optional("returns"),
        imitation=optional("imitation"),
        selected=optional("selected", bool),
        temperature=packed(each("temperature"), np.float32, 1),
        version=packed(each("version"), np.int32),
        distinct_place=distinct_place,
        distinct_token=distinct_token,
    )


def few(n: int) -> int:
    """The next power of two: of few sizes few programs are compiled."""
    return 1 << max(n - 1, 0).bit_length()


def abstract_batch(
    num_micro: int, shape: Shape, optional: Collection[str] = (), distinct: int = 0
) -> Batch:
    """Shapes of an optimizer step's arrays.

    Args:
      num_micro: M.
      shape: of a micro-batch.
      optional: names of the optional arrays that are there, of those beside the distinct tokens'.
      distinct: U, distinct tokens of each of the shape's parts; 0: none is looked for.
    """
    dtypes: dict[str, Any] = dict.fromkeys(
        ("tokens", "positions", "segment_ids", "version"), jnp.int32
    )
    dtypes |= dict.fromkeys(("mask", "selected"), jnp.bool_)
    always = {f.name for f in dataclasses.fields(Batch)} - set(_OPTIONAL) - set(_DISTINCT)

    def array(name: str) -> Any:
        if name not in always and name not in optional:
            return None
        size = num_micro, shape.rows, shape.row_length
        return jax.ShapeDtypeStruct(size, dtypes.get(name, jnp.float32))

    batch = Batch(**{f.name: array(f.name) for f in dataclasses.fields(Batch)})
    if not distinct:
        return batch
    assert shape.parts is not None, "tokens are distinct within a part"
    return dataclasses.replace(
        batch,
        distinct_place=jax.ShapeDtypeStruct((num_micro, shape.parts, distinct), jnp.int32),
        distinct_token=batch.tokens,
    )


def unpack(array: np.ndarray, trajectories: Sequence[Trajectory], shape: Shape) -> list[np.ndarray]:
    """The values of each sequence, out of an array that lies like the batch that `build` made.

    Args:
      array: [M, b, T].
      trajectories: as `build` got them.
      shape: as `build` got it.

    Returns:
      An array [n] for each sequence.
    """
    _, places = _places(trajectories, shape)
    rows = array.reshape(-1, shape.row_length)  # M, b, T -> M b, T
    return [rows[place] for place in places]


_Place = tuple[int, slice]  # row over all micro-batches, and tokens of it


def _places(
    trajectories: Sequence[Trajectory],
    shape: Shape,
    together: int = 1,
    deal: Sequence[int] | None = None,
) -> tuple[int, list[_Place]]:
    """Number of micro-batches, and where each sequence lies."""
    lengths = [len(t.token_ids) for t in trajectories]
    units = [sum(lengths[i : i + together]) for i in range(0, len(lengths), together)]
    # Rows that are dealt are to be as independent as can be.
    by_group = shape.parts is not None and deal is None
    groups = [t.group for t in trajectories[::together]] if by_group else None
    most = None if shape.sequences is None else shape.sequences // together
    rows = [
        [together * unit + i for unit in members for i in range(together)]
        for members in pack(units, shape.row_length, groups, most)
    ]
    if deal is not None:
        rows = [rows[i] for i in np.random.default_rng(deal).permutation(len(rows))]
    num_micro = -(-len(rows) // shape.rows)
    places: dict[int, _Place] = {}
    for row, members in enumerate(rows):
        start = 0
        for i in members:
            places[i] = (row, slice(start, start + lengths[i]))
            start += lengths[i]
    return few(num_micro), [places[i] for i in range(len(lengths))]


def _segments(places: Sequence[_Place]) -> list[int]:
    """Of each sequence, 1 for the first of its row, 2 for the second, and so on."""
    starts: dict[int, list[int]] = {}
    for row, tokens in places:
        starts.setdefault(row, []).append(tokens.start)
    return [1 + sorted(starts[row]).index(tokens.start) for row, tokens in places]

"""How batches are cut where the config leaves it to us: as many rows as the memory holds.

M micro-batches, b rows, T tokens of a row.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection
from typing import Any

import jax

from jaxrl_vr.models.transformer import Remat
from jaxrl_vr.rollout.batch import Shape, abstract_batch, few
from jaxrl_vr.sharding import device_memory, local_bytes
from jaxrl_vr.train.objectives import Numbers
from jaxrl_vr.train.stages import TrainStage
from jaxrl_vr.train.state import TrainState
from jaxrl_vr.train.update import Learner, Rates

_SHARE = 0.9
"""Of a device's memory, that an update may take: what else lives there is not compiled with it."""


class NoRowFits(ValueError):
    """Not even one row a device fits."""


class OutOfMemory(RuntimeError):
    """A stage ran out of a device's memory.

    Attributes:
      stage: its name.
    """

    def __init__(self, stage: str, error: Exception):
        super().__init__(str(error))
        self.stage = stage


def is_out_of_memory(error: Exception) -> bool:
    """Whether a compiler or a device says so."""
    return "RESOURCE_EXHAUSTED" in str(error)


def bytes_of(analysis: Any) -> int:
    """That a program takes of a device while it runs, from the compiler's `memory_analysis`."""
    held = analysis.argument_size_in_bytes + analysis.output_size_in_bytes
    return int(held - analysis.alias_size_in_bytes + analysis.temp_size_in_bytes)


@dataclasses.dataclass(frozen=True)
class Update:
    """What an optimizer step is compiled of, without its micro-batches.

    Attributes:
      learner: compiles it.
      state: shapes with shardings; its critic's memory is counted, and its update is not compiled.
      numbers: of the objective.
      optional: names of the batch's optional arrays.
      num_rows: packed rows that it needs at most.
      remat: of the model.
    """

    learner: Learner
    state: TrainState
    numbers: Numbers
    optional: Collection[str]
    num_rows: int
    remat: Remat

    def num_micro(self, shape: Shape) -> int:
        """Micro-batches of this shape, as batches are built: of few sizes."""
        return few(math.ceil(self.num_rows / shape.rows))

    def lower(self, shape: Shape, distinct: int = 0) -> Any:
        """The program of all rows in micro-batches of this shape, lowered; `distinct` as
        `abstract_batch` has it."""
        batch = abstract_batch(self.num_micro(shape), shape, self.optional, distinct)
        policy = dataclasses.replace(self.state, critic=None)
        rates = Rates(1e-6, 1.0, None if policy.ema is None else 0.999)
        return self.learner.lower(policy, batch, self.numbers, rates)

    def memory(self, shape: Shape) -> float:
        """Bytes of a device while it runs, by the compiler; infinite if that refuses to compile."""
        try:
            found = self.lower(shape).compile().memory_analysis()
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return math.inf
        return float(bytes_of(found) + local_bytes(self.state.critic))


def shape_of(stage: TrainStage, row_length: int, rows: int, mesh: jax.sharding.Mesh) -> Shape:
    """The shape of a stage's micro-batches of so many rows."""
    is_shared = stage.micro.share_prefixes and mesh.shape["context"] == 1
    return Shape(row_length, rows, mesh.shape["data"] * mesh.shape["fsdp"] if is_shared else None)


def micro_shape(
    stage: TrainStage,
    row_length: int,
    mesh: jax.sharding.Mesh,
    make: Callable[[], Update],
    say: Callable[[str], None],
    memory: int | None = None,
) -> Shape:
    """The shape of a stage's micro-batches.

    Where `micro.rows` is "auto", programs of one and two rows a device are compiled. Memory grows
    evenly with rows, so the two say how many fit; the program of that size is compiled too.

    Args:
      stage: whose `micro` says how many rows.
      row_length: T.
      mesh: rows are split over its `data` and `fsdp`.
      make: what an update is; called where rows are to be found.
      say: is told what was found.
      memory: bytes of a device; default: of those of the mesh.

    Raises:
      NoRowFits: not even one row a device does.
    """
    rows = stage.micro.rows
    if rows != "auto":
        return shape_of(stage, row_length, rows, mesh)
    update = make()
    least = mesh.shape["data"] * mesh.shape["fsdp"]
    limit = memory or device_memory(mesh)
    room = limit * _SHARE

    @functools.cache
    def taken(rows: int) -> float:
        return update.memory(Shape(row_length, rows))

    if taken(least) > room:
        one = taken(least)
        least_memory = "L" if update.remat == "block" else 'Set model.remat = "block", l'
        what = f"{one / 1e9:.2f} GB" if math.isfinite(one) else "more than there is"
        raise NoRowFits(
            f"stages.{stage.name}.micro.rows = 'auto': an update with one row of {row_length} "
            f"tokens a device takes {what}; {room / 1e9:.2f} GB ({_SHARE:.0%} of its memory) "
            f"may be filled. {least_memory}ower stages.{stage.name}.micro.row_length, or split "
            "more: mesh.fsdp, mesh.tensor, mesh.context"
        )
    rows = largest = least * few(math.ceil(update.num_rows / least))
    if rows > least:
        of_row = (taken(2 * least) - taken(least)) / least
        while rows > 2 * least and taken(least) + (rows - least) * of_row > room:
            rows //= 2
    while taken(rows) > room:
        rows //= 2
    why = "all that an update has" if rows == largest else "twice as many would not fit"
    say(
        f"stages.{stage.name}.micro.rows = {rows}: an update takes {taken(rows) / 1e9:.2f} of "
        f"a device's {limit / 1e9:.2f} GB, as compiled; {why}"
    )
    return shape_of(stage, row_length, rows, mesh)

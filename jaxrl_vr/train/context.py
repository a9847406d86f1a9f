"""What every stage of a run works with, opened once."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxrl_vr.data.tokenizer import Tokenizer
from jaxrl_vr.metrics.console import Console
from jaxrl_vr.metrics.throughput import Phases
from jaxrl_vr.metrics.writer import Writer
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.sampler.engine import SlotEngine
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.interrupt import Interrupt
from jaxrl_vr.train.mixtures import Mixtures
from jaxrl_vr.train.stages import StageBase
from jaxrl_vr.types import Sampling
from jaxrl_vr.verifiers.pool import Pool


@dataclasses.dataclass
class Context:
    """A run in progress: its config, devices, model, workers and outputs."""

    config: RunConfig
    folder: Path
    mesh: jax.sharding.Mesh
    model: Transformer
    tokenizer: Tokenizer
    mixtures: Mixtures
    console: Console
    writer: Writer
    phases: Phases
    pool: Pool
    interrupt: Interrupt
    load_init: Callable[[StageBase], Any]  # the parameters a stage starts from
    load_teacher: Callable[[str], Any]  # the parameters of a teacher
    teacher_model: Callable[[str], Transformer]  # and the model that they are for
    model_folder: Path | None  # of a pretrained model
    _engine: SlotEngine | None = None

    def engine(self, params: Any, version: int) -> SlotEngine:
        """The run's one engine, with these weights."""
        if self._engine is None:
            self._engine = SlotEngine(
                self.model,
                params,
                self.config.engine,
                self.mesh,
                version=version,
                decode=self.tokenizer.decode,
            )
        else:
            self._engine.set_params(params, version)
        return self._engine

    @contextlib.contextmanager
    def sampling_phase(self, name: str, params: Any, version: int) -> Iterator[SlotEngine]:
        """The engine with these weights during a phase, behind which its memory is given back."""
        with self.phases(name):
            engine = self.engine(params, version)
            waited, busy = engine.occupancy.waited_s, engine.occupancy.busy_s
            yield engine
            engine.free(with_weights=True)
            self.phases.waited("device", engine.occupancy.waited_s - waited)
            self.phases.busy(engine.occupancy.busy_s - busy)

    def wait_for_rewards(self) -> contextlib.AbstractContextManager[None]:
        """A context in which the host waits for verifiers."""
        return self.phases.waiting("rewards")

    def sampling(self, sampling: Any) -> Sampling:
        """A sampling config with the tokenizer's stop ids and the ids of what is forced."""
        return sampling.values(self.tokenizer)

    def stage_folder(self, name: str) -> Path:
        """The folder of a stage."""
        return self.folder / "stages" / name

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a completion."""
        return self.tokenizer.decode(ids)

    def report_dropped(self, where: str, dropped: Mapping[str, int], limit: int) -> None:
        """Says how many items of which source were left out for their length."""
        for source, count in dropped.items():
            if count:
                self.console.warn(
                    f"{where}: {count} items of {source} are longer than {limit} tokens and were "
                    "left out"
                )

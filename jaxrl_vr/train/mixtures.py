"""The data of a run's stages and tasks: each is opened once, whether to check it or to use it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from jaxrl_vr.data.demonstrations import Demonstration, load_demonstrations
from jaxrl_vr.data.mixture import Mixture
from jaxrl_vr.data.preferences import Pair, load_pairs
from jaxrl_vr.data.prompts import Prompt, load_prompts
from jaxrl_vr.data.tokenizer import Tokenizer
from jaxrl_vr.train.config import STAGE_PREFIX, RunConfig, stage_of
from jaxrl_vr.train.rl_stage import RlStage
from jaxrl_vr.train.stages import DpoStage, SftStage, StageBase, Task, TrainStage, tasks_of
from jaxrl_vr.verifiers.spec import check_references

A = TypeVar("A")


@dataclasses.dataclass(frozen=True)
class Mixtures:
    """Opens sources under the limits of who uses them."""

    config: RunConfig
    tokenizer: Tokenizer
    context: int  # most tokens that the model takes
    _opened: dict[tuple[str, str], Mixture[Any]] = dataclasses.field(default_factory=dict)

    def demonstrations(self, stage: SftStage) -> Mixture[Demonstration]:
        """What a supervised stage trains on."""

        def load(sources: Sequence[Any]) -> Mixture[Demonstration]:
            return load_demonstrations(
                sources,
                self.tokenizer,
                loss_on=stage.loss_on,
                max_tokens=stage.longest(self.context),
                seed=self.config.stage_seed(stage),
            )

        return self._open(("stage", stage.name), stage.data, load)

    def texts(self, stage: RlStage) -> Mixture[Demonstration]:
        """What an RL stage mixes in beside its rollouts."""
        mix = stage.lm_mix
        assert mix is not None, "the stage mixes texts in"

        def load(sources: Sequence[Any]) -> Mixture[Demonstration]:
            return load_demonstrations(
                sources,
                self.tokenizer,
                loss_on=mix.loss_on,
                max_tokens=mix.longest(stage.row_length(self.context), self.context),
                seed=self.config.stage_seed(stage),
            )

        return self._open(("lm_mix", stage.name), mix.data, load)

    def pairs(self, stage: DpoStage) -> Mixture[Pair]:
        """What a preference stage trains on."""

        def load(sources: Sequence[Any]) -> Mixture[Pair]:
            longest, seed = stage.longest(self.context), self.config.stage_seed(stage)
            return load_pairs(sources, self.tokenizer, max_tokens=longest, seed=seed)

        return self._open(("stage", stage.name), stage.data, load)

    def prompts(self, stage: RlStage) -> Mixture[Prompt]:
        """What an RL stage answers."""
        longest, seed = stage.longest_prompt(self.context), self.config.stage_seed(stage)
        return self._open(("stage", stage.name), stage.data, self._prompts(longest, seed))

    def problems(self, task: Task) -> Mixture[Prompt]:
        """What an evaluation answers."""
        load = self._prompts(task.longest_prompt(self.context), self.config.seed)
        return self._open(("task", task.name), task.data, load)

    def check(self, stage: StageBase) -> None:
        """Raises ValueError if data of a stage is missing or faulty, as its start would.

        What the run itself has still to write is left for then.
        """
        if isinstance(stage, TrainStage) and self._is_there(stage.data):
            if isinstance(stage, SftStage):
                _try(self.demonstrations(stage))
            elif isinstance(stage, DpoStage):
                _try(self.pairs(stage))
            elif isinstance(stage, RlStage):
                _try(self.prompts(stage))
        if isinstance(stage, RlStage) and stage.lm_mix and self._is_there(stage.lm_mix.data):
            _try(self.texts(stage))
        for task in map(self.config.task, tasks_of(stage)):
            if self._is_there(task.data):
                _try(self.problems(task))

    def _prompts(self, longest: int, seed: int) -> Callable[[Sequence[Any]], Mixture[Prompt]]:
        def load(sources: Sequence[Any]) -> Mixture[Prompt]:
            mixture = load_prompts(sources, self.tokenizer, max_prompt_tokens=longest, seed=seed)
            for stream in mixture.streams:
                if stream.size is not None:
                    check_references(stream.get(i).example for i in range(stream.size))
            return mixture

        return load

    def _open(
        self,
        key: tuple[str, str],
        names: Sequence[str],
        load: Callable[[Sequence[Any]], Mixture[A]],
    ) -> Mixture[A]:
        if key not in self._opened:
            self._opened[key] = load([self._located(s) for s in self.config.sources(names)])
        return self._opened[key]

    def _located(self, source: Any) -> Any:
        """What a stage wrote is looked up in its folder."""
        if stage_of(source) is None:
            return source
        path = Path(self.config.run_dir, "stages", source.path.removeprefix(STAGE_PREFIX))
        return source.model_copy(update={"path": str(path)})

    def _is_there(self, names: Sequence[str]) -> bool:
        """Whether no source is one that the run itself writes."""
        own = Path(self.config.run_dir).absolute()
        return not any(
            stage_of(source) is not None
            or Path(getattr(source, "path", "/")).absolute().is_relative_to(own)
            for source in self.config.sources(names)
        )


def _try(mixture: Mixture[Any]) -> None:
    """Makes one item of each source without end."""
    for stream in mixture.streams:
        if stream.size is None:
            stream.get(0)

"""The programs of a run, lowered for the devices of a mesh without an array on any of them.

They are the run's own: what compiles here is what runs there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.plan.known import teacher
from jaxrl_vr.rollout.batch import abstract_batch, few
from jaxrl_vr.sampler.chunks import Chunk, next_chunk
from jaxrl_vr.sampler.plans import decode_plan, extend_plan
from jaxrl_vr.sampler.programs import Programs, State, ViewProgram
from jaxrl_vr.sampler.residents import Residents
from jaxrl_vr.sampler.sizes import EngineConfig, Sizes, cache_sizes, empty_parts, num_parts
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.critic import critic_learner
from jaxrl_vr.train.limits import Rollouts
from jaxrl_vr.train.micro import micro_shape
from jaxrl_vr.train.policy import critic_update_of, learner_of, update_of
from jaxrl_vr.train.rl_stage import RlStage
from jaxrl_vr.train.state import TrainState
from jaxrl_vr.train.update import Scorer, policy_score, without_frozen
from jaxrl_vr.types import Request, Sampling


class Lowered:
    """What a run does in an RL stage, lowered for a mesh.

    Args:
      config: of the run.
      stage: one of its own.
      model: of the run.
      mesh: of devices that may not be here.
      memory: bytes of one of them.
      say: is told what is compiled to find the rows of a micro-batch.
    """

    def __init__(
        self,
        config: RunConfig,
        stage: RlStage,
        model: Transformer,
        mesh: jax.sharding.Mesh,
        memory: int,
        say: Callable[[str], None],
    ):
        self.model = model
        self.rollouts = Rollouts.of(stage, model.max_length)
        self._stage = stage
        self._learner = learner_of(stage, model, mesh)
        self.teacher = None if stage.teacher is None else teacher(config, model, stage.teacher)
        self._update = update_of(stage, model, mesh, self._learner, self.teacher)
        row_length = stage.row_length(model.max_length)
        self.shape = micro_shape(stage, row_length, mesh, lambda: self._update, say, memory)
        self.num_micro = self._update.num_micro(self.shape)
        self._mesh = mesh
        self._engine = _with_cache(config.engine, self.rollouts, mesh)
        self.state: TrainState = self._update.state
        self.params = self.state.trainable
        self.trained = without_frozen(self.params, self._learner.transform.frozen)
        self.sizes: Sizes = cache_sizes(model, self._engine, mesh)
        self._programs = Programs(model, self.sizes, mesh)

    def update(self) -> Any:
        """One optimizer step."""
        return self._update.lower(self.shape)

    def critic_update(self) -> Any:
        """One optimizer step of the critic; None: the stage has none."""
        critic = self._stage.critic
        if critic is None:
            return None
        return critic_update_of(self._stage, critic, self.model, self._mesh).lower(self.shape)

    def scores(self) -> Iterator[tuple[str, Any, int]]:
        """What is scored before the first update: name, program, and how often it is run."""
        stage, state = self._stage, self.state
        batch = abstract_batch(few(self.rollouts.num_micro(self.shape)), self.shape)
        if stage.num_scores:
            yield "score", self._learner.score.lower(self.params, batch), stage.num_scores
        if self.teacher is not None:
            scorer = Scorer(policy_score(self.teacher), self._mesh)
            yield "teacher_score", scorer.lower(state.frozen["teacher"], batch), 1
        if stage.critic is not None:
            learner = critic_learner(stage.critic, self.model, self._mesh)
            yield "critic_score", learner.score.lower(state.critic.trainable, batch), 1

    def view(self) -> Any:
        """The sampler's copy of the weights, made of the learner's."""
        return ViewProgram(self.model, self._mesh, self._engine.weights == "int8").lower(
            self.params
        )

    def cache(self, view: Any) -> State:
        """What the sampler holds beside its weights."""
        return self._programs.abstract_state(view)

    def prefill_width(self) -> int:
        """Tokens of a row of the prefill program."""
        return self._chunks()[1][0].width

    def _chunks(self) -> tuple[list[Residents], list[Chunk]]:
        """A longest prompt in each part, and its first chunk."""
        parts = empty_parts(self.sizes)
        for part in parts:
            part.add(0, _request(self.rollouts, 0), self.rollouts.new_tokens, False)
        run = self.sizes.run_tokens
        return parts, [next_chunk(d, part.of_slot[0], run) for d, part in enumerate(parts)]

    def prefill(self, view: Any) -> Any:
        """One prefill program of a step, of its longest rows."""
        sizes = self.sizes
        parts, chunks = self._chunks()
        width = chunks[0].width
        rows = max(1, sizes.prefill_tokens // width)
        arguments = extend_plan(
            chunks, parts, rows, width, self.model.max_length, sizes.kept, sizes.chunk_attention
        )
        return self._programs.lower_extend(view, *arguments)

    def decode(self, view: Any) -> Any:
        """A chunk of decode steps at whose end all slots have all their tokens."""
        rows, plan = full_plan(self.sizes, self.rollouts, self.model.max_length)
        enough = np.int32(self.sizes.slots)
        return self._programs.lower_decode(view, rows, plan, enough)


def full_plan(sizes: Sizes, rollouts: Rollouts, max_length: int) -> tuple[np.ndarray, Any]:
    """The rows and the plan of a chunk at whose end all slots have all their tokens."""
    parts = empty_parts(sizes)
    of_part = sizes.slots // sizes.parts
    for part in parts:
        for slot in range(of_part):
            part.add(slot, _request(rollouts, slot), rollouts.new_tokens, rollouts.samples > 1)
    rows = [list(range(of_part))] * sizes.parts
    last = rollouts.prompt_tokens + max(0, rollouts.new_tokens - sizes.steps)
    positions = {(d, slot): last for d in range(sizes.parts) for slot in range(of_part)}
    plan = decode_plan(parts, rows, positions, of_part, sizes.steps, max_length, sizes.item_pages)
    return np.arange(sizes.slots, dtype=np.int32), plan


def _request(rollouts: Rollouts, slot: int) -> Request:
    """Of a slot; those of one prompt stand together."""
    prompt = (slot // rollouts.samples, *range(1, rollouts.prompt_tokens))
    return Request(slot, prompt, (0, 0, 0, slot), Sampling(rollouts.new_tokens))


def _with_cache(config: EngineConfig, rollouts: Rollouts, mesh: jax.sharding.Mesh) -> EngineConfig:
    """With room for all slots at their limits, unless the config says how much."""
    if config.cache_tokens:
        return config
    parts = num_parts(config.slots, mesh)
    page = config.page_tokens or 128
    slots = config.slots // parts
    prompts = -(-slots // rollouts.samples)
    pages = slots * -(-rollouts.new_tokens // page) + prompts * -(-rollouts.prompt_tokens // page)
    return config.model_copy(update={"cache_tokens": parts * pages * page})

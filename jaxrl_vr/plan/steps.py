"""The programs of a run, lowered for the devices of a mesh without an array on any of them.

They are the run's own: what compiles here is what runs there.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_vr.models.params import abstract
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.rollout.batch import Batch, Shape
from jaxrl_vr.sampler.chunks import next_chunk
from jaxrl_vr.sampler.plans import decode_plan, extend_plan
from jaxrl_vr.sampler.programs import Programs, State, ViewProgram
from jaxrl_vr.sampler.sizes import EngineConfig, Sizes, cache_sizes, empty_parts, num_parts
from jaxrl_vr.sharding import TRAIN_RULES
from jaxrl_vr.train.carried import Carried
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.rl import policy_learner
from jaxrl_vr.train.rl_stage import RlStage
from jaxrl_vr.train.state import TrainState, abstract_state
from jaxrl_vr.train.update import Rates
from jaxrl_vr.types import Request, Sampling


@dataclasses.dataclass(frozen=True)
class Rollouts:
    """What a step samples, every completion at its limit.

    Attributes:
      prompts: of a step.
      samples: of each.
      prompt_tokens: of the longest.
      new_tokens: of a completion.
    """

    prompts: int
    samples: int
    prompt_tokens: int
    new_tokens: int

    @classmethod
    def of(cls, stage: RlStage, context: int) -> Rollouts:
        """Those of a stage of a model with this context."""
        longest = stage.longest_prompt(context)
        return cls(stage.prompts, stage.samples, longest, stage.sampling.max_new_tokens)

    @property
    def count(self) -> int:
        """Completions of a step."""
        return self.prompts * self.samples

    @property
    def tokens(self) -> int:
        """That an update sees."""
        return self.count * (self.prompt_tokens + self.new_tokens)

    def num_rows(self, row_length: int, updates: int = 1) -> int:
        """Packed rows of each of a step's updates."""
        of_row = max(1, row_length // (self.prompt_tokens + self.new_tokens))
        return math.ceil(math.ceil(self.count / updates) / of_row)

    def num_micro(self, shape: Shape, updates: int = 1) -> int:
        """Micro-batches of each of a step's updates."""
        return math.ceil(self.num_rows(shape.row_length, updates) / shape.rows)


class Lowered:
    """What a run does in an RL stage, lowered for a mesh.

    Args:
      config: of the run.
      stage: one of its own.
      model: of the run.
      mesh: of devices that may not be here.
    """

    def __init__(
        self, config: RunConfig, stage: RlStage, model: Transformer, mesh: jax.sharding.Mesh
    ):
        self.model = model
        self.rollouts = Rollouts.of(stage, model.max_length)
        self.shape = Shape(stage.row_length(model.max_length), stage.micro.rows)
        self._stage = stage
        self._mesh = mesh
        self._engine = _with_cache(config.engine, self.rollouts, mesh)
        self.params = abstract(model.declare(), TRAIN_RULES, mesh)
        frozen = {"reference": self.params} if stage.has_reference else {}
        transform = stage.optimizer.transform(model.declare())
        self.state: TrainState = abstract_state(self.params, frozen, transform)
        self.sizes: Sizes = cache_sizes(model, self._engine, mesh)
        self._programs = Programs(model, self.sizes, mesh)

    @property
    def num_micro(self) -> int:
        """Micro-batches of an optimizer step, with completions at their limits."""
        num_micro = self.rollouts.num_micro(self.shape, self._stage.updates_at(0))
        return 1 << (num_micro - 1).bit_length()  # as batches are built: of few sizes

    def update(self) -> Any:
        """One optimizer step."""
        learner = policy_learner(self._stage, self.model, self._mesh)
        batch = self._batch()
        shardings = learner.batch_shardings(batch)
        batch = jax.tree.map(
            lambda a, sharding: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding),
            batch,
            shardings,
        )
        numbers = Carried.of(self._stage, {}).numbers(self._stage)
        return learner.lower(self.state, batch, numbers, Rates(1e-6, 1.0))

    def view(self) -> Any:
        """The sampler's copy of the weights, made of the learner's."""
        return ViewProgram(self.model, self._mesh, self._engine.weights == "int8").lower(
            self.params
        )

    def cache(self, view: Any) -> State:
        """What the sampler holds beside its weights."""
        return self._programs.abstract_state(view)

    def prefill(self, view: Any) -> Any:
        """One prefill program of a step, of its longest rows."""
        sizes, rollouts = self.sizes, self.rollouts
        parts = empty_parts(sizes)
        for part in parts:
            part.add(0, _request(rollouts, 0), rollouts.new_tokens, False)
        chunks = [next_chunk(d, part.of_slot[0], sizes.run_tokens) for d, part in enumerate(parts)]
        width = chunks[0].width
        rows = max(1, sizes.prefill_tokens // width)
        has_kernels = sizes.item_pages is not None
        arguments = extend_plan(
            chunks, parts, rows, width, self.model.max_length, sizes.kept, has_kernels
        )
        return self._programs.lower_extend(view, *arguments)

    def decode(self, view: Any) -> Any:
        """A chunk of decode steps at whose end all slots have all their tokens."""
        rows, plan = full_plan(self.sizes, self.rollouts, self.model.max_length)
        enough = np.int32(self.sizes.slots)
        return self._programs.lower_decode(view, rows, plan, enough)

    def _batch(self) -> Batch:
        """Shapes of an optimizer step's tokens."""
        stage = self._stage
        shape = self.num_micro, self.shape.rows, self.shape.row_length

        def array(dtype: Any) -> Any:
            return jax.ShapeDtypeStruct(shape, dtype)

        floats = array(jnp.float32)
        return Batch(
            tokens=array(jnp.int32),
            positions=array(jnp.int32),
            segment_ids=array(jnp.int32),
            mask=array(jnp.bool_),
            weight=floats,
            adv=floats,
            old_logp=floats,
            sampler_logp=floats,
            ref_logp=floats if stage.has_ref_logp else None,
            old_value=None,
            returns=None,
            imitation=None if stage.positive_nll is None and stage.lm_mix is None else floats,
            selected=array(jnp.bool_) if stage.tokens is not None else None,
            temperature=floats,
            version=array(jnp.int32),
        )


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

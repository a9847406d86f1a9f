"""The config of a run: the one model that a TOML file is checked against.

Sections that belong to one package are declared there, beside the code that reads them; here is
what puts them together: model, named data and tasks, stages, and the rules between them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, model_validator

from jaxrl_vr.checkpoint import CheckpointConfig
from jaxrl_vr.config import Config, LocalPath, parse
from jaxrl_vr.data.demonstrations import LossOn
from jaxrl_vr.data.sources import FileSource, ProceduralSource, Source
from jaxrl_vr.data.tokenizer import CharTokenizerConfig, HFTokenizerConfig
from jaxrl_vr.metrics.sinks import LoggingConfig
from jaxrl_vr.models.architecture import Architecture, Llama3Scaling
from jaxrl_vr.models.transformer import Remat
from jaxrl_vr.sampler.engine import EngineConfig
from jaxrl_vr.sharding import MeshConfig
from jaxrl_vr.train.advantage import (
    Advantage,
    Gae,
    GroupNorm,
    PassAtK,
    PreferencePairs,
    ProcessGroupNorm,
    Reward,
)
from jaxrl_vr.train.critic import CriticConfig
from jaxrl_vr.train.objectives import DecoupledPpo, Dpo, PolicyUnion, PpoClip, Rft
from jaxrl_vr.train.offpolicy import Offpolicy
from jaxrl_vr.train.optimizer import AdamW
from jaxrl_vr.train.penalty import EntropyBonus, Kl
from jaxrl_vr.train.shaping import Shaping
from jaxrl_vr.train.weights import SequenceMean, TokenMean, Weights
from jaxrl_vr.types import Sampling
from jaxrl_vr.verifiers.pool import PoolConfig
from jaxrl_vr.verifiers.spec import build, needs_reference


class RandomModel(Config):
    """A new model with random weights."""

    type: Literal["random"] = "random"
    """Where the model comes from."""
    family: Literal["llama", "qwen2", "qwen3"] = "llama"
    """qwen2 adds a bias to q, k and v; qwen3 normalises q and k per head."""
    vocab_size: PositiveInt | None = None
    """Rows of the embedding; None is the tokenizer's vocabulary."""
    width: PositiveInt
    """Size of the residual stream."""
    layers: PositiveInt
    """Number of blocks."""
    heads: PositiveInt
    """Query heads."""
    kv_heads: PositiveInt | None = None
    """Key/value heads; None is as many as query heads."""
    head_dim: PositiveInt | None = None
    """Size of a head; None is width / heads."""
    ffn: PositiveInt
    """Width of the gated feed-forward layer, often 8/3 of the width."""
    tied: bool = True
    """The LM head is the embedding."""
    rope_theta: float = 10_000.0
    """Base of the rotary wavelengths; raise it for long contexts."""
    rope_scaling: Llama3Scaling | None = None
    """Rotary scaling; None is plain RoPE."""
    norm_eps: float = 1e-5
    """Added to the mean square in RMSNorm."""
    max_length: PositiveInt
    """Context, in tokens."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute dtype; weights and log-probs are float32. bfloat16 on accelerators."""
    remat: Remat = "none"
    """"block" computes each block again in the backward pass: less memory, a third more time."""

    @model_validator(mode="after")
    def _check(self) -> RandomModel:
        self.architecture(self.vocab_size or 1)
        return self

    def architecture(self, vocab_size: int) -> Architecture:
        """The model itself, whose own bounds hold here too."""
        if self.head_dim is None and self.width % self.heads:
            raise ValueError(
                f"width = {self.width} is no multiple of heads = {self.heads}; change one, or set "
                "head_dim"
            )
        values = self.model_dump(exclude={"type", "dtype", "remat"})
        sizes = {
            "vocab_size": vocab_size,
            "kv_heads": self.kv_heads or self.heads,
            "head_dim": self.head_dim or self.width // self.heads,
        }
        return parse(Architecture, values | sizes)


class PretrainedModel(Config):
    """A model in a Hugging Face folder."""

    type: Literal["pretrained"] = "pretrained"
    """Where the model comes from."""
    path: LocalPath
    """Local folder with config.json and safetensors, or a hub id such as Qwen/Qwen2.5-1.5B."""
    revision: str | None = None
    """Commit, branch or tag of a hub id."""
    max_length: PositiveInt | None = None
    """Context to use, in tokens; None is the model's own."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute dtype; weights and log-probs are float32. bfloat16 on accelerators."""
    remat: Remat = "none"
    """"block" computes each block again in the backward pass: less memory, a third more time."""


Model = Annotated[RandomModel | PretrainedModel, Field(discriminator="type")]
Tokenizer = Annotated[CharTokenizerConfig | HFTokenizerConfig, Field(discriminator="type")]


class SamplingConfig(Config):
    """How completions are sampled."""

    max_new_tokens: PositiveInt
    """Completion tokens at most; what is longer is cut and counts as truncated."""
    temperature: float = Field(default=1.0, ge=0)
    """1 samples from the model itself, 0 is greedy. RL needs contrast: keep it near 1."""
    top_k: int = Field(default=0, ge=0, le=2**31 - 1)
    """Only the k most likely tokens; 0 is off."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Only the most likely tokens that together reach this probability; 1 is off."""
    min_p: float = Field(default=0.0, ge=0, lt=1)
    """Only tokens with at least this share of the most likely one's probability; 0 is off."""

    @model_validator(mode="after")
    def _check(self) -> SamplingConfig:
        acting = self.cuts
        if self.temperature == 0 and acting:
            raise ValueError(
                f"{acting[0]} = {getattr(self, acting[0])} cannot act with temperature = 0, which "
                "always takes the most likely token; leave it out, or raise the temperature"
            )
        return self

    @property
    def cuts(self) -> list[str]:
        """Names of what cuts the distribution."""
        cuts = {"top_k": self.top_k, "min_p": self.min_p, "top_p": 1 - self.top_p}
        return [name for name, value in cuts.items() if value]

    def values(self, stop_ids: Sequence[int]) -> Sampling:
        """As the sampler takes them."""
        return Sampling(**self.model_dump(), stop_ids=tuple(stop_ids))


class Task(Config):
    """An evaluation: problems, how they are sampled, how many times."""

    name: str = Field(min_length=1)
    """Name in metrics and tables."""
    data: tuple[str, ...] = Field(min_length=1)
    """Names of data sources; all their examples are used, so each needs an end or a `limit`."""
    samples: PositiveInt = 1
    """Completions of each problem: 1 with temperature 0 is greedy accuracy, more give avg@k."""
    sampling: SamplingConfig
    """How to sample; temperature 0 is greedy."""

    def longest_prompt(self, context: int) -> int:
        """Tokens of a prompt at most, in a model's context."""
        return context - self.sampling.max_new_tokens

    @model_validator(mode="after")
    def _check(self) -> Task:
        if self.samples > 1 and self.sampling.temperature == 0:
            raise ValueError(
                f"samples = {self.samples} with sampling.temperature = 0 would be the same answer "
                "each time; raise the temperature, or set samples = 1"
            )
        return self


class Micro(Config):
    """How an optimizer step is cut into micro-batches."""

    rows: PositiveInt = 8
    """Rows of a micro-batch, over all devices; lower it when memory runs out."""
    row_length: PositiveInt | None = None
    """Tokens of a row, into which sequences are packed; None is the longest sequence possible."""


class Periodic(Config):
    """Evaluations during training."""

    every: PositiveInt
    """Steps between evaluations."""
    tasks: tuple[str, ...] = Field(min_length=1)
    """Names of tasks."""


class StageBase(Config):
    """What every stage has."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$")
    """Name of the stage, of its folder, and in `init` of later ones."""
    init: LocalPath = "previous"
    """Weights to start from: `previous`, `base` (those of [model]), a stage's name, or a path."""


class TrainStage(StageBase):
    """What stages that train have."""

    data: tuple[str, ...] = Field(min_length=1)
    """Names of data sources, mixed by their weights."""
    steps: int = Field(ge=0, le=10**9)
    """Steps of the stage."""
    optimizer: AdamW
    """Optimizer and learning rate."""
    micro: Micro = Micro()
    """Micro-batches."""
    eval: Periodic | None = None
    """Evaluations along the way."""

    @property
    def total_updates(self) -> int:
        """Optimizer steps of the whole stage."""
        return self.steps


class SftStage(TrainStage):
    """Supervised training on demonstrations, packed."""

    type: Literal["sft"] = "sft"
    """What the stage does."""
    batch: PositiveInt
    """Demonstrations of an optimizer step."""
    loss_on: LossOn = "completion"
    """`completion` masks prompts; `all` trains on every token (plain text)."""
    max_tokens: PositiveInt | None = None
    """Longer demonstrations are left out and counted; None is the model's context."""
    weights: Annotated[TokenMean | SequenceMean, Field(discriminator="type")] = TokenMean()
    """How token losses are averaged."""

    def longest(self, context: int) -> int:
        """Tokens of a demonstration at most, in a model's context."""
        return min(self.max_tokens or context, context)


class DynamicSampling(Config):
    """DAPO's dynamic sampling (https://arxiv.org/abs/2503.14476, section 3.2): groups whose rewards
    are all equal do not train; prompts are sampled until `prompts` groups have contrast."""

    oversample: float = Field(default=1.5, ge=1)
    """Prompts sampled for each that is still missing; higher needs fewer rounds. All groups with
    contrast train, also those beyond `prompts`: no accepted sample is thrown away."""
    max_rounds: PositiveInt = 8
    """Rounds of sampling in a step at most; then it trains on the groups it has."""


class UpdatesFrom(Config):
    """One entry of a schedule of updates."""

    step: int = Field(ge=0)
    """First step at which it holds."""
    updates: PositiveInt
    """Optimizer steps per rollout batch from then on."""


class RlStage(TrainStage):
    """Reinforcement learning from verified rewards."""

    type: Literal["rl"] = "rl"
    """What the stage does."""
    prompts: PositiveInt
    """Prompts of a step, P."""
    samples: PositiveInt
    """Completions of each prompt, G."""
    sampling: SamplingConfig
    """How rollouts are sampled."""
    max_prompt_tokens: PositiveInt | None = None
    """Longer prompts are left out and counted; None is what the context leaves."""
    advantage: Advantage = GroupNorm()
    """From the rewards of a group to advantages."""
    objective: PolicyUnion = PpoClip()
    """Per-token loss."""
    offpolicy: tuple[Offpolicy, ...] = ()
    """Corrections of the gap between sampler and learner; they multiply the loss."""
    weights: Weights = TokenMean()
    """How token losses are averaged."""
    shaping: tuple[Shaping, ...] = ()
    """What is done to the verified rewards, in order."""
    kl: Kl | None = None
    """KL penalty; None is off, and then no reference is in memory."""
    entropy_bonus: EntropyBonus | None = None
    """Bonus for entropy; None is off."""
    critic: CriticConfig | None = None
    """The critic of PPO, for advantage `gae`; None: no critic in memory."""
    updates: PositiveInt | tuple[UpdatesFrom, ...] = 1
    """Optimizer steps per rollout batch, each on its share of the groups; or a schedule."""
    epochs: PositiveInt = 1
    """Passes over a rollout batch, each of `updates` steps on groups dealt anew."""
    old_logp: Literal["sampler", "recomputed"] = "sampler"
    """Where the ratio's denominator comes from: as sampled, or computed again by the learner before
    the first update on a rollout batch."""
    dynamic_sampling: DynamicSampling | None = None
    """Sample until enough groups have contrast; None trains on every group once sampled."""
    control: Literal["none", "shuffled_rewards"] = "none"
    """An experiment's control: `shuffled_rewards` permutes the rewards over the batch."""

    @model_validator(mode="after")
    def _check(self) -> RlStage:
        if self.samples < 2 and self.advantage.has_group_baseline:
            raise ValueError(
                f"samples = {self.samples}: advantage '{self.advantage.type}' compares the samples "
                "of a prompt; set samples to 2 or more (8 is usual)"
            )
        if isinstance(self.advantage, Gae) != (self.critic is not None):
            raise ValueError(
                "advantage 'gae' takes its values from a critic; add a critic = { optimizer = … }"
                if self.critic is None
                else f"critic cannot act with advantage '{self.advantage.type}', which has no "
                "values; leave it out, or set advantage = { type = 'gae' }"
            )
        if self.num_warmup_steps >= self.steps > 0:
            raise ValueError(
                f"critic.warmup_steps = {self.num_warmup_steps} with steps = {self.steps}: the "
                "policy would never learn; lower it, or raise steps"
            )
        if isinstance(self.advantage, PassAtK) and self.advantage.k > self.samples:
            raise ValueError(
                f"advantage.k = {self.advantage.k} with samples = {self.samples}: k rollouts of a "
                "prompt are judged together; lower k or raise samples"
            )
        if isinstance(self.objective, Rft) and not isinstance(self.advantage, Reward):
            raise ValueError(
                f"objective 'rft' with advantage '{self.advantage.type}': its weights are rewards; "
                "set advantage to { type = 'reward' }"
            )
        if isinstance(self.objective, Dpo) != isinstance(self.advantage, PreferencePairs):
            raise ValueError(
                f"objective '{self.objective.type}' with advantage '{self.advantage.type}': 'dpo' "
                "learns from 'preference_pairs', and nothing else does; set both, or neither"
            )
        if isinstance(self.objective, DecoupledPpo) and self.old_logp != "recomputed":
            raise ValueError(
                f"objective 'decoupled_ppo' with old_logp = '{self.old_logp}': it clips around a "
                "policy between the sampler's and the current one; set old_logp = 'recomputed'"
            )
        most = max((u.updates for u in self._schedule()), default=0)
        if most > self.prompts:
            raise ValueError(
                f"updates = {most} with prompts = {self.prompts}: each update needs a group of its "
                "own; lower updates or raise prompts"
            )
        steps = [u.step for u in self._schedule()]
        if steps[:1] != [0] or steps != sorted(set(steps)):
            raise ValueError(f"updates: its steps are {steps}; start at 0 and go up")
        self._check_reward()
        self._check_corrections()
        if self.offpolicy and self.old_logp == "sampler":
            raise ValueError(
                f"offpolicy '{self.offpolicy[0].type}' with old_logp = 'sampler': it compares the "
                "learner's log-probs with the sampler's, and would see no gap; set old_logp = "
                "'recomputed'"
            )
        reads_old = self.kl is not None and self.kl.type == "unbiased_k3"
        acts = self.objective.has_ratio or self.offpolicy or reads_old
        if self.old_logp == "recomputed" and not acts:
            raise ValueError(
                f"old_logp = 'recomputed' cannot act with objective '{self.objective.type}', which "
                "has no ratio; leave it out, or use 'ppo_clip'"
            )
        if self.sampling.temperature == 0:
            raise ValueError(
                "sampling.temperature = 0 samples the same answer every time, so groups have no "
                "contrast; set it near 1"
            )
        return self

    def _check_reward(self) -> None:
        """What is done to rewards has to reach the advantage."""
        advantage = self.advantage
        charged = self.kl is not None and self.kl.where == "reward"
        shaped = [s.type for s in self.shaping if s.moves_reward]
        named = "kl.where = 'reward'" if charged else f"shaping '{shaped[0]}'" if shaped else ""
        if named and not advantage.reads_reward:
            raise ValueError(
                f"{named} cannot act with advantage '{advantage.type}', which does not read the "
                "reward; leave it out, or use another advantage"
            )
        if charged and isinstance(advantage, PassAtK):
            raise ValueError(
                "kl.where = 'reward' with advantage 'pass_at_k', which asks only whether a reward "
                "is above 0.5; set kl.where = 'loss'"
            )
        if self.control == "shuffled_rewards" and isinstance(advantage, ProcessGroupNorm):
            raise ValueError(
                "control = 'shuffled_rewards' with advantage 'process_group_norm', which reads "
                "steps and not rewards; use another advantage"
            )
        if advantage.is_per_token and not self.objective.takes_token_advantages:
            raise ValueError(
                f"objective '{self.objective.type}' with advantage '{advantage.type}': it takes "
                "one advantage for a whole rollout; use 'gspo_token' or 'ppo_clip', or another "
                "advantage"
            )
        if self.dynamic_sampling is None:
            return
        if self.samples < 2:
            raise ValueError(
                f"dynamic_sampling with samples = {self.samples}: one sample has no contrast; set "
                "samples to 2 or more, or leave dynamic_sampling out"
            )
        if not advantage.reads_reward or any(s.replaces_reward for s in self.shaping):
            raise ValueError(
                "dynamic_sampling looks at the verifier's reward, which is not what trains with "
                f"advantage '{advantage.type}' and shaping {shaped}; leave dynamic_sampling out"
            )

    def _check_corrections(self) -> None:
        """Corrections compare with the policy that sampled, once."""
        weighting = [c.type for c in self.offpolicy if c.weighs]
        if isinstance(self.objective, DecoupledPpo):
            weighting.insert(0, "decoupled_ppo")
        if len(weighting) > 1:
            raise ValueError(
                f"offpolicy: {' and '.join(weighting)} would weigh the same gap twice; keep one of "
                "them (and 'veto', if you like)"
            )
        acting = self.sampling.cuts
        if (weighting or self.offpolicy) and acting:
            raise ValueError(
                f"sampling.{acting[0]} with {(weighting or ['veto'])[0]!r}: log-probs are those of "
                "the whole distribution, and rollouts come from a cut one; leave one of them out"
            )

    def longest_prompt(self, context: int) -> int:
        """Tokens of a prompt at most, in a model's context."""
        room = context - self.sampling.max_new_tokens
        return min(self.max_prompt_tokens or room, room)

    @property
    def num_warmup_steps(self) -> int:
        """Steps at the start in which the critic alone learns."""
        return 0 if self.critic is None else self.critic.warmup_steps

    @property
    def sequences_together(self) -> int:
        """Rollouts that have to lie in one row."""
        return 2 if isinstance(self.objective, Dpo) else 1

    @property
    def has_reference(self) -> bool:
        """Whether the stage compares with its starting weights."""
        return self.kl is not None or self.objective.needs_reference

    def _schedule(self) -> tuple[UpdatesFrom, ...]:
        if isinstance(self.updates, int):
            return (UpdatesFrom(step=0, updates=self.updates),)
        return self.updates

    def updates_at(self, step: int) -> int:
        """Optimizer steps of a pass over the rollout batch of `step`."""
        return next(u.updates for u in reversed(self._schedule()) if u.step <= step)

    def updates_before(self, step: int) -> int:
        """Optimizer steps of all the rollout batches before that of `step`."""
        schedule = self._schedule()
        ends = [*(u.step for u in schedule[1:]), step]
        return self.epochs * sum(
            u.updates * max(min(end, step) - u.step, 0)
            for u, end in zip(schedule, ends, strict=True)
        )

    @property
    def total_updates(self) -> int:
        """Optimizer steps of the whole stage."""
        return self.updates_before(self.steps)


class EvalStage(StageBase):
    """Evaluation; its folder gets every answer as data that later stages can use."""

    type: Literal["eval"] = "eval"
    """What the stage does."""
    tasks: tuple[str, ...] = Field(min_length=1)
    """Names of tasks."""


class ExportStage(StageBase):
    """Writes a Hugging Face folder."""

    type: Literal["export"] = "export"
    """What the stage does."""
    path: LocalPath | None = None
    """The folder; None is `hf` in the stage's own folder."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the tensors on disk."""


Stage = Annotated[SftStage | RlStage | EvalStage | ExportStage, Field(discriminator="type")]


class RunConfig(Config):
    """A whole run."""

    run_dir: LocalPath = Field(min_length=1)
    """Folder of the run; the same command resumes what it finds there."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Decides initial weights, order of data and sampling."""
    model: Model
    """The model."""
    tokenizer: Tokenizer
    """Its tokenizer."""
    mesh: MeshConfig = MeshConfig()
    """Devices."""
    engine: EngineConfig = EngineConfig()
    """The sampler's sizes."""
    verifiers: PoolConfig = PoolConfig()
    """Worker processes that score responses."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When to save."""
    logging: LoggingConfig = LoggingConfig()
    """Console and metrics."""
    data: tuple[Source, ...] = ()
    """Named data sources."""
    tasks: tuple[Task, ...] = ()
    """Named evaluations."""
    stages: tuple[Stage, ...] = Field(min_length=1)
    """What the run does, in order."""

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        _unique("data", [s.name for s in self.data])
        _unique("tasks", [t.name for t in self.tasks])
        _unique("stages", [s.name for s in self.stages])
        for source in self.data:
            if source.verifier is not None:
                try:
                    build(source.verifier)
                except ValueError as error:
                    raise ValueError(f"data.{source.name}.verifier: {error}") from error
        for task in self.tasks:
            where = f"tasks.{task.name}.data"
            _known(where, task.data, [s.name for s in self.data], "data")
            self._check_scored(where, task.data)
            for source in self.sources(task.data):
                if isinstance(source, ProceduralSource) and source.limit is None:
                    raise ValueError(
                        f"{where}: source {source.name!r} has no end; set its limit to the number "
                        "of problems"
                    )
        earlier: list[str] = []
        for stage in self.stages:
            self._check_stage(stage, earlier)
            earlier.append(stage.name)
        return self

    def _check_stage(self, stage: Any, earlier: list[str]) -> None:
        where = f"stages.{stage.name}"
        if stage.name in ("previous", "base"):
            raise ValueError(f"{where}.name: {stage.name!r} has a meaning in init; choose another")
        later = [s.name for s in self.stages if s.name not in earlier]
        if stage.init in later:
            raise ValueError(
                f"{where}.init = {stage.init!r} is not an earlier stage; "
                f"earlier are {earlier or 'none'}"
            )
        idle = [s.name for s in self.stages if not isinstance(s, TrainStage)]
        if stage.init in idle:
            raise ValueError(
                f"{where}.init = {stage.init!r} is a stage that does not train, so it has no "
                "weights of its own; name one that does"
            )
        if isinstance(stage, TrainStage):
            _known(f"{where}.data", stage.data, [s.name for s in self.data], "data")
            self._check_made(f"{where}.data", stage.data, earlier)
        if isinstance(stage, RlStage):
            self._check_scored(f"{where}.data", stage.data)
        tasks = tasks_of(stage)
        at = f"{where}.eval.tasks" if isinstance(stage, TrainStage) else f"{where}.tasks"
        self.check_tasks(at, tasks)
        for name in tasks:
            self._check_made(f"{at}: {name!r}", self.task(name).data, earlier)

    def _check_made(self, where: str, names: Sequence[str], earlier: Sequence[str]) -> None:
        """Refuses sources that read what no stage in `earlier` writes."""
        for source in self.sources(names):
            made_by = stage_of(source)
            if made_by is None:
                continue
            if made_by not in earlier:
                raise ValueError(
                    f"{where}: source {source.name!r} reads the output of stage {made_by!r}, "
                    f"which is not an earlier stage; earlier are {list(earlier) or 'none'}"
                )
            stage = next(s for s in self.stages if s.name == made_by)
            file = source.path.partition("/")[2]
            if not file.startswith(_OUTPUTS.get(stage.type, ())):
                raise ValueError(
                    f"{where}: source {source.name!r} has path = {source.path!r}, which stage "
                    f"{made_by!r} of type {stage.type!r} does not write; name output.jsonl or "
                    "right.jsonl of an evaluation"
                )

    def _check_scored(self, where: str, names: Sequence[str]) -> None:
        for source in self.sources(names):
            if source.verifier is None and not isinstance(source, ProceduralSource):
                raise ValueError(
                    f"{where}: source {source.name!r} has no verifier, so its answers cannot be "
                    "scored; give it one, such as verifier = { type = 'math' }"
                )
            if isinstance(source, FileSource) and source.fields.reference is None:
                if source.verifier is not None and needs_reference(source.verifier):
                    raise ValueError(
                        f"{where}: source {source.name!r} names no reference, and its verifier "
                        f"compares with one; set data.{source.name}.fields.reference"
                    )

    def check_tasks(self, where: str, names: Sequence[str]) -> None:
        """Raises ValueError, naming `where`, if a task is not in the config."""
        _known(where, names, [t.name for t in self.tasks], "tasks")

    def sources(self, names: Sequence[str]) -> list[Any]:
        """The data sources of these names."""
        return [next(s for s in self.data if s.name == name) for name in names]

    def stage_seed(self, stage: StageBase, part: int = 0) -> int:
        """Decides a stage's order of data and its sampling, 32 bits.

        Each stage has its own, else two that use one source would see the same problems in the
        same order; and so has each part of a step that samples several times.
        """
        text = f"{self.seed}/{stage.name}/{part}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest())

    def task(self, name: str) -> Task:
        """The task of this name."""
        return next(t for t in self.tasks if t.name == name)


STAGE_PREFIX = "stage:"
# Type of a stage -> what the paths of its data begin with, in its folder.
_OUTPUTS = {"eval": ("output.jsonl", "right.jsonl"), "rl": ("rollouts/",)}


def stage_of(source: Any) -> str | None:
    """The stage whose output a source reads (`path = "stage:NAME/right.jsonl"`), or None."""
    path = getattr(source, "path", "")
    return path.removeprefix(STAGE_PREFIX).split("/")[0] if path.startswith(STAGE_PREFIX) else None


def tasks_of(stage: Any) -> tuple[str, ...]:
    """Names of the tasks that a stage evaluates, at its end or along the way."""
    if isinstance(stage, EvalStage):
        return stage.tasks
    return stage.eval.tasks if isinstance(stage, TrainStage) and stage.eval else ()


MAY_CHANGE = ("run_dir", "logging", "checkpoint", "mesh", "engine", "verifiers.workers")
"""Keys a resumed run may change at any time. A different mesh gives the same numbers to rounding;
the number of verifier workers changes no score, as their limits would. What else may change depends
on how far the run is: see `settled`."""


def settled(config: RunConfig, num_begun: int, done: Collection[str]) -> dict[str, Any]:
    """The part of a config that a resumed run has to keep, but for `MAY_CHANGE`.

    A stage that has begun keeps its table and its data. `eval` and `steps` may change until it is
    done, `steps` only where no learning-rate schedule hangs on it (`train.folder` checks that). A
    stage that is done keeps these too, and its tasks with their data. What only later stages use
    is not settled, so that a fault in it can be corrected.

    Args:
      config: of the run.
      num_begun: so many stages, from the first on, have begun.
      done: names of those that are done.
    """
    stages = config.stages[:num_begun]
    tasks = {name for stage in stages if stage.name in done for name in tasks_of(stage)}
    data = {name for stage in stages if isinstance(stage, TrainStage) for name in stage.data}
    data |= {name for task in tasks for name in config.task(task).data}
    open_keys = {"eval", "steps"}
    return config.model_dump() | {
        "stages": [s.model_dump(exclude=None if s.name in done else open_keys) for s in stages],
        "tasks": [t.model_dump() for t in config.tasks if t.name in tasks],
        "data": [s.model_dump() for s in config.data if s.name in data],
    }


def _unique(what: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{what}: two are named {name!r}; give each its own name")


def _known(where: str, names: Sequence[str], known: list[str], table: str) -> None:
    import difflib

    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {known}"
            raise ValueError(f"{where}: no [[{table}]] is named {name!r}; {hint}")
        if names.count(name) > 1:
            raise ValueError(f"{where}: {name!r} stands there twice; name it once")

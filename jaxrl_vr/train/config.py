"""The config of a run: the one model that a TOML file is checked against.

Sections that belong to one package are declared there, beside the code that reads them; here is
what puts them together: model, named data and tasks, stages, and the rules between them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, model_validator

from jaxrl_vr.checkpoint import CheckpointConfig
from jaxrl_vr.config import Config
from jaxrl_vr.data.demonstrations import LossOn
from jaxrl_vr.data.sources import ProceduralSource, Source
from jaxrl_vr.data.tokenizer import CharTokenizerConfig, HFTokenizerConfig
from jaxrl_vr.metrics.sinks import LoggingConfig
from jaxrl_vr.models.architecture import Llama3Scaling
from jaxrl_vr.models.transformer import Remat
from jaxrl_vr.sampler.engine import EngineConfig
from jaxrl_vr.sharding import MeshConfig
from jaxrl_vr.train.objectives import CrossEntropy, PpoClip, Reinforce
from jaxrl_vr.train.optimizer import AdamW
from jaxrl_vr.train.reward import Advantage, GroupNorm, SequenceMean, TokenMean, Weights
from jaxrl_vr.types import Sampling
from jaxrl_vr.verifiers.pool import PoolConfig
from jaxrl_vr.verifiers.spec import build


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


class PretrainedModel(Config):
    """A model in a Hugging Face folder."""

    type: Literal["pretrained"] = "pretrained"
    """Where the model comes from."""
    path: str
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
    top_k: int = Field(default=0, ge=0)
    """Only the k most likely tokens; 0 is off."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Only the most likely tokens that together reach this probability; 1 is off."""
    min_p: float = Field(default=0.0, ge=0, lt=1)
    """Only tokens with at least this share of the most likely one's probability; 0 is off."""

    @model_validator(mode="after")
    def _check(self) -> SamplingConfig:
        cuts = {"top_k": self.top_k, "min_p": self.min_p, "top_p": 1 - self.top_p}
        acting = [name for name, value in cuts.items() if value]
        if self.temperature == 0 and acting:
            raise ValueError(
                f"{acting[0]} = {getattr(self, acting[0])} cannot act with temperature = 0, which "
                "always takes the most likely token; leave it out, or raise the temperature"
            )
        return self

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
    init: str = "previous"
    """Weights to start from: `previous`, `base` (those of [model]), a stage's name, or a path."""


class TrainStage(StageBase):
    """What stages that train have."""

    data: tuple[str, ...] = Field(min_length=1)
    """Names of data sources, mixed by their weights."""
    steps: int = Field(ge=0)
    """Steps of the stage."""
    optimizer: AdamW
    """Optimizer and learning rate."""
    micro: Micro = Micro()
    """Micro-batches."""
    eval: Periodic | None = None
    """Evaluations along the way."""


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

    @property
    def objective(self) -> CrossEntropy:
        """Maximum likelihood."""
        return CrossEntropy()


class Kl(Config):
    """A penalty for leaving the stage's starting weights, added to the loss."""

    type: Literal["k3"] = "k3"
    """The estimator."""
    coef: float = Field(gt=0)
    """Weight of the penalty; leave the whole table out for none, which also spares the memory."""


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
    objective: Annotated[PpoClip | Reinforce, Field(discriminator="type")] = PpoClip()
    """Per-token loss."""
    weights: Weights = TokenMean()
    """How token losses are averaged."""
    kl: Kl | None = None
    """KL penalty; None is off, and then no reference is in memory."""
    updates: PositiveInt | tuple[UpdatesFrom, ...] = 1
    """Optimizer steps per rollout batch, each on its share of the groups; or a schedule."""
    old_logp: Literal["sampler", "recomputed"] = "sampler"
    """Where the ratio's denominator comes from: as sampled, or computed again by the learner before
    the first update on a rollout batch."""
    dynamic_sampling: DynamicSampling | None = None
    """Sample until enough groups have contrast; None trains on every group once sampled."""
    control: Literal["none", "shuffled_rewards"] = "none"
    """An experiment's control: `shuffled_rewards` permutes the rewards over the batch."""

    @model_validator(mode="after")
    def _check(self) -> RlStage:
        if self.samples < 2:
            raise ValueError(
                f"samples = {self.samples}: advantage '{self.advantage.type}' compares the samples "
                "of a prompt; set samples to 2 or more (8 is usual)"
            )
        most = max(self.updates_at(0), *(u.updates for u in self._schedule()), 1)
        if most > self.prompts:
            raise ValueError(
                f"updates = {most} with prompts = {self.prompts}: each update needs a group of its "
                "own; lower updates or raise prompts"
            )
        steps = [u.step for u in self._schedule()]
        if steps and (steps[0] != 0 or steps != sorted(set(steps))):
            raise ValueError(f"updates: its steps are {steps}; start at 0 and go up")
        if self.old_logp == "recomputed" and isinstance(self.objective, Reinforce):
            raise ValueError(
                "old_logp = 'recomputed' cannot act with objective 'reinforce', which has no "
                "ratio; leave it out, or use 'ppo_clip'"
            )
        if self.sampling.temperature == 0:
            raise ValueError(
                "sampling.temperature = 0 samples the same answer every time, so groups have no "
                "contrast; set it near 1"
            )
        return self

    def _schedule(self) -> tuple[UpdatesFrom, ...]:
        return () if isinstance(self.updates, int) else self.updates

    def updates_at(self, step: int) -> int:
        """Optimizer steps of the rollout batch of `step`."""
        if isinstance(self.updates, int):
            return self.updates
        return next((u.updates for u in reversed(self.updates) if u.step <= step), 1)

    @property
    def total_updates(self) -> int:
        """Optimizer steps of the whole stage."""
        return sum(self.updates_at(step) for step in range(self.steps))


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
    path: str | None = None
    """The folder; None is `hf` in the stage's own folder."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the tensors on disk."""


Stage = Annotated[SftStage | RlStage | EvalStage | ExportStage, Field(discriminator="type")]


class RunConfig(Config):
    """A whole run."""

    run_dir: str = Field(min_length=1)
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
        for source in self.data:
            if source.verifier is not None:
                try:
                    build(source.verifier)
                except ValueError as error:
                    raise ValueError(f"data.{source.name}.verifier: {error}") from error
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
        if isinstance(stage, EvalStage):
            self.check_tasks(f"{where}.tasks", stage.tasks)
        if isinstance(stage, TrainStage):
            _known(f"{where}.data", stage.data, [s.name for s in self.data], "data")
            for source in self.sources(stage.data):
                made_by = stage_of(source)
                if made_by is not None and made_by not in earlier:
                    raise ValueError(
                        f"{where}.data: source {source.name!r} reads the output of stage "
                        f"{made_by!r}, which is not an earlier stage; earlier are "
                        f"{earlier or 'none'}"
                    )
            if stage.eval is not None:
                self.check_tasks(f"{where}.eval.tasks", stage.eval.tasks)
        if isinstance(stage, RlStage):
            self._check_scored(f"{where}.data", stage.data)

    def _check_scored(self, where: str, names: Sequence[str]) -> None:
        for source in self.sources(names):
            if source.verifier is None and not isinstance(source, ProceduralSource):
                raise ValueError(
                    f"{where}: source {source.name!r} has no verifier, so its answers cannot be "
                    "scored; give it one, such as verifier = { type = 'math' }"
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


def stage_of(source: Any) -> str | None:
    """The stage whose output a source reads (`path = "stage:NAME/right.jsonl"`), or None."""
    path = getattr(source, "path", "")
    return path.removeprefix(STAGE_PREFIX).split("/")[0] if path.startswith(STAGE_PREFIX) else None


MAY_CHANGE = (
    "run_dir",
    "logging",
    "checkpoint",
    "tasks",
    "mesh",
    "engine",
    "verifiers",
    "stages.*.eval",
    "stages.*.steps",
)
"""Keys a resumed run may change. A different mesh gives the same numbers to rounding. `steps` may
change only where no learning-rate schedule hangs on it and while the stage is not done; `train.run`
checks that."""


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

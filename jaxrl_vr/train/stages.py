"""The stages of a run but RL's, and what stages share: what a config says of each.

How they run is in sft.py, evaluate.py and run.py; RL's stage is in rl_stage.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, model_validator

from jaxrl_vr.config import Config, LocalPath
from jaxrl_vr.data.demonstrations import LossOn
from jaxrl_vr.data.tokenizer import Tokenizer
from jaxrl_vr.models.rope_scaling import Size
from jaxrl_vr.train.diagnostics import Diagnostics
from jaxrl_vr.train.ema import Ema
from jaxrl_vr.train.optimizer import Optimizer
from jaxrl_vr.train.profile import Profile
from jaxrl_vr.train.weights import SequenceMean, TokenMean
from jaxrl_vr.types import Forced, Sampling

_CLOSE_THINKING = (
    "Considering the user's limited time, I must directly provide a solution based on the thinking."
    " \n</think>.\n\n"
)


class ForcedText(Config):
    """Text put behind a completion that reaches a length without having closed its thinking."""

    after: PositiveInt
    """Completion tokens at which it is put."""
    text: str = Field(default=_CLOSE_THINKING, min_length=1)
    """What is put; the default is Qwen3's end of a thinking part."""
    unless: str = Field(default="</think>", min_length=1)
    """Nothing is put where the completion holds this."""


# Logits of a thousand, divided by it, still have float32's digits.
_LOWEST_TEMPERATURE, _HIGHEST_TEMPERATURE = 1e-4, 1e4


class SamplingConfig(Config):
    """How completions are sampled."""

    max_new_tokens: PositiveInt
    """Completion tokens at most; what is longer is cut and counts as truncated."""
    temperature: float = Field(default=1.0, ge=0, le=_HIGHEST_TEMPERATURE)
    """1 samples from the model itself, 0 is greedy; between 0 and 1e-4 float32 has no digits left.
    RL needs contrast: keep it near 1."""
    top_k: int = Field(default=0, ge=0, le=2**31 - 1)
    """Only the k most likely tokens; 0 is off."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Only the most likely tokens that together reach this probability; 1 is off."""
    min_p: float = Field(default=0.0, ge=0, lt=1)
    """Only tokens with at least this share of the most likely one's probability; 0 is off."""

    stop: tuple[str, ...] = ()
    """Strings that end a completion, beside the tokenizer's EOS; they stay in the text."""
    forced: tuple[ForcedText, ...] = ()
    """Texts put behind a completion that gets too long: a thinking budget is one of 512 tokens
    with `forced = [{ after = 512 }]`. What is forced is not trained on."""

    @model_validator(mode="after")
    def _check(self) -> SamplingConfig:
        if 0 < self.temperature < _LOWEST_TEMPERATURE:
            raise ValueError(
                f"temperature = {self.temperature} is below {_LOWEST_TEMPERATURE}, where logits "
                "overflow; set it to 0 for the most likely tokens, or higher"
            )
        acting = self.cuts
        if self.temperature == 0 and acting:
            raise ValueError(
                f"{acting[0]} = {getattr(self, acting[0])} cannot act with temperature = 0, which "
                "always takes the most likely token; leave it out, or raise the temperature"
            )
        if "" in self.stop:
            raise ValueError("stop holds an empty string, which every completion has; leave it out")
        for forced in self.forced:
            if forced.after >= self.max_new_tokens:
                raise ValueError(
                    f"forced.after = {forced.after} is not below max_new_tokens = "
                    f"{self.max_new_tokens}: it would never act; lower it"
                )
        return self

    @property
    def cuts(self) -> list[str]:
        """Names of what cuts the distribution."""
        cuts = {"top_k": self.top_k, "min_p": self.min_p, "top_p": 1 - self.top_p}
        return [name for name, value in cuts.items() if value]

    def values(self, tokenizer: Tokenizer) -> Sampling:
        """As the sampler takes them.

        Raises:
          ValueError: a stop string or a forced text that the tokenizer cannot write.
        """
        for stop in self.stop:
            _ids(tokenizer, "stop", stop)
        forced = tuple(
            Forced(f.after, _ids(tokenizer, "forced.text", f.text), f.unless) for f in self.forced
        )
        given = self.model_dump() | {"stop": self.stop, "forced": forced}
        return Sampling(**given, stop_ids=tuple(tokenizer.eos_ids))


def _ids(tokenizer: Tokenizer, field: str, text: str) -> tuple[int, ...]:
    try:
        ids = tuple(tokenizer.encode(text))
    except ValueError as error:
        raise ValueError(f"sampling.{field} = {text!r}: {error}") from None
    if tokenizer.decode(ids) != text:
        raise ValueError(
            f"sampling.{field} = {text!r}: the tokenizer reads its own ids of it as "
            f"{tokenizer.decode(ids)!r}; use text without special tokens"
        )
    return ids


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

    rows: Size | Literal["auto"] = 8
    """Rows of a micro-batch, over all devices; "auto" compiles updates until it knows how many the
    memory holds."""
    row_length: Size | None = None
    """Tokens of a row, into which sequences are packed; None is the longest sequence possible."""
    share_prefixes: bool = True
    """Whether what rows of a device begin with alike, as the prompt of a group, is computed once
    outside of attention; not where rows are split over `mesh.context`."""


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
    init: LocalPath = Field(default="previous", min_length=1)
    """Weights to start from: `previous`, `base` (those of [model]), a stage's name, or a path."""


class TrainStage(StageBase):
    """What stages that train have."""

    data: tuple[str, ...] = Field(min_length=1)
    """Names of data sources, mixed by their weights."""
    steps: int = Field(ge=0, le=10**9)
    """Steps of the stage."""
    optimizer: Optimizer
    """Optimizer and learning rate."""
    micro: Micro = Micro()
    """Micro-batches."""
    eval: Periodic | None = None
    """Evaluations along the way."""
    ema: Ema | None = None
    """Moving average of the weights; None: none is kept."""
    diagnostics: Diagnostics = Diagnostics()
    """What else is measured of updates."""
    profile: Profile | None = None
    """Steps that jax's profiler traces; None traces none."""

    @model_validator(mode="after")
    def _check_ema(self) -> TrainStage:
        if self.ema is not None and not self.ema.final and self.eval is None:
            raise ValueError(
                "ema.final = false without eval: nobody would read the average; set final to true, "
                "or eval to { every = …, tasks = […] }, or leave ema out"
            )
        return self

    @model_validator(mode="after")
    def _check_profile(self) -> TrainStage:
        if self.profile is not None:
            self.profile.check(self.steps)
        return self

    @property
    def ema_decay(self) -> float | None:
        """Decay of the average of the weights; None: there is none."""
        return None if self.ema is None else self.ema.decay

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of all data sources it reads."""
        return self.data

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

    def row_length(self, context: int) -> int:
        """Tokens of a packed row, in a model's context."""
        return self.micro.row_length or self.longest(context)


class DpoStage(TrainStage):
    """Preference training on pairs of a better and a worse completion; the reference is the stage's
    starting weights."""

    type: Literal["dpo"] = "dpo"
    """What the stage does."""
    batch: PositiveInt
    """Pairs of an optimizer step."""
    beta: float = Field(default=0.1, gt=0)
    """Strength of the pull to the reference."""
    max_tokens: PositiveInt | None = None
    """Pairs with a longer side are left out and counted; None is the model's context."""

    def longest(self, context: int) -> int:
        """Tokens of a side at most, in a model's context."""
        return min(self.max_tokens or context, context)

    def row_length(self, context: int) -> int:
        """Tokens of a packed row, in which a whole pair lies."""
        return self.micro.row_length or 2 * self.longest(context)


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


def tasks_of(stage: Any) -> tuple[str, ...]:
    """Names of the tasks that a stage evaluates, at its end or along the way."""
    if isinstance(stage, EvalStage):
        return stage.tasks
    return stage.eval.tasks if isinstance(stage, TrainStage) and stage.eval else ()

"""What is added to verified rewards, or taken from them, before advantages: a config's choices.

P prompts, G samples of a prompt.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt

from jaxrl_vr.config import Config
from jaxrl_vr.losses import shaping
from jaxrl_vr.losses.steps import step_mean, step_min, step_product
from jaxrl_vr.rollout.groups import Samples
from jaxrl_vr.train.advantage import compiled

State = dict[str, Any]  # what a shaping keeps from step to step, for JSON


class ShapingConfig(Config):
    """What all shapings have."""

    moves_reward: ClassVar[bool] = True  # and so has to reach the advantage
    replaces_reward: ClassVar[bool] = False  # what the verifier gave is gone
    only_adds: ClassVar[bool] = True  # where a component is missing, the reward stays as it is

    @property
    def components(self) -> tuple[str, ...]:
        """Components of the score that it reads."""
        return ()


class OverlongPenalty(ShapingConfig):
    """DAPO's soft punishment of answers that come near the limit."""

    type: Literal["overlong_penalty"] = "overlong_penalty"
    """Which shaping this is."""
    max_length: PositiveInt | None = None
    """Tokens at which the penalty is full; None is the limit of new tokens."""
    buffer: PositiveInt
    """Tokens before `max_length` over which it grows from 0."""
    penalty: float = Field(default=1.0, gt=0)
    """The full penalty."""

    def __call__(self, samples: Samples, limit: int, state: State) -> tuple[Samples, State]:
        """The samples with their rewards shaped."""
        added = compiled(shaping.overlong_penalty)(
            samples.length,
            max_length=self.max_length or limit,
            buffer=self.buffer,
            penalty=self.penalty,
        )
        return _with(samples, samples.reward + np.asarray(added)), state


class TruncatedMask(ShapingConfig):
    """DAPO's overlong filtering: a rollout that the limit cut counts in its group, but does not
    train."""

    moves_reward: ClassVar[bool] = False
    type: Literal["truncated_mask"] = "truncated_mask"
    """Which shaping this is."""

    def __call__(self, samples: Samples, limit: int, state: State) -> tuple[Samples, State]:
        """The samples without those that were cut."""
        trains = samples.trains & ~samples.is_truncated
        return dataclasses.replace(samples, trains=trains), state


class KimiLength(ShapingConfig):
    """Kimi k1.5's reward for short answers among those of a group."""

    type: Literal["kimi_length"] = "kimi_length"
    """Which shaping this is."""
    coef: float = Field(default=1.0, gt=0)
    """Weight of the length reward beside the verifier's."""
    from_accuracy: float = Field(default=0.3, ge=0, le=1)
    """On from the first step whose rollouts are right at this rate: early on it would slow the
    learning of longer, better answers."""

    def __call__(self, samples: Samples, limit: int, state: State) -> tuple[Samples, State]:
        """The samples with their rewards shaped, once the gate is open."""
        accuracy = samples.is_right[samples.valid].mean() if samples.valid.any() else 0.0
        is_on = bool(state.get("is_on")) or bool(accuracy >= self.from_accuracy)
        if is_on:
            arrays = (samples.length, samples.is_right, samples.valid)
            added = np.asarray(compiled(shaping.kimi_length_reward)(*arrays))
            samples = _with(samples, samples.reward + self.coef * added)
        return samples, {"is_on": is_on}


class CosineLength(ShapingConfig):
    """A reward by length along half a cosine, in place of the verifier's."""

    replaces_reward: ClassVar[bool] = True
    type: Literal["cosine_length"] = "cosine_length"
    """Which shaping this is."""
    max_length: PositiveInt | None = None
    """Tokens at the far end of the cosine; None is the limit of new tokens."""
    right_short: float = 2.0
    """Reward of a right answer of no tokens."""
    right_long: float = 1.0
    """Reward of a right answer of `max_length` tokens."""
    wrong_short: float = -10.0
    """Reward of a wrong answer of no tokens."""
    wrong_long: float = 0.0
    """Reward of a wrong answer of `max_length` tokens."""
    exceed: float = -10.0
    """Reward of an answer that reaches `max_length`."""

    def __call__(self, samples: Samples, limit: int, state: State) -> tuple[Samples, State]:
        """The samples with rewards by length."""
        numbers = self.model_dump(exclude={"type", "max_length"})
        reward = compiled(shaping.cosine_length_reward)(
            samples.length,
            samples.is_right,
            max_length=self.max_length or limit,
            **numbers,
        )
        return _with(samples, np.asarray(reward)), state


class StopProperly(ShapingConfig):
    """Scales the reward of answers that the limit cut."""

    type: Literal["stop_properly"] = "stop_properly"
    """Which shaping this is."""
    scale: float = Field(default=0.0, ge=0, le=1)
    """What is left of the reward of a cut answer."""

    def __call__(self, samples: Samples, limit: int, state: State) -> tuple[Samples, State]:
        """The samples with their rewards shaped."""
        arrays = (samples.reward, samples.is_truncated)
        reward = compiled(shaping.stop_properly_penalty)(*arrays, scale=self.scale)
        return _with(samples, np.asarray(reward)), state


class FormatGate(ShapingConfig):
    """Only answers in the required form keep their reward."""

    only_adds: ClassVar[bool] = False
    type: Literal["format_gate"] = "format_gate"
    """Which shaping this is."""
    component: str = "format"
    """Component of the score that is above 0 where the form is right."""
    otherwise: float = 0.0
    """Reward of the others."""

    @property
    def components(self) -> tuple[str, ...]:
        """As the base class says."""
        return (self.component,)

    def __call__(self, samples: Samples, limit: int, state: State) -> tuple[Samples, State]:
        """The samples with their rewards shaped."""
        has_format = samples.component(self.component) > 0
        reward = compiled(shaping.format_gate)(samples.reward, has_format, otherwise=self.otherwise)
        return _with(samples, np.asarray(reward)), state


class LanguageConsistency(ShapingConfig):
    """DeepSeek-R1's reward for thinking in the language asked for."""

    type: Literal["language_consistency"] = "language_consistency"
    """Which shaping this is."""
    component: str = "language"
    """Component of the score that holds the share of words in that language."""
    coef: float = 1.0
    """Weight of the share."""

    @property
    def components(self) -> tuple[str, ...]:
        """As the base class says."""
        return (self.component,)

    def __call__(self, samples: Samples, limit: int, state: State) -> tuple[Samples, State]:
        """The samples with their rewards shaped."""
        arrays = (samples.reward, samples.component(self.component))
        reward = compiled(shaping.language_consistency)(*arrays, coef=self.coef)
        return _with(samples, np.asarray(reward)), state


class StepReward(ShapingConfig):
    """A reward from the scores of the reasoning steps, in place of the verifier's."""

    replaces_reward: ClassVar[bool] = True
    type: Literal["step_reward"] = "step_reward"
    """Which shaping this is."""
    reduce: Literal["min", "product", "mean"] = "min"
    """From the steps' scores to one: the worst, the chance that all are right, or the mean."""

    def __call__(self, samples: Samples, limit: int, state: State) -> tuple[Samples, State]:
        """The samples with rewards from their steps."""
        P, G, S = samples.step_value.shape
        arrays = (samples.step_value.reshape(P * G, S), samples.step_mask.reshape(P * G, S))
        functions = {"min": step_min, "product": step_product, "mean": step_mean}
        reward = compiled(functions[self.reduce])(*arrays)
        return _with(samples, np.asarray(reward).reshape(P, G)), state


Shaping = Annotated[
    OverlongPenalty
    | TruncatedMask
    | KimiLength
    | CosineLength
    | StopProperly
    | FormatGate
    | LanguageConsistency
    | StepReward,
    Field(discriminator="type"),
]


def _with(samples: Samples, reward: np.ndarray) -> Samples:
    """Other rewards, of valid samples only."""
    reward = np.where(samples.valid, reward, samples.reward).astype(np.float32)
    return dataclasses.replace(samples, reward=reward)

"""How the losses of tokens are averaged: what a config can choose.

B rollouts of an optimizer step.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt

from jaxrl_vr.config import Config
from jaxrl_vr.losses import weights
from jaxrl_vr.train.advantage import compiled


class WeightsConfig(Config):
    """What all have: a function of `losses.weights`."""

    function: ClassVar[Any]
    counts_sequences: ClassVar[bool] = False  # each rollout, or pair of them, counts once

    def __call__(self, length: np.ndarray, group: np.ndarray, max_length: int) -> np.ndarray:
        """[B] trained tokens and group of each rollout -> [B] weight of its tokens."""
        return np.asarray(compiled(type(self).function)(length))


class TokenMean(WeightsConfig):
    """Mean over all tokens of the step."""

    function: ClassVar[Any] = staticmethod(weights.token_mean)
    type: Literal["token_mean"] = "token_mean"
    """Which normalisation this is."""


class SequenceMean(WeightsConfig):
    """Mean over rollouts of the mean over their tokens."""

    function: ClassVar[Any] = staticmethod(weights.sequence_mean)
    counts_sequences: ClassVar[bool] = True
    type: Literal["sequence_mean"] = "sequence_mean"
    """Which normalisation this is."""


class SequenceSum(WeightsConfig):
    """Mean over rollouts of the sum over their tokens: the policy gradient as it is derived."""

    function: ClassVar[Any] = staticmethod(weights.sequence_sum)
    type: Literal["sequence_sum"] = "sequence_sum"
    """Which normalisation this is."""


class PromptMean(WeightsConfig):
    """Mean over prompts of the mean over all tokens of their rollouts."""

    function: ClassVar[Any] = staticmethod(weights.prompt_mean)
    type: Literal["prompt_mean"] = "prompt_mean"
    """Which normalisation this is."""

    def __call__(self, length: np.ndarray, group: np.ndarray, max_length: int) -> np.ndarray:
        """[B] trained tokens and group of each rollout -> [B] weight of its tokens."""
        return np.asarray(compiled(type(self).function)(length, group))


class ConstantLength(WeightsConfig):
    """Sum over tokens by a constant: no bias by length."""

    function: ClassVar[Any] = staticmethod(weights.constant_length)
    type: Literal["constant_length"] = "constant_length"
    """Which normalisation this is."""
    max_length: PositiveInt | None = None
    """The constant; None is the limit of new tokens."""

    def __call__(self, length: np.ndarray, group: np.ndarray, max_length: int) -> np.ndarray:
        """[B] trained tokens and group of each rollout -> [B] weight of its tokens."""
        constant = self.max_length or max_length
        return np.asarray(compiled(type(self).function)(length, max_length=constant))


Weights = Annotated[
    TokenMean | SequenceMean | SequenceSum | PromptMean | ConstantLength,
    Field(discriminator="type"),
]

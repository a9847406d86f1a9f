"""How the losses of tokens are averaged: what a config can choose.

B rollouts of an optimizer step.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt

from jaxrl_vr.config import Config
from jaxrl_vr.losses import weights
from jaxrl_vr.train.advantage import compiled


class TokenMean(Config):
    """Mean over all tokens of the step."""

    counts_sequences: ClassVar[bool] = False
    type: Literal["token_mean"] = "token_mean"
    """Which normalisation this is."""

    def __call__(self, length: np.ndarray, group: np.ndarray, max_length: int) -> np.ndarray:
        """[B] trained tokens and group of each rollout -> [B] weight of its tokens."""
        return np.asarray(compiled(weights.token_mean)(length))


class SequenceMean(Config):
    """Mean over rollouts of the mean over their tokens."""

    counts_sequences: ClassVar[bool] = True
    type: Literal["sequence_mean"] = "sequence_mean"
    """Which normalisation this is."""

    def __call__(self, length: np.ndarray, group: np.ndarray, max_length: int) -> np.ndarray:
        """[B] trained tokens and group of each rollout -> [B] weight of its tokens."""
        return np.asarray(compiled(weights.sequence_mean)(length))


class SequenceSum(Config):
    """Mean over rollouts of the sum over their tokens: the policy gradient as it is derived."""

    counts_sequences: ClassVar[bool] = False
    type: Literal["sequence_sum"] = "sequence_sum"
    """Which normalisation this is."""

    def __call__(self, length: np.ndarray, group: np.ndarray, max_length: int) -> np.ndarray:
        """[B] trained tokens and group of each rollout -> [B] weight of its tokens."""
        return np.asarray(compiled(weights.sequence_sum)(length))


class PromptMean(Config):
    """Mean over prompts of the mean over all tokens of their rollouts."""

    counts_sequences: ClassVar[bool] = False
    type: Literal["prompt_mean"] = "prompt_mean"
    """Which normalisation this is."""

    def __call__(self, length: np.ndarray, group: np.ndarray, max_length: int) -> np.ndarray:
        """[B] trained tokens and group of each rollout -> [B] weight of its tokens."""
        return np.asarray(compiled(weights.prompt_mean)(length, group))


class ConstantLength(Config):
    """Sum over tokens by a constant: no bias by length."""

    counts_sequences: ClassVar[bool] = False
    type: Literal["constant_length"] = "constant_length"
    """Which normalisation this is."""
    max_length: PositiveInt | None = None
    """The constant; None is the limit of new tokens."""

    def __call__(self, length: np.ndarray, group: np.ndarray, max_length: int) -> np.ndarray:
        """[B] trained tokens and group of each rollout -> [B] weight of its tokens."""
        constant = self.max_length or max_length
        return np.asarray(compiled(weights.constant_length)(length, max_length=constant))


Weights = Annotated[
    TokenMean | SequenceMean | SequenceSum | PromptMean | ConstantLength,
    Field(discriminator="type"),
]

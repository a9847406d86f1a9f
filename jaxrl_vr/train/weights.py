"""How the losses of tokens are averaged: what a config can choose.

B rollouts of an optimizer step.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from pydantic import Field, PositiveInt

from jaxrl_vr.config import Config
from jaxrl_vr.losses import weights


class TokenMean(Config):
    """Mean over all tokens of the step."""

    counts_sequences: ClassVar[bool] = False
    type: Literal["token_mean"] = "token_mean"
    """Which normalisation this is."""

    def __call__(self, length: np.ndarray, group: np.ndarray, max_length: int) -> np.ndarray:
        """[B] trained tokens and group of each rollout -> [B] weight of its tokens."""
        return np.asarray(weights.token_mean(jnp.asarray(length)))


class SequenceMean(Config):
    """Mean over rollouts of the mean over their tokens."""

    counts_sequences: ClassVar[bool] = True
    type: Literal["sequence_mean"] = "sequence_mean"
    """Which normalisation this is."""

    def __call__(self, length: np.ndarray, group: np.ndarray, max_length: int) -> np.ndarray:
        """[B] trained tokens and group of each rollout -> [B] weight of its tokens."""
        return np.asarray(weights.sequence_mean(jnp.asarray(length)))


class SequenceSum(Config):
    """Mean over rollouts of the sum over their tokens: the policy gradient as it is derived."""

    counts_sequences: ClassVar[bool] = False
    type: Literal["sequence_sum"] = "sequence_sum"
    """Which normalisation this is."""

    def __call__(self, length: np.ndarray, group: np.ndarray, max_length: int) -> np.ndarray:
        """[B] trained tokens and group of each rollout -> [B] weight of its tokens."""
        return np.asarray(weights.sequence_sum(jnp.asarray(length)))


class PromptMean(Config):
    """Mean over prompts of the mean over all tokens of their rollouts."""

    counts_sequences: ClassVar[bool] = False
    type: Literal["prompt_mean"] = "prompt_mean"
    """Which normalisation this is."""

    def __call__(self, length: np.ndarray, group: np.ndarray, max_length: int) -> np.ndarray:
        """[B] trained tokens and group of each rollout -> [B] weight of its tokens."""
        return np.asarray(weights.prompt_mean(jnp.asarray(length), jnp.asarray(group)))


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
        return np.asarray(weights.constant_length(jnp.asarray(length), max_length=constant))


Weights = Annotated[
    TokenMean | SequenceMean | SequenceSum | PromptMean | ConstantLength,
    Field(discriminator="type"),
]

"""From rewards to advantages and token weights: what a config can choose.

P prompts, G samples of a prompt, B rollouts of an optimizer step.
"""

from __future__ import annotations

from typing import Annotated, Literal

import jax.numpy as jnp
import numpy as np
from pydantic import Field, PositiveInt

from jaxrl_vr.config import Config
from jaxrl_vr.losses import advantages, weights
from jaxrl_vr.rollout.groups import Samples


class GroupNorm(Config):
    """GRPO: reward less the group's mean, over its standard deviation."""

    type: Literal["group_norm"] = "group_norm"
    """Which advantage this is."""
    eps: float = Field(default=1e-4, ge=0)
    """Added to the standard deviation."""
    ddof: Literal[0, 1] = 0
    """0 is the population's standard deviation, 1 the sample's."""

    def __call__(self, samples: Samples) -> np.ndarray:
        """[P, G] advantages."""
        adv = advantages.group_norm(
            jnp.asarray(samples.reward), jnp.asarray(samples.valid), eps=self.eps, ddof=self.ddof
        )
        return np.asarray(adv)


class GroupCenter(Config):
    """Dr. GRPO: reward less the group's mean."""

    type: Literal["group_center"] = "group_center"
    """Which advantage this is."""

    def __call__(self, samples: Samples) -> np.ndarray:
        """[P, G] advantages."""
        reward, valid = jnp.asarray(samples.reward), jnp.asarray(samples.valid)
        return np.asarray(advantages.group_center(reward, valid))


Advantage = Annotated[GroupNorm | GroupCenter, Field(discriminator="type")]


class TokenMean(Config):
    """Mean over all tokens of the step."""

    type: Literal["token_mean"] = "token_mean"
    """Which normalisation this is."""

    def __call__(self, length: np.ndarray, max_length: int) -> np.ndarray:
        """[B] trained tokens of each rollout -> [B] weight of its tokens."""
        return np.asarray(weights.token_mean(jnp.asarray(length)))


class SequenceMean(Config):
    """Mean over rollouts of the mean over their tokens."""

    type: Literal["sequence_mean"] = "sequence_mean"
    """Which normalisation this is."""

    def __call__(self, length: np.ndarray, max_length: int) -> np.ndarray:
        """[B] trained tokens of each rollout -> [B] weight of its tokens."""
        return np.asarray(weights.sequence_mean(jnp.asarray(length)))


class ConstantLength(Config):
    """Sum over tokens by a constant: no bias by length."""

    type: Literal["constant_length"] = "constant_length"
    """Which normalisation this is."""
    max_length: PositiveInt | None = None
    """The constant; None is the limit of new tokens."""

    def __call__(self, length: np.ndarray, max_length: int) -> np.ndarray:
        """[B] trained tokens of each rollout -> [B] weight of its tokens."""
        constant = self.max_length or max_length
        return np.asarray(weights.constant_length(jnp.asarray(length), max_length=constant))


Weights = Annotated[TokenMean | SequenceMean | ConstantLength, Field(discriminator="type")]

"""Scalings of the rotary embedding, which take a model beyond its pretraining's context.

Each says how frequencies change and by how much attention is sharpened. Not here: dynamic ones,
whose frequencies depend on the length of a sequence.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from jaxrl_vr.config import Config

# Arrays are indexed by int32.
Size = Annotated[int, Field(gt=0, lt=2**31)]


class Llama3Scaling(Config):
    """Llama 3.1's rotary scaling: long wavelengths are stretched, short ones kept."""

    type: Literal["llama3"] = "llama3"
    """How frequencies are scaled."""
    factor: float = Field(default=8.0, gt=0, lt=1e30)
    """How far the longest wavelengths are stretched."""
    low_freq_factor: float = 1.0
    """Wavelengths above original_length / this are stretched in full."""
    high_freq_factor: float = 4.0
    """Wavelengths below original_length / this are kept."""
    original_length: Size = 8192
    """Context length of the pretraining, in tokens."""

    @model_validator(mode="after")
    def _check(self) -> Llama3Scaling:
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor = {self.low_freq_factor} must lie above 0 and below "
                f"high_freq_factor = {self.high_freq_factor}; Llama 3 has 1 and 4"
            )
        return self

    def scaled(self, frequency: np.ndarray, theta: float) -> np.ndarray:
        """The frequencies of a model of this base: blended linearly between the wavelengths."""
        turns = self.original_length * frequency / (2 * np.pi)
        span = self.high_freq_factor - self.low_freq_factor
        kept = np.clip((turns - self.low_freq_factor) / span, 0.0, 1.0)
        return frequency * (kept + (1.0 - kept) / self.factor)

    @property
    def magnitude(self) -> float:
        """What cos and sin are multiplied by."""
        return 1.0


class LinearScaling(Config):
    """Position interpolation (Chen et al. 2023, https://arxiv.org/abs/2306.15595): every wavelength
    is stretched alike, as if positions were divided."""

    type: Literal["linear"] = "linear"
    """How frequencies are scaled."""
    factor: float = Field(ge=1, lt=1e30)
    """What positions are divided by, and how much longer the context gets."""

    def scaled(self, frequency: np.ndarray, theta: float) -> np.ndarray:
        """The frequencies of a model of this base."""
        return frequency / self.factor

    @property
    def magnitude(self) -> float:
        """What cos and sin are multiplied by."""
        return 1.0


class YarnScaling(Config):
    """YaRN (Peng et al. 2023, https://arxiv.org/abs/2309.00071): pairs that turn often within the
    pretraining's context are kept, those that hardly turn are stretched, and attention is sharpened
    through cos and sin.

    As the authors' code and transformers compute it: the ramp between `beta_fast` and `beta_slow`
    runs over the index of a pair, so over the logarithm of its turns; the paper's runs over the
    turns.
    """

    type: Literal["yarn"] = "yarn"
    """How frequencies are scaled."""
    factor: float = Field(ge=1, lt=1e30)
    """How much longer the context gets; Qwen recommends 4, and to leave YaRN out without need."""
    original_length: Size
    """Context length of the pretraining, in tokens; 32768 for Qwen2.5 and Qwen3."""
    beta_fast: float = Field(default=32.0, gt=0, lt=1e30)
    """Pairs that turn more often than this are kept."""
    beta_slow: float = Field(default=1.0, gt=0, lt=1e30)
    """Pairs that turn less often than this are stretched in full."""
    attention_factor: float | None = Field(default=None, gt=0, le=100)
    """What cos and sin are multiplied by; None is 0.1 ln(factor) + 1, or as the mscales say."""
    mscale: float | None = Field(default=None, ge=0, le=100)
    """With mscale_all_dim: attention_factor is (0.1 mscale ln(factor) + 1) by the same of that."""
    mscale_all_dim: float | None = Field(default=None, ge=0, le=100)
    """See mscale."""
    truncate: bool = True
    """The ends of the ramp are whole indices."""

    @model_validator(mode="after")
    def _check(self) -> YarnScaling:
        if self.beta_fast < self.beta_slow:
            raise ValueError(
                f"beta_fast = {self.beta_fast} is below beta_slow = {self.beta_slow}; the paper "
                "has 32 and 1"
            )
        return self

    @property
    def longest(self) -> int:
        """The context that it reaches, in tokens."""
        return math.ceil(self.factor * self.original_length)

    def check_length(self, max_length: int) -> None:
        """Raises ValueError if it does not reach a context."""
        if max_length > self.longest:
            enough = math.ceil(10 * max_length / self.original_length) / 10
            raise ValueError(
                f"max_length = {max_length} exceeds rope_scaling.factor = {self.factor:g} x "
                f"original_length = {self.original_length}, {self.longest} tokens; lower it, set "
                f"factor to {enough:g}, or original_length to what the model was pretrained with"
            )

    def scaled(self, frequency: np.ndarray, theta: float) -> np.ndarray:
        """The frequencies of a model of this base; `theta` is above 1."""
        num_pairs = len(frequency)

        def pair_that_turns(times: float) -> float:
            wavelength = self.original_length / times
            return num_pairs * math.log(wavelength / (2 * math.pi)) / math.log(theta)

        first, last = pair_that_turns(self.beta_fast), pair_that_turns(self.beta_slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        # transformers' bounds: the last one counts entries of a head, two a pair.
        first, last = max(first, 0), min(last, 2 * num_pairs - 1)
        if first == last:
            last += 0.001
        stretched = np.clip((np.arange(num_pairs) - first) / (last - first), 0.0, 1.0)
        return frequency * (1.0 - stretched + stretched / self.factor)

    @property
    def magnitude(self) -> float:
        """What cos and sin are multiplied by: the paper's sqrt(1 / t)."""
        if self.attention_factor is not None:
            return self.attention_factor

        def of(scale: float) -> float:
            return 0.1 * scale * math.log(self.factor) + 1.0

        if self.mscale and self.mscale_all_dim:
            return of(self.mscale) / of(self.mscale_all_dim)
        return of(1.0)


RopeScaling = Annotated[Llama3Scaling | LinearScaling | YarnScaling, Field(discriminator="type")]

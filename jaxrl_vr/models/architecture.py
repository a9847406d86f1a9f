"""The numbers that define a dense decoder of the Llama, Qwen2 and Qwen3 families."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from jaxrl_vr.config import Config
from jaxrl_vr.models.rope_scaling import LinearScaling, RopeScaling, Size, YarnScaling

_MOST_TOKENS = 2**31


class Architecture(Config):
    """Sizes and switches of one model; hashable, so it can be a static argument of `jit`."""

    family: Literal["llama", "qwen2", "qwen3"] = "llama"
    """qwen2 adds a bias to q, k and v; qwen3 normalises q and k per head."""
    vocab_size: Size
    """V, rows of the embedding (may exceed the tokenizer's vocabulary)."""
    width: Size
    """D, size of the residual stream."""
    layers: Size
    """L, number of blocks."""
    heads: Size
    """H, query heads."""
    kv_heads: Size
    """K, key/value heads; divides H."""
    head_dim: Size
    """Q, size of a head; need not be D / H."""
    ffn: Size
    """F, width of the gated feed-forward layer."""
    tied: bool = True
    """The LM head is the embedding."""
    rope_theta: float = Field(default=10_000.0, gt=0, lt=1e30)
    """Base of the rotary wavelengths."""
    rope_scaling: RopeScaling | None = None
    """Rotary scaling; None is plain RoPE."""
    norm_eps: float = Field(default=1e-5, ge=0, lt=1)
    """Added to the mean square in RMSNorm."""
    max_length: Size = 2048
    """Context the model is meant for, in tokens; longer requests are refused."""

    @model_validator(mode="after")
    def _check(self) -> Architecture:
        if self.heads % self.kv_heads:
            raise ValueError(
                f"kv_heads = {self.kv_heads} does not divide heads = {self.heads}; "
                "choose a divisor (kv_heads = heads is plain multi-head attention)"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"head_dim = {self.head_dim} is odd; rotary embedding turns pairs, so make it even"
            )
        scaling = self.rope_scaling
        if isinstance(scaling, YarnScaling):
            if self.rope_theta <= 1:
                raise ValueError(
                    f"rope_theta = {self.rope_theta} with YaRN: raise it above 1, 10000 is usual"
                )
            scaling.check_length(self.max_length)
        return self

    @property
    def longest(self) -> int:
        """The context that can be asked for, in tokens: under YaRN all that it reaches, whatever
        the model is meant for."""
        scaling = self.rope_scaling
        return scaling.longest if isinstance(scaling, YarnScaling) else self.max_length

    def with_scaling(self, scaling: LinearScaling | YarnScaling) -> Architecture:
        """The model with a rotary scaling, and the context that this reaches.

        Raises:
          ValueError: it has another one, or was trained on shorter contexts.
        """
        own = self.rope_scaling
        if own == scaling:
            return self.model_copy(update={"max_length": self.longest})
        if own is not None:
            raise ValueError(
                f"rope_scaling: the model has one of its own ({own}), and a second would not start "
                "from its pretraining; leave it out"
            )
        if isinstance(scaling, LinearScaling):
            return self._reaching(scaling, int(scaling.factor * self.max_length))
        if scaling.original_length > self.max_length:
            raise ValueError(
                f"rope_scaling.original_length = {scaling.original_length} exceeds the model's own "
                f"context of {self.max_length}; set it to what the model was pretrained with"
            )
        if scaling.longest < self.max_length:
            raise ValueError(
                f"rope_scaling.factor = {scaling.factor:g} x original_length = "
                f"{scaling.original_length} reaches {scaling.longest} tokens, fewer than the "
                f"model's own {self.max_length}; set original_length to what it was pretrained "
                "with, or leave rope_scaling out"
            )
        return self._reaching(scaling, scaling.longest)

    def _reaching(self, scaling: LinearScaling | YarnScaling, longest: int) -> Architecture:
        if longest >= _MOST_TOKENS:
            raise ValueError(
                f"rope_scaling.factor = {scaling.factor:g} reaches {longest} tokens, and arrays "
                f"are indexed by int32, below {_MOST_TOKENS}; lower it"
            )
        return self.model_copy(update={"rope_scaling": scaling, "max_length": longest})

    @property
    def has_qkv_bias(self) -> bool:
        """Whether q, k and v have a bias (Qwen2)."""
        return self.family == "qwen2"

    @property
    def has_qk_norm(self) -> bool:
        """Whether q and k are RMS-normalised per head (Qwen3)."""
        return self.family == "qwen3"

"""The numbers that define a dense decoder of the Llama, Qwen2 and Qwen3 families."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from jaxrl_vr.config import Config

# Arrays are indexed by int32.
Size = Annotated[int, Field(gt=0, lt=2**31)]


class Llama3Scaling(Config):
    """Llama 3.1's rotary scaling: long wavelengths are stretched, short ones kept."""

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
    rope_scaling: Llama3Scaling | None = None
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
        return self

    @property
    def has_qkv_bias(self) -> bool:
        """Whether q, k and v have a bias (Qwen2)."""
        return self.family == "qwen2"

    @property
    def has_qk_norm(self) -> bool:
        """Whether q and k are RMS-normalised per head (Qwen3)."""
        return self.family == "qwen3"

"""Sizes of well-known models, so that a run can be planned before its weights are fetched."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from jaxrl_vr.models import hf
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.train.config import PretrainedModel, RunConfig
from jaxrl_vr.train.models import is_own

_QWEN2: dict[str, Any] = dict(
    family="qwen2", head_dim=128, rope_theta=1e6, norm_eps=1e-6, max_length=32_768
)
_QWEN3: dict[str, Any] = dict(
    family="qwen3", head_dim=128, rope_theta=1e6, norm_eps=1e-6, max_length=40_960
)

KNOWN = {
    "Qwen/Qwen2.5-1.5B": Architecture(
        **_QWEN2, vocab_size=151_936, width=1536, layers=28, heads=12, kv_heads=2, ffn=8960
    ),
    "Qwen/Qwen2.5-7B": Architecture(
        **_QWEN2,
        vocab_size=152_064,
        width=3584,
        layers=28,
        heads=28,
        kv_heads=4,
        ffn=18_944,
        tied=False,
    ),
    "Qwen/Qwen2.5-32B": Architecture(
        **_QWEN2,
        vocab_size=152_064,
        width=5120,
        layers=64,
        heads=40,
        kv_heads=8,
        ffn=27_648,
        tied=False,
    ),
    "Qwen/Qwen3-8B": Architecture(
        **_QWEN3,
        vocab_size=151_936,
        width=4096,
        layers=36,
        heads=32,
        kv_heads=8,
        ffn=12_288,
        tied=False,
    ),
    "meta-llama/Llama-3.1-8B": Architecture(
        family="llama",
        vocab_size=128_256,
        width=4096,
        layers=32,
        heads=32,
        kv_heads=8,
        head_dim=128,
        ffn=14_336,
        tied=False,
        rope_theta=5e5,
        max_length=131_072,
    ),
}
"""By their names on the hub, as their config.json has them."""


def architecture(config: RunConfig) -> Architecture:
    """Sizes of a run's model: from the config, its folder, or by its name.

    Raises:
      ValueError: neither a folder here nor a name we know.
    """
    section = config.model
    if not isinstance(section, PretrainedModel):
        vocab = section.vocab_size or config.tokenizer.build(None).vocab_size
        return section.architecture(vocab)
    return section.architecture(_named(section.path))


def teacher(config: RunConfig, student: Transformer, name: str) -> Transformer:
    """The model of a teacher: a stage's is the student's, as is that of `base`.

    Raises:
      ValueError: neither, nor a folder here, nor a name we know.
    """
    if is_own(config, name):
        return student
    arch = _named(name)
    if arch.max_length < student.max_length:
        raise ValueError(
            f"advantage.teacher = {name!r} takes {arch.max_length} tokens, and the student's "
            f"context has {student.max_length}; set model.max_length to {arch.max_length} or less"
        )
    if arch.vocab_size < student.vocab_size:
        raise ValueError(
            f"advantage.teacher = {name!r} has {arch.vocab_size} rows, the student "
            f"{student.vocab_size}; name a teacher of the same tokenizer"
        )
    return dataclasses.replace(student, arch=arch, remat="none")


def _named(path: str) -> Architecture:
    # Tuned models of these names have the sizes of their base.
    name = path.removesuffix("-Instruct")
    if name in KNOWN and not Path(path).is_dir():
        return KNOWN[name]
    return hf.architecture_from_config(hf.read_config(hf.locate(path)))

"""From the [model] and [tokenizer] sections to a model, its tokenizer and its weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_vr.data.tokenizer import Tokenizer
from jaxrl_vr.models import hf, params
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.sharding import TRAIN_RULES
from jaxrl_vr.train.config import PretrainedModel, RandomModel, RunConfig


@dataclasses.dataclass(frozen=True)
class Built:
    """A model and what belongs to it, without weights."""

    model: Transformer
    tokenizer: Tokenizer
    folder: Path | None  # of a pretrained model


def build_model(config: RunConfig) -> Built:
    """Reads sizes and tokenizer; no weights yet.

    Raises:
      ValueError: not a model folder, an architecture we do not have, or a tokenizer with more
        words than the model has rows.
    """
    section = config.model
    folder: Path | None = None
    if isinstance(section, PretrainedModel):
        folder = hf.locate(section.path, revision=section.revision)
        # Before the tokenizer, whose library has its own words for a faulty config.json.
        arch = _limited(hf.architecture_from_config(hf.read_config(folder)), section)
        tokenizer = config.tokenizer.build(str(folder))
    else:
        tokenizer = config.tokenizer.build(None)
        arch = _random(section, tokenizer)
    if tokenizer.vocab_size > arch.vocab_size:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size} ids, the model only {arch.vocab_size} rows: "
            "they do not fit; use the model's own tokenizer, or set model.vocab_size"
        )
    return Built(Transformer(arch, section.dtype, section.remat), tokenizer, folder)


def load_base(
    config: RunConfig, model: Transformer, folder: Path | None, mesh: jax.sharding.Mesh
) -> Any:
    """The weights of [model]: read from its folder, or random from the run's seed."""
    if folder is not None:
        return load_folder(folder, mesh)[1]
    return params.init(model.declare(), jax.random.key(config.seed), TRAIN_RULES, mesh)


def load_folder(folder: Path, mesh: jax.sharding.Mesh) -> tuple[Architecture, Any]:
    """A model folder's architecture and weights, in the learner's sharding.

    Raises:
      ValueError: the folder is at fault, or its weights are not finite, and would train nothing.
    """
    arch, weights = hf.load(folder, rules=TRAIN_RULES, mesh=mesh)
    finite = jax.jit(lambda tree: jax.tree.map(lambda x: jnp.isfinite(x).all(), tree))(weights)
    broken = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, is_finite in jax.tree_util.tree_leaves_with_path(finite)
        if not is_finite
    ]
    if broken:
        raise ValueError(
            f"{folder}: the weights of {', '.join(broken)} hold NaN or inf; take an earlier "
            "export, or download the model again"
        )
    return arch, weights


def _random(section: RandomModel, tokenizer: Tokenizer) -> Architecture:
    if section.head_dim is None and section.width % section.heads:
        raise ValueError(
            f"model.width = {section.width} is no multiple of model.heads = {section.heads}; "
            "change one, or set model.head_dim"
        )
    values = section.model_dump(exclude={"type", "dtype", "remat"})
    values["vocab_size"] = section.vocab_size or tokenizer.vocab_size
    values["kv_heads"] = section.kv_heads or section.heads
    values["head_dim"] = section.head_dim or section.width // section.heads
    return Architecture(**values)


def _limited(arch: Architecture, section: PretrainedModel) -> Architecture:
    if section.max_length is None:
        return arch
    if section.max_length > arch.max_length:
        raise ValueError(
            f"model.max_length = {section.max_length} exceeds the model's own context of "
            f"{arch.max_length}; lower it"
        )
    return arch.model_copy(update={"max_length": section.max_length})

"""The teacher of on-policy distillation: which model it is, whether it fits, and its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax

from jaxrl_vr.data.tokenizer import HFTokenizer
from jaxrl_vr.models import hf
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.models import (
    Built,
    asked_scaling,
    final_folder,
    is_own,
    is_to_come,
    load_folder,
    load_own,
)

TEACHER = "advantage.teacher"  # the key that names it
# What shows that two tokenizers give the same ids: words, digits, code, other scripts.
_PROBES = (
    "The answer is \\boxed{-3.14}.\n",
    "def f(x):\n    return x ** 2 + 1",
    "日本語 привет ñ é",
)


def check_teacher(
    config: RunConfig, folder: Path, built: Built, name: str, done: Collection[str]
) -> None:
    """Raises ValueError where a teacher is not there or does not fit, without loading its weights.

    Args:
      config: of the run.
      folder: of the run.
      built: its model, the student.
      name: `base`, a stage, or a model folder.
      done: names of the stages that are done; the others have their weights still to come.
    """
    if is_own(config, name):
        if name in done:
            final_folder(config, folder, name, TEACHER)
    elif not is_to_come(config, name, done):
        _check_fits(name, _model_of(config, name, built), _folder(name), built)


def teacher_model(config: RunConfig, built: Built, name: str) -> Transformer:
    """The model that the teacher's weights are for."""
    return built.model if is_own(config, name) else _model_of(config, name, built)


def load_teacher(
    config: RunConfig, folder: Path, built: Built, mesh: jax.sharding.Mesh, name: str
) -> Any:
    """The teacher's parameters, in the learner's sharding."""
    if is_own(config, name):
        return load_own(config, folder, built, mesh, name, TEACHER)
    return load_folder(_folder(name), mesh)[1]


def _folder(name: str) -> Path:
    try:
        return hf.locate(name)
    except ValueError as error:
        raise ValueError(
            f"{TEACHER} = {name!r} is no stage of this run, and as a {error}"
        ) from error


def _model_of(config: RunConfig, name: str, built: Built) -> Transformer:
    arch = hf.architecture_from_config(hf.read_config(_folder(name)))
    scaling = asked_scaling(config)
    if scaling is not None and arch.rope_scaling is None:
        try:
            arch = arch.with_scaling(scaling)
        except ValueError as error:
            raise ValueError(f"{TEACHER} = {name!r}, with what [model] asks for: {error}") from None
    return dataclasses.replace(built.model, arch=arch, remat="none")


def _check_fits(name: str, teacher: Transformer, folder: Path, built: Built) -> None:
    ours, theirs = built.model.arch, teacher.arch
    if theirs.max_length < ours.max_length:
        raise ValueError(
            f"{TEACHER} = {name!r} takes {theirs.max_length} tokens, and the student's context has "
            f"{ours.max_length}; set model.max_length to {theirs.max_length} or less"
        )
    own = HFTokenizer(folder)
    alphabet = getattr(built.tokenizer, "alphabet", None)
    for probe in _PROBES if alphabet is None else (alphabet,):
        if own.encode(probe) != built.tokenizer.encode(probe):
            raise ValueError(
                f"{TEACHER} = {name!r} has another tokenizer than the student: {probe[:40]!r} has "
                "other ids; name a teacher of the same tokenizer (of the same family), or imitate "
                "its answers in an sft stage"
            )
    if built.tokenizer.vocab_size > theirs.vocab_size:
        raise ValueError(
            f"{TEACHER} = {name!r} has {theirs.vocab_size} rows, the tokenizer "
            f"{built.tokenizer.vocab_size} ids; name a teacher of the same tokenizer"
        )

"""From [model] and [tokenizer] to a model with its tokenizer, and from `init` to its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxrl_vr.checkpoint import Damaged, load_arrays
from jaxrl_vr.data.tokenizer import Tokenizer
from jaxrl_vr.models import hf, params
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.attention import Backend
from jaxrl_vr.models.cudnn import why_not
from jaxrl_vr.models.rope_scaling import LinearScaling, YarnScaling
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.sharding import TRAIN_RULES
from jaxrl_vr.train.config import PretrainedModel, RunConfig
from jaxrl_vr.train.folder import result_file
from jaxrl_vr.train.stages import ExportStage, StageBase, TrainStage


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
        arch = section.architecture(hf.architecture_from_config(hf.read_config(folder)))
        tokenizer = config.tokenizer.build(str(folder))
    else:
        tokenizer = config.tokenizer.build(None)
        arch = section.architecture(section.vocab_size or tokenizer.vocab_size)
    if tokenizer.vocab_size > arch.vocab_size:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size} ids, the model only {arch.vocab_size} rows: "
            "they do not fit; use the model's own tokenizer, or set model.vocab_size"
        )
    device = jax.devices()[0]
    backend = attention_backend(section.attention, section.dtype, arch.head_dim, device)
    model = Transformer(arch, section.dtype, section.remat, backend)
    return Built(model, tokenizer, folder)


def attention_backend(
    asked: Literal["auto", "xla", "splash", "cudnn"], dtype: str, head_dim: int, device: Any
) -> Backend:
    """What the learner attends with on such devices.

    Raises:
      ValueError: kernels are asked for that cannot run there.
    """
    if asked == "xla":
        return "xla"
    if asked == "splash" and device.platform != "tpu":
        raise ValueError(
            f'model.attention = "splash": its kernels are the TPU\'s, and this is '
            f'{device.device_kind}; use "auto" or "xla"'
        )
    if asked in ("auto", "splash") and device.platform == "tpu":
        return "splash"
    why = why_not(dtype, head_dim, device)
    if asked == "cudnn" and why is not None:
        raise ValueError(f'model.attention = "cudnn": {why}; use "auto" or "xla"')
    return "xla" if why is not None else "cudnn"


def load_base(
    config: RunConfig, model: Transformer, folder: Path | None, mesh: jax.sharding.Mesh
) -> Any:
    """The weights of [model]: read from its folder, or random from the run's seed."""
    if folder is not None:
        return load_folder(folder, mesh)[1]
    return params.init(model.declare(), jax.random.key(config.seed), TRAIN_RULES, mesh)


def check_init(
    config: RunConfig, folder: Path, built: Built, stage: StageBase, done: Collection[str]
) -> None:
    """Raises ValueError where a stage's `init` names no weights, without loading any.

    Args:
      config: of the run.
      folder: of the run.
      built: its model.
      stage: one that is not done.
      done: names of the stages that are; the others have their weights still to come.
    """
    name = _init(config, stage)
    if name in [s.name for s in config.stages]:
        if name in done:
            final_folder(config, folder, name)
    elif name != "base" and not is_to_come(config, name, done):
        _model_folder(config, built.model.arch, name)


def load_init(
    config: RunConfig, folder: Path, built: Built, mesh: jax.sharding.Mesh, stage: StageBase
) -> Any:
    """The parameters a stage starts from, in the learner's sharding."""
    name = _init(config, stage)
    if is_own(config, name):
        return load_own(config, folder, built, mesh, name)
    return load_folder(_model_folder(config, built.model.arch, name), mesh)[1]


def is_own(config: RunConfig, name: str) -> bool:
    """Whether a name is `base` or that of a stage, and not a folder or hub id."""
    return name == "base" or name in [s.name for s in config.stages]


def load_own(
    config: RunConfig,
    folder: Path,
    built: Built,
    mesh: jax.sharding.Mesh,
    name: str,
    key: str = "init",
) -> Any:
    """The parameters of `base` or of a stage; `key` is what names them in the config."""
    if name == "base":
        return load_base(config, built.model, built.folder, mesh)
    final = final_folder(config, folder, name, key)
    try:
        return load_arrays(final, params.abstract(built.model.declare(), TRAIN_RULES, mesh))
    except Damaged as error:
        raise ValueError(
            f"{error}; put it back, or delete it and {result_file(folder, name)}: `jaxrl-vr train` "
            f"then takes stage {name!r} up from its last checkpoint"
        ) from error


def is_to_come(config: RunConfig, name: str, done: Collection[str]) -> bool:
    """Whether `name` is a folder that an export of this run has still to write."""
    exports = [s for s in config.stages if isinstance(s, ExportStage) and s.name not in done]
    return Path(name).absolute() in [export_folder(config, s).absolute() for s in exports]


def export_folder(config: RunConfig, stage: ExportStage) -> Path:
    """Where a stage exports to."""
    return Path(stage.path) if stage.path else Path(config.run_dir, "stages", stage.name, "hf")


def _init(config: RunConfig, stage: StageBase) -> str:
    """What `init` names: `base`, an earlier stage, or a model folder."""
    if stage.init != "previous":
        return stage.init
    earlier = config.stages[: [s.name for s in config.stages].index(stage.name)]
    trained = [s.name for s in earlier if isinstance(s, TrainStage)]
    return trained[-1] if trained else "base"


def final_folder(config: RunConfig, folder: Path, name: str, key: str = "init") -> Path:
    """The parameters at the end of a stage; `key` is what names it in the config."""
    final = folder / "stages" / name / "final"
    if final.is_dir():
        return final
    done = result_file(folder, name)
    trained = [s.name for s in config.stages if isinstance(s, TrainStage)]
    if name not in trained:
        raise ValueError(
            f"{key} = {name!r} is a stage that does not train, so it has no weights of its own; "
            f"name one that does: {trained or 'there is none'}, or base"
        )
    if done.exists():
        raise ValueError(
            f"{key}: stage {name!r} is done, but its parameters {final} are not there; put them "
            f"back, or delete {done}: `jaxrl-vr train` then takes the stage up from its last "
            "checkpoint"
        )
    raise ValueError(
        f"{key}: stage {name!r} has no parameters yet, {final} is not there; let `jaxrl-vr train` "
        "run it first"
    )


def _model_folder(config: RunConfig, arch: Architecture, name: str) -> Path:
    """The folder that `init` names, which has to hold a model like ours."""
    try:
        folder = hf.locate(name)
    except ValueError as error:
        known = [s.name for s in config.stages]
        raise ValueError(f"init = {name!r} is none of the stages {known}, and as a {error}") from (
            error
        )
    found = hf.architecture_from_config(hf.read_config(folder))
    # What [model] changes in its own folder is no difference of this one.
    ours: dict[str, Any] = {"max_length": arch.max_length}
    if found.rope_scaling is None and asked_scaling(config) is not None:
        ours["rope_scaling"] = arch.rope_scaling
    found = found.model_copy(update=ours)
    apart = [
        f"{field} = {getattr(found, field)!r}, and [model] has {getattr(arch, field)!r}"
        for field in Architecture.model_fields
        if getattr(found, field) != getattr(arch, field)
    ]
    if apart:
        raise ValueError(
            f"init = {name!r} holds another model: {'; '.join(apart)}; name a folder of the same "
            "model"
        )
    return folder


def asked_scaling(config: RunConfig) -> LinearScaling | YarnScaling | None:
    """The rotary scaling that [model] asks for."""
    section = config.model
    return section.rope_scaling if isinstance(section, PretrainedModel) else None


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

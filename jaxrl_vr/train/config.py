"""The config of a run: the one model that a TOML file is checked against.

Sections that belong to one package are declared there, beside the code that reads them; here is
what puts them together, and the rules between them. Stages are in stages.py and rl_stage.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, model_validator

from jaxrl_vr.checkpoint import CheckpointConfig
from jaxrl_vr.config import Config, LocalPath, parse
from jaxrl_vr.data.sources import FileSource, ProceduralSource, Source
from jaxrl_vr.data.tokenizer import CharTokenizerConfig, HFTokenizerConfig
from jaxrl_vr.metrics.sinks import LoggingConfig
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.rope_scaling import LinearScaling, RopeScaling, YarnScaling
from jaxrl_vr.models.transformer import Remat
from jaxrl_vr.sampler.sizes import EngineConfig
from jaxrl_vr.sharding import MeshConfig
from jaxrl_vr.train.rl_stage import RlStage
from jaxrl_vr.train.stages import (
    DpoStage,
    EvalStage,
    ExportStage,
    SftStage,
    StageBase,
    Task,
    TrainStage,
    tasks_of,
)
from jaxrl_vr.verifiers.pool_config import PoolConfig
from jaxrl_vr.verifiers.spec import build, has_component, needs_reference


class RandomModel(Config):
    """A new model with random weights."""

    type: Literal["random"] = "random"
    """Where the model comes from."""
    family: Literal["llama", "qwen2", "qwen3"] = "llama"
    """qwen2 adds a bias to q, k and v; qwen3 normalises q and k per head."""
    vocab_size: PositiveInt | None = None
    """Rows of the embedding; None is the tokenizer's vocabulary."""
    width: PositiveInt
    """Size of the residual stream."""
    layers: PositiveInt
    """Number of blocks."""
    heads: PositiveInt
    """Query heads."""
    kv_heads: PositiveInt | None = None
    """Key/value heads; None is as many as query heads."""
    head_dim: PositiveInt | None = None
    """Size of a head; None is width / heads."""
    ffn: PositiveInt
    """Width of the gated feed-forward layer, often 8/3 of the width."""
    tied: bool = True
    """The LM head is the embedding."""
    rope_theta: float = 10_000.0
    """Base of the rotary wavelengths; raise it for long contexts."""
    rope_scaling: RopeScaling | None = None
    """Rotary scaling; None is plain RoPE."""
    norm_eps: float = 1e-5
    """Added to the mean square in RMSNorm."""
    max_length: PositiveInt
    """Context, in tokens."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute dtype; weights and log-probs are float32. bfloat16 on accelerators."""
    remat: Remat = "none"
    """What the backward pass computes again of each block: "none", "minimal" (norms, rotations and
    other cheap steps), "block" (everything: least memory, a third more products)."""
    attention: Literal["auto", "xla", "splash", "cudnn"] = "auto"
    """Of the learner: "splash" is the TPU's kernels, "cudnn" the GPU's (Hopper or later, 16 bits;
    rows that `mesh.context` splits are left to "xla"), "xla" runs anywhere. "auto" goes by the
    device."""

    @model_validator(mode="after")
    def _check(self) -> RandomModel:
        self.architecture(self.vocab_size or 1)
        return self

    def architecture(self, vocab_size: int) -> Architecture:
        """The model itself, whose own bounds hold here too."""
        if self.head_dim is None and self.width % self.heads:
            raise ValueError(
                f"width = {self.width} is no multiple of heads = {self.heads}; change one, or set "
                "head_dim"
            )
        values = self.model_dump(exclude={"type", "dtype", "remat", "attention"})
        sizes = {
            "vocab_size": vocab_size,
            "kv_heads": self.kv_heads or self.heads,
            "head_dim": self.head_dim or self.width // self.heads,
        }
        return parse(Architecture, values | sizes)


class PretrainedModel(Config):
    """A model in a Hugging Face folder."""

    type: Literal["pretrained"] = "pretrained"
    """Where the model comes from."""
    path: LocalPath
    """Local folder with config.json and safetensors, or a hub id such as Qwen/Qwen2.5-1.5B."""
    revision: str | None = None
    """Commit, branch or tag of a hub id."""
    max_length: PositiveInt | None = None
    """Context to use, in tokens; None is the model's own, or what `rope_scaling` reaches."""
    rope_scaling: Annotated[LinearScaling | YarnScaling, Field(discriminator="type")] | None = None
    """Takes a model that ships without one beyond its context: `{ type = "yarn", factor = 4,
    original_length = 32768 }` is what Qwen recommends for 128k tokens, and not for short texts."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute dtype; weights and log-probs are float32. bfloat16 on accelerators."""
    remat: Remat = "none"
    """What the backward pass computes again of each block: "none", "minimal" (norms, rotations and
    other cheap steps), "block" (everything: least memory, a third more products)."""
    attention: Literal["auto", "xla", "splash", "cudnn"] = "auto"
    """Of the learner: "splash" is the TPU's kernels, "cudnn" the GPU's (Hopper or later, 16 bits;
    rows that `mesh.context` splits are left to "xla"), "xla" runs anywhere. "auto" goes by the
    device."""

    @model_validator(mode="after")
    def _check(self) -> PretrainedModel:
        if isinstance(self.rope_scaling, YarnScaling) and self.max_length is not None:
            self.rope_scaling.check_length(self.max_length)
        return self

    def architecture(self, own: Architecture) -> Architecture:
        """The model of the folder, with the rotary scaling and the context that are asked for.

        Raises:
          ValueError: it has another scaling, or cannot take such a context.
        """
        try:
            arch = own if self.rope_scaling is None else own.with_scaling(self.rope_scaling)
        except ValueError as error:
            raise ValueError(f"model.{error}") from None
        longest = arch.max_length if self.max_length is None else arch.longest
        if self.max_length is not None and self.max_length > longest:
            more = "" if arch.rope_scaling else ", or set model.rope_scaling"
            raise ValueError(
                f"model.max_length = {self.max_length} exceeds the model's own context of "
                f"{longest}; lower it{more}"
            )
        return arch.model_copy(update={"max_length": self.max_length or longest})


Model = Annotated[RandomModel | PretrainedModel, Field(discriminator="type")]
Tokenizer = Annotated[CharTokenizerConfig | HFTokenizerConfig, Field(discriminator="type")]


Stage = Annotated[
    SftStage | DpoStage | RlStage | EvalStage | ExportStage, Field(discriminator="type")
]


class RunConfig(Config):
    """A whole run."""

    run_dir: LocalPath = Field(min_length=1)
    """Folder of the run; the same command resumes what it finds there."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Decides initial weights, order of data and sampling."""
    model: Model
    """The model."""
    tokenizer: Tokenizer
    """Its tokenizer."""
    mesh: MeshConfig = MeshConfig()
    """Devices."""
    engine: EngineConfig = EngineConfig()
    """The sampler's sizes."""
    verifiers: PoolConfig = PoolConfig()
    """Worker processes that score responses."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When to save."""
    logging: LoggingConfig = LoggingConfig()
    """Console and metrics."""
    data: tuple[Source, ...] = ()
    """Named data sources."""
    tasks: tuple[Task, ...] = ()
    """Named evaluations."""
    stages: tuple[Stage, ...] = Field(min_length=1)
    """What the run does, in order."""

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        _unique("data", [s.name for s in self.data])
        _unique("tasks", [t.name for t in self.tasks])
        _unique("stages", [s.name for s in self.stages])
        for source in self.data:
            if source.verifier is not None:
                try:
                    build(source.verifier)
                except ValueError as error:
                    raise ValueError(f"data.{source.name}.verifier: {error}") from error
        for task in self.tasks:
            where = f"tasks.{task.name}.data"
            _known(where, task.data, [s.name for s in self.data], "data")
            self._check_scored(where, task.data)
            for source in self.sources(task.data):
                if isinstance(source, ProceduralSource) and source.limit is None:
                    raise ValueError(
                        f"{where}: source {source.name!r} has no end; set its limit to the number "
                        "of problems"
                    )
        earlier: list[str] = []
        for stage in self.stages:
            self._check_stage(stage, earlier)
            earlier.append(stage.name)
        return self

    def _check_stage(self, stage: Any, earlier: list[str]) -> None:
        where = f"stages.{stage.name}"
        if stage.name in ("previous", "base"):
            raise ValueError(f"{where}.name: {stage.name!r} has a meaning in init; choose another")
        self._check_weights(f"{where}.init", stage.init, earlier)
        if isinstance(stage, RlStage) and stage.teacher is not None:
            self._check_weights(f"{where}.advantage.teacher", stage.teacher, earlier)
        if isinstance(stage, TrainStage):
            _known(f"{where}.data", stage.data, [s.name for s in self.data], "data")
            self._check_made(f"{where}.data", stage.data, earlier)
        if isinstance(stage, RlStage):
            self._check_scored(f"{where}.data", stage.data)
            self._check_components(where, stage)
            if stage.lm_mix is not None:
                at = f"{where}.lm_mix.data"
                _known(at, stage.lm_mix.data, [s.name for s in self.data], "data")
                self._check_made(at, stage.lm_mix.data, earlier)
        tasks = tasks_of(stage)
        at = f"{where}.eval.tasks" if isinstance(stage, TrainStage) else f"{where}.tasks"
        self.check_tasks(at, tasks)
        for name in tasks:
            self._check_made(f"{at}: {name!r}", self.task(name).data, earlier)

    def _check_weights(self, where: str, name: str, earlier: Sequence[str]) -> None:
        """Refuses names of stages that have no weights yet, or never."""
        if name in [s.name for s in self.stages if s.name not in earlier]:
            raise ValueError(
                f"{where} = {name!r} is not an earlier stage; earlier are {earlier or 'none'}"
            )
        if name in [s.name for s in self.stages if not isinstance(s, TrainStage)]:
            raise ValueError(
                f"{where} = {name!r} is a stage that does not train, so it has no weights of its "
                "own; name one that does"
            )

    def _check_made(self, where: str, names: Sequence[str], earlier: Sequence[str]) -> None:
        """Refuses sources that read what no stage in `earlier` writes."""
        for source in self.sources(names):
            made_by = stage_of(source)
            if made_by is None:
                continue
            if made_by not in earlier:
                raise ValueError(
                    f"{where}: source {source.name!r} reads the output of stage {made_by!r}, "
                    f"which is not an earlier stage; earlier are {list(earlier) or 'none'}"
                )
            stage = next(s for s in self.stages if s.name == made_by)
            file = source.path.partition("/")[2]
            if not file.startswith(_OUTPUTS.get(stage.type, ())):
                raise ValueError(
                    f"{where}: source {source.name!r} has path = {source.path!r}, which stage "
                    f"{made_by!r} of type {stage.type!r} does not write; name output.jsonl, "
                    "right.jsonl or pairs.jsonl of an evaluation"
                )

    def _check_scored(self, where: str, names: Sequence[str]) -> None:
        for source in self.sources(names):
            if source.verifier is None and not isinstance(source, ProceduralSource):
                raise ValueError(
                    f"{where}: source {source.name!r} has no verifier, so its answers cannot be "
                    "scored; give it one, such as verifier = { type = 'math_answer' }"
                )
            if isinstance(source, FileSource) and source.fields.reference is None:
                if source.verifier is not None and needs_reference(source.verifier):
                    raise ValueError(
                        f"{where}: source {source.name!r} names no reference, and its verifier "
                        f"compares with one; set data.{source.name}.fields.reference"
                    )

    def _check_components(self, where: str, stage: RlStage) -> None:
        """Refuses what reads components of scores that no verifier of the stage gives."""
        read = [(f"{where}.advantage", stage.advantage.type, stage.advantage.components, False)]
        for shaping in stage.shaping:
            read.append((f"{where}.shaping", shaping.type, shaping.components, shaping.only_adds))
        specs = {source.name: source.verifier for source in self.sources(stage.data)}
        for at, kind, wanted, only_adds in read:
            given = {
                name: {x for x in wanted if spec and has_component(build(spec), x, name)}
                for name, spec in specs.items()
            }
            missing = [x for x in wanted if not any(x in found for found in given.values())]
            lacking = [name for name, found in given.items() if wanted and not found]
            if not missing and (only_adds or not lacking):
                continue
            component = (missing or wanted)[0]
            source = (lacking or list(specs))[0]
            kept = repr((specs[source] or {}).get("type", "…"))
            raise ValueError(
                f"{at}: {kind!r} reads the component {component!r} of scores, and the verifier of "
                f"source {source!r} gives none of this name; give it one with such a part: "
                f"data.{source}.verifier = {{ type = 'weighted', parts = [{{ verifier = {{ type = "
                f"{kept} }} }}, {{ verifier = {{ type = 'format' }}, name = {component!r}, weight "
                "= 0 }] }"
            )

    def check_tasks(self, where: str, names: Sequence[str]) -> None:
        """Raises ValueError, naming `where`, if a task is not in the config."""
        _known(where, names, [t.name for t in self.tasks], "tasks")

    def sources(self, names: Sequence[str]) -> list[Any]:
        """The data sources of these names."""
        return [next(s for s in self.data if s.name == name) for name in names]

    def stage_seed(self, stage: StageBase, part: int = 0) -> int:
        """Decides a stage's order of data and its sampling, 32 bits.

        Each stage has its own, else two that use one source would see the same problems in the
        same order; and so has each part of a step that samples several times.
        """
        text = f"{self.seed}/{stage.name}/{part}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest())

    def task(self, name: str) -> Task:
        """The task of this name."""
        return next(t for t in self.tasks if t.name == name)


STAGE_PREFIX = "stage:"
# Type of a stage -> what the paths of its data begin with, in its folder.
_OUTPUTS = {"eval": ("output.jsonl", "right.jsonl", "pairs.jsonl"), "rl": ("rollouts/",)}


def stage_of(source: Any) -> str | None:
    """The stage whose output a source reads (`path = "stage:NAME/right.jsonl"`), or None."""
    path = getattr(source, "path", "")
    return path.removeprefix(STAGE_PREFIX).split("/")[0] if path.startswith(STAGE_PREFIX) else None


def _unique(what: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{what}: two are named {name!r}; give each its own name")


def _known(where: str, names: Sequence[str], known: list[str], table: str) -> None:
    import difflib

    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {known}"
            raise ValueError(f"{where}: no [[{table}]] is named {name!r}; {hint}")
        if names.count(name) > 1:
            raise ValueError(f"{where}: {name!r} stands there twice; name it once")

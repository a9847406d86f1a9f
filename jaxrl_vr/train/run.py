"""A whole run: open or resume its folder, go through its stages, say what came out.

A run folder holds `config.toml` (resolved), `metrics.jsonl`, `tensorboard/`, `summary.json`,
`README.md`, and a folder a stage: `checkpoints/`, `final/` (parameters), `rollouts/`,
`output.jsonl`, and `result.json`, which is written last and marks the stage as done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import platform
from collections.abc import Collection
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from jaxrl_vr.checkpoint import parameter_hash, save_arrays
from jaxrl_vr.metrics.console import Console
from jaxrl_vr.metrics.writer import Writer
from jaxrl_vr.models import hf, hf_export
from jaxrl_vr.models.hf_config import with_rotary
from jaxrl_vr.sampler.sizes import check_attention
from jaxrl_vr.sharding import make_mesh
from jaxrl_vr.train.check import (
    check_optimizers,
    check_texts,
    check_verifiers,
    checked_mesh,
    oddities,
)
from jaxrl_vr.train.config import PretrainedModel, RunConfig
from jaxrl_vr.train.context import Context
from jaxrl_vr.train.dpo import run_dpo
from jaxrl_vr.train.evaluate import Evaluation, evaluate, write_answers
from jaxrl_vr.train.folder import (
    begin,
    check_folder,
    held,
    read_result,
    result_file,
    write_json,
)
from jaxrl_vr.train.interrupt import Interrupt
from jaxrl_vr.train.micro import OutOfMemory, is_out_of_memory
from jaxrl_vr.train.mixtures import Mixtures
from jaxrl_vr.train.models import Built, build_model, check_init, export_folder, load_init
from jaxrl_vr.train.rl import run_rl
from jaxrl_vr.train.rl_stage import RlStage
from jaxrl_vr.train.sft import run_sft
from jaxrl_vr.train.speed import stopwatch, unknown_peak
from jaxrl_vr.train.stages import DpoStage, EvalStage, ExportStage, SftStage, StageBase
from jaxrl_vr.train.teacher import TEACHER, check_teacher, load_teacher, teacher_model
from jaxrl_vr.types import Group
from jaxrl_vr.verifiers.pool import Pool

# Of a prompt in the tables at the end of a run.
_SHOWN_CHARACTERS = 120


def run(config: RunConfig) -> dict[str, Any]:
    """Runs or resumes a run to its end.

    Returns:
      What `summary.json` holds.

    Raises:
      ValueError: the folder holds a run with another config, or an input is at fault.
      Interrupted: after SIGINT or SIGTERM, with everything saved.
    """
    folder = Path(config.run_dir)
    with contextlib.ExitStack() as stack:
        stack.enter_context(held(folder))
        done = check_folder(config, folder)
        begin(config, folder)
        mesh, built, mixtures = build(config)
        _check_stages(config, built, mixtures, done)
        interrupt = stack.enter_context(Interrupt())
        ctx = open_context(config, mesh, built, mixtures, folder, stack, interrupt)
        for oddity in oddities(config):
            ctx.console.warn(oddity)
        if (note := unknown_peak(config.logging.peak_flops, mesh)) is not None:
            ctx.console.message(note)
        for stage in config.stages:
            if stage.name in done:
                ctx.console.message(f"{stage.name}: done before")
            else:
                _run_stage(ctx, stage)
        summary = _summary(ctx)
        write_json(folder / "summary.json", summary)
        _show(ctx, summary)
        return summary


def check(config: RunConfig) -> list[str]:
    """All that `run` checks before its first step, without a model's memory or a trace on disk.

    Returns:
      What was not checked, because it would have to be downloaded.

    Raises:
      ValueError: what `run` would raise.
    """
    done = check_folder(config, Path(config.run_dir))
    with Pool(config.verifiers) as pool:
        check_verifiers(config, pool)
    if isinstance(config.model, PretrainedModel) and hf.is_hub_id(config.model.path):
        return [
            f"model.path = {config.model.path!r} is no folder here but may be on the hub, so "
            "nothing that depends on the model was checked: sizes, init, data"
        ]
    _, built, mixtures = build(config)
    away = {
        f"stages.{stage.name}.{key}": name
        for stage in config.stages
        for key, name in _weights(stage).items()
        if stage.name not in done and hf.is_hub_id(name)
    }
    _check_stages(config, built, mixtures, done, away=away.values())
    return [
        f"{key} = {name!r} is no folder here but may be on the hub, so it was not checked"
        for key, name in away.items()
    ]


def build(config: RunConfig) -> tuple[jax.sharding.Mesh, Built, Mixtures]:
    """The devices, the model and (still to be opened) the data of a run.

    Raises:
      ValueError: the config does not fit devices or model; several hosts.
    """
    keep_compiled()
    if jax.process_count() > 1:
        raise ValueError(
            f"JAX sees {jax.process_count()} hosts, and a run is on the devices of one so far; "
            "start it on a slice with one host, or plan it for this one: jaxrl-vr plan"
        )
    built = build_model(config)
    mesh = checked_mesh(config, built.model.arch, lambda: make_mesh(config.mesh))
    device, model = mesh.devices.flat[0], built.model
    check_attention(config.engine, model.dtype, model.arch.head_dim, device)
    check_optimizers(config, model)
    check_texts(config, built.tokenizer, built.model.vocab_size)
    return mesh, built, Mixtures(config, built.tokenizer, built.model.max_length)


def _check_stages(
    config: RunConfig,
    built: Built,
    mixtures: Mixtures,
    done: list[str],
    *,
    away: Collection[str] = (),
) -> None:
    """Refuses stages that are still to come and would fail when they start.

    Weights whose names are in `away` are not looked up.
    """
    folder = Path(config.run_dir)
    for stage in config.stages:
        if stage.name not in done:
            if stage.init not in away:
                check_init(config, folder, built, stage, done)
            teacher = _weights(stage).get(TEACHER)
            if teacher is not None and teacher not in away:
                check_teacher(config, folder, built, teacher, done)
            mixtures.check(stage)
            if isinstance(stage, ExportStage):
                hf_export.check_export_folder(export_folder(config, stage))


def _weights(stage: StageBase) -> dict[str, str]:
    """What names the weights that a stage loads, by its key."""
    names = {"init": stage.init}
    if isinstance(stage, RlStage) and stage.teacher is not None:
        names[TEACHER] = stage.teacher
    return names


def keep_compiled() -> None:
    """Keeps compiled programs in the user's cache folder, unless jax was told of another place."""
    option = "jax_compilation_cache_dir"
    if not getattr(jax.config, option):
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update(option, str(caches / "jaxrl_vr" / "compiled"))


def open_context(
    config: RunConfig,
    mesh: jax.sharding.Mesh,
    built: Built,
    mixtures: Mixtures,
    metrics: Path,
    stack: contextlib.ExitStack,
    interrupt: Interrupt,
) -> Context:
    """Opens what stages work with.

    Args:
      config: of the run; what its stages made is looked up in its `run_dir`.
      mesh, built, mixtures: what `build` made of it.
      metrics: folder that metrics are written to.
      stack: closes everything again.
      interrupt: asked where the work can end.
    """
    folder = Path(config.run_dir)
    console = stack.enter_context(Console(config.logging.console))
    pool = stack.enter_context(Pool(config.verifiers))
    check_verifiers(config, pool, interrupt.check)
    writer = stack.enter_context(Writer(metrics, config.logging, config.model_dump()))

    return Context(
        config=config,
        folder=folder,
        mesh=mesh,
        model=built.model,
        tokenizer=built.tokenizer,
        mixtures=mixtures,
        console=console,
        writer=writer,
        phases=stopwatch(config.logging.peak_flops, mesh),
        pool=pool,
        interrupt=interrupt,
        load_init=lambda stage: load_init(config, folder, built, mesh, stage),
        load_teacher=lambda name: load_teacher(config, folder, built, mesh, name),
        teacher_model=lambda name: teacher_model(config, built, name),
        model_folder=built.folder,
    )


def _run_stage(ctx: Context, stage: Any) -> None:
    folder = ctx.stage_folder(stage.name)
    folder.mkdir(parents=True, exist_ok=True)
    before = ctx.phases.seconds()
    result: dict[str, Any] = {"stage": stage.name, "type": stage.type, "evaluations": []}
    final: Any = None
    if isinstance(stage, SftStage | DpoStage | RlStage):
        final, evaluations = _train(ctx, stage)
        result["evaluations"] = [dataclasses.asdict(e) for e in evaluations]
    elif isinstance(stage, EvalStage):
        result["evaluations"] = _run_eval(ctx, stage)
    elif isinstance(stage, ExportStage):
        result["path"] = str(_run_export(ctx, stage))
    if final is not None:
        result["parameter_hash"] = parameter_hash(final)
        save_arrays(folder / "final", final)
    now = ctx.phases.seconds()
    result["seconds"] = {k: round(v - before.get(k, 0.0), 3) for k, v in now.items()}
    write_json(result_file(ctx.folder, stage.name), result)


def _train(ctx: Context, stage: SftStage | DpoStage | RlStage) -> tuple[Any, list[Evaluation]]:
    try:
        if isinstance(stage, SftStage):
            return run_sft(ctx, stage)
        if isinstance(stage, DpoStage):
            return run_dpo(ctx, stage)
        return run_rl(ctx, stage)
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, MemoryError) or is_out_of_memory(error):
            raise OutOfMemory(stage.name, error) from error
        raise


def _run_eval(ctx: Context, stage: EvalStage) -> list[dict[str, Any]]:
    weights = ctx.load_init(stage)
    ctx.writer.truncate(stage.name, -1)  # of an evaluation that was killed
    ctx.console.stage(stage.name, len(stage.tasks), 0)
    groups: list[Group] = []
    found: list[Evaluation] = []
    for done, name in enumerate(stage.tasks, start=1):
        answers = evaluate(ctx, ctx.config.task(name), weights, stage.name)
        groups += answers.groups
        found.append(answers.evaluation)
        ctx.console.step(done, {f"eval/{name}/accuracy": answers.evaluation.accuracy})
    write_answers(ctx, ctx.stage_folder(stage.name), groups)
    return [dataclasses.asdict(e) for e in found]


def _run_export(ctx: Context, stage: ExportStage) -> Path:
    out = export_folder(ctx.config, stage)
    export(ctx, ctx.load_init(stage), out, stage.dtype)
    ctx.console.message(f"{stage.name}: wrote {out}")
    return out


def export(ctx: Context, weights: Any, out: Path, dtype: hf_export.FileDtype) -> None:
    """Writes a folder that `transformers` loads: config, weights, tokenizer."""
    source = None if ctx.model_folder is None else hf.read_config(ctx.model_folder)
    arch = ctx.model.arch
    section = ctx.config.model
    if source is not None and isinstance(section, PretrainedModel):
        # The config may have limited the context; the folder keeps all that the model takes.
        unlimited = section.model_copy(update={"max_length": None})
        arch = unlimited.architecture(hf.architecture_from_config(source))
        if section.rope_scaling is not None:
            source = with_rotary(source, arch)
    hf_export.export(
        out,
        arch,
        weights,
        dtype=dtype,
        source_config=source,
        eos_ids=ctx.tokenizer.eos_ids,
        save_tokenizer=ctx.tokenizer.save,
    )


def _summary(ctx: Context) -> dict[str, Any]:
    results = [read_result(ctx.folder, s.name) for s in ctx.config.stages]
    seconds: dict[str, float] = {}
    for result in results:
        for phase, value in result["seconds"].items():
            seconds[phase] = round(seconds.get(phase, 0.0) + value, 3)
    hashes = [r["parameter_hash"] for r in results if "parameter_hash" in r]
    return {
        "evaluations": [e for r in results for e in r["evaluations"]],
        "seconds": seconds,
        "parameter_hash": hashes[-1] if hashes else None,
        "stages": [{k: v for k, v in r.items() if k != "evaluations"} for r in results],
        "seed": ctx.config.seed,
        "machine": {
            "platform": platform.platform(),
            "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "jax": jax.__version__,
            "jaxrl_vr": metadata.version("jaxrl-vr"),
        },
    }


def _show(ctx: Context, summary: dict[str, Any]) -> None:
    """The table of evaluations, and the same problems' answers in the first and last of them."""
    final = [e for e in summary["evaluations"] if e["step"] is None]
    if final:
        show_evaluations(ctx, final)
    stages = [s.name for s in ctx.config.stages if isinstance(s, EvalStage)]
    for name in dict.fromkeys((stages[0], stages[-1])) if stages else ():
        answers = ctx.stage_folder(name) / "output.jsonl"
        if not answers.exists():
            continue  # someone needed the space
        with answers.open(encoding="utf-8") as lines:
            records = [json.loads(line) for line in itertools.islice(lines, 3)]
        shown = [(_tail(r["prompt"]), r["completion"], r["verdict"]) for r in records]
        ctx.console.samples(f"Answers: {name}", shown)
    ctx.console.message(f"run folder: {ctx.folder}")


def _tail(prompt: str) -> str:
    """The end of a prompt, where a rendered chat has its question."""
    text = prompt.strip()
    return text if len(text) <= _SHOWN_CHARACTERS else "…" + text[-_SHOWN_CHARACTERS:]


def show_evaluations(ctx: Context, evaluations: list[dict[str, Any]]) -> None:
    """A table with a row for each."""
    rows = [
        [
            e["stage"],
            e["task"],
            str(e["n"]),
            f"{100 * e['accuracy']:.1f} %",
            f"{e['mean_length']:.1f}",
            f"{100 * e['truncated_rate']:.1f} %",
        ]
        for e in evaluations
    ]
    columns = ["stage", "task", "problems", "accuracy", "tokens", "truncated"]
    ctx.console.table("Evaluations", columns, rows)

"""A whole run: open or resume its folder, go through its stages, say what came out.

A run folder holds `config.toml` (resolved), `metrics.jsonl`, `tensorboard/`, `summary.json`,
`README.md`, and a folder a stage: `checkpoints/`, `final/` (parameters), `rollouts/`,
`output.jsonl`, and `result.json`, which is written last and marks the stage as done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from jaxrl_vr.checkpoint import load_arrays, parameter_hash, save_arrays
from jaxrl_vr.config import difference, dump, load
from jaxrl_vr.metrics.console import Console
from jaxrl_vr.metrics.throughput import Phases
from jaxrl_vr.metrics.writer import Writer
from jaxrl_vr.models import hf, params
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.sharding import TRAIN_RULES, make_mesh
from jaxrl_vr.train.check import check_sizes, oddities
from jaxrl_vr.train.config import (
    MAY_CHANGE,
    EvalStage,
    ExportStage,
    RlStage,
    RunConfig,
    SftStage,
    StageBase,
    TrainStage,
)
from jaxrl_vr.train.context import Context
from jaxrl_vr.train.evaluate import Evaluation, evaluate, write_answers
from jaxrl_vr.train.interrupt import Interrupt
from jaxrl_vr.train.models import build_model, load_base, load_folder
from jaxrl_vr.train.rl import run_rl
from jaxrl_vr.train.sft import run_sft
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
    _open_folder(config, folder)
    with contextlib.ExitStack() as stack:
        ctx = open_context(config, folder, stack, stack.enter_context(Interrupt()))
        for oddity in oddities(config):
            ctx.console.warn(oddity)
        for stage in config.stages:
            if (ctx.stage_folder(stage.name) / "result.json").exists():
                ctx.console.message(f"{stage.name}: done before")
            else:
                _run_stage(ctx, stage)
        summary = _summary(ctx)
        _write_json(folder / "summary.json", summary)
        _show(ctx, summary)
        return summary


def open_context(
    config: RunConfig, metrics: Path, stack: contextlib.ExitStack, interrupt: Interrupt
) -> Context:
    """Opens what stages work with.

    Args:
      config: of the run; what its stages made is looked up in its `run_dir`.
      metrics: folder that metrics are written to.
      stack: closes everything again.
      interrupt: asked where the work can end.
    """
    folder = Path(config.run_dir)
    console = stack.enter_context(Console(config.logging.console))
    mesh = make_mesh(config.mesh)
    built = build_model(config)
    check_sizes(config, built.model.max_length, mesh)
    pool = stack.enter_context(Pool(config.verifiers))
    writer = stack.enter_context(Writer(metrics, config.logging, config.model_dump()))

    def load_init(stage: StageBase) -> Any:
        return _load_init(config, folder, built.model, built.folder, mesh, stage)

    return Context(
        config=config,
        folder=folder,
        mesh=mesh,
        model=built.model,
        tokenizer=built.tokenizer,
        console=console,
        writer=writer,
        phases=Phases(),
        pool=pool,
        interrupt=interrupt,
        load_init=load_init,
        model_folder=built.folder,
    )


def _run_stage(ctx: Context, stage: Any) -> None:
    folder = ctx.stage_folder(stage.name)
    folder.mkdir(parents=True, exist_ok=True)
    before = ctx.phases.seconds()
    result: dict[str, Any] = {"stage": stage.name, "type": stage.type, "evaluations": []}
    final: Any = None
    if isinstance(stage, SftStage):
        final, evaluations = run_sft(ctx, stage)
        result["evaluations"] = [dataclasses.asdict(e) for e in evaluations]
    elif isinstance(stage, RlStage):
        final, evaluations = run_rl(ctx, stage)
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
    _write_json(folder / "result.json", result)


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
    out = Path(stage.path) if stage.path else ctx.stage_folder(stage.name) / "hf"
    export(ctx, ctx.load_init(stage), out, stage.dtype)
    ctx.console.message(f"{stage.name}: wrote {out}")
    return out


def export(ctx: Context, weights: Any, out: Path, dtype: hf.FileDtype) -> None:
    """Writes a folder that `transformers` loads: config, weights, tokenizer."""
    source = None if ctx.model_folder is None else hf.read_config(ctx.model_folder)
    # The config may have limited the context; the folder keeps the model's own.
    arch = ctx.model.arch if source is None else hf.architecture_from_config(source)
    hf.export(
        out,
        arch,
        weights,
        dtype=dtype,
        source_config=source,
        eos_ids=ctx.tokenizer.eos_ids,
        save_tokenizer=ctx.tokenizer.save,
    )


def _load_init(
    config: RunConfig,
    folder: Path,
    model: Transformer,
    model_folder: Path | None,
    mesh: jax.sharding.Mesh,
    stage: StageBase,
) -> Any:
    """The parameters a stage starts from, in the learner's sharding."""
    name = stage.init
    if name == "previous":
        earlier = config.stages[: [s.name for s in config.stages].index(stage.name)]
        trained = [s.name for s in earlier if isinstance(s, TrainStage)]
        name = trained[-1] if trained else "base"
    if name == "base":
        return load_base(config, model, model_folder, mesh)
    if name in [s.name for s in config.stages]:
        final = folder / "stages" / name / "final"
        if not final.is_dir():
            raise ValueError(
                f"init: stage {name!r} has no parameters yet, {final} is not there; let "
                "`jaxrl-vr train` run it first"
            )
        return load_arrays(final, params.abstract(model.declare(), TRAIN_RULES, mesh))
    try:
        model_folder = hf.locate(name)
    except ValueError as error:
        known = [s.name for s in config.stages]
        raise ValueError(f"init = {name!r} is none of the stages {known}, and as a {error}") from (
            error
        )
    arch, weights = load_folder(model_folder, mesh)
    if arch.model_copy(update={"max_length": model.arch.max_length}) != model.arch:
        raise ValueError(
            f"init = {name!r} holds a model of another shape ({arch}) than [model] "
            f"({model.arch}); name a folder of the same model"
        )
    return weights


def _open_folder(config: RunConfig, folder: Path) -> None:
    """Makes the folder, or checks that what it holds is this run."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"run_dir = {config.run_dir!r} is a file; name a folder, new or of a run")
    path = folder / "config.toml"
    # A run that saved nothing yet has nothing to lose, and its config may have been the fault.
    is_begun = any(folder.glob("stages/*/checkpoints/*")) or any(folder.glob("stages/*/*.json"))
    if path.exists() and is_begun:
        before = load(RunConfig, [path])
        differing = difference(before, config, may_change=MAY_CHANGE)
        if differing:
            raise ValueError(
                f"{folder} holds a run with another config, and these keys cannot change:\n  "
                + "\n  ".join(differing)
                + "\nset them back, or choose another run_dir"
            )
        _check_steps(before, config, folder)
    folder.mkdir(parents=True, exist_ok=True)
    _write_text(path, dump(config))
    (folder / "README.md").write_text(_FOLDER_README, encoding="utf-8")


def _check_steps(before: RunConfig, now: RunConfig, folder: Path) -> None:
    """A stage's length may change until it is done, if its learning rates do not hang on it."""
    for old, new in zip(before.stages, now.stages, strict=True):
        if isinstance(old, TrainStage) and isinstance(new, TrainStage) and old.steps != new.steps:
            schedule = new.optimizer.schedule
            if schedule.type != "constant" and schedule.total_steps is None:
                raise ValueError(
                    f"stages.{new.name}.steps was {old.steps}, now {new.steps}, but its "
                    f"{schedule.type} schedule ends with the stage, so past steps would have had "
                    "other learning rates; set it back, or choose another run_dir (with "
                    "optimizer.schedule.total_steps set, steps may change later)"
                )
            if (folder / "stages" / new.name / "result.json").exists():
                raise ValueError(
                    f"stages.{new.name}.steps was {old.steps}, now {new.steps}, but the stage is "
                    "done and is not run again; set it back, or choose another run_dir"
                )


def _summary(ctx: Context) -> dict[str, Any]:
    results = [
        json.loads((ctx.stage_folder(s.name) / "result.json").read_text())
        for s in ctx.config.stages
    ]
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
        lines = (ctx.stage_folder(name) / "output.jsonl").read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines[:3]]
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


def _write_json(path: Path, value: Any) -> None:
    _write_text(path, json.dumps(value, indent=1) + "\n")


def _write_text(path: Path, text: str) -> None:
    """Writes the whole file or nothing."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


_FOLDER_README = """# A run of jaxrl_vr

- `config.toml`: the resolved config; `jaxrl-vr train config.toml` goes on with this run
- `summary.json`: every evaluation, seconds of each phase, hash of the final parameters
- `metrics.jsonl`: one line a step; `tensorboard/`: the same for TensorBoard
- `stages/NAME/rollouts/`: what was sampled at each step, its score and why
- `stages/NAME/output.jsonl`, `right.jsonl`: answers of an evaluation, usable as data
- `stages/NAME/final/`: parameters at the end of a stage; `jaxrl-vr export` makes a Hugging Face
  folder of them
- `stages/NAME/checkpoints/`: what a resumed run starts from
- `stages/NAME/result.json`: written when the stage is done
"""

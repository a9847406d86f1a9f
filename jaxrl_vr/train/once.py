"""The commands that use weights once: evaluate them, sample from them, export them."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxrl_vr.data.prompts import prompt
from jaxrl_vr.data.template import ChatTemplate, PlainTemplate
from jaxrl_vr.models.hf_export import FileDtype
from jaxrl_vr.sampler.generate import generate
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.context import Context
from jaxrl_vr.train.evaluate import evaluate, write_answers
from jaxrl_vr.train.folder import held
from jaxrl_vr.train.interrupt import Interrupt
from jaxrl_vr.train.rl_stage import RlStage
from jaxrl_vr.train.run import build, export, open_context, show_evaluations
from jaxrl_vr.train.stages import EvalStage, StageBase
from jaxrl_vr.types import Example


@contextlib.contextmanager
def _opened(config: RunConfig, init: str, metrics: Path | None) -> Iterator[tuple[Context, Any]]:
    """A context apart from the run's own outputs, and the weights that `init` names.

    Metrics go to a folder of their own, or, with None, nowhere.
    """
    if init == "previous":
        raise ValueError("--init previous: there is no previous stage here; name a stage, or base")
    quiet = config.logging.model_copy(update={"tensorboard": False, "wandb": None})
    config = config.model_copy(update={"logging": quiet})
    with contextlib.ExitStack() as stack:
        if metrics is None:
            metrics = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # Not entered: there is nothing to save, so a signal may end these commands anywhere.
        mesh, built, mixtures = build(config)
        ctx = open_context(config, mesh, built, mixtures, metrics, stack, Interrupt())
        yield ctx, ctx.load_init(StageBase(name="once", init=init))


def evaluate_once(config: RunConfig, init: str, names: Sequence[str] | None) -> None:
    """Evaluates on tasks (all by default), prints a table, and keeps answers and numbers.

    They go to `evaluations/INIT/` in the run folder: `result.json`, and the files of
    `write_answers`.
    """
    names = list(names or [t.name for t in config.tasks])
    if not names:
        raise ValueError("eval: the config has no [[tasks]]; add one")
    stage = EvalStage(name="eval", tasks=tuple(names))
    config.check_tasks("--task", stage.tasks)
    out = Path(config.run_dir) / "evaluations" / init.replace("/", "_")
    with held(out), _opened(config, init, out) as (ctx, weights):
        ctx.console.stage("eval", len(names), 0)
        answers = [evaluate(ctx, config.task(name), weights, init) for name in names]
        write_answers(ctx, out, [g for a in answers for g in a.groups])
        found = [vars(a.evaluation) for a in answers]
        (out / "result.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        show_evaluations(ctx, found)
        ctx.console.message(f"answers: {out}")


def sample_once(config: RunConfig, init: str, prompts: Path | None, source: str | None) -> int:
    """Answers prompts from a file, or line by line from the keyboard.

    Returns:
      How many could not be asked; each is said, and the next one is asked.
    """
    rl = [s for s in config.stages if isinstance(s, RlStage)]
    if not rl and not config.tasks:
        raise ValueError("sample: the config has no stage or task with a [sampling] table; add one")
    sampling = rl[-1].sampling if rl else config.tasks[-1].sampling
    failed = 0
    with _opened(config, init, None) as (ctx, weights):
        template = _template(ctx, source)
        engine = ctx.engine(weights, 0)
        for number, (where, line) in enumerate(_lines(prompts)):
            key = (config.seed, number)
            try:
                asked = prompt(Example(str(number), line), template, ctx.tokenizer)
                for _, rollouts in generate(engine, [asked.ids], 1, ctx.sampling(sampling), key):
                    print(ctx.decode(rollouts[0].token_ids), flush=True)
            except ValueError as error:
                failed += 1
                print(f"error: {where}: {error}", file=sys.stderr, flush=True)
    return failed


def export_once(config: RunConfig, init: str, out: Path, dtype: FileDtype) -> None:
    """Writes the weights that `init` names as a Hugging Face folder."""
    with _opened(config, init, None) as (ctx, weights):
        export(ctx, weights, out, dtype)
        ctx.console.message(f"wrote {out}")


def _template(ctx: Context, source: str | None) -> Any:
    if source is not None:
        known = [s.name for s in ctx.config.data]
        if source not in known:
            raise ValueError(f"--source {source}: no [[data]] has this name; there are {known}")
        return ctx.config.sources([source])[0].template
    return ChatTemplate() if getattr(ctx.tokenizer, "has_chat_template", False) else PlainTemplate()


def _lines(prompts: Path | None) -> Iterator[tuple[str, str]]:
    """(where it stands, for messages; the prompt), blank lines left out."""
    if prompts is not None:
        if not prompts.is_file():
            raise ValueError(f"--prompts {prompts}: there is no such file")
        try:
            text = prompts.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"--prompts {prompts}: is not UTF-8 text; save it as such") from error
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield f"{prompts}:{number}", line
        return
    is_terminal = sys.stdin.isatty()
    if isinstance(sys.stdin, io.TextIOWrapper):
        # A line that is no text is refused like any other that cannot be asked.
        sys.stdin.reconfigure(errors="surrogateescape")
    for number in itertools.count(1):
        if is_terminal:
            print("> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield f"line {number}", line.rstrip("\n")

"""The command line: `jaxrl-vr train | eval | sample | verify | plan | export`.

Imports stay inside the functions, so that `--help` and config errors come at once.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxrl_vr.train.config import RunConfig

_INIT = "weights: base (those of [model]), a stage's name, or a model folder"
_VERIFY = "score the responses of a file, or explain one score"
_TYPES = (
    "math_answer, code_tests, constraints, …, or custom with verifier.path=package.module:function"
)
_NO_SPACE = "; make room, then the same command goes on from the last checkpoint"


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a command; exits with 2 for faulty input and 1 for what failed on the way."""
    if argv is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until a run can save, Ctrl-C ends the process: as an exception it could strike inside of
        # jax, which swallows it or crashes. `train` answers signals by itself once it runs.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    # argparse takes no second list of arguments behind an option; overrides may stand there.
    unknown = [arg for arg in rest if arg.startswith("-")]
    if unknown:
        given = sys.argv[1:] if argv is None else argv
        args.parser.error(
            f"unrecognized arguments: {' '.join(unknown)}; {_instead(unknown[0], given, args)}"
        )
    args.config = [*args.config, *rest]
    try:
        _import_from_here()
        code = args.command(args)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        code = 1
    except (ValueError, OSError, RuntimeError, ArithmeticError, MemoryError) as error:
        if args.traceback:
            traceback.print_exc()
        hint = _NO_SPACE if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) else ""
        print(f"error: {error}{hint}", file=sys.stderr)
        code = 2 if isinstance(error, ValueError) else 1
    sys.exit(code)


def _instead(unknown: str, given: Sequence[str], args: argparse.Namespace) -> str:
    """What may be meant by an argument with dashes that the command does not have."""
    from jaxrl_vr.train.config import RunConfig

    option, is_assignment, value = unknown.partition("=")
    options = re.findall(r"--[a-z-]+", args.parser.format_help())
    # A key of the config is meant, unless it is an option but for a letter.
    is_key = option.lstrip("-") in RunConfig.model_fields
    near = difflib.get_close_matches(option, options, 1, 0.9 if is_key else 0.6)
    if near and "." not in option:
        return f"did you mean {near[0]}?"
    if not is_assignment:
        behind = [*given, "-"][list(given).index(unknown) + 1]
        value = "VALUE" if behind.startswith("-") or "=" in behind else behind
    return f"overrides have no dashes, write {option.lstrip('-')}={value}"


def _import_from_here() -> None:
    """Puts the working directory first where Python imports from, as `python -m` does.

    The console script has its own folder there instead, and a config may name a user's verifier.
    The workers that run it get the same list.
    """
    if not sys.flags.safe_path:
        here = os.getcwd()
        sys.path[:] = [here, *(path for path in sys.path if path not in ("", here))]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxrl-vr", description="Reinforcement learning from verifiable rewards, in JAX."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: object, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument(
            "config", nargs="+", help="TOML files, merged left to right, then a.b=value"
        )
        sub.add_argument("--traceback", action="store_true", help="show where an error arose")
        sub.set_defaults(command=function, parser=sub)
        return sub

    train = command("train", _train, "run the stages of a config, or resume them")
    train.add_argument(
        "--dry-run", action="store_true", help="print the resolved config and its arithmetic"
    )
    evaluate = command("eval", _eval, "evaluate weights on a config's tasks")
    evaluate.add_argument("--init", default="base", help=_INIT)
    evaluate.add_argument("--task", action="append", help="name of a task; default: all")
    sample = command("sample", _sample, "answer prompts, from the keyboard or a file")
    sample.add_argument("--init", default="base", help=_INIT)
    sample.add_argument("--prompts", type=_path, help="text file with a prompt a line")
    sample.add_argument("--source", help="data source whose template to use")
    verify = commands.add_parser("verify", help=_VERIFY, description=_VERIFY)
    verify.add_argument("file", nargs="?", type=_path, help="JSON Lines: reference and response")
    verify.add_argument("config", nargs="*", help="verifier.a=value, fields.a=value, pool.a=value")
    verify.add_argument("--verifier", metavar="NAME", help="type of the verifier: " + _TYPES)
    verify.add_argument("--out", type=_path, help="JSON Lines to write, a line for each line")
    verify.add_argument(
        "--explain", nargs=2, metavar=("REFERENCE", "RESPONSE"), help="print each stage for one"
    )
    verify.add_argument(
        "--sandbox-check", action="store_true", help="which isolation of programs holds here"
    )
    verify.add_argument("--traceback", action="store_true", help="show where an error arose")
    verify.set_defaults(command=_verify, parser=verify)
    plan = command("plan", _plan, "what a run takes on a topology, compiled for it here")
    plan.add_argument("--topology", required=True, help="chips and their shape: v5e:4x4, h100:8")
    plan.add_argument("--num-slices", type=int, default=1, help="of that topology, joined by DCN")
    plan.add_argument("--stage", help="name of the rl stage; default: the first")
    plan.add_argument(
        "--search", action="store_true", help="rank meshes and micro-batches, compile the best"
    )
    plan.add_argument("--json", type=_path, help="file to write it to as JSON")
    export = command("export", _export, "write a stage's weights as a Hugging Face folder")
    export.add_argument("--init", required=True, help=_INIT)
    export.add_argument("--out", type=_path, required=True, help="the folder to write")
    export.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    return parser


def _config(args: argparse.Namespace) -> RunConfig:
    from jaxrl_vr.config import load
    from jaxrl_vr.train.config import RunConfig

    # A name may hold a "=": what is there as a file is meant as one.
    files = [a for a in args.config if "=" not in a or os.path.isfile(a)]
    if not files:
        raise ValueError(
            f"no config file before {args.config[0]}; name one, such as configs/quickstart.toml"
        )
    return load(RunConfig, files, [a for a in args.config if a not in files])


def _path(text: str) -> Path:
    return Path(os.path.expanduser(text))


def _train(args: argparse.Namespace) -> int:
    config = _config(args)
    if args.dry_run:
        from jaxrl_vr.config import dump
        from jaxrl_vr.train.arithmetic import arithmetic
        from jaxrl_vr.train.check import oddities
        from jaxrl_vr.train.run import check

        unchecked = check(config)
        print(dump(config))
        print(arithmetic(config))
        for note in [*oddities(config), *unchecked]:
            print(f"note: {note}")
        return 0
    from jaxrl_vr.train.interrupt import Interrupted
    from jaxrl_vr.train.micro import OutOfMemory
    from jaxrl_vr.train.run import run

    try:
        run(config)
    except OutOfMemory as error:
        from jaxrl_vr.plan.shortage import explained

        print("out of memory; compiling what the stage takes ...", file=sys.stderr)
        said = explained(config, error, lambda text: print(text, file=sys.stderr, flush=True))
        raise RuntimeError(said) from error
    except Interrupted as interrupted:
        print(f"ended by {interrupted}; the same command goes on from here", file=sys.stderr)
        return 128 + interrupted.signum
    return 0


def _eval(args: argparse.Namespace) -> int:
    from jaxrl_vr.train.once import evaluate_once

    evaluate_once(_config(args), args.init, args.task)
    return 0


def _sample(args: argparse.Namespace) -> int:
    from jaxrl_vr.train.once import sample_once

    failed = sample_once(_config(args), args.init, args.prompts, args.source)
    return 2 if failed and args.prompts is not None else 0


def _verify(args: argparse.Namespace) -> int:
    from jaxrl_vr.config import load
    from jaxrl_vr.verifiers.score_file import VerifyConfig, score_file

    if args.file is not None and "=" in args.file.name and not args.file.exists():
        args.config.insert(0, str(args.file))  # an override that stands where the file may
        args.file = None
    if args.sandbox_check:
        from jaxrl_vr.verifiers.sandbox_level import check

        print(check())
        return 0
    if not args.verifier and not any(given.startswith("verifier") for given in args.config):
        raise ValueError("verify: no verifier; give --verifier NAME, such as math_answer")
    kind = [f"verifier.type={args.verifier}"] if args.verifier else []
    config = load(VerifyConfig, [], [*kind, *args.config])
    if args.explain is not None:
        from jaxrl_vr.types import Example
        from jaxrl_vr.verifiers.explain import explain

        reference, response = args.explain
        for line in explain(config.verifier, Example("0", "", reference), response):
            print(line)
        return 0
    if args.file is None:
        raise ValueError("verify: no file; name one, or give --explain REFERENCE RESPONSE")
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # so that the workers are ended
    start = time.monotonic()
    summary = score_file(args.file, args.out, config)
    print("\n".join(summary.lines(time.monotonic() - start)))
    return 0


def _plan(args: argparse.Namespace) -> int:
    from jaxrl_vr.plan.command import plan_command

    return plan_command(
        _config(args),
        args.topology,
        args.num_slices,
        args.stage,
        search=args.search,
        as_json=args.json,
    )


def _export(args: argparse.Namespace) -> int:
    from jaxrl_vr.models.hf_export import check_export_folder
    from jaxrl_vr.train.once import export_once

    check_export_folder(args.out)  # before the weights are loaded
    export_once(_config(args), args.init, args.out, args.dtype)
    return 0

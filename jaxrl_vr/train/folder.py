"""A run's folder: held by one process, with the config that its run began with.

Here is what a start checks of it, and how its small files are written. Not here: what a run does in
it (run.py), and the checkpoints of its stages (checkpoint.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from jaxrl_vr.checkpoint import Checkpoints
from jaxrl_vr.config import ConfigError, difference, dump, load
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.evaluate import Evaluation
from jaxrl_vr.train.rl_stage import RlStage
from jaxrl_vr.train.stages import TrainStage, tasks_of

_SERVICE = ("verifiers.workers", "verifiers.share", "verifiers.queue", "verifiers.max_unscorable")
MAY_CHANGE = ("run_dir", "logging", "checkpoint", "mesh", "engine", "model.remat", *_SERVICE)
"""Keys a resumed run may change at any time. A different mesh, and another way to recompute or cut
an update (`micro.rows` too), give the same numbers to rounding;
the number of verifier workers changes no score, as their limits would. What else may change depends
on how far the run is: see `settled`."""


def settled(config: RunConfig, num_begun: int, done: Collection[str]) -> dict[str, Any]:
    """The part of a config that a resumed run has to keep, but for `MAY_CHANGE`.

    A stage that has begun keeps its table and its data. `eval`, `steps` and `diagnostics`, which
    changes the numbers to rounding at most, may change until it is done, `steps` only where no
    learning-rate schedule hangs on it (`train.folder` checks that). A stage that is done keeps
    these too, and its tasks with their data. `profile`, `micro.rows` and `micro.share_prefixes` may
    change at any time.
    What only later stages use is not settled, so that a fault in it can be corrected.

    Args:
      config: of the run.
      num_begun: so many stages, from the first on, have begun.
      done: names of those that are done.
    """
    stages = config.stages[:num_begun]
    tasks = {name for stage in stages if stage.name in done for name in tasks_of(stage)}
    data = {name for stage in stages if isinstance(stage, TrainStage) for name in stage.sources}
    data |= {name for task in tasks for name in config.task(task).data}
    always: Any = {"profile": True, "micro": {"rows": True, "share_prefixes": True}}
    open_keys = {"eval": True, "steps": True, "diagnostics": True, **always}
    return config.model_dump() | {
        "stages": [s.model_dump(exclude=always if s.name in done else open_keys) for s in stages],
        "tasks": [t.model_dump() for t in config.tasks if t.name in tasks],
        "data": [s.model_dump() for s in config.data if s.name in data],
    }


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Makes the folder, and this process its only owner until the block or the process ends.

    Raises:
      ValueError: another process holds it.
    """
    _refuse_file(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+", encoding="utf-8") as file:
        try:
            # The system takes the lock back however a process ends, so none is ever stale.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "another process"
            raise ValueError(
                f"{folder} is in use by {owner}; wait until that ends, or choose another run_dir"
            ) from None
        except OSError as error:
            # A file system without locks is no reason not to run.
            if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                raise
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def check_folder(config: RunConfig, folder: Path) -> list[str]:
    """Refuses a folder that holds something else than this run; changes nothing in it.

    Returns:
      Names of the stages that are done.
    """
    _refuse_file(folder)
    # A run that saved nothing yet has nothing to lose, and its config may have been the fault.
    if not _begun(folder):
        return []
    path = folder / "config.toml"
    if not path.is_file():
        raise ValueError(
            f"{folder} holds a run that has begun, but no config.toml, so nothing tells whether "
            "it is this run; put the file back, or choose another run_dir"
        )
    try:
        before = load(RunConfig, [path])
    except ConfigError as error:
        raise ValueError(
            f"the run in {folder} has a config that cannot be read; put the file back as it was, "
            f"or choose another run_dir: {error}"
        ) from error
    _check_config(before, config, folder)
    done = [s.name for s in config.stages if result_file(folder, s.name).exists()]
    for name in done:
        read_result(folder, name)
    return done


def begin(config: RunConfig, folder: Path) -> None:
    """Writes what stands in the folder from the start."""
    write_text(folder / "config.toml", dump(config))
    write_text(folder / "README.md", _README)


def result_file(folder: Path, stage: str) -> Path:
    """The file that marks a stage as done."""
    return folder / "stages" / stage / "result.json"


def read_result(folder: Path, stage: str) -> dict[str, Any]:
    """The result of a stage that is done."""
    path = result_file(folder, stage)
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        for evaluation in result["evaluations"]:
            Evaluation(**evaluation)
        float(sum(result["seconds"].values()))
        return result
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged ({type(error).__name__}: {error}); put it back, or delete it: the "
            "stage then goes on from its last checkpoint (or begins anew, without one)"
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Writes the whole file or nothing."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes the whole file or nothing."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _refuse_file(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"run_dir = '{folder}' is a file; name a folder, new or of a run")


def _begun(folder: Path) -> set[str]:
    """Names of the stages that have saved something."""
    stages = [path.name for path in folder.glob("stages/*")]
    return {name for name in stages if _is_done(folder, name) or _step(folder, name) is not None}


def _is_done(folder: Path, stage: str) -> bool:
    return result_file(folder, stage).exists()


def _step(folder: Path, stage: str) -> int | None:
    """The newest checkpoint of a stage."""
    path = folder / "stages" / stage / "checkpoints"
    return Checkpoints(path, keep=1, asynchronous=False).latest()


def _check_config(before: RunConfig, now: RunConfig, folder: Path) -> None:
    names = [s.name for s in before.stages]
    begun = _begun(folder)
    num_begun = max((i + 1 for i, name in enumerate(names) if name in begun), default=0)
    done = {name for name in names if _is_done(folder, name)}
    differing = difference(
        settled(before, num_begun, done), settled(now, num_begun, done), may_change=MAY_CHANGE
    )
    if differing:
        raise ValueError(
            f"{folder} holds a run with another config, and these keys cannot change any more "
            f"({_progress(names[:num_begun], done)}):\n  "
            + "\n  ".join(differing)
            + "\nset them back, or choose another run_dir"
        )
    for old, new in zip(before.stages[:num_begun], now.stages, strict=False):
        if old.name not in done and isinstance(old, TrainStage) and isinstance(new, TrainStage):
            _check_steps(old, new)


def _progress(begun: list[str], done: set[str]) -> str:
    words = [f"{name} is {'done' if name in done else 'in progress'}" for name in begun]
    return ", ".join(words)


def _check_steps(old: TrainStage, new: TrainStage) -> None:
    """A stage's length may change on the way, if its learning rates do not hang on it."""
    if old.steps == new.steps:
        return
    optimizers = {"optimizer": new.optimizer}
    if isinstance(new, RlStage) and new.critic is not None:
        optimizers["critic.optimizer"] = new.critic.optimizer
    for name, optimizer in optimizers.items():
        schedule = optimizer.schedule
        if schedule.type != "constant" and schedule.total_steps is None:
            raise ValueError(
                f"stages.{new.name}.steps was {old.steps}, now {new.steps}, but its "
                f"{schedule.type} schedule ends with the stage, so past steps would have had other "
                "learning rates; set it back, or choose another run_dir (with "
                f"{name}.schedule.total_steps set, steps may change later)"
            )


_README = """# A run of jaxrl_vr

- `config.toml`: the resolved config; `jaxrl-vr train` with it goes on with this run, from the
  folder in which it was started
- `summary.json`: every evaluation, seconds of each phase, hash of the final parameters
- `metrics.jsonl`: one line a step; `tensorboard/`: the same for TensorBoard
- `stages/NAME/rollouts/`: what was sampled at each step, its score and why
- `stages/NAME/profile/`: traces of the steps that `profile.steps` names, for xprof
- `stages/NAME/output.jsonl`, `right.jsonl`, `pairs.jsonl`: answers of an evaluation, usable
  as data: all, the distinct right ones, and a right and a wrong one of each problem with both
- `stages/NAME/final/`: parameters at the end of a stage; `jaxrl-vr export` makes a Hugging Face
  folder of them
- `stages/NAME/checkpoints/`: what a resumed run starts from
- `stages/NAME/result.json`: written when the stage is done; without it, the stage goes on from its
  last checkpoint
- `lock`: held by the process that runs here
"""

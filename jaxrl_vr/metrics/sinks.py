"""Where metrics are written: JSON Lines, TensorBoard, Weights & Biases; and the logging config."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from jaxrl_vr.config import Config


class WandbConfig(Config):
    """Weights & Biases; needs the extra `wandb`."""

    project: str
    """Project that the run appears in."""
    name: str | None = None
    """Name of the run; None lets W&B make one up."""
    mode: Literal["online", "offline"] = "online"
    """`offline` writes to the run folder only, to be uploaded later with `wandb sync`."""


class LoggingConfig(Config):
    """What a run writes beside metrics.jsonl, and what it shows."""

    tensorboard: bool = True
    """Write TensorBoard events into the run folder."""
    wandb: WandbConfig | None = None
    """Send metrics to Weights & Biases; None does not."""
    rollouts: bool = True
    """Write the sampled rollouts of every step as JSON Lines; turn off to save disk space."""
    console: Literal["auto", "live", "plain", "off"] = "auto"
    """`live` redraws in place, `plain` prints a line a step, `off` just warnings; `auto` is live on
    a terminal and plain elsewhere."""
    peak_flops: float | None = Field(default=None, ge=1e6, lt=1e30)
    """FLOP/s of a device at most, which `speed/…_mfu` is measured against; None is its peak in
    bfloat16 by the table of chips, and no such metric for a device that is not in it."""


class JsonlSink:
    """A file with one JSON object a line, each handed to the system before `write` returns.

    Numbers that JSON does not have (nan, inf) are written as null. A last line that a kill or a
    crash has cut off is dropped when the file is opened.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _drop_cut_line(self.path)
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, step: int, stage: str, metrics: Mapping[str, float]) -> None:
        """Appends the metrics of one step as one line."""
        line = {"step": step, "stage": stage} | {k: strict(float(v)) for k, v in metrics.items()}
        self._file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()

    def truncate_after(self, is_newer: Callable[[dict[str, Any]], bool]) -> int:
        """Drops the lines that `is_newer` says are.

        To be called on resume: the steps behind the checkpoint are done again.

        Returns:
          The number of lines dropped.

        Raises:
          ValueError: a line is none that `write` writes; the file is left as it is.
        """
        kept, dropped = self.path.with_name(self.path.name + ".part"), 0
        try:
            with self.path.open("rb") as old, kept.open("wb") as new:
                for number, line in enumerate(old, 1):
                    if is_newer(_parsed(line, f"{self.path}:{number}")):
                        dropped += 1
                    else:
                        new.write(line)
            self._file.close()
            os.replace(kept, self.path)
        finally:
            kept.unlink(missing_ok=True)
        self._file = self.path.open("a", encoding="utf-8")
        return dropped

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TensorBoardSink:
    """TensorBoard events, one folder a stage so that each has its own curve."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._writers: dict[str, Any] = {}

    def write(self, step: int, stage: str, metrics: Mapping[str, float]) -> None:
        """Adds the metrics of one step."""
        if stage not in self._writers:
            from tensorboardX import SummaryWriter

            # A resumed run writes its steps again; purge_step hides the first version of them.
            self._writers[stage] = SummaryWriter(str(self._folder / stage), purge_step=step)
        for name, value in metrics.items():
            self._writers[stage].add_scalar(name, float(value), step)
        self._writers[stage].flush()

    def close(self) -> None:
        """Writes what is left."""
        for writer in self._writers.values():
            writer.close()


class WandbSink:
    """Weights & Biases.

    Args:
      config: project, name, mode.
      folder: of the run, for W&B's own files.
      run: the resolved config of the run, shown beside the curves.
      id: of the W&B run; the same id continues it.
    """

    def __init__(
        self, config: WandbConfig, *, folder: str | Path, run: Mapping[str, Any], id: str
    ) -> None:
        try:
            import wandb  # pyright: ignore[reportMissingImports]  # an extra, often absent
        except ModuleNotFoundError as error:
            raise ValueError(
                "logging.wandb is set, and the package wandb is not installed: run "
                '`pip install "jaxrl-vr[wandb]"`, or leave the table out'
            ) from error
        self._run = wandb.init(
            project=config.project,
            name=config.name,
            mode=config.mode,
            dir=str(folder),
            config=dict(run),
            id=id,
            resume="allow",
        )
        self._steps: set[str] = set()

    def write(self, step: int, stage: str, metrics: Mapping[str, float]) -> None:
        """Sends the metrics of one step, as `stage/area/what` over the stage's own step."""
        if stage not in self._steps:
            # W&B's own step may not go back, and ours does: at each stage, and on resume.
            self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")
            self._steps.add(stage)
        self._run.log({f"{stage}/step": step} | {f"{stage}/{k}": v for k, v in metrics.items()})

    def close(self) -> None:
        """Sends what is left."""
        self._run.finish()


def strict(value: Any) -> Any:
    """The value with every nan and inf in it as None, for JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: strict(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [strict(inner) for inner in value]
    return value


def _drop_cut_line(path: Path) -> None:
    """Drops what stands behind the last line break, and a last line that is not JSON."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    last = content.rfind(b"\n", 0, max(whole - 1, 0)) + 1
    try:
        json.loads(content[last:whole] or b"null")
    except ValueError:
        whole = last
    if whole < len(content):
        os.truncate(path, whole)


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    """A line of metrics; other lines are refused, because they are not ours to drop."""
    try:
        found = json.loads(line)
        if isinstance(found["step"], int) and isinstance(found["stage"], str):
            return found
    except (ValueError, KeyError, TypeError):
        pass
    text = line.decode(errors="replace").strip()
    raise ValueError(
        f"{where}: {text[:60]!r} is no line of metrics, which has a step and a stage; delete the "
        "line, or move the file away to begin a new one"
    )

"""All sinks of a run behind one `write`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrl_vr.metrics.sinks import JsonlSink, LoggingConfig, TensorBoardSink, WandbSink


class Writer:
    """Writes metrics to `metrics.jsonl` and to what else the config names.

    Args:
      folder: of the run.
      config: which sinks.
      run: the resolved config, shown by W&B.
    """

    def __init__(self, folder: Path, config: LoggingConfig, run: Mapping[str, Any]) -> None:
        others: list[TensorBoardSink | WandbSink] = []
        if config.wandb is not None:
            # First, because it may be refused, and no file is open yet. The folder's name is the
            # run's identity: the same folder goes on with the same curves.
            sink = WandbSink(config.wandb, folder=folder, run=run, id=folder.absolute().name)
            others.append(sink)
        if config.tensorboard:
            others.append(TensorBoardSink(folder / "tensorboard"))
        self._jsonl = JsonlSink(folder / "metrics.jsonl")
        self._sinks: list[JsonlSink | TensorBoardSink | WandbSink] = [self._jsonl, *others]

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        for sink in self._sinks:
            sink.close()

    def write(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics of one step of a stage; step 0 is before or without training."""
        for sink in self._sinks:
            sink.write(step, stage, metrics)

    def truncate(self, stage: str, step: int) -> None:
        """Drops what a stage wrote behind `step`, because those steps are done again."""
        self._jsonl.truncate_after(lambda line: line["stage"] == stage and line["step"] > step)

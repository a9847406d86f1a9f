"""`jaxrl-vr verify`: every line of a file through a verifier in the pool, one line out for each."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pydantic import Field

from jaxrl_vr.config import Config
from jaxrl_vr.types import Score
from jaxrl_vr.verifiers.pool import Pool
from jaxrl_vr.verifiers.pool_config import PoolConfig
from jaxrl_vr.verifiers.records import Fields, Record, records
from jaxrl_vr.verifiers.spec import Verifier, needs_reference
from jaxrl_vr.verifiers.summary import Summary
from jaxrl_vr.verifiers.tally import Result

_AHEAD = 1000  # lines read beyond the first that has no score yet
_PATIENCE = 0.5  # seconds between two looks at the progress
_QUIET = 10.0  # seconds between two lines of progress that nobody watches


class VerifyConfig(Config):
    """What `jaxrl-vr verify` can be told by `a.b=value`."""

    verifier: Verifier
    """What judges; `--verifier NAME` is short for `verifier.type=NAME`."""
    fields: Fields = Fields()
    """Names of the fields of a line."""
    pool: PoolConfig = Field(default_factory=lambda: PoolConfig(share=1.0))
    """The processes that verify, as `verifiers` of a run; all cores if nothing is said."""


def score_file(path: Path, out: Path | None, config: VerifyConfig) -> Summary:
    """Verifies a JSON Lines file and writes a line for each of its lines, in order.

    Args:
      path: the file.
      out: the file to write, which appears when it is whole; None writes nothing.
      config: verifier, names of fields, limits.
    """
    spec = config.verifier.model_dump(mode="json")
    needs = needs_reference(spec)
    lines = records(path, config.fields, spec, needs_reference=needs)
    summary = Summary()
    with contextlib.ExitStack() as stack:
        if out is not None and out.exists() and out.samefile(path):
            raise ValueError(f"--out {out}: is the file to verify; name another one")
        sink = stack.enter_context(_replacing(out)) if out is not None else None
        pool = stack.enter_context(Pool(config.pool))
        pool.check({"verifier": spec})
        for record, result in _in_order(lines, pool, _Progress()):
            summary.add(record, result)
            if sink is not None:
                sink.write(json.dumps(_line(record, result)) + "\n")
    return summary


def _in_order(
    lines: Iterator[Record], pool: Pool, progress: _Progress
) -> Iterator[tuple[Record, Result]]:
    """Records with their results in the order of the file, each as soon as all before it are."""
    waiting: dict[int, Record] = {}
    done: dict[int, Result] = {}
    next_out, next_in, is_open = 0, 0, True
    while is_open or waiting:
        while is_open and next_in - next_out < _AHEAD:
            record = next(lines, None)
            if record is None:
                is_open = False
                break
            waiting[next_in] = record
            if record.fault:
                done[next_in] = Result(next_in, Score(0.0, "unscorable", reason=record.fault))
            else:
                pool.submit(next_in, record.example, record.response)
            next_in += 1
        done |= {result.id: result for result in pool.results(_PATIENCE if waiting else 0.0)}
        while next_out in done:
            yield waiting.pop(next_out), done.pop(next_out)
            next_out += 1
        progress.show(next_out)


def _line(record: Record, result: Result) -> dict[str, object]:
    score = result.score
    return {
        "id": record.id,
        "verdict": score.verdict,
        "value": score.value,
        "components": dict(score.components),
        "reason": score.reason,
        "milliseconds": round(1000 * result.seconds, 3),
    }


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[IO[str]]:
    """A file that takes its name when it is whole."""
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"--out {path}: is a folder, or in none; name a file in an existing one")
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("w", encoding="utf-8") as sink:
            yield sink
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class _Progress:
    def __init__(self) -> None:
        self.began = self._shown = time.monotonic()
        self._is_watched = sys.stderr.isatty()

    def show(self, done: int) -> None:
        """Says how far it is, in place on a terminal and now and then elsewhere."""
        now = time.monotonic()
        if now - self._shown < (_PATIENCE if self._is_watched else _QUIET):
            return
        self._shown = now
        end = "\r" if self._is_watched else "\n"
        rate = done / max(now - self.began, 1e-9)
        print(f"verified {done} lines, {rate:.0f} lines/s", end=end, file=sys.stderr, flush=True)

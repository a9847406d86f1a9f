"""Seconds, tokens and FLOPs of the phases of a run, and who waited for whom."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

_SECONDS, _TOKENS, _FLOPS, _BUSY, _WAITED = "s", "tokens", "flops", "busy", "wait_for_"


class Phases:
    """A stopwatch for named phases.

    `with phases("rollout"):` counts the seconds, `phases.tokens("rollout", n)` the tokens and
    `phases.flops("rollout", n)` the model FLOPs. Phases that overlap each count their own time, so
    the seconds can sum to more than the run took; so can nested phases of two names. A phase inside
    itself counts once. Waits, and the time that the devices had work, belong to the innermost open
    phase.

    Args:
      clock: seconds since any fixed moment.
      peak_flops: that all devices of the run can do a second; None: not known.
      annotate: a context in which a phase or a wait shows under its name in a trace.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        *,
        peak_flops: float | None = None,
        annotate: Callable[[str], AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self._clock = clock
        self._peak_flops = peak_flops
        self._annotate = annotate
        self._open: list[str] = []
        self._totals: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._mark: dict[tuple[str, str], float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Counts the time inside the `with` block, also when it raises."""
        start = self._clock()
        self._open.append(name)
        try:
            with self._annotate(name):
                yield
        finally:
            self._open.pop()
            if name not in self._open:
                self._totals[name, _SECONDS] += self._clock() - start

    def tokens(self, name: str, count: int) -> None:
        """Adds tokens to a phase."""
        self._totals[name, _TOKENS] += count

    def flops(self, name: str, count: float) -> None:
        """Adds model FLOPs to a phase."""
        self._totals[name, _FLOPS] += count

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Counts the time inside the `with` block as one in which the host waited."""
        start = self._clock()
        try:
            with self._annotate(f"wait for {what}"):
                yield
        finally:
            self.waited(what, self._clock() - start)

    def waited(self, what: str, seconds: float) -> None:
        """Adds seconds in which the host waited, measured elsewhere."""
        self._totals[self._open[-1], _WAITED + what] += seconds

    def busy(self, seconds: float) -> None:
        """Adds seconds in which the devices had work."""
        self._totals[self._open[-1], _BUSY] += seconds

    @contextlib.contextmanager
    def fetching(self) -> Iterator[None]:
        """For the host's wait for a program that it has handed over just before: the devices have
        work as long as it waits, and none behind it."""
        start = self._clock()
        try:
            with self.waiting("device"):
                yield
        finally:
            self.busy(self._clock() - start)

    def seconds(self) -> dict[str, float]:
        """Phase -> seconds in all."""
        return {name: total for (name, what), total in self._totals.items() if what == _SECONDS}

    def step(self) -> dict[str, float]:
        """What each phase took and did since last asked; `metrics.names` explains each.

        Phases without any time since are left out. Of the others there are, as `speed/PHASE_…`,
        `s`; where it has tokens `tokens_per_s`; where it has FLOPs `flops`, `flops_per_s` and, of a
        known peak, `mfu`; where devices were asked to work `idle_s`; and a `wait_for_…_s` for each
        thing that it ever waited for.
        """
        new = {key: total - self._mark.get(key, 0) for key, total in self._totals.items()}
        self._mark = dict(self._totals)
        result: dict[str, float] = {}
        for name in self.seconds():
            mine = {what: value for (of, what), value in new.items() if of == name}
            spent = mine[_SECONDS]
            if spent <= 0:
                continue
            result[f"speed/{name}_s"] = spent
            if tokens := mine.get(_TOKENS):
                result[f"speed/{name}_tokens_per_s"] = tokens / spent
            if flops := mine.get(_FLOPS):
                result[f"speed/{name}_flops"] = flops
                result[f"speed/{name}_flops_per_s"] = flops / spent
                if self._peak_flops is not None:
                    result[f"speed/{name}_mfu"] = flops / spent / self._peak_flops
            if _BUSY in mine:
                result[f"speed/{name}_idle_s"] = max(spent - mine[_BUSY], 0.0)
            for what, value in mine.items():
                if what.startswith(_WAITED):
                    result[f"speed/{name}_{what}_s"] = value
        return result

"""Seconds and tokens of the phases of a run."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator


class Phases:
    """A stopwatch for named phases.

    `with phases("rollout"):` counts the seconds, `phases.tokens("rollout", n)` the tokens. Phases
    that overlap (verifying while sampling) each count their own time, so the seconds can sum to
    more than the run took; so can nested phases of two names. A phase inside itself counts once.

    Args:
      clock: seconds since any fixed moment.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._tokens: defaultdict[str, int] = defaultdict(int)
        self._open: defaultdict[str, int] = defaultdict(int)
        self._mark: tuple[dict[str, float], dict[str, int]] = ({}, {})

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Counts the time inside the `with` block, also when it raises."""
        start = self._clock()
        self._open[name] += 1
        try:
            yield
        finally:
            self._open[name] -= 1
            if not self._open[name]:
                self._seconds[name] += self._clock() - start

    def tokens(self, name: str, count: int) -> None:
        """Adds tokens to a phase."""
        self._tokens[name] += count

    def seconds(self) -> dict[str, float]:
        """Phase -> seconds in all."""
        return dict(self._seconds)

    def step(self) -> dict[str, float]:
        """`speed/PHASE_s` and, where it has tokens, `speed/PHASE_tokens_per_s`, since last asked.

        Phases without any time since are left out.
        """
        seconds, tokens = self._mark
        self._mark = (dict(self._seconds), dict(self._tokens))
        result: dict[str, float] = {}
        for name, total in self._seconds.items():
            spent = total - seconds.get(name, 0.0)
            count = self._tokens.get(name, 0) - tokens.get(name, 0)
            if spent > 0:
                result[f"speed/{name}_s"] = spent
            if spent > 0 and count:
                result[f"speed/{name}_tokens_per_s"] = count / spent
        return result

"""What happened to the responses that were verified: how long they took, and what went wrong.

The pool keeps a Tally for its metrics; `UnscorableRate` ends a run of which too much cannot be
scored.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable

from jaxrl_vr.types import Max, Mean, Metrics, Score

CAUSES = ("reference", "load", "raised", "result", "other")
"""Why an answer is unscorable: its reference, a verifier that does not load, raises, or returns no
proper score, and the rest."""
_CAUSE = {
    "reference": re.compile(r"\breference\b|\bline \d"),
    "load": re.compile(r"\bdoes not load\b"),
    "raised": re.compile(r"\bthe verifier raised\b"),
    "result": re.compile(r"\breturned\b"),
}
_LIMITS = {
    "timeout": re.compile(
        r"limit: (no result after|(test \d+: )?(cpu|wall|total) = |.*\b(timeout = |search took ))"
    ),
    "memory": re.compile(r"limit: (out of memory|(test \d+: )?memory = )"),
    "size": re.compile(r"limit: (\d+ characters|(test \d+: )?(output|scratch|processes) = )"),
}
_MIN_WATCHED = 100  # scores before a rate means anything
_WORST = 3
_REASONS = 500  # different ones that are kept


@dataclasses.dataclass(frozen=True)
class Result:
    """A score with the id of its job and what it cost."""

    id: int
    score: Score
    seconds: float = 0.0  # in the worker, of the last try
    tries: int = 1


def cause(score: Score) -> str:
    """Which of `CAUSES` made an answer unscorable; empty for one that is scored."""
    if score.verdict != "unscorable":
        return ""
    return next((name for name, form in _CAUSE.items() if form.search(score.reason)), "other")


def limit(score: Score) -> str:
    """Which limit an answer went beyond: timeout, memory, size or crash; empty if none."""
    if not score.reason.startswith("limit"):
        return ""
    return next((name for name, form in _LIMITS.items() if form.match(score.reason)), "crash")


class Tally:
    """Counts of results since the last `taken`."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._counts: collections.Counter[str] = collections.Counter()

    def add(self, result: Result) -> None:
        """Counts a result."""
        self._seconds.append(result.seconds)
        self._counts[limit(result.score)] += 1
        self._counts[cause(result.score)] += 1
        self._counts["retried"] += result.tries > 1

    def taken(self) -> Metrics:
        """The counts as metrics, over the responses since the last call."""
        n, counts = len(self._seconds), self._counts
        found: Metrics = {}
        if n:
            found["speed/verify_s"] = Mean(sum(self._seconds), n)
            found["speed/verify_s_max"] = Max(max(self._seconds))
            for name in ("timeout", "crash", "memory", "size", "retried"):
                found[f"verify/{name}"] = Mean(counts[name], n)
            for name in CAUSES:
                found[f"verify/unscorable_{name}"] = Mean(counts[name], n)
        self._seconds, self._counts = [], collections.Counter()
        return found


class TooManyUnscorable(RuntimeError):
    """More answers than the configured share could not be scored."""


class UnscorableRate:
    """Looks at every score of a run, and ends it where too few can be scored.

    Args:
      rate: the share of unscorable answers above which to end; 1 is never.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._seen = 0
        self._bad = 0
        self._reasons: collections.Counter[str] = collections.Counter()
        self._first: dict[str, str] = {}  # reason -> the first example that had it

    def see(self, scores: Iterable[tuple[str, Score]]) -> None:
        """Counts scores with what to call their examples.

        Raises:
          TooManyUnscorable: the share is above the rate; the most frequent reasons are named.
        """
        for name, score in scores:
            self._seen += 1
            if score.verdict == "unscorable":
                self._bad += 1
                # Reasons may quote what was said, so a long run has no end of them.
                if score.reason in self._first or len(self._first) < _REASONS:
                    self._first.setdefault(score.reason, name)
                    self._reasons[score.reason] += 1
        if self._seen < _MIN_WATCHED or self._bad <= self._rate * self._seen:
            return
        worst = "".join(
            f"\n  {count} x {reason} (first: {self._first[reason]})"
            for reason, count in self._reasons.most_common(_WORST)
        )
        raise TooManyUnscorable(
            f"{self._bad} of {self._seen} answers could not be scored, more than "
            f"verifiers.max_unscorable = {self._rate:g}: mend the references or the verifier, or "
            f"raise max_unscorable{worst}"
        )

"""A table of what a verifier said about a file, by kind."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence

from jaxrl_vr.verifiers.records import Record
from jaxrl_vr.verifiers.tally import Result, cause, limit

_COLUMNS = ("lines", "right", "wrong", "no answer", "unscorable")
_LABELLED = ("agreement", "false passes", "false fails")
_MAX_KINDS = 200


class Summary:
    """Counts results by kind, with agreement where labels are given and not contested."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.limits: collections.Counter[str] = collections.Counter()
        self.causes: collections.Counter[str] = collections.Counter()
        self._counts: dict[str, collections.Counter[str]] = {}
        self._has_labels = False

    def add(self, record: Record, result: Result) -> None:
        """Counts one line."""
        score = result.score
        self.seconds.append(result.seconds)
        self.limits[limit(score)] += 1
        self.causes[cause(score)] += 1
        kind = record.kind if record.kind in self._counts or self._has_room() else "others"
        counts = self._counts.setdefault(kind, collections.Counter())
        counts["lines"] += 1
        counts[score.verdict.replace("_", " ")] += 1
        if record.label is None:
            return
        self._has_labels = True
        if record.is_contested:
            counts["contested"] += 1
            return
        is_right = score.verdict == "right"
        counts["labelled"] += 1
        counts["agreed"] += is_right == record.label
        counts["false passes"] += is_right and not record.label
        counts["false fails"] += record.label and not is_right

    @property
    def total(self) -> collections.Counter[str]:
        """The counts of all kinds."""
        return sum(self._counts.values(), collections.Counter())

    @property
    def agreement(self) -> float:
        """Share of the uncontested labels that the verifier agrees with; NaN without any."""
        total = self.total
        return total["agreed"] / total["labelled"] if total["labelled"] else math.nan

    def lines(self, wall: float) -> list[str]:
        """The table and what stands beneath it.

        Args:
          wall: seconds that all lines took.
        """
        names = [*_COLUMNS, *(_LABELLED if self._has_labels else ())]
        kinds = sorted(self._counts) if len(self._counts) > 1 else []
        rows = [["kind", *names]]
        rows += [self._row(kind or "-", self._counts[kind], names) for kind in kinds]
        rows.append(self._row("all", self.total, names))
        return [*_aligned(rows), "", *self._footer(wall)]

    def _row(self, name: str, counts: collections.Counter[str], names: Sequence[str]) -> list[str]:
        share = f"{counts['agreed'] / counts['labelled']:.3f}" if counts["labelled"] else "-"
        return [name, *(share if key == "agreement" else str(counts[key]) for key in names)]

    def _footer(self, wall: float) -> list[str]:
        n = len(self.seconds)
        said = [f"{n} lines in {wall:.1f} s: {n / max(wall, 1e-9):.0f} lines/s"]
        if n:
            quantiles = ", ".join(
                f"{name} {1000 * quantile(self.seconds, share):.1f}"
                for name, share in (("median", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
            )
            said.append(f"milliseconds a line in its worker: {quantiles}")
        for title, counts in (("limits", self.limits), ("unscorable", self.causes)):
            found = ", ".join(f"{name} {count}" for name, count in counts.items() if name)
            said += [f"{title}: {found}"] if found else []
        if contested := self.total["contested"]:
            said.append(f"contested labels, not counted: {contested}")
        return said

    def _has_room(self) -> bool:
        return len(self._counts) < _MAX_KINDS


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least a share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]

"""Metrics of many parts as those of the whole.

A mean travels as sum and count and is divided once, at the end, so parts of different size count
by their size. Not here: the names (metrics.names).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from jaxrl_vr.types import Max, Mean, Metric, Min


class Accumulator:
    """Adds up metrics on the host, in Python floats.

    Adding fetches values that are still on a device, and so waits for them.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def add(self, metrics: Mapping[str, Metric]) -> None:
        """Adds the metrics of one part: a micro-batch, a step, a host.

        Raises:
          ValueError: a name was added before as another kind of metric.
        """
        for name, metric in metrics.items():
            new = type(metric)(*map(float, metric))
            old = self._metrics.get(name)
            self._metrics[name] = new if old is None else _merge(name, old, new)

    def result(self) -> dict[str, float]:
        """Name -> value. A mean, smallest or largest of nothing is left out."""
        return {
            name: metric.sum / metric.count if isinstance(metric, Mean) else metric.value
            for name, metric in self._metrics.items()
            if not _is_empty(metric)
        }


def _is_empty(metric: Metric) -> bool:
    match metric:
        case Mean():
            return metric.count == 0
        case Min():
            return metric.value == math.inf
        case Max():
            return metric.value == -math.inf


def _merge(name: str, old: Metric, new: Metric) -> Metric:
    # A comparison with nan is false, so min() and max() could lose it: it has to stay.
    match old, new:
        case Mean(), Mean():
            return Mean(old.sum + new.sum, old.count + new.count)
        case Min(), Min():
            return new if new.value < old.value or new.value != new.value else old
        case Max(), Max():
            return new if new.value > old.value or new.value != new.value else old
    raise ValueError(
        f"metric {name!r} is a {type(new).__name__} and was a {type(old).__name__} before; give "
        "the two different names"
    )

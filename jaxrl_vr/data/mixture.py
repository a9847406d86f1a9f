"""The order of the draws from a weighted mixture of streams: deterministic and resumable.

Draw d picks its source by (seed, d) and the weights; the k-th draw from a finite source is entry k
of its epochs' orders, each a permutation keyed by (seed, source, epoch). So a cursor is one number
a source, the same on every host, and fits any number of hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from jaxrl_vr.data.order import epoch_order, uniform
from jaxrl_vr.data.streams import Stream

A = TypeVar("A")


class Mixture(Generic[A]):
    """A weighted mixture of streams, drawn from in one fixed order.

    Two draws of `take` from a finite source are distinct within an epoch, and within any
    `size // 3` draws in a row.

    Args:
      streams: the sources, with distinct names.
      seed: of the order; the same seed gives the same order.
    """

    def __init__(self, streams: Sequence[Stream[A]], *, seed: int) -> None:
        if not streams:
            raise ValueError("sources: the list is empty: name at least one source")
        names = [stream.name for stream in streams]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"sources: two are named {name!r}: list a source once, and give each its own "
                    "name"
                )
        for stream in streams:
            if not 0 < stream.weight < np.inf:
                raise ValueError(
                    f"source {stream.name!r}: weight = {stream.weight} is no share of the draws: "
                    "use a number above 0, or take the source out"
                )
        self.streams = tuple(streams)
        self._seed = seed
        weights = np.asarray([stream.weight for stream in streams], np.float64)
        self._edges = np.cumsum(weights / weights.sum())[:-1]
        self._orders: dict[tuple[str, int], np.ndarray] = {}

    @property
    def dropped(self) -> dict[str, int]:
        """Source name -> items left out because they did not fit (so far, if it is endless)."""
        return {stream.name: stream.dropped for stream in self.streams}

    @property
    def dropped_draws(self) -> int:
        """Draws of endless sources that were left out and drawn again, since it was made.

        A step's own are the difference of two readings.
        """
        return sum(stream.dropped for stream in self.streams if stream.size is None)

    def start(self) -> dict[str, Any]:
        """The cursor before the first draw: a dict for JSON."""
        sources = {
            stream.name: {"drawn": 0, "fingerprint": stream.fingerprint} for stream in self.streams
        }
        return {"draw": 0, "sources": sources}

    def take(self, n: int, cursor: dict[str, Any]) -> tuple[list[A], dict[str, Any]]:
        """The next `n` items.

        Args:
          n: items.
          cursor: from `start()` or from the `take` before; it is not changed.

        Returns:
          The items, and the cursor behind them.

        Raises:
          ValueError: the cursor belongs to other data.
        """
        self._check(cursor)
        drawn = {stream.name: cursor["sources"][stream.name]["drawn"] for stream in self.streams}
        first = cursor["draw"]
        items = []
        for draw in range(first, first + n):
            stream = self._choose(draw)
            items.append(self._get(stream, drawn[stream.name]))
            drawn[stream.name] += 1
        sources = {
            name: {**entry, "drawn": drawn[name]} for name, entry in cursor["sources"].items()
        }
        return items, {"draw": first + n, "sources": sources}

    def everything(self) -> list[A]:
        """All items of finite sources, source by source in their own order: for evaluation."""
        items: list[A] = []
        for stream in self.streams:
            if stream.size is None:
                raise ValueError(
                    f"source {stream.name!r} has no end: set its `limit` to the number of examples "
                    "to go through"
                )
            items += [stream.get(index) for index in range(stream.size)]
        return items

    def _choose(self, draw: int) -> Stream[A]:
        u = uniform("mixture", self._seed, draw)
        return self.streams[int(np.searchsorted(self._edges, u, side="right"))]

    def _get(self, stream: Stream[A], position: int) -> A:
        if stream.size is None:
            return stream.get(position)
        epoch, at = divmod(position, stream.size)
        if (stream.name, epoch) not in self._orders:
            # one epoch a source is enough: draws go forward
            for old in [entry for entry in self._orders if entry[0] == stream.name]:
                del self._orders[old]
            self._orders[stream.name, epoch] = epoch_order(
                stream.size, self._seed, stream.name, epoch
            )
        return stream.get(int(self._orders[stream.name, epoch][at]))

    def _check(self, cursor: dict[str, Any]) -> None:
        saved = cursor["sources"]
        names = [stream.name for stream in self.streams]
        if sorted(saved) != sorted(names):
            raise ValueError(
                f"the saved data cursor is of the sources {sorted(saved)}, the config has "
                f"{sorted(names)}: restore the sources, or start a new run (another run_dir) from "
                "the checkpoint's weights"
            )
        for stream in self.streams:
            got = saved[stream.name]["fingerprint"]
            if got != stream.fingerprint:
                raise ValueError(
                    f"source {stream.name!r} changed since the run was saved (fingerprint {got}, "
                    f"now {stream.fingerprint}), so its position means nothing: restore its data, "
                    "template and limits, or start a new run (another run_dir) from the "
                    "checkpoint's weights"
                )

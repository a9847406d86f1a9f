"""How long the devices had work from the sampler, as far as the host knows without asking them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator


class Occupancy:
    """Adds up two times that the host sees where it hands programs over and fetches results anyway.

    A device has work from when a prefill or a chunk of decode steps is handed over to it until the
    host has fetched the tokens; it may have ended earlier, so it idles at least for the rest.

    Args:
      clock: seconds since any fixed moment.

    Attributes:
      waited_s: seconds in which the host stood still for a result.
      busy_s: seconds in which the devices had work.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since: float | None = None  # when the devices got work that is not fetched yet
        self.waited_s = 0.0
        self.busy_s = 0.0

    def handed_over(self) -> None:
        """The devices have got a program."""
        if self._since is None:
            self._since = self._clock()

    @contextlib.contextmanager
    def fetching(self) -> Iterator[None]:
        """For the wait for the result of the last program."""
        start = self._clock()
        try:
            yield
        finally:
            self.waited_s += self._clock() - start
            self.ended()

    def ended(self) -> None:
        """Nothing more is expected of the devices."""
        if self._since is not None:
            self.busy_s += self._clock() - self._since
            self._since = None

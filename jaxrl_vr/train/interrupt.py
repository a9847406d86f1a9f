"""Ctrl-C and SIGTERM as a request to save and end, answered where the state is whole."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class Interrupted(Exception):
    """The run was asked to end; what it holds is to be saved."""

    def __init__(self, signum: int):
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Interrupt:
    """While entered, the first SIGINT or SIGTERM only sets a flag; a second one acts at once."""

    def __init__(self) -> None:
        self._signum: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        for signum in (signal.SIGINT, signal.SIGTERM):
            self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def check(self) -> None:
        """Raises `Interrupted` if a signal came. Called only where nothing is half done."""
        if self._signum is not None:
            raise Interrupted(self._signum)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._signum is not None:
            signal.signal(signum, self._before[signum])
            signal.raise_signal(signum)
        self._signum = signum

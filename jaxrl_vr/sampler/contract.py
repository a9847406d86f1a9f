"""What every engine keeps; `generate` and all that collects rollouts is written over it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from jaxrl_vr.types import Request, Rollout


class Engine(Protocol):
    """What samples completions."""

    def submit(self, requests: Iterable[Request]) -> None:
        """Takes requests; they are served in order."""
        ...

    def step(self) -> list[Rollout]:
        """Decodes a bounded number of steps; returns what finished or was aborted since."""
        ...

    def abort(self, ids: Sequence[int]) -> None:
        """Ends requests; `step` returns what they have, with finish "aborted"."""
        ...

    def set_params(self, params: Any, version: int) -> None:
        """New weights; what is in progress goes on under them."""
        ...

    def free(self, with_weights: bool = False) -> None:
        """Gives memory back until the next request; nothing that is in progress is lost.

        Without its weights it samples only after the next `set_params`.
        """
        ...

    @property
    def num_unfinished(self) -> int:
        """Requests that `step` has not returned yet."""
        ...

    @property
    def num_sampled(self) -> int:
        """Tokens sampled so far, in all."""
        ...

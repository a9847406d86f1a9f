"""A fake engine for tests of what is written over engines: no jax, no model, same contract."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

from jaxrl_vr.sampler.endings import Endings
from jaxrl_vr.sampler.scheduler import Live, Scheduler
from jaxrl_vr.types import Finish, Request, Rollout


class UniformEngine:
    """An `Engine` that draws every token with equal probability from a vocabulary.

    The draw depends on the request's key and the position alone, as in a real engine.
    """

    def __init__(
        self, vocab_size: int, *, slots: int = 4, steps_per_call: int = 4, max_length: int = 1024
    ):
        self._vocab_size = vocab_size
        self._steps = steps_per_call
        # Letter a is token 0, and so on.
        self._endings = Endings(lambda ids: "".join(chr(97 + i) for i in ids), vocab_size)
        self._scheduler = Scheduler(slots, vocab_size, max_length)
        self._done: list[Rollout] = []
        self._version = 0
        self.num_sampled = 0

    @property
    def num_unfinished(self) -> int:
        """Requests that `step` has not returned yet."""
        return self._scheduler.num_unfinished + len(self._done)

    def submit(self, requests: Iterable[Request]) -> None:
        """Takes requests; they are served in order."""
        self._scheduler.submit(self._endings.taken(requests, self._version))

    def abort(self, ids: Sequence[int]) -> None:
        """Ends requests; `step` returns what they have, with finish "aborted"."""
        self._done += self._scheduler.abort(ids)[0]

    def set_params(self, params: Any, version: int) -> None:
        """Only the version matters here."""
        self._version = version
        self._scheduler.pause_all()

    def free(self, with_weights: bool = False) -> None:
        """It holds nothing."""

    def step(self) -> list[Rollout]:
        """Draws at most `steps_per_call` tokens a slot; returns what is done."""
        done, self._done = self._done, []
        self._scheduler.admit()
        for slot in sorted(self._scheduler.live):
            reason = self._run(self._scheduler.live[slot])
            if reason is not None:
                done.append(self._scheduler.finish(slot, reason))
        return done

    def _run(self, live: Live) -> Finish | None:
        sampling = live.request.sampling
        for _ in range(self._steps):
            seed = f"{live.request.key}/{len(live.token_ids)}"
            token = random.Random(seed).randrange(self._vocab_size)
            self.num_sampled += 1
            live.extend([token], [-math.log(self._vocab_size)], [0.0], "sampled", self._version)
            is_stopped = self._endings.stop(live, len(live.token_ids) - 1) is not None
            if token in sampling.stop_ids or is_stopped:
                return "stop"
            if len(live.token_ids) >= sampling.max_new_tokens:
                return "length"
            self._endings.force(live, self._version)
        return None

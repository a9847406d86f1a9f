"""Which request is in which slot, and what each has emitted. Plain Python: imports no jax."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Sequence

from jaxrl_vr.types import Finish, Prefix, Request, Rollout, TokenSource


@dataclasses.dataclass
class Live:
    """A request that has a slot, and its completion so far."""

    request: Request
    token_ids: list[int]
    logp: list[float]
    kept_mass: list[float]
    source: list[TokenSource]
    version: list[int]

    @property
    def position(self) -> int:
        """Tokens of prompt and completion so far."""
        return len(self.request.prompt_ids) + len(self.token_ids)

    def rollout(self, finish: Finish) -> Rollout:
        """The completion as it stands, ended by `finish`."""
        sampling = self.request.sampling
        is_cut = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
        return Rollout(
            id=self.request.id,
            prompt_ids=self.request.prompt_ids,
            token_ids=tuple(self.token_ids),
            logp=tuple(self.logp),
            source=tuple(self.source),
            version=tuple(self.version),
            kept_mass=tuple(self.kept_mass) if is_cut else None,
            finish=finish,
        )

    def paused(self) -> Request:
        """The request with what it has emitted as its prefix; its key stays."""
        rollout = self.rollout("aborted")
        prefix = Prefix(
            rollout.token_ids, rollout.logp, rollout.kept_mass, rollout.source, rollout.version
        )
        return dataclasses.replace(self.request, prefix=prefix)


def start(request: Request) -> Live:
    """A request at the moment it gets a slot."""
    prefix = request.prefix
    return Live(
        request=request,
        token_ids=list(prefix.token_ids),
        logp=list(prefix.logp),
        kept_mass=list(prefix.kept_mass or [0.0] * len(prefix.token_ids)),
        source=list(prefix.source),
        version=list(prefix.version),
    )


class Scheduler:
    """First come, first served over a fixed number of slots."""

    def __init__(self, num_slots: int):
        self.live: dict[int, Live] = {}  # slot -> what runs in it
        self.pending: deque[Request] = deque()
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def num_unfinished(self) -> int:
        """Requests that run or wait."""
        return len(self.live) + len(self.pending)

    def ids(self) -> set[int]:
        """Ids of the requests that run or wait."""
        return {live.request.id for live in self.live.values()} | {r.id for r in self.pending}

    def submit(self, requests: Iterable[Request]) -> None:
        """Puts requests at the end of the queue."""
        self.pending.extend(requests)

    def admit(self) -> list[tuple[int, Request]]:
        """Gives free slots to the first of the queue."""
        admitted = []
        while self._free and self.pending:
            slot, request = self._free.pop(), self.pending.popleft()
            self.live[slot] = start(request)
            admitted.append((slot, request))
        return admitted

    def finish(self, slot: int, reason: Finish) -> Rollout:
        """Frees a slot and returns its rollout."""
        self._free.append(slot)
        return self.live.pop(slot).rollout(reason)

    def abort(self, ids: Sequence[int]) -> tuple[list[Rollout], list[int]]:
        """Ends requests, running or waiting; returns their rollouts and the slots that are free."""
        wanted = set(ids)
        slots = [slot for slot, live in self.live.items() if live.request.id in wanted]
        rollouts = [self.finish(slot, "aborted") for slot in slots]
        waiting = [r for r in self.pending if r.id in wanted]
        rollouts += [start(r).rollout("aborted") for r in waiting]
        self.pending = deque(r for r in self.pending if r.id not in wanted)
        return rollouts, slots

    def pause_all(self) -> None:
        """Takes every request out of its slot and puts it, with its prefix, before the queue."""
        paused = [self.live[slot].paused() for slot in sorted(self.live)]
        self._free.extend(sorted(self.live, reverse=True))
        self.live.clear()
        self.pending.extendleft(reversed(paused))

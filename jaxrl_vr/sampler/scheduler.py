"""Which request is in which slot, and what each has emitted. Plain Python: imports no jax.

Requests are checked here too, so that every engine refuses the same ones.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from jaxrl_vr.types import Finish, Request, Rollout, TokenSource

MAX_STOP_IDS = 8

Place = Callable[[Request, Sequence[int]], int | None]


@dataclasses.dataclass
class Live:
    """A request that has a slot, and its completion so far."""

    request: Request
    token_ids: list[int]
    logp: list[float]
    kept_mass: list[float]
    source: list[TokenSource]
    version: list[int]
    entropy: list[float] | None  # None: not known of all tokens

    @property
    def position(self) -> int:
        """Tokens of prompt and completion so far."""
        return len(self.request.prompt_ids) + len(self.token_ids)

    def extend(
        self,
        token_ids: Sequence[int],
        logp: Sequence[float],
        kept_mass: Sequence[float],
        source: TokenSource,
        version: int,
        entropy: Sequence[float] | None = None,
    ) -> None:
        """Puts tokens behind the completion."""
        self.token_ids += token_ids
        self.logp += logp
        self.kept_mass += kept_mass
        self.source.extend(source for _ in token_ids)
        self.version += [version] * len(token_ids)
        if self.entropy is not None and token_ids:
            self.entropy = None if entropy is None else [*self.entropy, *entropy]

    def cut(self, length: int) -> None:
        """Drops all tokens behind the first `length`."""
        for values in (self.token_ids, self.logp, self.kept_mass, self.source, self.version):
            del values[length:]
        if self.entropy is not None:
            del self.entropy[length:]

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
            entropy=None if self.entropy is None else tuple(self.entropy),
        )

    def paused(self) -> Request:
        """The request with what it has emitted as its prefix; its key stays."""
        return dataclasses.replace(self.request, prefix=self.rollout("aborted").as_prefix())


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
        entropy=None if prefix.token_ids and prefix.entropy is None else [*(prefix.entropy or ())],
    )


def check_request(request: Request, vocab_size: int, max_length: int) -> None:
    """Refuses what cannot be sampled.

    Raises:
      ValueError: names the request, the numbers and the fix.
    """
    who = f"request {request.id}"
    prompt, prefix, limit = request.prompt_ids, request.prefix, request.sampling.max_new_tokens
    num_prefix = len(prefix.token_ids)
    if not prompt:
        raise ValueError(f"{who}: the prompt is empty; give at least one token, such as BOS")
    if limit <= num_prefix:
        raise ValueError(
            f"{who}: max_new_tokens = {limit} leaves nothing to sample after a prefix of "
            f"{num_prefix} tokens; raise it"
        )
    if len(prompt) + limit > max_length:
        raise ValueError(
            f"{who}: prompt of {len(prompt)} tokens + max_new_tokens = {limit} exceeds the "
            f"model's context of {max_length}; shorten the prompt or lower the limit"
        )
    for token in (*prompt, *prefix.token_ids):
        if not 0 <= token < vocab_size:
            raise ValueError(
                f"{who}: token id {token} is outside the model's vocabulary of {vocab_size}; "
                "tokenizer and model do not fit"
            )
    for name in ("logp", "source", "version", "kept_mass", "entropy"):
        values = getattr(prefix, name)
        if values is not None and len(values) != num_prefix:
            raise ValueError(
                f"{who}: prefix.{name} has {len(values)} entries for {num_prefix} tokens; "
                "give one a token"
            )
    if len(request.sampling.stop_ids) > MAX_STOP_IDS:
        raise ValueError(
            f"{who}: {len(request.sampling.stop_ids)} stop ids; give at most {MAX_STOP_IDS}"
        )
    if len(request.key) != 4 or not all(0 <= word < 2**32 for word in request.key):
        raise ValueError(f"{who}: key {request.key} must be four integers in [0, 2**32)")


class Scheduler:
    """First come, first served over a fixed number of slots.

    Args:
      num_slots: requests that run at once.
      vocab_size: of the model.
      max_length: of the model's context.
      check: raises ValueError for a request that an engine cannot serve for reasons of its own.
    """

    def __init__(
        self,
        num_slots: int,
        vocab_size: int,
        max_length: int,
        check: Callable[[Request], None] = lambda request: None,
    ):
        self.live: dict[int, Live] = {}  # slot -> what runs in it
        self.pending: deque[Request] = deque()
        self._vocab_size = vocab_size
        self._max_length = max_length
        self._check = check
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def num_unfinished(self) -> int:
        """Requests that run or wait."""
        return len(self.live) + len(self.pending)

    def submit(self, requests: Iterable[Request]) -> None:
        """Puts requests at the end of the queue: all of them, or none.

        Raises:
          ValueError: a request that cannot be sampled, or an id that runs or waits already.
        """
        requests = list(requests)
        known = {live.request.id for live in self.live.values()} | {r.id for r in self.pending}
        for request in requests:
            check_request(request, self._vocab_size, self._max_length)
            self._check(request)
            if request.id in known:
                raise ValueError(f"request id {request.id} is already in progress; ids are unique")
            known.add(request.id)
        self.pending.extend(requests)

    def admit(self, place: Place = lambda request, free: free[-1]) -> list[tuple[int, Request]]:
        """Gives free slots to the first of the queue.

        Args:
          place: chooses one of the free slots for a request, the lowest unless told, or None while
            there is no room for it; those behind it then wait too.
        """
        admitted = []
        while self._free and self.pending:
            slot = place(self.pending[0], self._free)
            if slot is None:
                break
            self._free.remove(slot)
            request = self.pending.popleft()
            self.live[slot] = start(request)
            admitted.append((slot, request))
        return admitted

    def pause(self, slot: int) -> None:
        """Takes a request out of its slot and puts it, with its prefix, before the queue."""
        self._free.append(slot)
        self.pending.appendleft(self.live.pop(slot).paused())

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
        """Pauses every request, the first slot's first in the queue."""
        for slot in sorted(self.live, reverse=True):
            self.pause(slot)

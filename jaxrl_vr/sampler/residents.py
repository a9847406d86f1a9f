"""What lies in the cache: prompts that slots share, and each slot's own tokens. No jax.

A prompt that several requests have in common is prefilled once and its pages are shared; the tokens
of a slot's own begin behind it. A prompt with one request lies in that slot's own pages.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from jaxrl_vr.sampler.page_pool import PagePool
from jaxrl_vr.types import Request

Tokens = tuple[int, ...]


@dataclasses.dataclass(eq=False)
class Text:
    """Tokens that must lie in pages before something can be decoded behind them."""

    ids: Tokens
    pages: list[int]
    before: Text | None  # what they follow
    row: int  # where the hidden state of the last token is kept
    cached: int = 0  # tokens that lie in the pages

    @property
    def base(self) -> int:
        """Tokens before the first."""
        return 0 if self.before is None else len(self.before.ids)

    @property
    def is_ready(self) -> bool:
        """Whether all of it is cached."""
        return self.cached == len(self.ids) and (self.before is None or self.before.is_ready)


@dataclasses.dataclass(eq=False)
class Shared(Text):
    """A prompt in pages that several slots attend."""

    slots: set[int] = dataclasses.field(default_factory=set)  # that attend it now


@dataclasses.dataclass(eq=False)
class Resident:
    """What one slot has in the cache."""

    own: Text  # the tokens it is prefilled with; decoding adds more behind
    shared: Shared | None

    @property
    def base(self) -> int:
        """Tokens that lie in a shared prompt."""
        return self.own.base

    @property
    def row(self) -> int:
        """Where the hidden state is kept that the first new token is drawn from."""
        return self.own.row if self.own.ids or self.shared is None else self.shared.row


class Residents:
    """The cache of one part of the devices.

    Args:
      pool: its pages.
      num_slots: its slots.
      num_rows: hidden states it keeps: those of the slots, and behind them those of prompts.
    """

    def __init__(self, pool: PagePool, num_slots: int, num_rows: int):
        self.pool = pool
        self.num_slots = num_slots
        self.of_slot: dict[int, Resident] = {}
        self.prompts: dict[Tokens, Shared] = {}
        self._rows = list(range(num_rows - 1, num_slots - 1, -1))

    def can_hold(self, request: Request, ahead: int, is_shared: bool) -> bool:
        """Whether there is room for a request and the next `ahead` tokens, or it can be made."""
        need = self._pages_needed(request, ahead, is_shared)
        keep = request.prompt_ids if is_shared else None
        idle = [p for p in self.prompts.values() if not p.slots and p.ids != keep]
        has_row = bool(self._rows or idle or not is_shared or keep in self.prompts)
        # A page for each slot that is there, or the next ones to grow would push it out again.
        need += len(self.of_slot)
        return has_row and need <= self.pool.num_free + sum(len(p.pages) for p in idle)

    def add(self, slot: int, request: Request, ahead: int, is_shared: bool) -> None:
        """Gives a request its pages; `can_hold` said that there are enough."""
        keep = request.prompt_ids if is_shared else None
        self._make_room(self._pages_needed(request, ahead, is_shared), keep)
        pool, shared = self.pool, None
        ids = request.prompt_ids + request.prefix.token_ids
        if is_shared:
            shared = self.prompts.get(request.prompt_ids) or self._add_prompt(request.prompt_ids)
            shared.slots.add(slot)
            ids = request.prefix.token_ids
        pages = pool.take_own(pool.pages_for(len(ids) + ahead), slot, 0)
        self.of_slot[slot] = Resident(Text(ids, pages, shared, row=slot), shared)

    def grow(self, slot: int, tokens: int) -> bool:
        """Gives a slot pages for so many tokens in all; False where there are none left."""
        resident = self.of_slot[slot]
        pages = resident.own.pages
        more = self.pool.pages_for(tokens - resident.base) - len(pages)
        if more > 0:
            self._make_room(more, None)
            if more > self.pool.num_free:
                return False
            pages += self.pool.take_own(more, slot, len(pages) * self.pool.page_tokens)
        return True

    def remove(self, slot: int) -> None:
        """Frees a slot's pages; its prompt stays until the room is needed."""
        resident = self.of_slot.pop(slot)
        self.pool.give(resident.own.pages)
        if resident.shared is not None:
            resident.shared.slots.discard(slot)

    def forget(self, wanted: Counter[Tokens]) -> None:
        """Frees the prompts that no slot attends and no waiting request has."""
        for shared in list(self.prompts.values()):
            if not shared.slots and not wanted[shared.ids]:
                self._drop(shared)

    def _pages_needed(self, request: Request, ahead: int, is_shared: bool) -> int:
        pages_for = self.pool.pages_for
        prompt, prefix = request.prompt_ids, request.prefix.token_ids
        if not is_shared:
            return pages_for(len(prompt) + len(prefix) + ahead)
        new = 0 if prompt in self.prompts else pages_for(len(prompt))
        return new + pages_for(len(prefix) + ahead)

    def _add_prompt(self, ids: Tokens) -> Shared:
        if not self._rows:
            self._drop(next(p for p in self.prompts.values() if not p.slots))
        pages = self.pool.take_shared(self.pool.pages_for(len(ids)))
        self.prompts[ids] = Shared(ids, pages, None, row=self._rows.pop())
        return self.prompts[ids]

    def _make_room(self, pages: int, keep: Tokens | None) -> None:
        for shared in list(self.prompts.values()):
            if self.pool.num_free >= pages:
                return
            if not shared.slots and shared.ids != keep:
                self._drop(shared)

    def _drop(self, shared: Shared) -> None:
        del self.prompts[shared.ids]
        self.pool.give(shared.pages)
        self._rows.append(shared.row)


def shared_prompts(requests: Sequence[Request]) -> Counter[Tokens]:
    """How many of these requests have a prompt."""
    return Counter(request.prompt_ids for request in requests)

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
    row: int  # where the hidden state of the last token is kept
    cached: int = 0  # tokens that lie in the pages
    base: int = dataclasses.field(default=0, init=False)  # tokens before the first

    @property
    def is_cached(self) -> bool:
        """Whether all of it lies in the pages."""
        return self.cached == len(self.ids)


@dataclasses.dataclass(eq=False)
class Shared(Text):
    """A prompt in pages that several slots attend."""

    slots: set[int] = dataclasses.field(default_factory=set)  # that attend it now


@dataclasses.dataclass(eq=False)
class Own(Text):
    """What one slot has to itself: the tokens it is prefilled with; decoding adds more behind."""

    shared: Shared | None = None  # the prompt before it, if that is not its own

    def __post_init__(self) -> None:
        self.base = 0 if self.shared is None else len(self.shared.ids)

    @property
    def missing(self) -> Text | None:
        """What is to be prefilled next; None once all of it is cached."""
        texts = (self,) if self.shared is None else (self.shared, self)
        return next((text for text in texts if not text.is_cached), None)

    @property
    def first_row(self) -> int:
        """Where the hidden state is kept that the first new token is drawn from."""
        return self.row if self.ids or self.shared is None else self.shared.row


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
        self.of_slot: dict[int, Own] = {}
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
        self.of_slot[slot] = Own(ids, pages, row=slot, shared=shared)

    def grow(self, slot: int, tokens: int) -> bool:
        """Gives a slot pages for so many tokens in all; False where there are none left."""
        own = self.of_slot[slot]
        more = self.pool.pages_for(tokens - own.base) - len(own.pages)
        if more > 0:
            self._make_room(more, None)
            if more > self.pool.num_free:
                return False
            start = len(own.pages) * self.pool.page_tokens
            own.pages += self.pool.take_own(more, slot, start)
        return True

    def remove(self, slot: int) -> None:
        """Frees a slot's pages; its prompt stays until the room is needed."""
        own = self.of_slot.pop(slot)
        self.pool.give(own.pages)
        if own.shared is not None:
            own.shared.slots.discard(slot)

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
        self.prompts[ids] = Shared(ids, pages, row=self._rows.pop())
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

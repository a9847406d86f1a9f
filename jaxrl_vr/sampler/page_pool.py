"""Which pages are free and which slot's tokens the others hold. No jax: numpy on the host.

P pages, C tokens of a page, B pages of a block.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np

NO_TOKEN = 2**30
"""Start of a page that holds no slot's own tokens: beyond any position."""


class PagePool:
    """The pages of one part of the devices.

    A slot's own pages come from the low end and those of shared prompts from the high end: decoding
    goes over whole blocks of own pages, and so they lie close together.
    """

    def __init__(self, num_pages: int, page_tokens: int, block_pages: int):
        self.page_tokens = page_tokens
        self.block_pages = block_pages
        self.slot = np.zeros(num_pages, np.int32)
        self.start = np.full(num_pages, NO_TOKEN, np.int32)
        self._is_free = np.ones(num_pages, bool)
        self._lowest = list(range(num_pages))
        self._highest = list(range(-num_pages + 1, 1))
        self.num_free = num_pages

    def pages_for(self, tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-tokens // self.page_tokens)

    def take_own(self, count: int, slot: int, start: int) -> list[int]:
        """Pages for a slot's own tokens from own index `start` on, a multiple of C."""
        pages = self._take(self._lowest, 1, count)
        self.slot[pages] = slot
        self.start[pages] = start + self.page_tokens * np.arange(count)
        return pages

    def take_shared(self, count: int) -> list[int]:
        """Pages for a prompt that several slots attend."""
        return self._take(self._highest, -1, count)

    def give(self, pages: Iterable[int]) -> None:
        """Takes pages back."""
        for page in pages:
            self._is_free[page] = True
            self.start[page] = NO_TOKEN
            heapq.heappush(self._lowest, page)
            heapq.heappush(self._highest, -page)
            self.num_free += 1

    def blocks(self) -> np.ndarray:
        """The blocks in which slots have tokens of their own, ascending."""
        has_own = (self.start != NO_TOKEN).reshape(-1, self.block_pages).any(axis=1)
        return np.flatnonzero(has_own)

    def _take(self, heap: list[int], sign: int, count: int) -> list[int]:
        assert count <= self.num_free, "callers ask for what is free"
        pages: list[int] = []
        while len(pages) < count:
            page = sign * heapq.heappop(heap)
            if self._is_free[page]:  # the other heap may have given it away, or hold it twice
                self._is_free[page] = False
                pages.append(page)
        self.num_free -= count
        return pages

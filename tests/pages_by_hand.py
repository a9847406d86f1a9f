"""Prefill and decode of a model over pages, without an engine."""

import jax
import numpy as np

from jaxrl_vr.sampler.chunks import Chunk
from jaxrl_vr.sampler.page_pool import PagePool
from jaxrl_vr.sampler.plans import decode_plan, extend_plan
from jaxrl_vr.sampler.residents import Residents
from jaxrl_vr.types import Request, Sampling

CONTEXT = 128


class ByHand:
    """Rows of a model that are prefilled and decoded side by side, each in pages of its own."""

    def __init__(
        self,
        model,
        view,
        rows,
        *,
        page_tokens=4,
        num_pages=64,
        keys_across=False,
        fill=0,
        item_pages=None,
        chunk_attention=None,
    ):
        self.view = view
        self.residents = Residents(PagePool(num_pages, page_tokens, 4), rows, 3 * rows)
        pages = model.empty_pages(num_pages, page_tokens, keys_across)
        self.pages = jax.tree.map(lambda a: a + fill, pages)
        self._extend = jax.jit(model.extend)
        self._decode = jax.jit(model.decode)
        self._rows = rows
        self._item_pages = item_pages
        self._chunk_attention = chunk_attention or ("xla" if item_pages is None else "splash")

    def prefill(self, prompts, width=None):
        """Hidden state of the last token of each prompt; an empty one only takes its pages. Where
        they are longer than the width, all are as long, and come in chunks."""
        for slot, ids in enumerate(prompts):
            request = Request(slot, tuple(map(int, ids)), (0, 0, 0, 0), Sampling(CONTEXT))
            self.residents.add(slot, request, ahead=40, is_shared=False)
        texts = [self.residents.of_slot[slot] for slot in range(self._rows)]
        longest = max(1, *(len(text.ids) for text in texts))
        width = width or longest
        for start in range(0, longest, width):
            chunks = [Chunk(0, text, start, min(width, len(text.ids) - start)) for text in texts]
            tokens, self.prefilled, _ = extend_plan(
                chunks,
                [self.residents],
                self._rows,
                width,
                CONTEXT,
                3 * self._rows,
                self._chunk_attention,
            )
            hidden, self.pages = self._extend(self.view, tokens, self.pages, self.prefilled)
        return hidden

    def decode(self, token, position):
        """Hidden state of one more token a row."""
        slots = range(self._rows)
        positions = {(0, slot): int(position[slot]) for slot in slots}
        plan = decode_plan(
            [self.residents], [list(slots)], positions, self._rows, 1, CONTEXT, self._item_pages
        )
        token, position = (np.asarray(a, np.int32) for a in (token, position))
        hidden, self.pages = self._decode(self.view, token, position, self.pages, plan)
        return hidden

"""How texts are cut for prefill: into chunks of few widths, so that few programs are compiled."""

from __future__ import annotations

import dataclasses

from jaxrl_vr.sampler.residents import Text

# Tokens of a row of a prefill program; longer texts run in several chunks.
_WIDTHS = (32, 64, 128, 256, 512)
# Share of a row that may be padding: what would need more runs in two chunks.
_PADDING = 0.25


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Tokens of a text to prefill next."""

    part: int  # of the cache
    text: Text
    start: int  # first of them, counted in the text
    count: int

    @property
    def is_last(self) -> bool:
        """Whether the text is cached once this has run."""
        return self.start + self.count == len(self.text.ids)

    @property
    def width(self) -> int:
        """Of the program that runs it."""
        return _width(self.count)


def next_chunk(part: int, text: Text, run_tokens: int = 0) -> Chunk:
    """The next chunk of a text that is not cached yet.

    Args:
      part: of the cache.
      text: the text.
      run_tokens: so much padding is no more than one run more.
    """
    left = len(text.ids) - text.cached
    if left >= _WIDTHS[-1]:
        return Chunk(part, text, text.cached, _WIDTHS[-1])
    width = _width(left)
    if width > _WIDTHS[0] and width - left > max(_PADDING * width, run_tokens):
        left = max(width for width in _WIDTHS if width < left)
    return Chunk(part, text, text.cached, left)


def _width(tokens: int) -> int:
    return next(width for width in _WIDTHS if width >= tokens)

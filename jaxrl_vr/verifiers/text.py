"""Text as it may leave the verifiers: what every file and terminal can hold."""

from __future__ import annotations

import re

_SURROGATE = re.compile("[\ud800-\udfff]")
_UNKNOWN = "\N{REPLACEMENT CHARACTER}"


def encodable(text: str) -> str:
    """`text` with its lone surrogates, which no encoding has, replaced; the length stays."""
    return _SURROGATE.sub(_UNKNOWN, text)


def one_line(text: str, limit: int = 500) -> str:
    """`text` on one line of at most `limit` printable characters."""
    # Cut first, with room for white space that collapses: the text may be as long as memory is.
    line = " ".join(text[: 4 * limit].split())
    line = "".join(c if c.isprintable() else _UNKNOWN for c in line)
    return line if len(line) <= limit else line[: limit - 1] + "…"

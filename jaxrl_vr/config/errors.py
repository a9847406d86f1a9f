"""The error of a config, and the words that its messages share."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

WIDTH = 60  # characters of a value that a message quotes


class ConfigError(ValueError):
    """A config that cannot be used; the message names file, key, value and fix, one a line."""


def error_of(lines: Iterator[str] | Sequence[str]) -> ConfigError:
    """One error of all lines, counted where there are several."""
    lines = list(lines)
    if len(lines) == 1:
        return ConfigError(lines[0])
    text = "\n".join("  " + line.replace("\n", "\n    ") for line in lines)
    return ConfigError(f"{len(lines)} errors in the config:\n{text}")


def short(text: str) -> str:
    """A value's text, cut where it is long."""
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


def nearest(word: Any, known: Sequence[Any], *, listed: bool = True) -> str:
    """Which of the known words may be meant; where none is near and `listed`, all of them."""
    near = difflib.get_close_matches(str(word), [str(k) for k in known], 1)
    if near:
        return f"did you mean `{near[0]}`?"
    return f"there are {', '.join(map(str, known)) or 'none'}" if listed else ""

"""Cutting cleaned text outside of its brackets."""

from __future__ import annotations

import re
from collections.abc import Callable

from jaxrl_vr.verifiers.latex import SET_CLOSE, SET_OPEN

OPEN, CLOSE = "([{" + SET_OPEN, ")]}" + SET_CLOSE
RELATION = re.compile(r"(=|<|>|\\(?:le|ge|ne|in|approx|equiv|sim)(?![a-zA-Z]))")


def depths(text: str) -> list[int]:
    """The bracket depth at each character, a bracket itself counted as inside."""
    found, depth = [], 0
    for character in text:
        depth += character in OPEN
        found.append(depth)
        depth -= character in CLOSE
    return found


def encloses(text: str) -> bool:
    """Whether the first bracket is closed by the last character, and not before."""
    inside = depths(text)
    return not any(inside[i] == 1 and c in CLOSE for i, c in enumerate(text[:-1]))


def split(text: str, separators: str) -> list[str]:
    """The parts between the separating characters outside of brackets."""
    inside = depths(text)
    cuts = [i for i, c in enumerate(text) if c in separators and inside[i] == 0]
    return [text[a + 1 : b] for a, b in zip([-1, *cuts], [*cuts, len(text)], strict=True)]


def split_at(text: str, pattern: re.Pattern[str]) -> list[str]:
    """Parts and what separates them in turn, cut at matches outside of brackets."""
    inside = depths(text)
    parts, end = [], 0
    for match in pattern.finditer(text):
        if inside[match.start()] == 0 and match.end() > match.start():
            parts += [text[end : match.start()], match[0]]
            end = match.end()
    return [*parts, text[end:]]


def outside_brackets(
    text: str, pattern: re.Pattern[str], new: Callable[[re.Match[str]], str]
) -> str:
    """`text` with the matches outside of brackets replaced."""
    inside = depths(text)
    return pattern.sub(lambda m: new(m) if inside[m.start()] == 0 else m[0], text)

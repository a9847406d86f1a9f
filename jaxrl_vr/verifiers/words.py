"""Answers that are text: words, and choices by a letter."""

from __future__ import annotations

import re

_LETTER_CHOICE = re.compile(r"\(([A-Z])\)")
_CHOICE = re.compile(r"\(?\s*([A-Z])\s*(?:\)|[.:](?=\s))\s*(?P<said>\S.*)?", re.DOTALL)
_BARE_LETTER = re.compile(r"\(?\s*([A-Z])\s*\)?[.:]?")
_EXCLAMATION = re.compile(r"(?<=[a-zA-Z]{3})!$")
_PROSE = re.compile(r"(?=.*[^\W\d_]{2})[\w\s'-]+")
_ARTICLE = re.compile(r"^(?:an?|the)\s+(?=[a-z]{3})", re.IGNORECASE)
_ANY_CASE = {"yes", "no", "true", "false", "none", "even", "odd", "both", "neither", "zero", "one"}


def words(text: str) -> list[str]:
    """A text answer as a list of words to compare; letters alone keep their case."""
    text = _ARTICLE.sub("", _LETTER_CHOICE.sub(r"\1", _EXCLAMATION.sub("", text.strip())))
    return [_folded(word) for word in re.findall(r"[^\W\d_]+|\d+|\S", text)]


def is_prose(text: str) -> bool:
    """Whether a text is words and nothing else."""
    return bool(_PROSE.fullmatch(text))


def same_choice(a: str, b: str) -> bool:
    """Whether one answer is a letter and the other the same letter with what it stands for."""
    for letter, choice in ((a, b), (b, a)):
        bare, full = _BARE_LETTER.fullmatch(letter.strip()), _CHOICE.fullmatch(choice.strip())
        if bare and full and full["said"] and bare[1] == full[1]:
            # (A), (B) and (C) is a list of choices.
            return not re.search(r"\([A-Z]\)|(?<!\w)[A-Z][).]", full["said"])
    return False


def _folded(word: str) -> str:
    if len(word) == 1 or (word.isupper() and word.lower() not in _ANY_CASE):
        return word
    return word.casefold()

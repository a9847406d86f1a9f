"""Ratios and times of day, both written with colons."""

from __future__ import annotations

import re

_TIME = re.compile(r"(\d{1,2}):([0-5]\d)(?::([0-5]\d))?\s*(?:([ap])\.?\s?m\b\.?)?", re.IGNORECASE)
_BETWEEN = re.compile(r"\s*:\s*|(?<=\d)\s+to\s+(?=-?\d)")


def time_of(text: str) -> tuple[int, int, int, str] | None:
    """Hours, minutes, seconds and a or p of a time of day; 7:32 may be one, 3:4 is none."""
    match = _TIME.fullmatch(text.strip())
    if match is None or int(match[1]) > 24:
        return None
    return int(match[1]), int(match[2]), int(match[3] or 0), (match[4] or "").lower()


def terms(text: str) -> list[str] | None:
    """The terms of a ratio, 2 or more; None where there is none."""
    if time_of(text):
        return None
    found = _BETWEEN.split(text.strip())
    return found if 2 <= len(found) <= 10 and all(found) else None

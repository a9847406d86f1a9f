"""The program in a response: its last fenced block of a language."""

from __future__ import annotations

import re
from collections.abc import Sequence

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$")
PYTHON = ("python", "python3", "py", "py3")


def last_fence(text: str, languages: Sequence[str] = PYTHON) -> str | None:
    """The content of the last closed block of one of `languages`, else of the last unmarked one.

    A block that is never closed is none: the response was cut off in it.
    """
    marked, unmarked = None, None
    mark, language, lines = "", "", []
    # Not splitlines, which also cuts at characters that may stand within a line of a program.
    for line in text.replace("\r\n", "\n").split("\n"):
        match = _FENCE.match(line)
        if not mark:
            if match:
                mark, language, lines = match[1], match[2].strip(), []
        elif match and match[1].startswith(mark) and not match[2].strip():
            words = language.lower().replace("{", " ").replace("}", " ").split()
            if not words:
                unmarked = "\n".join(lines) + "\n"
            elif words[0].lstrip(".") in languages:
                marked = "\n".join(lines) + "\n"
            mark = ""
        else:
            lines.append(line)
    return unmarked if marked is None else marked

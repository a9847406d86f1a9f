"""Where the answer stands: in a response, and in a reference as a data set holds it.

Only what follows the thinking counts, and only the last answer in it: a verifier that looks
further rewards listing candidates.
"""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_JOINT = re.compile(r"(?:\s|\$|\\[()\[\],;]|\\q?quad|~|,|\\text\s*\{[\s,]*and\s*\}|\band\b)*")
_NUMBER = re.compile(
    r"""(?P<sign>(?<![\w.)\]}])[-+\u2212]\s?)?\$?
        (?:\\[dtc]?frac\s*\{[-+]?\d+\}\s*\{\d+\}
         |(?:\d{1,3}(?:(?:,|\{,\})\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,4}(?!\w))?(?:/\d+)?
         |\.\d+)
        (?:\s?\\?%)?""",
    re.VERBOSE,
)
_MAX_NUMBER = 4000  # characters


def after_thinking(prompt: str, response: str) -> str | None:
    """What follows the last `</think>`, or None while the thinking is still open.

    A prompt that ends with `<think>` (opened by the chat template) has opened it.
    """
    _, closed, rest = response.rpartition("</think>")
    if "<think>" in rest or (not closed and prompt.rstrip().endswith("<think>")):
        return None
    return rest


def last_box(text: str) -> str | None:
    r"""Content of the last `\boxed{...}`; None if there is none or it is never closed.

    Boxes apart by nothing but commas or "and" are one answer: their contents as a list.
    """
    run: list[str] = []
    end = 0
    while match := _BOX.search(text, end):
        close = _closing(text, match.end())
        if close is None:
            return None
        between = text[end : match.start()]
        if not (run and ("," in between or "and" in between) and _JOINT.fullmatch(between)):
            run = []
        run.append(text[match.end() : close])
        end = close + 1
    if not run:
        return None
    return ", ".join(dict.fromkeys(content.strip() for content in run))


def _closing(text: str, start: int) -> int | None:
    """Offset of the brace that closes the group whose content starts at `start`."""
    depth = 1
    for match in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return match.start()
    return None


def last_number(text: str) -> str | None:
    """The last numeral in `text`, with its sign, fraction or percent sign."""
    last = ""
    for match in _NUMBER.finditer(text):
        last = match.group()
    return last.replace("$", "").strip() if 0 < len(last) <= _MAX_NUMBER else None


def gold(reference: str) -> str:
    r"""The answer in a reference: behind its last `####`, else its last box, else all of it."""
    _, marked, answer = reference.rpartition("####")
    if marked:
        return answer.strip()
    box = last_box(reference)
    return (reference if box is None else box).strip()

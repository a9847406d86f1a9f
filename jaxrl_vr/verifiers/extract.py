r"""Where the answer stands: in a response, and in a reference as a data set holds it.

Only what follows the thinking counts. The methods are tried in the order that a data set
configures, and the first that finds something decides, even where it finds nothing inside:
an empty box is no answer, whatever stands elsewhere. Of several answers the last one counts only
where the text takes the earlier ones back ("no wait") or concludes ("therefore"); else they are one
list, which a reference of one item never equals. So listing candidates does not pay.

The methods read a response from front to back once; none depends on where its end is cut.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Literal

from jaxrl_vr.verifiers.bare import bare_answer, is_bare, last_expression
from jaxrl_vr.verifiers.prompt import Prompt, opened

Method = Literal[
    "boxed", "answer_tag", "hashes", "phrase", "whole", "last_expression", "last_number"
]
ORDER: tuple[Method, ...] = (
    "boxed",
    "answer_tag",
    "hashes",
    "phrase",
    "whole",
    "last_expression",
)

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])\s*(\{)?")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_UNBRACED = re.compile(r"[^\s$\\{}]+|\\[a-zA-Z]+(?:\{[^{}]*\}|\d)*")
_BEHIND_BOX = re.compile(r"\s*(?:\$|\\\)|\\\])?\s*(\\?%|percent\b|pct\b)")
_HASHES = re.compile(r"^[ \t*]*####(?!#)[ \t]*(.*)$", re.MULTILINE)
_ANSWER_IS = re.compile(
    r"""\b(?P<final>final\s+)?
        (?:answer\b(?:\W{0,4}[:=]|[^.\n:=$\\]{0,60}?\s(?:is|are|equals|be)\b\s*:?)
         |(?P<weak>option|choice|result|solution)\b[^.\n:=$\\]{0,60}?\s(?:is|are|equals|be)\b\s*:?
         |(?:result|option|choice)\s?[:=])
      |\b(?P<heading>final\s+answer)\b(?=[*_#\s]*\n)
      |\u7b54\u6848(?:\u662f|\u4e3a|\u70ba)?\s*[:\uff1a]?""",
    re.VERBOSE | re.IGNORECASE,
)
_TAKEN_BACK = re.compile(
    r"\b(?:wait|no|actually|instead|correct(?:ed|ion|ing)?|mistake|error|sorry|apologi[sz]e|rather|"
    r"re-?check(?:ing)?|oops|final(?:ly)?|therefore|thus|hence|conclu(?:de|sion)|overall)\b",
    re.IGNORECASE,
)
_TURN = re.compile(r"<\|(?:im_start|im_end|endoftext|end_of_text|eot_id|end|user)\|>")
_NUMBER = re.compile(
    r"""(?P<sign>(?<![\w.)\]}])[-+\u2212]\s?)?(?<![a-zA-Z_])\$?
        (?:\\[dtc]?frac\s*\{[-+]?\d+\}\s*\{\d+\}
         |(?:\d{1,3}(?:(?:,|\{,\})\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,4}(?!\w))?(?:/\d+)?
         |\.\d+)
        (?:\s?\\?%)?""",
    re.VERBOSE,
)
_LISTED = re.compile(r"\s*+(?:,|;|\bor\b|\band\b)[\s,]*+(?:or\b|and\b)?\s*+")
_MAX_NUMBER = 4000  # characters


@dataclasses.dataclass(frozen=True)
class Found:
    """What one method found; an empty answer is an answer's place with nothing in it."""

    answer: str
    method: Method


@dataclasses.dataclass(frozen=True)
class _Span:
    start: int
    end: int
    answer: str
    replaces: bool = False  # the earlier ones, by its own words
    yields: bool = False  # to whatever comes later


def after_thinking(prompt: Prompt, response: str) -> str | None:
    """What follows the last `</think>`, or None while the thinking is still open.

    The prompt may have opened it, as chat templates do.
    """
    _, closed, rest = response.rpartition("</think>")
    if "<think>" in rest or (not closed and opened(prompt, "think") is not None):
        return None
    return rest


def find(text: str, order: Sequence[Method]) -> Found | None:
    """The answer by the first method of `order` that finds a place for one."""
    text = _own_turn(text)
    for method in order:
        answer = _METHODS[method](text)
        if answer is not None:
            return Found(answer.strip(), method)
    return None


def gold(reference: str) -> str:
    r"""The answer in a reference: behind its last `####`, else its last box, else all of it."""
    _, marked, answer = reference.rpartition("####")
    if marked:
        return answer.strip()
    box = boxed(reference)
    return (reference if box is None else box).strip()


def boxed(text: str) -> str | None:
    r"""What the boxes hold; None without a box, empty where one is never closed."""
    spans: list[_Span] = []
    end = 0
    while match := _BOX.search(text, end):
        start = match.end()
        if match[1]:
            close = _closing(text, start)
            if close is None:
                return ""
            content, end = text[start:close], close + 1
        else:
            bare = _UNBRACED.match(text, start)
            if bare is None:
                end = start
                continue
            content, end = bare[0].rstrip(".,;"), bare.end()
        behind = _BEHIND_BOX.match(text, end)
        if behind and content.strip()[-1:].isdigit():
            content = f"{content} {behind[1]}"
        spans.append(_Span(match.start(), end, content))
    return _settled(text, spans)


def _own_turn(text: str) -> str:
    """The text before a marker by which a chat template ends a turn."""
    for match in _TURN.finditer(text):
        if text[: match.start()].strip():
            return text[: match.start()]
    return text


def _closing(text: str, start: int) -> int | None:
    """Offset of the brace that closes the group whose content starts at `start`."""
    depth = 1
    for match in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return match.start()
    return None


def _settled(text: str, spans: Sequence[_Span]) -> str | None:
    """The answers that stand at the end, as one list; each answer once."""
    standing: list[_Span] = []
    for span in spans:
        between = text[standing[-1].end : span.start] if standing else ""
        yields = bool(standing) and standing[-1].yields
        if span.replaces or yields or _TAKEN_BACK.search(between):
            standing = []
        standing.append(span)
    if not standing:
        return None
    return ", ".join(dict.fromkeys(span.answer.strip() for span in standing))


def _answer_tag(text: str) -> str | None:
    spans, end = [], 0
    while (start := text.find("<answer>", end)) >= 0:
        close = text.find("</answer>", start)
        if close < 0:
            return ""
        end = close + len("</answer>")
        spans.append(_Span(start, end, _inner(text[start + len("<answer>") : close])))
    return _settled(text, spans)


def _inner(text: str) -> str:
    """The answer in a text that is meant to be one, which may say so again."""
    for method in (_hashes, _phrase):
        if (answer := method(text)) is not None:
            return answer
    return text


def _hashes(text: str) -> str | None:
    return _settled(text, [_Span(*match.span(), match[1]) for match in _HASHES.finditer(text)])


def _phrase(text: str) -> str | None:
    spans = []
    for match in _ANSWER_IS.finditer(text):
        if spans and match.start() < spans[-1].end:
            continue
        start, end, answer = bare_answer(text, match.end())
        if answer:
            # "The result is" may speak of a step, and does not contradict what comes later.
            is_weak = bool(match["weak"])
            is_final = bool(match["final"] or match["heading"])
            spans.append(_Span(match.start(), end, answer, is_final or is_weak, is_weak))
    return _settled(text, spans)


def _whole(text: str) -> str | None:
    return text if is_bare(text) else None


def last_number(text: str) -> str | None:
    """The last numeral in `text`, with its sign, fraction or percent sign.

    Numerals before it that only a comma, "or" or "and" sets apart belong to it: a list.
    """
    run: list[str] = []
    end = 0
    for match in _NUMBER.finditer(text):
        if not (run and _LISTED.fullmatch(text, end, match.start())):
            run = []
        run.append(match.group().replace("$", "").strip())
        end = match.end()
    found = ", ".join(dict.fromkeys(run))
    return found if 0 < len(found) <= _MAX_NUMBER else None


_METHODS: dict[Method, Callable[[str], str | None]] = {
    "boxed": boxed,
    "answer_tag": _answer_tag,
    "hashes": _hashes,
    "phrase": _phrase,
    "whole": _whole,
    "last_expression": last_expression,
    "last_number": last_number,
}

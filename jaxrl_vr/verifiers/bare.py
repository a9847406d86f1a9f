r"""Answers in running text: mathematics between delimiters, or words that look like mathematics.

What is here decides only where an answer begins and ends. It is generous with what counts as
mathematics, because what is taken too far compares as different.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from jaxrl_vr.verifiers.expression import FUNCTIONS, GREEK
from jaxrl_vr.verifiers.units import is_unit

MAX_LENGTH = 4096  # of an answer in running text

_DELIMITER = re.compile(r"(?<!\\)\$\$?|\\[()\[\]]")
_CLOSES = {"$": "$", "$$": "$$", r"\(": r"\)", r"\[": r"\]"}
_LEAD = re.compile(r"[\s*_:#>`\"]*+")
_STOP = re.compile(r"(?<!\\)\$\$?|\\[(\[]|\n|[.?](?=[\s*_<\"]|$)|(?<=[a-zA-Z]{2})!(?=\s|$)")
_ASIDE = re.compile(
    r"\s*[,(]?\s*(?<!\\)\b(?:because|since|which|so|where|when|after|that|as|for|in)\b"
    r"|,\s+(?!(?:and|or)\b)(?=[a-z]{3})|\s[-\u2013\u2014]{1,2}\s(?=[a-zA-Z]{2})"
)
_HEDGE = re.compile(
    r"(?:(?:exactly|simply|just|therefore|thus|option|choice|equal to|given by|approximately|about)"
    r"\b:?\s*)+",
    re.IGNORECASE,
)
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_TEXT = re.compile(r"\\(?:text[a-z]*|math[a-z]*|mbox|operatorname)\s*\{([^{}]*)\}")
_WORD = re.compile(r"[^\W\d_]{2,}")
_OPERATORS = set("+-*/=<>^%!()[]{}|\u00b1\u00d7\u00f7\u2212\u00b7\u2264\u2265\u2260\u2248\u222a")
_SYMBOLS = set("\u03c0\u221e\u221a\u2205\u211d\u00b0")
_NAMES = FUNCTIONS | GREEK | {"pi", "and", "or", "infty", "infinity"}
_JOINS = {"and", "or"}
_NOT = re.compile(r"(?:not|never|except|neither|nor|without|\w+n['\u2019]t|cannot)", re.IGNORECASE)
_NOTE = re.compile(r"<<[^<>]*>>")
_MARKED = re.compile(r"[*_`\"']*(.*?)([*_`\"'.,;:?]*)", re.DOTALL)
_TOKEN = re.compile(r"\S+")


def is_bare(text: str) -> bool:
    """Whether a text is an answer and nothing else: mathematics, or a few words without any."""
    text = text.strip().strip("*_`\"'")
    if not text or len(text) > MAX_LENGTH or text.count("\n") > 8:
        return False
    content = _TEXT.sub(r" \1 ", text)
    words = _WORD.findall(_COMMAND.sub(" ", content))
    if not re.search(r"[\d$\\]", text):
        return len(words) <= 8 and "\n" not in text and not text.endswith("?")
    if r"\begin" in text:
        return bool(re.fullmatch(r"\W*\\begin.*\\end\s*\{\w+\}\W*", text, re.DOTALL))
    names = [word for word in words if not (word.lower() in _NAMES or is_unit(word))]
    return all(word.isupper() and len(word) <= 4 for word in names)


def bare_answer(text: str, start: int) -> tuple[int, int, str]:
    """What is said from `start` to the end of its sentence: its place, and the answer in it."""
    lead = _LEAD.match(text, start)
    at = lead.end() if lead else start
    limit, end = min(len(text), at + MAX_LENGTH), at
    while match := _STOP.search(text, end, limit):
        if match[0] not in _CLOSES:
            end = match.start()
            break
        close = text.find(_CLOSES[match[0]], match.end(), limit)
        end = close + len(_CLOSES[match[0]]) if close >= 0 else match.end()
    else:
        end = limit
    said = text[at:end]
    if hedge := _HEDGE.match(said):
        said = said[hedge.end() :]
    first = next(iter(_blocks(said)), (0, 0, ""))
    if aside := _ASIDE.search(said, max(first[1], 1)):
        said = said[: aside.start()]
    return at, end, said.strip().strip('*_`"')


def last_expression(text: str) -> str | None:
    """The last run of mathematics in a text, with the unit behind it.

    Runs that only "," or "or" or "and" sets apart are one list. One that is negated ("not 5") is
    nobody's answer.
    """
    found: str | None = None
    run: list[str] = []
    state = _State()

    def close() -> None:
        nonlocal found, run
        joined = _NOTE.sub("", " ".join(run)).strip(" ,;:")
        before, equals, value = joined.rpartition("=")
        if equals and not state.has_block and not re.search(r"[^\W\d_]", before):
            joined = value.strip()  # of "... 2 = 14" in prose, where the left is cut off
        if state.has_block or re.search(r"[\d\\]|\w\s*[=<>]|[\u03c0\u221e\u221a\u2205]", joined):
            found = None if state.is_negated else joined
            state.is_negated = False
        run, state.has_block = [], False

    for gap, token, is_block in _tokens(text):
        if "\n" in gap:
            close()
            state.is_negated = False
        core, ends = (token, "") if is_block else _stripped(token)
        if is_block or _is_mathematical(core, run):
            run.append(core)
            state.has_block |= is_block
            if ends and ends != ",":
                close()
            elif ends:
                run.append(",")
            continue
        if run and core.lower() in _JOINS:
            run.append(core)
            continue
        if run and (is_unit(core) or core in ("square", "cubic", "per")):
            run.append(core)
        close()
        if _NOT.fullmatch(core):
            state.is_negated = True
        if ends:
            close()
            state.is_negated = False
    close()
    if found is None or len(found) > MAX_LENGTH:
        return None
    return re.sub(r"(?:\s*(?:,|\band\b|\bor\b))+$", "", found) or None


def _stripped(token: str) -> tuple[str, str]:
    """A word without its markup, and the punctuation behind it."""
    if set(token) <= _OPERATORS:
        return token, ""
    match = _MARKED.fullmatch(token)
    assert match is not None, "it matches anything"
    return match[1], re.sub(r"[^.,;:?]", "", match[2])


class _State:
    is_negated = False
    has_block = False


def _is_mathematical(token: str, run: list[str]) -> bool:
    """Whether a word is mathematics, of a single letter only behind an operator or as `x=`."""
    if not token:
        return False
    if set(token) <= _OPERATORS:
        return True
    words = _WORD.findall(_COMMAND.sub(" ", _TEXT.sub(" ", token)))
    if any(len(word) > 2 and word.lower() not in _NAMES and not is_unit(word) for word in words):
        return False
    if re.search(r"\d|\\[a-zA-Z(\[]", token) or set(token) & _SYMBOLS:
        return not re.match(r"[a-zA-Z]{1,3}\d", token)
    return bool(run) and run[-1][-1:] in _OPERATORS and len(token) == 1 and token.isalpha()


def _tokens(text: str) -> Iterator[tuple[str, str, bool]]:
    """White space, what follows it, and whether that is mathematics between delimiters."""
    end = 0
    for start, stop, content in [*_blocks(text), (len(text), len(text), "")]:
        for match in _TOKEN.finditer(text, end, start):
            yield text[end : match.start()], match[0], False
            end = match.end()
        if content:
            yield text[end:start], content, True
        end = stop


def _blocks(text: str) -> Iterator[tuple[int, int, str]]:
    """Start, end and content of what stands between delimiters and looks like mathematics."""
    opened: re.Match[str] | None = None
    for match in _DELIMITER.finditer(text):
        if opened is not None and match[0] == _CLOSES[opened[0]]:
            content = text[opened.end() : match.start()]
            if _is_mathematics(content):
                yield opened.start(), match.end(), content.strip()
                opened = None
            else:
                opened = match if match[0] in _CLOSES else None  # 5$ and 6$ are prices
        elif opened is None or opened[0] == "$":
            opened = match if match[0] in _CLOSES else opened


def _is_mathematics(content: str) -> bool:
    if not content.strip() or "\n\n" in content or content.rstrip()[-1] in "=+-*/\u2013":
        return False  # what ends so is cut off: it stands between two prices
    words = _WORD.findall(_COMMAND.sub(" ", _TEXT.sub(" ", content)))
    if r"\begin" in content:
        return True
    odd = [w for w in words if len(w) > 2 and w.lower() not in _NAMES and not is_unit(w)]
    return len(odd) == 0 or bool(re.search(r"[=\\^]", content) and len(odd) <= 1)

"""English sentences and tokens, counted as the reference of IFEval counts them.

Sentences end as Punkt (Kiss and Strunk 2006, https://aclanthology.org/J06-4003) lets them end, with
a list of abbreviations and of words that are rarely names in place of its trained tables. `1.` at
the start of a line is therefore a sentence. Tokens are those of the Penn Treebank as far as
capital letters can tell: `DON'T` is `DO` and `N'T`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_ABBREVIATIONS = frozenset(
    "a.m p.m e.g i.e cf etc vs viz approx dr mr mrs ms prof rev hon st sr jr esq gen col lt maj "
    "capt cmdr sgt cpl adm gov sen rep pres messrs mmes inc ltd co corp bros dept univ assn ave "
    "blvd rd jan feb mar apr jun jul aug sep sept oct nov dec u.s u.k u.n u.s.a d.c n.y l.a ph.d "
    "m.d b.a m.a m.b.a b.sc m.sc j.d ala ariz ark calif colo conn del fla ga ill ind kan ky la md "
    "mass mich minn mo mont neb nev okla ore pa tenn tex va vt wash wis wyo r.i n.j n.h n.c s.c "
    "s.d n.d n.m w.va mt ft vol pp al".split()
)
# Words that begin a sentence when a capital follows an abbreviation: hardly ever part of a name.
_COMMON = frozenset(
    "the a an this that these those it he she they we you i there here what when where who why how "
    "which if but and or so because although though while since after before then also however "
    "in on at by for from with to of as is are was were be do does did can could will would should "
    "may might must not no yes my your his her its our their some many most all each every one two "
    "another such only just even still now today let please once until unless during".split()
)
_OPEN_CLOSE = r")\";}\]*:@'({\[!?‘’“”«»"
_NON_WORD = re.compile(f"[{_OPEN_CLOSE}]")
_MULTIPLE = r"(?:-{2,}|\.{2,}|(?:\.\s){2,}\.)"
_TOKEN = re.compile(
    rf"""{_MULTIPLE}
    |(?=[^("`{{\[:;&\#*@)}}\]\-,\s])\S+?
      (?=\s|$|[{_OPEN_CLOSE}]|{_MULTIPLE}|,(?=$|\s|[{_OPEN_CLOSE}]|{_MULTIPLE}))
    |\S""",
    re.VERBOSE,
)
_CHUNK = re.compile(r"\S+")
_CLOSING = re.compile(r"""["')\]}‘’“”«»]+?(?:\s+|(?=--)|$)""", re.MULTILINE)
_ELLIPSIS = re.compile(r"\.\.+")
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*")
_INITIAL = re.compile(r"[^\W\d]\.")
_LONG = 1000  # characters of a chunk without white space that are still looked into


def count_sentences(text: str) -> int:
    """How many sentences `text` has."""
    cuts = [0]
    for end, following in _ends(text):
        cuts += [end, following]
    cuts.append(len(text.rstrip()))
    slices = list(zip(cuts[::2], cuts[1::2], strict=True))
    count = skipped = 0
    for i, (start, end) in enumerate(slices):
        start += skipped
        skipped = 0
        if i + 1 < len(slices):
            # Quotes and brackets that close behind the end belong to the sentence.
            closing = _CLOSING.match(text, *slices[i + 1])
            if closing:
                skipped, end = closing.end() - closing.start(), closing.end()
        count += end > start
    return count


def _ends(text: str) -> Iterator[tuple[int, int]]:
    """Where each sentence but the last ends, and where the next one starts."""
    chunks = [match.span() for match in _CHUNK.finditer(text)]
    for i, (start, stop) in enumerate(chunks):
        following = chunks[i + 1] if i + 1 < len(chunks) else None
        end = stop if following and text[stop - 1] in ".?!" else _inner_end(text, start, stop)
        if end is None:
            continue
        rest = text[end : end + 1] if end < stop else text[slice(*following)] if following else ""
        tokens = _TOKEN.findall(text[max(start, end - _LONG) : end])
        after = _TOKEN.findall(rest[:_LONG])
        if _has_break([*tokens, *after]):
            yield end, end if end < stop or not following else following[0]


def _inner_end(text: str, start: int, stop: int) -> int | None:
    """The last end mark within a chunk that a bracket, a quote or another mark follows."""
    for i in range(stop - 2, start - 1, -1):
        if text[i] in ".?!" and _NON_WORD.match(text, i + 1):
            return i + 1
    return None


def _has_break(tokens: list[str]) -> bool:
    return any(_breaks(token, tokens[i + 1]) for i, token in enumerate(tokens[:-1]))


def _breaks(token: str, following: str) -> bool:
    """Whether a sentence ends with `token`."""
    if token in ("?", "!", "."):
        return True
    if _ELLIPSIS.fullmatch(token):
        return _starts(following)
    if not token.endswith(".") or token.endswith(".."):
        return False
    word = token[:-1].lower()
    is_lower = following[:1].islower()
    is_initial = _INITIAL.fullmatch(token) is not None
    if word in _ABBREVIATIONS or word.rpartition("-")[2] in _ABBREVIATIONS:
        return not is_initial and _starts(following)
    if is_initial or _NUMBER.fullmatch(word):
        if is_lower or following in (";", ":", ",", ".", "!", "?"):
            return False
        is_name = following[:1].isupper() and following.rstrip(".").lower() not in _COMMON
        return not (is_initial and is_name)
    return True


def _starts(following: str) -> bool:
    return following[:1].isupper() and following.rstrip(".").lower() in _COMMON


_APART = re.compile(r"""\.{2,}|--|[;@#$%&?!*\[\](){}<>"«»“”‘’„`‒–—―]|[:,](?=\D|$)|''""")
_OPENING = re.compile(r"(?<!\w)'(?!(?:re|ve|ll|[mtsdn])\b)(?=\w)", re.IGNORECASE)
_CLITIC = re.compile(r"(?<=[^'\s])('(?:[sSmMdD]|ll|LL|re|RE|ve|VE)|n't|N'T)(?=\.?(?:\s|$))")
_JOINED = re.compile(
    r"\b(?:(can)(not)|(d)('ye)|(gim)(me)|(gon)(na)|(got)(ta)|(lem)(me)|(more)('n)|(wan)(na))\b",
    re.IGNORECASE,
)


def count_capital_words(text: str) -> int:
    """How many tokens have capital letters and no small ones."""
    text = _APART.sub(" ", _OPENING.sub("' ", text))
    text = _CLITIC.sub(r" \1", text)
    text = _JOINED.sub(lambda match: " ".join(part for part in match.groups() if part), text)
    return sum(token.isupper() for token in text.split())

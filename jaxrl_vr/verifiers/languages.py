"""Which language a text is in: by its script where that decides, else by frequent words.

Deterministic, and without tables to load: languages that share a script are told apart by
`language_words`, by the letters they do not have, and by how their frequent words are spelt. Codes
are those of ISO 639-1. A sentence is enough as a rule; a word alone may be told wrong.
"""

from __future__ import annotations

import collections
import functools
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from jaxrl_vr.verifiers.language_words import ARABIC, CYRILLIC, DEVANAGARI, LATIN, LETTERS

_RANGES = {
    "latin": r"A-Za-z\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02af\u1e00-\u1eff"
    r"\uff21-\uff3a\uff41-\uff5a",
    "cyrillic": r"\u0400-\u052f\u1c80-\u1c88\u2de0-\u2dff\ua640-\ua69f",
    "greek": r"\u0370-\u03ff\u1f00-\u1fff",
    "han": r"\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af",
    "kana": r"\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9d",
    "hangul": r"\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3",
    "arabic": r"\u0620-\u065f\u066e-\u06d3\u06d5-\u06dc\u06df-\u06e8\u06ea-\u06ef\u06fa-\u06ff"
    r"\u0750-\u077f\ufb50-\ufdff\ufe70-\ufefc",
    "hebrew": r"\u0591-\u05bd\u05d0-\u05ea\u05ef-\u05f2",
    "devanagari": r"\u0900-\u0963\u0971-\u097f",
    "bengali": r"\u0980-\u09e3\u09f0\u09f1",
    "gurmukhi": r"\u0a01-\u0a65\u0a70-\u0a76",
    "gujarati": r"\u0a81-\u0ae3",
    "oriya": r"\u0b01-\u0b63",
    "tamil": r"\u0b82-\u0bd7",
    "telugu": r"\u0c00-\u0c63",
    "kannada": r"\u0c80-\u0ce3",
    "malayalam": r"\u0d00-\u0d63\u0d7a-\u0d7f",
    "sinhala": r"\u0d81-\u0ddf",
    "thai": r"\u0e01-\u0e3a\u0e40-\u0e4e",
    "lao": r"\u0e81-\u0ecd\u0edc-\u0edf",
    "tibetan": r"\u0f00\u0f40-\u0fbc",
    "burmese": r"\u1000-\u103f\u1050-\u108f",
    "georgian": r"\u10a0-\u10ff\u1c90-\u1cbf",
    "ethiopic": r"\u1200-\u135f",
    "khmer": r"\u1780-\u17d3",
    "armenian": r"\u0531-\u0556\u0561-\u0587",
}
_ONLY = {
    "greek": "el", "hangul": "ko", "hebrew": "he", "bengali": "bn", "gurmukhi": "pa",
    "gujarati": "gu", "oriya": "or", "tamil": "ta", "telugu": "te", "kannada": "kn",
    "malayalam": "ml", "sinhala": "si", "thai": "th", "lao": "lo", "tibetan": "bo",
    "burmese": "my", "georgian": "ka", "ethiopic": "am", "khmer": "km", "armenian": "hy",
}  # fmt: skip
_SHARED = {"latin": LATIN, "cyrillic": CYRILLIC, "arabic": ARABIC, "devanagari": DEVANAGARI}
_ALIASES = {"zh-cn": "zh", "zh-tw": "zh", "zh-hans": "zh", "zh-hant": "zh", "nb": "no", "nn": "no"}
LANGUAGES = tuple(
    sorted({"zh", "ja", *_ONLY.values(), *(code for words in _SHARED.values() for code in words)})
)
"""The codes that can be told."""
UNSPACED = frozenset(("han", "kana", "thai", "lao", "tibetan", "burmese", "khmer"))
"""Scripts that do not set words apart: each character counts as one."""

_RUN = re.compile(
    "|".join(rf"(?P<{name}>[{span}][{span}\u0300-\u036f]*)" for name, span in _RANGES.items())
)
_MAX_WORDS = 4000  # that are looked at; of more, every second, third, ... one is
_MAX_LETTERS = 40  # of one word
_KANA = 0.1  # share of kana from which a text with Han characters is Japanese
_PRIOR = {"en": 2.0, "ru": 1.0} | dict.fromkeys(("de", "es", "fr", "it", "pt"), 1.0)
_PRIOR |= dict.fromkeys("af ca cy et hr lt lv mk sl so sq tl".split(), -1.5)
_PLAIN = {"latin": "abcdefghijklmnopqrstuvwxyz", "arabic": "".join(map(chr, range(0x64B, 0x653)))}
_IN_LIST, _FOREIGN, _SPELLING = 4.0, 3.0, 0.8  # weights of the three signs of a language


def canonical(code: str) -> str:
    """The code that `detect` has for a language: `zh-cn` and `zh_TW` are `zh`."""
    code = code.strip().lower().replace("_", "-")
    return _ALIASES.get(code, code)


def runs(text: str) -> Iterable[tuple[str, str, int]]:
    """The words of a text with their script and offset; what has no script is left out."""
    for match in _RUN.finditer(text):
        assert match.lastgroup is not None, "each alternative is named"
        yield match.lastgroup, match.group(), match.start()


def detect(text: str) -> str | None:
    """The language of `text`, or None where it has no letters of a known script."""
    words: dict[str, list[str]] = collections.defaultdict(list)
    for script, word, _ in runs(unicodedata.normalize("NFC", text)):
        words[script].append(word)
    return of_words(words)


def of_words(words: Mapping[str, Sequence[str]]) -> str | None:
    """The language that most of the letters are of, given the words of each script."""
    sizes = {script: sum(map(len, found)) for script, found in words.items()}
    # A Han or kana character says about as much as two letters.
    cjk = sizes.pop("han", 0) + sizes.pop("kana", 0)
    script = max(sizes, key=lambda name: sizes[name], default="")
    if 2 * cjk > sizes.get(script, 0):
        kana = sum(map(len, words.get("kana", ())))
        return "ja" if kana > _KANA * cjk else "zh"
    if not script:
        return None
    return _ONLY[script] if script in _ONLY else _by_words(script, words[script])


def _by_words(script: str, words: Sequence[str]) -> str:
    """The language of one script whose words and spelling fit best."""
    sample = words[:: 1 + len(words) // _MAX_WORDS]
    counts = collections.Counter(word[:_MAX_LETTERS].lower() for word in sample)
    languages = _SHARED[script]
    totals = {code: _PRIOR.get(code, 0.0) for code in languages}
    for word, count in counts.items():
        weight = 1 + math.log(count)  # a word said again and again says little more
        for code, fit in zip(languages, _fits(script, word), strict=True):
            totals[code] += weight * fit
    return max(totals, key=lambda code: totals[code])


@functools.lru_cache(maxsize=20_000)
def _fits(script: str, word: str) -> tuple[float, ...]:
    """How well a word fits each language of a script."""
    lists, spellings = _lists(script), _spellings(script)
    holders = sum(word in words for words in lists.values())
    fits = []
    for code, words in lists.items():
        fit = _IN_LIST / math.sqrt(holders) if word in words else 0.0
        letters = _letters(script, code)
        if letters and any(c not in letters for c in word):
            fit -= _FOREIGN
        grams, floor = spellings[code]
        parts = _grams(word)
        fit += _SPELLING * sum(grams.get(part, floor) for part in parts) / len(parts)
        fits.append(fit)
    return tuple(fits)


@functools.cache
def _lists(script: str) -> dict[str, frozenset[str]]:
    return {code: frozenset(words.split()) for code, words in _SHARED[script].items()}


@functools.cache
def _letters(script: str, code: str) -> frozenset[str]:
    """The letters of a language; none where all languages of the script share them."""
    if script == "devanagari":
        return frozenset()
    return frozenset(_PLAIN.get(script, "") + LETTERS.get(code, ""))


@functools.cache
def _spellings(script: str) -> dict[str, tuple[dict[str, float], float]]:
    """For each language, log-probabilities of the three letters in a row of its words."""
    found = {}
    for code, words in _lists(script).items():
        counts = collections.Counter(gram for word in sorted(words) for gram in _grams(word))
        total = sum(counts.values()) + 2000.0
        grams = {gram: math.log((n + 0.5) / total) for gram, n in counts.items()}
        found[code] = grams, math.log(0.5 / total)
    return found


def _grams(word: str) -> list[str]:
    framed = f" {word} "
    return [framed[i : i + 3] for i in range(max(1, len(framed) - 2))]

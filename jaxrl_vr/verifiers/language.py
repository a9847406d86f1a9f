"""Language consistency: the share of a response that is in the language asked for.

Shaping `language_consistency` adds the share to the reward (DeepSeek-R1,
https://arxiv.org/abs/2501.12948, section 2.3.2). Code, formulas, addresses and tags have no
language and are left out.
"""

from __future__ import annotations

import collections
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.extract import after_thinking
from jaxrl_vr.verifiers.languages import LANGUAGES, UNSPACED, canonical, detect, of_words, runs
from jaxrl_vr.verifiers.prompt import Prompt, text_of

_BLOCK = re.compile(r"```|\$\$|\\\[|\\\(")
_BLOCK_END = {"```": "```", "$$": "$$", "\\[": "\\]", "\\(": "\\)"}
_INLINE = re.compile(r"`[^`\n]*`|\$[^$\n]*\$|\\[a-zA-Z]+|</?\w{1,40}>|https?://\S+")
_SENTENCE_END = re.compile(r"[.!?;:\n。！？；।]")
_MIN_WORDS = 8  # of a stretch that is told by its words; a shorter one goes with what follows

_Word = tuple[str, str, int]  # script, text, number of its sentence


class Language(Config):
    """The share of words in the target language; right from `least` on.

    A word counts if its script is the language's and the stretch that it stands in reads as that
    language. In scripts that do not set words apart each character is a word.
    """

    needs_reference: ClassVar[bool] = False
    type: Literal["language"] = "language"
    language: str
    """Code of the target language, such as `en` or `zh`; `prompt` is the language of the prompt."""
    part: Literal["all", "thinking", "answer"] = "all"
    """What is judged: the whole response, its thinking alone, or what follows the thinking."""
    unit: Literal["words", "characters"] = "words"
    """What the share is of; characters weigh long words more."""
    least: float = Field(default=0.9, ge=0, le=1)
    """Share from which the verdict is right. The value is the share in any case."""

    @field_validator("language")
    @classmethod
    def _is_known(cls, language: str) -> str:
        if language == "prompt" or canonical(language) in LANGUAGES:
            return language if language == "prompt" else canonical(language)
        raise ValueError(
            f"language is {language!r}, which cannot be told; use prompt or one of "
            f"{', '.join(LANGUAGES)}"
        )

    def answer(self, example: Example, response: str) -> None:
        """A language is no answer."""

    def __call__(self, example: Example, response: str) -> Score:
        """The share of the words that are in the target language."""
        target = detect(text_of(example.prompt)) if self.language == "prompt" else self.language
        if target is None:
            return Score(0.0, "unscorable", reason="the prompt has no words: set `language`")
        text = self._judged(example.prompt, response)
        if text is None:
            return Score(0.0, "no_answer", reason="the thinking is not closed")
        total, counts = 0, collections.Counter[str]()
        for words, language in _stretches(text):
            for script, word, _ in words:
                size = len(word) if self.unit == "characters" or script in UNSPACED else 1
                total += size
                counts[language(script)] += size
        if not total:
            return Score(0.0, "no_answer", reason="there are no words to judge")
        share = counts[target] / total
        shares = ", ".join(f"{code} {n / total:.2f}" for code, n in counts.most_common(3))
        return Score(share, "right" if share >= self.least else "wrong", reason=shares)

    def _judged(self, prompt: Prompt, response: str) -> str | None:
        if self.part == "all":
            return response
        rest = after_thinking(prompt, response)
        if self.part == "answer":
            return rest
        return response if rest is None else response[: len(response) - len(rest)]


class _Told:
    """The language of each script within one stretch."""

    def __init__(self, words: Sequence[_Word]) -> None:
        by_script: dict[str, list[str]] = collections.defaultdict(list)
        for script, word, _ in words:
            # Han and kana are one script here: which it is depends on both.
            by_script["han" if script == "kana" else script].append(word)
        kana = [word for script, word, _ in words if script == "kana"]
        self._languages = {
            script: of_words({script: found, "kana": kana} if script == "han" else {script: found})
            for script, found in by_script.items()
        }

    def __call__(self, script: str) -> str:
        return self._languages["han" if script == "kana" else script] or ""


def _stretches(text: str) -> Iterator[tuple[list[_Word], _Told]]:
    """The words of a text in stretches of whole sentences, with the languages of each."""
    stretch: list[_Word] = []
    for word in _words(text):
        if len(stretch) >= _MIN_WORDS and word[2] != stretch[-1][2]:
            yield stretch, _Told(stretch)
            stretch = []
        stretch.append(word)
    if stretch:
        yield stretch, _Told(stretch)


def _words(text: str) -> Iterator[_Word]:
    text = unicodedata.normalize("NFC", _INLINE.sub(" \n ", _without_blocks(text)))
    ends = [match.start() for match in _SENTENCE_END.finditer(text)]
    sentence = 0
    for script, word, start in runs(text):
        while sentence < len(ends) and ends[sentence] < start:
            sentence += 1
        yield script, word, sentence


def _without_blocks(text: str) -> str:
    """`text` without its blocks of code and formulas; one that is never closed is none."""
    kept: list[str] = []
    unclosed: set[str] = set()
    end = at = 0
    while match := _BLOCK.search(text, at):
        mark, at = match[0], match.end()
        close = -1 if mark in unclosed else text.find(_BLOCK_END[mark], at)
        if close < 0:
            unclosed.add(mark)
            continue
        kept.append(text[end : match.start()])
        end = at = close + len(_BLOCK_END[mark])
    return " \n ".join([*kept, text[end:]])

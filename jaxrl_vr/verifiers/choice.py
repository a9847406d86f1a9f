r"""Multiple choice: one letter, in the forms in which answers are given.

`B`, `(b)`, `B.`, `B) the text`, `**B**`, `\boxed{B}`, `\text{(B)}`, `Option B` and
"the answer is (B)".
The last place for an answer decides. Where it names several letters there is no choice, so that
listing them does not pay; neither do letters that only stand somewhere in the text.
"""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.extract import after_thinking, boxed

_ANSWER_IS = re.compile(
    r"(?P<final>\bfinal\s+)?\b(?:answer|option|choice)\b"
    r"(?:[^\S\n]+(?:is|should[^\S\n]+be|would[^\S\n]+be|must[^\S\n]+be)\b[^\S\n]*:?"
    r"|[*_]*[^\S\n]*[:=])"
    r"|\b(?:choose|pick|select|go[^\S\n]+with)\b[^\S\n]*:?",
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(
    r"\b(?:wait|no|actually|instead|correction|mistake|sorry|rather|therefore|thus|hence|finally)\b",
    re.IGNORECASE,
)
_MARKUP = re.compile(r'\\(?:text|textbf|mathrm|mathbf|rm|bf)\b|[\s*_`${}\[\]\\"“”]')
_LETTER = re.compile(
    r"(?:(?:option|choice|answer|letter)[\s:]+)?(?P<open>\(\s*)?(?P<letter>[A-Z])"
    r"(?P<mark>\s*\)|[.:](?=\s|$))?(?![\w'’])",
    re.IGNORECASE,
)
_JOINED = re.compile(
    r"\s*(?:[,;/&|+-]|\b(?:and|or|nor|to)\b)[\s,]*(?:(?:and|or)\b)?\s*", re.IGNORECASE
)
_ENDS = re.compile(
    r"\s*(?:$|[.,;:!?()–—-]|(?:because|since|as|which|for|with|due|based|is)\b)", re.IGNORECASE
)
_OTHER = re.compile(r"\([A-Z]\)|(?<!\w)[A-Z][.)](?=\s|$)")
_MAX_PLACE, _MAX_PROSE = 2000, 300  # characters that can be the place for an answer
_MAX_PHRASES = 100  # the last so many are looked at


class Choice(Config):
    """The letter in the response is the letter of the reference."""

    needs_reference: ClassVar[bool] = True
    type: Literal["choice"] = "choice"
    letters: int = Field(default=10, ge=2, le=26)
    """How many letters can be chosen: 4 is A to D. A letter behind them is no choice."""

    def answer(self, example: Example, response: str) -> str | None:
        """The one letter that the response chooses, or None."""
        text = after_thinking(example.prompt, response)
        chosen = () if text is None else self._chosen(text)
        return chosen[0] if len(chosen) == 1 else None

    def __call__(self, example: Example, response: str) -> Score:
        """Scores 1 if the response chooses the letter of the reference, 0 otherwise."""
        expected = self._chosen(example.reference)
        if len(expected) != 1:
            reason = (
                f"the reference {example.reference[:40]!r} is not one letter up to {self._last}"
            )
            return Score(0.0, "unscorable", reason=reason)
        text = after_thinking(example.prompt, response)
        if text is None:
            return Score(0.0, "no_answer", reason="the thinking is not closed")
        chosen = self._chosen(text)
        if not chosen:
            return Score(0.0, "no_answer", reason="no letter where an answer may stand")
        said = ", ".join(chosen)
        if len(chosen) > 1:
            return Score(0.0, "wrong", reason=f"several letters: {said}")
        if chosen == expected:
            return Score(1.0, "right", reason=f"choice {said}")
        return Score(0.0, "wrong", reason=f"choice {said}, expected {', '.join(expected)}")

    @property
    def _last(self) -> str:
        return string.ascii_uppercase[self.letters - 1]

    def _chosen(self, text: str) -> tuple[str, ...]:
        """The different letters in the place for the answer; none where there is no such place."""
        box = boxed(text)
        if box is not None:
            return self._read(box)
        tags = [self._behind_phrase(tag) or self._read(tag) for tag in _tagged(text)]
        if tags:
            return tuple(dict.fromkeys(letter for letters in tags for letter in letters))
        return self._behind_phrase(text) or self._on_a_line(text)

    def _behind_phrase(self, text: str) -> tuple[str, ...]:
        """The letters behind "the answer is"; a phrase that takes back the earlier ones counts."""
        found: list[str] = []
        end = 0
        for match in collections.deque(_ANSWER_IS.finditer(text), _MAX_PHRASES):
            place = text[match.end() : match.end() + _MAX_PROSE].lstrip("*_ \t\n")
            letters = self._read(place.partition("\n")[0], is_prose=True)
            if not letters:
                continue
            if match["final"] or _TAKEN_BACK.search(text, end, match.start()):
                found = []
            found += letters
            end = match.end()
        return tuple(dict.fromkeys(found))

    def _on_a_line(self, text: str) -> tuple[str, ...]:
        """The letters of a line that is a choice and no more, the last or the first."""
        lines = [line for line in text.split("\n") if line.strip()]
        listed = [line for line in lines if (m := _LETTER.match(line.strip())) and m["mark"]]
        if len(listed) > 1:
            return tuple(dict.fromkeys(x for line in listed for x in self._read(line)))
        return (self._read(lines[-1]) or self._read(lines[0])) if lines else ()

    def _read(self, text: str, *, is_prose: bool = False) -> tuple[str, ...]:
        """The letters that a text begins with, one or a list.

        In prose, more may follow a bare letter; elsewhere only what a marked letter stands for.
        """
        text = _MARKUP.sub(" ", text[:_MAX_PLACE]).strip()
        words = text.split()
        if len(words) > 1 and all(len(word) == 1 and word.isalpha() for word in words):
            return tuple(dict.fromkeys(word.upper() for word in words))
        first = _LETTER.match(text)
        if first is None or first["letter"].upper() > self._last:
            return ()
        letters, last = [first["letter"].upper()], first
        while following := self._following(text, last.end()):
            letters, last = [*letters, following["letter"].upper()], following
        rest = text[last.end() :]
        if len(letters) == 1 and not first["mark"] and rest.strip():
            is_bare_choice = is_prose and first["letter"].isupper() and _ENDS.match(rest)
            if not is_bare_choice:
                return ()
        if not is_prose:
            letters += [other.strip("(). ") for other in _OTHER.findall(rest)]
        return tuple(dict.fromkeys(letters))

    def _following(self, text: str, at: int) -> re.Match[str] | None:
        """The next letter of a list, if the text goes on as one."""
        joined = _JOINED.match(text, at)
        start = joined.end() if joined else at + len(text[at:]) - len(text[at:].lstrip())
        match = _LETTER.match(text, start)
        if match is None or match["letter"].upper() > self._last:
            return None
        rest = text[match.end() :]
        if match["mark"]:
            return match
        goes_on = not rest.strip() or _ENDS.match(rest) or _JOINED.match(rest)
        return match if joined and goes_on else None


def _tagged(text: str) -> Iterator[str]:
    """What stands between answer tags; one that is never closed holds nothing."""
    end = 0
    while (start := text.find("<answer>", end)) >= 0:
        close = text.find("</answer>", start)
        if close < 0:
            return
        yield text[start + len("<answer>") : close]
        end = close + len("</answer>")

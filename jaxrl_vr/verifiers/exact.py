"""Exact match: the response, or what follows a marker in it, is the reference to the letter."""

from __future__ import annotations

from typing import ClassVar, Literal

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Score


class ExactMatch(Config):
    """The answer, white space around it stripped, equals the reference."""

    needs_reference: ClassVar[bool] = True
    type: Literal["exact"] = "exact"
    after: str = ""
    """Marker that the answer follows, such as `>`: the text behind its last occurrence is the
    answer, and a response without it has none. Empty: the whole response is the answer."""
    ignore_case: bool = False
    """Compare without regard to upper and lower case."""

    def answer(self, example: Example, response: str) -> str | None:
        """The answer in `response` as compared, or None if there is none."""
        if self.after:
            _, found, response = response.rpartition(self.after)
            if not found:
                return None
        return self._comparable(response) or None

    def __call__(self, example: Example, response: str) -> Score:
        """Scores 1 if the answer is the reference, 0 otherwise."""
        expected = self._comparable(example.reference)
        if not expected:
            return Score(0.0, "unscorable", reason="the reference is empty")
        got = self.answer(example, response)
        if got is None:
            why = f"no text behind {self.after!r}" if self.after else "the response is empty"
            return Score(0.0, "no_answer", reason=why)
        if got == expected:
            return Score(1.0, "right", reason=f"answer {got[:80]!r}")
        return Score(0.0, "wrong", reason=f"answer {got[:80]!r}, expected {expected[:80]!r}")

    def _comparable(self, text: str) -> str:
        return text.strip().casefold() if self.ignore_case else text.strip()

"""Format: the response is a fixed sequence of tagged blocks and nothing else.

Only the shape is judged: what stands inside a block, other than nothing, is another verifier's
business. Put it before the answer as a gate, or beside it with a small weight (`compose`).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import field_validator

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.prompt import Prompt, opened


class Format(Config):
    """Exactly one block of each tag, none empty, in order, with only white space around them.

    Where the prompt has opened a block (a template that ends with `<think>`, or with that and the
    first words of the thinking), the response must go on inside it, and opening it again is one
    block too many.
    """

    needs_reference: ClassVar[bool] = False
    type: Literal["format"] = "format"
    tags: tuple[str, ...] = ("think", "answer")
    """Names of the tags in order, without angle brackets."""

    @field_validator("tags")
    @classmethod
    def _names(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
        if not tags:
            raise ValueError("tags is empty: name at least one tag, such as ['think', 'answer']")
        for tag in tags:
            if not tag.strip() or set(tag) & set("<>/"):
                raise ValueError(f"tags holds {tag!r}: give the bare name, such as 'think'")
        if len(set(tags)) < len(tags):
            raise ValueError(f"tags repeats a name in {list(tags)}: each tag stands once")
        return tags

    def answer(self, example: Example, response: str) -> None:
        """A format has no answer."""

    def __call__(self, example: Example, response: str) -> Score:
        """Scores 1 if the response has the format, 0 otherwise."""
        fault = self._fault(example.prompt, response)
        return Score(0.0, "wrong", reason=fault) if fault else Score(1.0, "right")

    def _fault(self, prompt: Prompt, response: str) -> str:
        tags, text = self.tags, response
        for i, tag in enumerate(self.tags):
            inside = opened(prompt, tag)
            if inside is not None:
                tags, text = self.tags[i:], f"<{tag}>{inside}{response}"
        for tag in self.tags:
            expected = int(tag in tags)
            for mark in (f"<{tag}>", f"</{tag}>"):
                if (count := text.count(mark)) != expected:
                    return f"{mark} stands {count} times, expected {expected}"
        end = 0
        for tag in tags:
            start = text.find(f"<{tag}>")
            if start < end:
                return f"<{tag}> is out of order"
            if text[end:start].strip():
                return f"text before <{tag}>: {text[end:start].strip()[:40]!r}"
            close = text.find(f"</{tag}>")
            if close < start:
                return f"</{tag}> is out of order"
            if not text[start + len(f"<{tag}>") : close].strip():
                return f"<{tag}> is empty"
            end = close + len(f"</{tag}>")
        if text[end:].strip():
            return f"text behind </{tags[-1]}>: {text[end:].strip()[:40]!r}"
        return ""

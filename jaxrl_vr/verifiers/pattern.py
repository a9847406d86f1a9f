"""Regular expressions: the response has the form that a pattern of the config describes.

Patterns are those of the package `regex`, a superset of `re` whose search can be given up: some
patterns take time exponential in the response, and a response may be made for that.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.extract import after_thinking
from jaxrl_vr.verifiers.text import one_line


class Regex(Config):
    r"""The text behind the thinking matches the pattern.

    `(?i)`, `(?s)` and the like at its start set flags.
    """

    needs_reference: ClassVar[bool] = False
    type: Literal["regex"] = "regex"
    pattern: str = Field(min_length=1)
    r"""The pattern, such as `^\d{4}-\d{2}-\d{2}$`."""
    where: Literal["anywhere", "whole"] = "anywhere"
    """`anywhere` in the text, or the `whole` of it, white space around it left out."""
    seconds: float = Field(default=1.0, gt=0, le=60)
    """Time for one search; a response that takes longer is wrong. Below `verifiers.deadline`, so
    that no worker is lost."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        import regex

        try:
            regex.compile(pattern)
        except (regex.error, RecursionError) as error:
            raise ValueError(
                f"is no regular expression ({one_line(str(error), 200)}); mend it, or escape what "
                "is meant literally with a backslash"
            ) from None
        return pattern

    def answer(self, example: Example, response: str) -> None:
        """A form is no answer."""

    def __call__(self, example: Example, response: str) -> Score:
        """Scores 1 if the pattern matches, 0 otherwise."""
        text = after_thinking(example.prompt, response)
        if text is None:
            return Score(0.0, "no_answer", reason="the thinking is not closed")
        try:
            match = self._match(text)
        except TimeoutError:
            reason = f"limit: the search took more than {self.seconds:g} s"
            return Score(0.0, "wrong", reason=reason)
        if match is None:
            return Score(0.0, "wrong", reason=f"no match of {self.pattern[:80]!r}")
        return Score(1.0, "right", reason=f"match {match[0][:80]!r}")

    def _match(self, text: str) -> Any:
        import regex

        if self.where == "whole":
            return regex.fullmatch(self.pattern, text.strip(), timeout=self.seconds)
        return regex.search(self.pattern, text, timeout=self.seconds)

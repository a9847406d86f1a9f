r"""Math answers: the answer in a response against a reference.

An unevaluated expression is equal to its value (`\boxed{2+4}` answers 6). Where the task is the
arithmetic itself, that would reward copying the question: use `extract = "last_number"` there,
which reads plain numerals only. Equality is bounded but can be slow (sympy): run it in the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers import equality
from jaxrl_vr.verifiers.extract import ORDER, Found, Method, after_thinking, find, gold
from jaxrl_vr.verifiers.rules import LENIENT, Order, Percent, Rules, Units


class MathAnswer(Config):
    """The response's answer is mathematically equal to the reference."""

    needs_reference: ClassVar[bool] = True
    type: Literal["math_answer"] = "math_answer"
    extract: Method | Annotated[tuple[Method, ...], Field(min_length=1)] = ORDER
    r"""Where the answer stands, one name or several to try in order: `boxed` (the last `\boxed{}`),
    `answer_tag` (`<answer>`), `hashes` (behind `####`), `phrase` ("the answer is"), `whole` (the
    text is an answer and nothing else), `last_expression` (the last mathematics or number) and
    `last_number` (the last plain numeral). `boxed` alone where the prompt asks for a box."""
    percent: Percent = "either"
    """Whether 50 % equals 50 as well as 0.5 (`either`), or only its value 0.5 (`value`)."""
    units: Units = "optional"
    """Units: may be left out but not be wrong (`optional`), must be there (`required`), or are not
    looked at (`ignored`)."""
    order: Order = "by_kind"
    """Order of items: it counts in tuples and not in lists and sets (`by_kind`), also in lists
    (`strict`), or nowhere but in intervals (`free`)."""
    decimals: int = Field(default=8, ge=0, le=1000)
    """Significant digits from which a decimal may stand for a number that has no finite one, such
    as 1/3 or pi; 0 is never."""
    tolerance: float = Field(default=0.0, ge=0, lt=1)
    """Relative difference that is forgiven where one of both answers is a decimal. More where the
    references are rounded, as in physics."""

    @property
    def methods(self) -> tuple[Method, ...]:
        """Where to look, in order."""
        return (self.extract,) if isinstance(self.extract, str) else self.extract

    @property
    def rules(self) -> Rules:
        """How strict the comparison is."""
        return Rules(self.percent, self.units, self.order, self.decimals, self.tolerance)

    def answer(self, example: Example, response: str) -> str | None:
        """The answer, in a form that is the same string for equal numbers, lists and sets."""
        found = found_in(example, response, self.methods)
        return None if found is None or not found.answer else equality.canonical(found.answer)

    def __call__(self, example: Example, response: str) -> Score:
        """Scores 1 if the answer equals the reference, 0 otherwise."""
        return math_answer(example, response, extract=self.methods, rules=self.rules)


def math_answer(
    example: Example, response: str, *, extract: Sequence[Method] = ORDER, rules: Rules = LENIENT
) -> Score:
    """Compares the answer behind the thinking with the reference.

    Args:
      example: its reference is an answer, or a solution with a `####` line or a box.
      response: the whole response; its thinking is left out.
      extract: where the answer may stand, in the order to try.
      rules: how strict the comparison is.
    """
    expected = gold(example.reference)
    if not equality.readable(expected):
        reason = f"the reference {expected[:80]!r} is empty or its braces do not close"
        return Score(0.0, "unscorable", reason=reason)
    found = found_in(example, response, extract)
    if found is None or not found.answer:
        return Score(0.0, "no_answer", reason=_missing(example, response, extract, found))
    got = found.answer
    stage = equality.stage(expected, got, rules)
    if stage:
        return Score(1.0, "right", reason=f"answer {got[:80]!r}, same {stage}")
    return Score(0.0, "wrong", reason=f"answer {got[:80]!r}, expected {expected[:80]!r}")


def found_in(example: Example, response: str, extract: Sequence[Method]) -> Found | None:
    """The answer of a response and how it was found; None where there is none."""
    rest = after_thinking(example.prompt, response)
    return None if rest is None else find(rest, extract)


def _missing(
    example: Example, response: str, extract: Sequence[Method], found: Found | None
) -> str:
    if after_thinking(example.prompt, response) is None:
        return "the thinking is not closed"
    if found is not None:
        return f"nothing stands where {found.method!r} found the answer's place"
    return f"nothing to extract by {', '.join(extract)}"

r"""Math answers: the last box or the last number of a response against a reference.

An unevaluated expression is equal to its value (`\boxed{2+4}` answers 6). Where the task is the
arithmetic itself, that would reward copying the question: use `extract = "last_number"` there,
which reads plain numerals only. Equality is bounded but can be slow (sympy): run it in the pool.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers import equality
from jaxrl_vr.verifiers.extract import after_thinking, gold, last_box, last_number

Extract = Literal["boxed", "last_number"]


class MathAnswer(Config):
    """The response's answer is mathematically equal to the reference."""

    needs_reference: ClassVar[bool] = True
    type: Literal["math_answer"] = "math_answer"
    extract: Extract = "boxed"
    r"""Where the answer stands: in the last `\boxed{}`, or the last number of the text. The latter
    for models that do not box, where answers are numbers."""

    def answer(self, example: Example, response: str) -> str | None:
        """The answer, in a form that is the same string for equal numbers, lists and sets."""
        found = _found(example, response, self.extract)
        return None if found is None else equality.canonical(found)

    def __call__(self, example: Example, response: str) -> Score:
        """Scores 1 if the answer equals the reference, 0 otherwise."""
        return math_answer(example, response, extract=self.extract)


def math_answer(example: Example, response: str, *, extract: Extract = "boxed") -> Score:
    """Compares the last answer behind the thinking with the reference.

    Args:
      example: its reference is an answer, or a solution with a `####` line or a box.
      response: the whole response; its thinking is left out.
      extract: where the answer stands.
    """
    expected = gold(example.reference)
    if not equality.readable(expected):
        reason = f"the reference {expected[:80]!r} is empty or its braces do not close"
        return Score(0.0, "unscorable", reason=reason)
    got = _found(example, response, extract)
    if got is None:
        thinks = _rest(example, response) is None
        why = "the thinking is not closed" if thinks else f"nothing to extract by {extract!r}"
        return Score(0.0, "no_answer", reason=why)
    if equality.equal(expected, got):
        return Score(1.0, "right", reason=f"answer {got[:80]!r}")
    return Score(0.0, "wrong", reason=f"answer {got[:80]!r}, expected {expected[:80]!r}")


def _rest(example: Example, response: str) -> str | None:
    return after_thinking(str(example.prompt), response)


def _found(example: Example, response: str, how: Extract) -> str | None:
    rest = _rest(example, response)
    if rest is None:
        return None
    found = last_box(rest) if how == "boxed" else last_number(rest)
    return found if found and found.strip() else None

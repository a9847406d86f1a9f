"""Procedural number tasks: arithmetic and comparison, seeded, with random access.

Problems are unordered pairs of numbers. One fixed permutation of all pairs, the same for every
seed, puts the first share of them into `heldout` and the others into `train`; so the splits are
disjoint by construction, and a pair and its mirror image are on one side. Example i is a pure
function of (seed, split, i): no pair comes again before all of its split have come.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from jaxrl_vr.data.order import key, permuted, uniform
from jaxrl_vr.data.source_base import HELDOUT, ProceduralBase
from jaxrl_vr.types import Example

Operation = Literal["+", "-", "*"]
LAST_NUMBER = {"type": "math_answer", "extract": "last_number"}


class ArithmeticSource(ProceduralBase):
    """Sums, differences and products of two numbers with the same number of digits."""

    type: Literal["arithmetic"] = "arithmetic"
    """Which source this is."""
    digits: int = Field(default=3, ge=1, le=18)
    """Digits of each number: the difficulty."""
    operations: tuple[Operation, ...] = Field(default=("+",), min_length=1)
    """Which operations to ask for, in equal shares; a difference is never negative."""
    style: Literal["symbols", "words"] = "symbols"
    """`symbols` asks "729+304=" and wants ">1033"; `words` asks "What is 729 + 304?"."""
    worked: float = Field(default=0.0, ge=0, le=1)
    """Share of demonstrations worked digit by digit; the others give the answer at once."""

    @model_validator(mode="after")
    def _worked_can_act(self) -> ArithmeticSource:
        if len(set(self.operations)) < len(self.operations):
            raise ValueError(f"operations: {list(self.operations)} repeats one: list each once")
        if self.worked > 0 and (self.style != "symbols" or "*" in self.operations):
            raise ValueError(
                f"worked = {self.worked}: only sums and differences in symbols are worked digit by "
                "digit: set worked = 0, or style = 'symbols' and operations of '+' and '-'"
            )
        return self

    def example(self, index: int, run_seed: int) -> Example:
        """Problem `index` of this source."""
        seed = self.order_seed(run_seed)
        low, high, epoch = _pair(self, index, seed, distinct=False)
        # each epoch over the pairs shows another order or operation, so a prompt repeats late
        turn = epoch + (key("turn", seed, low, high) & 0xFFFF)
        operation = self.operations[(turn // 2) % len(self.operations)]
        a, b = (low, high) if turn % 2 and operation != "-" else (high, low)
        answer = {"+": a + b, "-": a - b, "*": a * b}[operation]
        problem = f"{a}{operation}{b}"
        if self.style == "words":
            sign = {"+": "+", "-": "-", "*": "×"}[operation]
            question, completion = f"What is {a} {sign} {b}?", f"{a} {sign} {b} = {answer}"
            verifier = LAST_NUMBER
        else:
            work = ""
            if uniform("worked", seed, self.split, index) < self.worked:
                work = worked(a, b, operation)
            question, completion = f"{problem}=", f"{work}>{answer}"
            verifier = {"type": "exact", "after": ">"}
        return Example(
            problem,
            question,
            str(answer),
            verifier=verifier,
            difficulty=float(self.digits),
            completion=completion,
        )


class CompareSource(ProceduralBase):
    """Which of two different numbers is larger."""

    type: Literal["compare"] = "compare"
    """Which source this is."""
    digits: int = Field(default=2, ge=1, le=18)
    """Digits of each number: the difficulty."""

    def example(self, index: int, run_seed: int) -> Example:
        """Problem `index` of this source."""
        seed = self.order_seed(run_seed)
        low, high, epoch = _pair(self, index, seed, distinct=True)
        turn = epoch + (key("turn", seed, low, high) & 0xFFFF)
        a, b = (low, high) if turn % 2 else (high, low)
        return Example(
            f"{a}|{b}",
            f"Which of the two numbers is larger, {a} or {b}?",
            str(high),
            verifier=LAST_NUMBER,
            difficulty=float(self.digits),
            completion=str(high),
        )


def worked(a: int, b: int, operation: Operation) -> str:
    """A sum or difference digit by digit from the right, the way a child writes it.

    Each digit is one term of fixed width: `9+4+0=13,` reads digit of a, digit of b, carry, and
    then the new carry and the digit of the sum. A difference subtracts the borrow: `2-5-1=16,` is
    borrow 1 and digit 6. Fixed width and order let a small model find each digit at one distance.
    """
    text, carry = "", 0
    for place in range(len(str(max(a, b)))):
        x, y = (n // 10**place % 10 for n in (a, b))
        value = x + y + carry if operation == "+" else x - y - carry
        text += f"{x}{operation}{y}{operation}{carry}="
        carry = int(value > 9 or value < 0)
        text += f"{carry}{value % 10},"
    return text


def _pair(
    source: ArithmeticSource | CompareSource, index: int, seed: int, *, distinct: bool
) -> tuple[int, int, int]:
    # two numbers low <= high (low < high if distinct), and how often all pairs have come before
    smallest = 10 ** (source.digits - 1) if source.digits > 1 else 0
    count = 10**source.digits - smallest
    size = count * (count - 1) // 2 if distinct else count * (count + 1) // 2
    held = min(max(1, round(size * HELDOUT)), size - 1)
    start, length = (0, held) if source.split == "heldout" else (held, size - held)
    epoch, at = divmod(index, length)
    place = start + permuted(at, length, key("order", seed, source.split, epoch))
    number = permuted(place, size, key("split", source.digits, int(distinct)))
    high = (math.isqrt(8 * number + 1) - 1) // 2
    low = number - high * (high + 1) // 2
    return smallest + low, smallest + high + distinct, epoch

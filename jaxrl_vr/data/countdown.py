"""Countdown: reach a target from some numbers, each used at most once.

`CountdownSource` makes the problems, `countdown_score` judges a response. The expression is parsed
and computed here in exact fractions; nothing of a response is ever run.
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections import Counter
from fractions import Fraction
from typing import Literal

from pydantic import Field, model_validator

from jaxrl_vr.data.order import key
from jaxrl_vr.data.source_base import HELDOUT, ProceduralBase
from jaxrl_vr.types import Example, Score

MAX_CHARS = 500  # of an expression: far above any honest one, and it bounds the parser's depth
SCORE = {"type": "custom", "path": "jaxrl_vr.data.countdown:countdown_score"}


class CountdownSource(ProceduralBase):
    """Reach a target from numbers with + - * /, each number used at most once."""

    type: Literal["countdown"] = "countdown"
    """Which source this is."""
    numbers: tuple[int, int] = (3, 4)
    """Fewest and most numbers of a problem: the difficulty."""
    largest: int = Field(default=99, ge=9)
    """Largest number that is given."""
    target: tuple[int, int] = (10, 100)
    """Smallest and largest target."""

    @model_validator(mode="after")
    def _ranges(self) -> CountdownSource:
        fewest, most = self.numbers
        if not 2 <= fewest <= most <= 8:
            raise ValueError(f"numbers = {list(self.numbers)}: use 2 <= fewest <= most <= 8")
        low, high = self.target
        if not 1 <= low <= self.largest or low + 9 > high:
            raise ValueError(
                f"target = {list(self.target)}: use 1 <= smallest <= largest = {self.largest}, and "
                "at least ten targets, or hardly any numbers reach one"
            )
        return self

    def example(self, index: int, run_seed: int) -> Example:
        """Problem `index` of this source."""
        seed = self.order_seed(run_seed)
        rng = random.Random(key("countdown", seed, self.split, index))
        numbers, target, solution = self._problem(rng)
        while solution is None or (self.split == "heldout") != _is_heldout(numbers, target):
            numbers, target, solution = self._problem(rng)
        listed = ", ".join(map(str, numbers))
        question = (
            f"Make {target} out of the numbers {listed}. Use + - * / and brackets, and each number "
            "at most once. Write the expression between <answer> and </answer>."
        )
        return Example(
            f"{'_'.join(map(str, numbers))}_{target}",
            question,
            json.dumps({"numbers": numbers, "target": target}),
            verifier=SCORE,
            difficulty=float(len(numbers)),
            completion=f"<answer>{solution}</answer>",
        )

    def _problem(self, rng: random.Random) -> tuple[list[int], int, str | None]:
        # joins random numbers by random operations; solution None: the target is out of range
        numbers = [rng.randint(1, self.largest) for _ in range(rng.randint(*self.numbers))]
        parts = [(n, str(n)) for n in numbers]
        for _ in range(rng.randint(1, len(numbers) - 1)):
            (x, left), (y, right) = (parts.pop(rng.randrange(len(parts))) for _ in range(2))
            options = {"+": x + y, "-": x - y, "*": x * y, "/": x // y if x % y == 0 else 0}
            operation = rng.choice([sign for sign, value in options.items() if value > 0])
            parts.append((options[operation], f"({left}{operation}{right})"))
        target, solution = parts[-1]
        low, high = self.target
        if not low <= target <= high or target in numbers:
            return numbers, target, None
        return numbers, target, solution[1:-1]


def _is_heldout(numbers: list[int], target: int) -> bool:
    # by the problem itself, whatever the order of its numbers, and never by the seed
    return key("split", *sorted(numbers), target) / 2**64 < HELDOUT


def countdown_score(example: Example, response: str) -> Score:
    """1 if the expression in the last answer tags reaches the target with the given numbers."""
    try:
        given = json.loads(example.reference)
        numbers, target = Counter(map(int, given["numbers"])), Fraction(given["target"])
    except (ValueError, TypeError, KeyError) as error:
        return Score(0.0, "unscorable", reason=f"reference is not numbers and target: {error!r}")
    answers = re.findall(r"<answer>(.*?)</answer>", response.rpartition("</think>")[2], re.DOTALL)
    if not answers:
        return Score(0.0, "no_answer", reason="no <answer> ... </answer>")
    text = answers[-1].strip().translate(str.maketrans("×÷−", "*/-"))
    expression, equals, claimed = text.partition("=")
    if equals and claimed.strip() != str(target):
        return Score(0.0, "wrong", reason=f"claims to make {claimed.strip()[:40]!r}, not {target}")
    try:
        value, used = _compute(expression.strip())
    except _Refused as refused:
        return Score(0.0, "wrong", reason=f"{expression.strip()[:60]!r}: {refused}")
    extra = Counter(used) - numbers
    if extra:
        return Score(0.0, "wrong", reason=f"uses {sorted(extra.elements())} more often than given")
    if value != target:
        return Score(0.0, "wrong", reason=f"makes {value}, not {target}")
    return Score(1.0, "right", reason=f"{expression.strip()} = {target}")


class _Refused(Exception):
    """The expression is not one of the game."""


def _compute(text: str) -> tuple[Fraction, list[int]]:
    # value of the expression, and the numbers in it
    if len(text) > MAX_CHARS:
        raise _Refused(f"longer than {MAX_CHARS} characters")
    if not re.fullmatch(r"[0-9+\-*/() \n]+", text):
        raise _Refused("only numbers, + - * / and brackets count")
    try:
        tree = ast.parse(text.replace("\n", " ").strip(), mode="eval")
    except (SyntaxError, RecursionError, MemoryError):
        raise _Refused("not an expression") from None
    used: list[int] = []
    return _value(tree.body, used), used


def _value(node: ast.expr, used: list[int]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used.append(node.value)
        return Fraction(node.value)
    if not isinstance(node, ast.BinOp):
        raise _Refused("only numbers, + - * / and brackets count")
    left, right = _value(node.left, used), _value(node.right, used)
    match node.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            if right == 0:
                raise _Refused("divides by zero")
            return left / right
    raise _Refused("only + - * / count")

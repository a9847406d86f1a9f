"""Sums and differences worked digit by digit, step by step: process rewards for small models.

The form is that of the arithmetic source's worked demonstrations: `9+4+0=13,` is digit of a, digit
of b, carry, then the new carry and the digit of the result; behind the last `>` stands the answer.
"""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Score, Step
from jaxrl_vr.verifiers.exact import ExactMatch

_PROBLEM = re.compile(r"(\d{1,100})([+-])(\d{1,100})=\s*\Z")
_ANSWER = ExactMatch(after=">")


class Worked(Config):
    """The answer is the reference, and each step of the work is the one that belongs there.

    The verdict and the value are the answer's alone; every term of the work and the answer have a
    step score of 1 or 0, which advantage `process_group_norm` and shaping `step_reward` read.
    """

    needs_reference: ClassVar[bool] = True
    type: Literal["worked"] = "worked"

    def answer(self, example: Example, response: str) -> str | None:
        """The answer in `response` as compared, or None if there is none."""
        return _ANSWER.answer(example, response)

    def __call__(self, example: Example, response: str) -> Score:
        """Scores 1 if the answer is the reference, 0 otherwise, and each step the same way."""
        problem = _PROBLEM.search(example.prompt) if isinstance(example.prompt, str) else None
        if problem is None:
            return Score(
                0.0, "unscorable", reason="the prompt does not end with a problem such as 12+34="
            )
        score = _ANSWER(example, response)
        expected = _terms(int(problem[1]), problem[2], int(problem[3]))
        has_answer = ">" in response
        work = response.rpartition(">")[0] if has_answer else response
        steps, end = [], 0
        for i, term in enumerate(work.split(",")):
            if not term:
                break  # behind the last comma
            end = min(end + len(term) + 1, len(work))
            is_right = i < len(expected) and term == expected[i]
            steps.append(Step(end, float(is_right)))
        if has_answer:
            steps.append(Step(len(response), score.value))
        return Score(score.value, score.verdict, reason=score.reason, steps=tuple(steps))


def _terms(a: int, operation: str, b: int) -> list[str]:
    terms, carry = [], 0
    for place in range(len(str(max(a, b)))):
        x, y = (n // 10**place % 10 for n in (a, b))
        value = x + y + carry if operation == "+" else x - y - carry
        term = f"{x}{operation}{y}{operation}{carry}="
        carry = int(value > 9 or value < 0)
        terms.append(f"{term}{carry}{value % 10}")
    return terms

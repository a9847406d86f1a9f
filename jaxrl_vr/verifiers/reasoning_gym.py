"""Tasks of reasoning-gym (https://arxiv.org/abs/2505.24760), judged by their own scorers.

Needs the extra `gym`. A reference says how a problem was made (task, options, seed), and the
problem is made again to be scored. Scorers that evaluate the response as Python are refused: no
sandbox is around them.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from typing import Any, ClassVar, Literal

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.extract import after_thinking
from jaxrl_vr.verifiers.text import one_line

# Of what is evaluated, only what the problem itself holds is trusted.
_EVALUATES = re.compile(r"\b(?:eval|exec|parse_expr|sympify)\((?!entry|metadata)")


class ReasoningGym(Config):
    """The value that the task's scorer gives the answer, right from 1 on.

    The scorers give some wrong answers a fraction, for their form or for parts that are right.
    """

    needs_reference: ClassVar[bool] = True
    type: Literal["reasoning_gym"] = "reasoning_gym"
    tag: str = "answer"
    """Tag that holds the answer, whose last block counts; empty: all behind the thinking is it."""
    partial: bool = True
    """Whether a wrong answer keeps its fraction; if not it is worth 0."""

    def answer(self, example: Example, response: str) -> str | None:
        """The answer as it stands, or None if there is none."""
        text = after_thinking(str(example.prompt), response)
        if text is None:
            return None
        if self.tag:
            head, closed, _ = text.rpartition(f"</{self.tag}>")
            _, opened, text = head.rpartition(f"<{self.tag}>")
            if not (closed and opened):
                return None
        return text.strip() or None

    def __call__(self, example: Example, response: str) -> Score:
        """The scorer's judgement of the answer."""
        try:
            made = json.loads(example.reference)
            dataset, entry = problem(made["task"], made["options"], made["seed"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            return Score(0.0, "unscorable", reason=f"the reference: {one_line(repr(error))}")
        if entry["question"] != made.get("question"):
            reason = "the problem came out differently; make the data with this reasoning-gym"
            return Score(0.0, "unscorable", reason=reason)
        answer = self.answer(example, response)
        if answer is None:
            return Score(0.0, "no_answer", reason="no answer in its tags, or an open thinking")
        try:
            value = float(dataset.score_answer(answer=answer, entry=entry))
        except MemoryError:
            raise
        except Exception as error:  # the boundary: what a scorer cannot read is a wrong answer
            return Score(0.0, "wrong", reason=f"the scorer raised {type(error).__name__}")
        reason = f"answer {answer[:80]!r}"
        if value >= 1:
            return Score(1.0, "right", reason=reason)
        return Score(max(0.0, value) if self.partial else 0.0, "wrong", reason=reason)


def problem(task: str, options: dict[str, Any], seed: int) -> tuple[Any, dict[str, Any]]:
    """The data set of one problem and the problem, a pure function of the arguments.

    Raises:
      ValueError: the package is missing, the task unknown, or its scorer not to be trusted.
    """
    try:
        package = importlib.import_module("reasoning_gym")  # which the type checker may lack
    except ImportError as error:
        raise ValueError(
            "reasoning_gym needs the extra `gym`: pip install 'jaxrl-vr[gym]'"
        ) from error
    known = package.factory.DATASETS
    if task not in known:
        raise ValueError(f"task is {task!r}: use one of {', '.join(sorted(known))}")
    scorer = inspect.getsource(known[task][0].score_answer)
    if task == "composite" or _EVALUATES.search(scorer):
        raise ValueError(
            f"task is {task!r}, whose scorer evaluates responses as Python: use another task"
        )
    dataset = package.create_dataset(task, **options, seed=seed, size=1)
    return dataset, dataset[0]

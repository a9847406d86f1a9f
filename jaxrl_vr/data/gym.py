"""Procedural tasks of reasoning-gym (https://arxiv.org/abs/2505.24760); needs the extra `gym`.

Example i is a pure function of (task, options, seed, split, i). Which split a problem belongs to
follows from its question, so the splits are disjoint whatever the seeds. Verifier `reasoning_gym`
judges them.
"""

from __future__ import annotations

import importlib
import json
from typing import Any, Literal

from pydantic import Field, field_validator

from jaxrl_vr.data.order import key
from jaxrl_vr.data.source_base import HELDOUT, ProceduralBase
from jaxrl_vr.types import Example

_MAX_DRAWS = 1000  # problems in a row of the other split before a task counts as too small
_SET_HERE = {"seed", "size"}


class ReasoningGymSource(ProceduralBase):
    """Problems of one reasoning-gym task."""

    type: Literal["reasoning_gym"] = "reasoning_gym"
    """Which source this is."""
    task: str
    """Name of the task, such as `chain_sum`. Those whose scorer evaluates responses as Python, such
    as `countdown` and `n_queens`, need a `verifier` of your own."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the task, such as the range of its numbers: the difficulty."""
    instruction: str = "Write the answer between <answer> and </answer>."
    """What is said behind each question; empty where the template says it."""

    @field_validator("options")
    @classmethod
    def _are_free(cls, options: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(_SET_HERE & set(options)):
            raise ValueError(f"options holds {taken[0]!r}: use the source's seed and limit instead")
        return options

    def example(self, index: int, run_seed: int) -> Example:
        """Problem `index` of this source.

        Raises:
          ValueError: the task is unknown or does not take the options, or has too few problems.
        """
        seed = self.order_seed(run_seed)
        for draw in range(_MAX_DRAWS):
            made = key("reasoning_gym", seed, self.split, index, draw) % 2**31
            entry = _made(self.name, self.task, self.options, made)
            question = entry["question"]
            is_heldout = key("split", self.task, question) / 2**64 < HELDOUT
            if is_heldout == (self.split == "heldout"):
                return self._example(entry, made)
        raise ValueError(
            f"source {self.name!r}: {_MAX_DRAWS} problems of task {self.task!r} are all of the "
            f"other split than {self.split!r}: make the task larger by its options"
        )

    def _example(self, entry: dict[str, Any], seed: int) -> Example:
        question, answer = entry["question"], entry["answer"]
        reference = {
            "task": self.task,
            "options": self.options,
            "seed": seed,
            "question": question,
            "answer": answer,
        }
        return Example(
            f"{self.task}-{key('id', question):016x}",
            f"{question}\n\n{self.instruction}" if self.instruction else question,
            json.dumps(reference),
            verifier={"type": "reasoning_gym"},
            completion=None if answer is None else f"<answer>{answer}</answer>",
        )


def _made(name: str, task: str, options: dict[str, Any], seed: int) -> dict[str, Any]:
    try:
        reasoning_gym = importlib.import_module("reasoning_gym")  # which the type checker may lack
    except ImportError as error:
        raise ValueError(
            f"source {name!r} needs the extra `gym`: pip install 'jaxrl-vr[gym]'"
        ) from error
    try:
        return reasoning_gym.create_dataset(task, **options, seed=seed, size=1)[0]
    except (ValueError, TypeError, AssertionError) as error:
        raise ValueError(
            f"source {name!r}: task {task!r} with options {options} is not to be had: {error}"
        ) from error

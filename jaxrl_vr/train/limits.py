"""How many rows an optimizer step has at most: every sequence at its longest."""

from __future__ import annotations

import dataclasses
import math

from jaxrl_vr.rollout.batch import Shape
from jaxrl_vr.train.rl_stage import RlStage


def packed_rows(sequences: int, longest: int, row_length: int, most: int | None = None) -> int:
    """Rows of so many tokens, and at most so many sequences, that sequences of the longest take."""
    of_row = max(1, row_length // longest)
    return math.ceil(sequences / (of_row if most is None else min(of_row, most)))


@dataclasses.dataclass(frozen=True)
class Rollouts:
    """What a step samples, every completion at its limit.

    Attributes:
      prompts: of a step.
      samples: of each.
      prompt_tokens: of the longest.
      new_tokens: of a completion.
    """

    prompts: int
    samples: int
    prompt_tokens: int
    new_tokens: int

    @classmethod
    def of(cls, stage: RlStage, context: int) -> Rollouts:
        """Those of a stage of a model with this context."""
        longest = stage.longest_prompt(context)
        return cls(stage.prompts, stage.samples, longest, stage.sampling.max_new_tokens)

    @property
    def count(self) -> int:
        """Completions of a step."""
        return self.prompts * self.samples

    def num_rows(self, row_length: int, updates: int = 1, most: int | None = None) -> int:
        """Packed rows, of at most so many sequences, of each of a step's updates."""
        longest = self.prompt_tokens + self.new_tokens
        return packed_rows(math.ceil(self.count / updates), longest, row_length, most)

    def num_micro(self, shape: Shape, updates: int = 1) -> int:
        """Micro-batches of each of a step's updates."""
        return math.ceil(self.num_rows(shape.row_length, updates) / shape.rows)

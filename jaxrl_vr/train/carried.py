"""What one RL step hands to the next beside the state: coefficients, and what shapings keep.

It is saved with the data cursor, so that a resumed run goes on with the same numbers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jaxrl_vr.train.objectives import Numbers
from jaxrl_vr.train.rl_stage import RlStage
from jaxrl_vr.train.shaping import State

_KEY = "carried"


@dataclasses.dataclass(frozen=True)
class Carried:
    """Values between two steps."""

    kl: float  # coefficient of the KL
    entropy_bonus: float  # coefficient of the bonus, as its controller has it
    active_bonus: float  # and as it acts
    shaping: tuple[State, ...]  # of each shaping
    texts: dict[str, Any] | None = None  # data cursor of lm_mix; None: before its first text

    @classmethod
    def of(cls, stage: RlStage, cursor: dict[str, Any]) -> Carried:
        """What the step before put into the cursor, or the start."""
        if _KEY in cursor:
            saved = cursor[_KEY]
            return cls(**{**saved, "shaping": tuple(saved["shaping"])})
        kl = 0.0 if stage.kl is None else stage.kl.coef
        bonus = 0.0 if stage.entropy_bonus is None else stage.entropy_bonus.coef
        return cls(kl, bonus, bonus, ({},) * len(stage.shaping))

    def into(self, cursor: dict[str, Any]) -> dict[str, Any]:
        """The cursor with it."""
        return {**cursor, _KEY: {**vars(self), "shaping": list(self.shaping)}}

    def numbers(self, stage: RlStage) -> Numbers:
        """The traced numbers of the step's updates."""
        numbers: dict[str, Any] = {
            "objective": stage.objective.numbers,
            "offpolicy": [correction.numbers for correction in stage.offpolicy],
        }
        if stage.kl is not None:
            numbers["kl"] = self.kl
        if stage.entropy_bonus is not None:
            numbers["entropy_bonus"] = self.active_bonus
        return numbers

    def after(self, stage: RlStage, kl: np.ndarray, entropy: float | None) -> Carried:
        """For the next step, after one whose rollouts had this KL and whose tokens this entropy."""
        new = self
        if stage.kl is not None:
            new = dataclasses.replace(new, kl=stage.kl.next_coef(self.kl, kl))
        if stage.entropy_bonus is not None and entropy is not None:
            bonus, active = stage.entropy_bonus.next_coef(self.entropy_bonus, entropy)
            new = dataclasses.replace(new, entropy_bonus=bonus, active_bonus=active)
        return new

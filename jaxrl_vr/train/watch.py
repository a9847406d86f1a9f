"""What the console says of an RL stage when something about its rollouts is not as it should be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxrl_vr.metrics.console import Console
from jaxrl_vr.rollout.groups import Samples, score_of
from jaxrl_vr.train.rl_stage import RlStage
from jaxrl_vr.types import Group
from jaxrl_vr.verifiers.tally import UnscorableRate

# Steps in a row without any contrast before the console says what that means.
_NO_CONTRAST_STEPS = 10


class Watch:
    """Looks at each step's rollouts, and says each thing once.

    Args:
      console: where it says them.
      stage: whose rollouts.
      max_unscorable: share of answers that could not be scored above which the run ends.
    """

    def __init__(self, console: Console, stage: RlStage, max_unscorable: float):
        self._console = console
        self._stage = stage
        self._said: set[str] = set()
        self._unscorable = UnscorableRate(max_unscorable)
        self._steps_without_contrast = 0
        self._has_mixed_groups = False  # in any of these steps

    def __call__(self, groups: Sequence[Group], samples: Samples, adv: np.ndarray) -> None:
        """Looks at a step.

        Args:
          groups: all that were sampled.
          samples: those that train.
          adv: theirs, [P, G] or [P, G, T].

        Raises:
          TooManyUnscorable: more answers than allowed could not be scored.
        """
        self._unscorable.see((g.example.id, score_of(r)) for g in groups for r in g.rollouts)
        scores = [score_of(r) for g in groups for r in g.rollouts]
        unscorable = [s.reason for s in scores if s.verdict == "unscorable"]
        if unscorable:
            self._say(
                "unscorable",
                f"{len(unscorable)} of {len(scores)} answers could not be scored and do not train; "
                f"the first reason: {unscorable[0]} (reward/unscorable counts on)",
            )
        limited = [s.reason for s in scores if s.reason.startswith("limit")]
        if limited:
            self._say(
                "limited",
                f"{len(limited)} of {len(scores)} answers went beyond a limit of their verifier "
                f"and count as wrong; the first reason: {limited[0]} (look at the rollouts, and at "
                "the verifier if it is your own)",
            )
        if self._stage.reads_steps and not samples.step_mask.any():
            self._say(
                "steps",
                "no answer of this step has scores of its steps, so nothing is learned from them: "
                "give the data a verifier that scores steps, such as { type = 'worked' } for sums "
                "worked digit by digit, or one of your own",
            )
        right, wrong = samples.valid & samples.is_right, samples.valid & ~samples.is_right
        self._steps_without_contrast += 1
        self._has_mixed_groups |= bool(np.any(right.any(axis=1) & wrong.any(axis=1)))
        if np.any(adv):
            self._steps_without_contrast, self._has_mixed_groups = 0, False
        if self._steps_without_contrast == _NO_CONTRAST_STEPS:
            self._say("contrast", self._no_contrast())

    def _no_contrast(self) -> str:
        if self._has_mixed_groups:
            shaping = [shaping.type for shaping in self._stage.shaping]
            return (
                f"{_NO_CONTRAST_STEPS} steps in a row had advantages of 0 alone, though groups had "
                "both right and wrong answers, so nothing is learned: advantage "
                f"'{self._stage.advantage.type}' with shaping {shaping} makes no difference "
                "between them; look at the rollouts for the values and components that it reads"
            )
        return (
            f"{_NO_CONTRAST_STEPS} steps in a row had no group with both right and wrong "
            "answers, so nothing is learned: choose easier or harder problems, more samples, "
            "or look at the rollouts for an answer format that the verifier does not accept"
        )

    def _say(self, what: str, message: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._console.warn(message)

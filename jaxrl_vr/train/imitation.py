"""Likelihood beside the policy loss: of right rollouts, and of texts mixed in."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from pydantic import Field, PositiveInt

from jaxrl_vr.config import Config
from jaxrl_vr.data.demonstrations import Demonstration, LossOn
from jaxrl_vr.rollout.batch import Trajectory

_OPTIONAL = ("old_logp", "ref_logp", "old_value", "returns")  # arrays that all have or none


class PositiveNll(Config):
    """VAPO's likelihood term: the step's right rollouts are imitated, a mean over their tokens."""

    coef: float = Field(default=0.1, gt=0, le=1e6)
    """Weight beside the policy loss."""


class LmMix(Config):
    """PPO-ptx: texts of other sources are imitated in every update, a mean over their tokens."""

    data: tuple[str, ...] = Field(min_length=1)
    """Names of data sources with a text or completion, mixed by their weights."""
    batch: int = Field(ge=1, le=1_000_000)
    """Texts of an optimizer step."""
    coef: float = Field(default=27.8, gt=0, le=1e6)
    """Weight beside the policy loss. InstructGPT's 27.8 is for the sum over a text of a reward
    model's rewards; with verified rewards begin near 0.1."""
    loss_on: LossOn = "all"
    """`all` trains on every token (plain text), `completion` masks prompts."""
    max_tokens: PositiveInt | None = None
    """Longer texts are left out and counted; None is what fits a row and the model's context."""

    def longest(self, row_length: int, context: int) -> int:
        """Tokens of a text at most, in rows of this length and a model's context."""
        return min(self.max_tokens or context, row_length, context)


def marked(every: Sequence[Trajectory], is_right: np.ndarray) -> list[Trajectory]:
    """The trajectories of a step, with the tokens of right ones marked by 1; is_right: [B] bool."""
    return [
        dataclasses.replace(t, imitation=(t.mask & right).astype(np.float32))
        for t, right in zip(every, is_right, strict=True)
    ]


def averaged(part: Sequence[Trajectory], coef: float) -> list[Trajectory]:
    """What is marked in these trajectories, weighted by `coef` over the number of its tokens."""
    marks = [t.imitation for t in part]
    total = sum(float(m.sum()) for m in marks if m is not None)
    weight = coef / max(total, 1.0)
    return [
        t if m is None else dataclasses.replace(t, imitation=m * np.float32(weight))
        for t, m in zip(part, marks, strict=True)
    ]


def mixed_in(
    part: Sequence[Trajectory], texts: Sequence[Demonstration], coef: float
) -> list[Trajectory]:
    """An update's trajectories with texts behind, which no reward trains."""
    marks = [np.array(text.mask, np.float32) for text in texts]
    for mark in marks:
        mark[0] = 0.0  # nothing predicts the first token
    weight = coef / max(sum(float(m.sum()) for m in marks), 1.0)
    behind = []
    for text, mark in zip(texts, marks, strict=True):
        nothing = np.zeros(len(mark), np.float32)
        alone = Trajectory(
            token_ids=np.array(text.ids),
            mask=np.zeros(len(mark), bool),
            imitation=mark * np.float32(weight),
            group=-1,  # no rollout's
        )
        more = {name: nothing for name in _OPTIONAL if getattr(part[0], name) is not None}
        if part[0].selected is not None:
            more["selected"] = nothing.astype(bool)
        behind.append(dataclasses.replace(alone, **more))
    before = [
        t
        if t.imitation is not None
        else dataclasses.replace(t, imitation=np.zeros(len(t.mask), np.float32))
        for t in part
    ]
    return [*before, *behind]

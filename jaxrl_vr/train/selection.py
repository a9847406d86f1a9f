"""Which tokens of an optimizer step count, or are treated apart: chosen over all of them at once.

What is chosen must not depend on micro-batches, so it is done before packing, from what was known
before the step's first update. N tokens of an optimizer step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from jaxrl_vr.config import Config
from jaxrl_vr.losses import selection
from jaxrl_vr.rollout.batch import Trajectory, few
from jaxrl_vr.train.advantage import compiled
from jaxrl_vr.train.objectives import PolicyObjective


class TopEntropy(Config):
    """Only tokens of high entropy, the forks of a rollout, have a loss; the others keep their place
    in the mean."""

    type: Literal["top_entropy"] = "top_entropy"
    """Which selection this is."""
    fraction: float = Field(default=0.2, gt=0, le=1)
    """Share of an optimizer step's tokens that train."""


def with_top_entropy(part: Sequence[Trajectory], config: TopEntropy) -> list[Trajectory]:
    """The trajectories of an optimizer step, of whose tokens only those of high entropy count."""
    entropy, mask = _joined([t.entropy for t in part], part)
    threshold = compiled(selection.entropy_threshold)(entropy, mask, fraction=config.fraction)
    keep = compiled(selection.top_entropy_mask)(entropy, mask, threshold=threshold)
    return _split(part, np.asarray(keep), "counts")


def with_selected(
    part: Sequence[Trajectory], objective: PolicyObjective, seed: Sequence[int]
) -> list[Trajectory]:
    """The trajectories of an optimizer step, with the tokens that the objective treats apart.

    Args:
      part: all of the optimizer step's.
      objective: what trains.
      seed: of the random numbers, a token's own wherever it is packed.
    """
    logp, mask = _joined([t.logp if t.old_logp is None else t.old_logp for t in part], part)
    adv, _ = _joined([np.broadcast_to(np.float32(t.adv), t.mask.shape) for t in part], part)
    noise = np.random.default_rng(seed).random(mask.shape, np.float32)
    cov = compiled(selection.token_covariance)(logp, adv, mask)
    selected = objective.select(cov, mask, noise)
    return _split(part, np.asarray(selected), "selected")


def _joined(
    arrays: Sequence[np.ndarray | None], part: Sequence[Trajectory]
) -> tuple[np.ndarray, np.ndarray]:
    """Values and mask of all tokens in one row [1, N], of few sizes."""
    total = sum(len(t.mask) for t in part)
    more = few(total) - total
    found: list[Any] = [a for a in arrays if a is not None]
    assert len(found) == len(part), "every trajectory was scored"
    values = np.pad(np.concatenate(found).astype(np.float32), (0, more))
    mask = np.pad(np.concatenate([t.mask for t in part]), (0, more))
    return values[None], mask[None]


def _split(part: Sequence[Trajectory], row: np.ndarray, name: str) -> list[Trajectory]:
    ends = np.cumsum([len(t.mask) for t in part])
    pieces = np.split(row[0, : ends[-1]], ends[:-1])
    return [dataclasses.replace(t, **{name: a}) for t, a in zip(part, pieces, strict=True)]

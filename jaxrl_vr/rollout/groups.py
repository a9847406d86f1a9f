"""What is read off finished groups: rewards, trajectories to train on, metrics.

P prompts, G samples of a prompt.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxrl_vr.rollout.batch import Trajectory
from jaxrl_vr.types import Group, Max, Mean, Metrics, Rollout, Score


def score_of(rollout: Rollout) -> Score:
    """The score of a rollout that was collected."""
    assert rollout.score is not None, "a collected rollout has a score"
    return rollout.score


@dataclasses.dataclass(frozen=True)
class Samples:
    """What rewards and advantages are made from, as [P, G] arrays."""

    reward: np.ndarray  # float32
    valid: np.ndarray  # bool, false where a rollout could not be scored
    length: np.ndarray  # int32, completion tokens
    is_truncated: np.ndarray  # bool, cut by a length limit
    is_right: np.ndarray  # bool, verdict right

    def select(self, prompts: np.ndarray) -> Samples:
        """Those of some prompts, given by index or mask."""
        return Samples(**{name: array[prompts] for name, array in vars(self).items()})


def samples_of(groups: Sequence[Group]) -> Samples:
    """The samples of finished groups, all of one size G."""

    def array(of: Callable[[Rollout], Any], dtype: Any) -> np.ndarray:
        return np.array([[of(r) for r in group.rollouts] for group in groups], dtype)

    return Samples(
        reward=array(lambda r: score_of(r).value, np.float32),
        valid=array(lambda r: score_of(r).verdict != "unscorable", bool),
        length=array(lambda r: len(r.token_ids), np.int32),
        is_truncated=array(lambda r: r.finish == "length", bool),
        is_right=array(lambda r: score_of(r).verdict == "right", bool),
    )


def trajectories(
    groups: Sequence[Group], adv: np.ndarray, valid: np.ndarray, temperature: float
) -> list[Trajectory]:
    """Prompt and completion of each rollout; only sampled tokens train.

    Args:
      groups: P groups of G rollouts.
      adv: [P, G] float32, or [P, G, T] with one for each completion token and padding behind.
      valid: [P, G] bool; a rollout that could not be scored trains no token.
      temperature: that of the sampler; greedy counts as 1.

    Returns:
      P x G trajectories, group-major.
    """
    result = []
    for p, group in enumerate(groups):
        for g, rollout in enumerate(group.rollouts):
            before = len(rollout.prompt_ids)
            sampled = [s == "sampled" for s in rollout.source]
            of_each = adv[p, g]
            if adv.ndim == 3:
                of_each = np.concatenate([np.zeros(before), of_each[: len(sampled)]])
            result.append(
                Trajectory(
                    token_ids=np.array(rollout.prompt_ids + rollout.token_ids),
                    mask=np.array([False] * before + sampled) & valid[p, g],
                    logp=np.array([0.0] * before + list(rollout.logp), np.float32),
                    version=np.array([0] * before + list(rollout.version)),
                    adv=of_each if adv.ndim == 3 else float(of_each),
                    temperature=temperature or 1.0,
                    group=p,
                )
            )
    return result


def group_metrics(groups: Sequence[Group]) -> Metrics:
    """Metrics of a step's rollouts; `metrics.names` explains each.

    Unscorable rollouts are counted in `reward/unscorable` and `length/max` and nowhere else.
    """
    rollouts = [r for group in groups for r in group.rollouts]
    scored = [r for r in rollouts if score_of(r).verdict != "unscorable"]
    right = [r for r in scored if score_of(r).verdict == "right"]
    wrong = [r for r in scored if score_of(r).verdict != "right"]
    tokens = sum(len(r.token_ids) for r in scored)
    metrics: Metrics = {
        "reward/mean": Mean(sum(score_of(r).value for r in scored), len(scored)),
        "reward/accuracy": Mean(len(right), len(scored)),
        "reward/no_answer": _share(scored, "no_answer"),
        "reward/unscorable": _share(rollouts, "unscorable"),
        "length/mean": Mean(tokens, len(scored)),
        "length/max": Max(max(len(r.token_ids) for r in rollouts)),
        "length/right": Mean(sum(len(r.token_ids) for r in right), len(right)),
        "length/wrong": Mean(sum(len(r.token_ids) for r in wrong), len(wrong)),
        "length/truncated_rate": Mean(sum(r.finish == "length" for r in scored), len(scored)),
        # Both are per rollout, so their ratio is accuracy per token.
        "efficiency/accuracy_per_kilotoken": Mean(1000 * len(right), tokens),
    }
    return metrics | _kept_mass(rollouts) | _contrast(groups) | _by_source(groups)


def _kept_mass(rollouts: Sequence[Rollout]) -> Metrics:
    """Mean probability that top-k, top-p or min-p left, where they cut anything."""
    kept = [math.exp(mass) for r in rollouts for mass in r.kept_mass or ()]
    return {"policy/kept_mass": Mean(sum(kept), len(kept))} if kept else {}


def _contrast(groups: Sequence[Group]) -> Metrics:
    """Shares of groups whose scored rollouts are all right, all wrong, or neither."""
    all_right = all_wrong = num_groups = 0
    for group in groups:
        verdicts = [score_of(r).verdict for r in group.rollouts]
        is_right = [v == "right" for v in verdicts if v != "unscorable"]
        num_groups += bool(is_right)
        all_right += bool(is_right) and all(is_right)
        all_wrong += bool(is_right) and not any(is_right)
    return {
        "group/all_right": Mean(all_right, num_groups),
        "group/all_wrong": Mean(all_wrong, num_groups),
        "group/mixed": Mean(num_groups - all_right - all_wrong, num_groups),
    }


def _by_source(groups: Sequence[Group]) -> Metrics:
    """Accuracy and reward of each source, where there is more than one."""
    sources = sorted({group.example.source for group in groups})
    if len(sources) < 2:
        return {}
    metrics: Metrics = {}
    for source in sources:
        mine = [r for g in groups if g.example.source == source for r in g.rollouts]
        scored = [score_of(r) for r in mine if score_of(r).verdict != "unscorable"]
        right = sum(s.verdict == "right" for s in scored)
        metrics[f"source/{source}/accuracy"] = Mean(right, len(scored))
        metrics[f"source/{source}/reward"] = Mean(sum(s.value for s in scored), len(scored))
    return metrics


def _share(rollouts: Sequence[Rollout], verdict: str) -> Mean:
    return Mean(sum(score_of(r).verdict == verdict for r in rollouts), len(rollouts))

"""What is read off finished groups: rewards, trajectories to train on, metrics.

P prompts, G samples of a prompt.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
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
    """What rewards and advantages are made from: arrays [P, G], and [P, G, T] of tokens."""

    reward: np.ndarray  # float32, of the task
    valid: np.ndarray  # bool, false where a rollout could not be scored
    trains: np.ndarray  # bool, false where a rollout only counts in its group
    length: np.ndarray  # int32, completion tokens
    is_truncated: np.ndarray  # bool, cut by a length limit
    is_right: np.ndarray  # bool, verdict right
    components: Mapping[str, np.ndarray]  # float32, of the scores; 0 where a score lacks one
    mask: np.ndarray  # [P, G, T] bool, sampled tokens
    step_value: np.ndarray  # [P, G, S] float32, of reasoning steps; S is the most that any has
    step_end: np.ndarray  # [P, G, S] int32, completion token with which a step ends
    step_mask: np.ndarray  # [P, G, S] bool, which of them exist
    token_reward: np.ndarray | None = None  # [P, G, T] float32, with its KL; None: at the end alone
    value: np.ndarray | None = None  # [P, G, T] float32, the critic's, of each token's state
    logp: np.ndarray | None = None  # [P, G, T] float32, of each token, where a teacher has its own
    teacher_logp: np.ndarray | None = None  # [P, G, T] float32, the teacher's
    baseline: np.ndarray | None = None  # [P] float32, reward that others got for the prompt

    def against(self, baseline: np.ndarray) -> Samples:
        """With what rewards are compared with, [P]; where that is NaN nothing trains."""
        known = np.isfinite(baseline)
        return dataclasses.replace(
            self,
            baseline=np.where(known, baseline, 0.0).astype(np.float32),
            valid=self.valid & known[:, None],
            trains=self.trains & known[:, None],
        )

    def select(self, prompts: np.ndarray) -> Samples:
        """Those of some prompts, given by index or mask."""
        arrays = {n: a[prompts] for n, a in vars(self).items() if isinstance(a, np.ndarray)}
        components = {name: array[prompts] for name, array in self.components.items()}
        return dataclasses.replace(self, **arrays, components=components)

    def padded(self, num_prompts: int) -> Samples:
        """With groups behind in which nothing is valid, so that few sizes P come up."""
        more = num_prompts - len(self.reward)

        def pad(array: np.ndarray) -> np.ndarray:
            return np.pad(array, [(0, more)] + [(0, 0)] * (array.ndim - 1))

        arrays = {n: pad(a) for n, a in vars(self).items() if isinstance(a, np.ndarray)}
        components = {name: pad(array) for name, array in self.components.items()}
        return dataclasses.replace(self, **arrays, components=components)

    def total(self) -> np.ndarray:
        """[P, G] float32 reward of each rollout, less what its tokens were charged with."""
        return self.reward if self.token_reward is None else self.token_reward.sum(2)

    def component(self, name: str) -> np.ndarray:
        """[P, G] float32, a component of the scores; 0 where a score lacks it.

        Raises:
          ValueError: the scores have others, but none has this one.
        """
        if not self.components:  # a step in which nothing could be judged
            return np.zeros(self.reward.shape, np.float32)
        if name not in self.components:
            raise ValueError(
                f"component {name!r}: no verifier gives one of this name, only "
                f"{sorted(self.components)}; name one of these, or add it to the verifier"
            )
        return self.components[name]


def samples_of(
    groups: Sequence[Group], decode: Callable[[Sequence[int]], str], limit: int
) -> Samples:
    """The samples of finished groups, all of one size G.

    Args:
      groups: P groups of G rollouts.
      decode: token ids -> text, as the verifiers saw it: steps are scored by character.
      limit: T, tokens of a completion at most; of one size, so that few programs are compiled.
    """

    def array(of: Callable[[Rollout], Any], dtype: Any) -> np.ndarray:
        return np.array([[of(r) for r in group.rollouts] for group in groups], dtype)

    rollouts = [r for group in groups for r in group.rollouts]
    names = sorted({name for r in rollouts for name in score_of(r).components})

    def sampled(rollout: Rollout) -> np.ndarray:
        mask = np.zeros(limit, bool)
        mask[: len(rollout.source)] = [s == "sampled" for s in rollout.source]
        return mask

    return Samples(
        reward=array(lambda r: score_of(r).value, np.float32),
        valid=array(lambda r: score_of(r).verdict != "unscorable", bool),
        trains=array(lambda r: score_of(r).verdict != "unscorable", bool),
        length=array(lambda r: len(r.token_ids), np.int32),
        is_truncated=array(lambda r: r.finish == "length", bool),
        is_right=array(lambda r: score_of(r).verdict == "right", bool),
        components={
            name: array(lambda r, name=name: score_of(r).components.get(name, 0.0), np.float32)
            for name in names
        },
        mask=array(sampled, bool),
        **_steps(groups, decode),
    )


def _steps(
    groups: Sequence[Group], decode: Callable[[Sequence[int]], str]
) -> dict[str, np.ndarray]:
    most = max(len(score_of(r).steps) for group in groups for r in group.rollouts)
    size = (len(groups), len(groups[0].rollouts), most)
    value, end = np.zeros(size, np.float32), np.zeros(size, np.int32)
    mask = np.zeros(size, bool)
    for p, group in enumerate(groups):
        for g, rollout in enumerate(group.rollouts):
            steps = score_of(rollout).steps
            offsets = _offsets(rollout.token_ids, decode) if steps else []
            for s, step in enumerate(steps):
                value[p, g, s] = step.value
                end[p, g, s] = _token_at(offsets, step.end)
                mask[p, g, s] = True
    return {"step_value": value, "step_end": end, "step_mask": mask}


def _token_at(offsets: Sequence[int], characters: int) -> int:
    """The token with which the first `characters` of a completion's text are complete."""
    return min(bisect.bisect_left(offsets, characters), len(offsets) - 1)


def _offsets(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[int]:
    """Length of the text up to and with each token; it never falls, though a token that ends in
    mid-character may show a replacement character for it."""
    lengths = [len(decode(ids[: n + 1])) for n in range(len(ids))]
    return list(itertools.accumulate(lengths, max))


def trajectories(groups: Sequence[Group], samples: Samples, temperature: float) -> list[Trajectory]:
    """Prompt and completion of each rollout, without advantages.

    The mask holds the sampled tokens of all scored rollouts, to be compared with a reference;
    `with_advantages` leaves those that train.

    Args:
      groups: P groups of G rollouts.
      samples: of these groups.
      temperature: that of the sampler; greedy counts as 1.

    Returns:
      P x G trajectories, group-major.
    """
    result = []
    for p, group in enumerate(groups):
        for g, rollout in enumerate(group.rollouts):
            before = len(rollout.prompt_ids)
            sampled = samples.mask[p, g, : len(rollout.token_ids)]
            result.append(
                Trajectory(
                    token_ids=np.array(rollout.prompt_ids + rollout.token_ids),
                    mask=np.concatenate([np.zeros(before, bool), sampled & samples.valid[p, g]]),
                    logp=np.array([0.0] * before + list(rollout.logp), np.float32),
                    version=np.array([0] * before + list(rollout.version)),
                    temperature=temperature or 1.0,
                    group=p,
                    num_prompt=before,
                )
            )
    return result


def with_advantages(
    every: Sequence[Trajectory], adv: np.ndarray, samples: Samples
) -> list[Trajectory]:
    """The trajectories of a step with their advantages; those that do not train lose their mask.

    Args:
      every: group-major, of the first groups of `samples`; what is behind them is padding.
      adv: [P, G] float32, or [P, G, T] with one for each completion token.
      samples: theirs.
    """
    of_each = of_tokens(every, adv) if adv.ndim == 3 else adv.reshape(-1).tolist()
    trains = samples.trains.reshape(-1)
    return [
        dataclasses.replace(t, adv=of_each[i], mask=t.mask & trains[i]) for i, t in enumerate(every)
    ]


def of_tokens(every: Sequence[Trajectory], array: np.ndarray) -> list[np.ndarray]:
    """[P, G, T] of completion tokens -> of each trajectory [n], 0 at its prompt."""
    rows = array.reshape(-1, array.shape[2])  # P, G -> B
    result = []
    for i, t in enumerate(every):
        # A completion ends its sequence; what is behind it in its row is padding.
        padded = np.zeros(len(t.token_ids), np.float32)
        padded[t.num_prompt :] = rows[i, : len(t.token_ids) - t.num_prompt]
        result.append(padded)
    return result


def completions(
    arrays: Sequence[np.ndarray | None], every: Sequence[Trajectory], samples: Samples
) -> np.ndarray:
    """[P, G, T] float32 of what each trajectory has for its tokens, prompts left out."""
    rows = np.zeros((samples.trains.size, samples.mask.shape[2]), np.float32)
    for i, (values, t) in enumerate(zip(arrays, every, strict=True)):
        assert values is not None, "every trajectory was scored"
        rows[i, : len(values) - t.num_prompt] = values[t.num_prompt :]
    return rows.reshape(samples.mask.shape)  # B -> P, G


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
    metrics |= _components(scored) | _distributions(rollouts) | _forced(scored)
    return metrics | _contrast(groups) | _by_source(groups)


def _components(scored: Sequence[Rollout]) -> Metrics:
    """Mean of each component of the scores, over those that have it."""
    found: dict[str, list[float]] = {}
    for rollout in scored:
        for name, value in score_of(rollout).components.items():
            found.setdefault(name, []).append(value)
    return {f"component/{name}": Mean(sum(x), len(x)) for name, x in sorted(found.items())}


def _distributions(rollouts: Sequence[Rollout]) -> Metrics:
    """Mean probability that top-k, top-p or min-p left, where they cut anything; mean entropy of
    the uncut distributions, where it was kept."""

    def sampled(values: Callable[[Rollout], Sequence[float] | None]) -> list[float]:
        return [
            value
            for r in rollouts
            if (known := values(r)) is not None
            for value, source in zip(known, r.source, strict=True)
            if source == "sampled"
        ]

    kept = [math.exp(mass) for mass in sampled(lambda r: r.kept_mass)]
    entropy = sampled(lambda r: r.entropy)
    found = {"policy/kept_mass": kept, "rollout/entropy": entropy}
    return {name: Mean(sum(values), len(values)) for name, values in found.items() if values}


def _forced(scored: Sequence[Rollout]) -> Metrics:
    """How many rollouts got forced tokens, where any did."""
    counts = [r.num_forced for r in scored]
    if not any(counts):
        return {}
    return {
        "length/forced_rate": Mean(sum(n > 0 for n in counts), len(counts)),
        "length/forced": Mean(sum(counts), len(counts)),
    }


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

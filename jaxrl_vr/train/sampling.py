"""The sampling half of an RL step: groups of verified rollouts, and what they are compared with.

P prompts, G samples of a prompt.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence

import numpy as np

from jaxrl_vr.data.mixture import Mixture
from jaxrl_vr.data.prompts import Prompt
from jaxrl_vr.losses.advantages import has_contrast
from jaxrl_vr.metrics.accumulate import Accumulator
from jaxrl_vr.models.flops import Flops
from jaxrl_vr.models.params import Params
from jaxrl_vr.rollout.batch import few
from jaxrl_vr.rollout.collect import IsOver, Started, begin, go_on, never
from jaxrl_vr.rollout.groups import Samples, samples_of, score_of
from jaxrl_vr.train.advantage import FixedBaseline, compiled
from jaxrl_vr.train.context import Context
from jaxrl_vr.train.loop import Cursor, take
from jaxrl_vr.train.partial import read_started, with_started
from jaxrl_vr.train.rl_stage import RlStage
from jaxrl_vr.train.speed import sampled_lengths
from jaxrl_vr.train.state import TrainState
from jaxrl_vr.types import Group, Mean, Sampling

# Which part of a step samples a baseline; rounds of dynamic sampling count from 0.
_BASELINE = -1


class GroupSampler:
    """Samples the groups of each step of a stage."""

    def __init__(self, ctx: Context, stage: RlStage):
        self._ctx = ctx
        self._stage = stage
        self._flops = Flops.of(ctx.model.arch)

    def sample(
        self,
        state: TrainState,
        step: int,
        mixture: Mixture[Prompt],
        cursor: Cursor,
        metrics: Accumulator,
    ) -> tuple[list[Group], Cursor]:
        """Samples and verifies the step's groups; the cursor behind their prompts."""
        stage = self._stage
        sampling = self._ctx.sampling(stage.sampling)
        if stage.partial is not None:
            return self._sample_partial(state, step, mixture, cursor, metrics)
        if stage.dynamic_sampling is None:
            prompts, cursor, dropped = take(mixture, stage.prompts, cursor)
            metrics.add(dropped)
            groups = self._collect(state.trainable, step, prompts, stage.samples, sampling, 0)
            return groups, cursor
        groups: list[Group] = []
        num_mixed = rounds = 0
        while num_mixed < stage.prompts and rounds < stage.dynamic_sampling.max_rounds:
            missing = stage.prompts - num_mixed
            asked = math.ceil(missing * stage.dynamic_sampling.oversample)
            prompts, cursor, dropped = take(mixture, asked, cursor)
            metrics.add(dropped)
            # A prompt that comes again in a later round is sampled anew.
            groups += self._collect(state.trainable, step, prompts, stage.samples, sampling, rounds)
            num_mixed = int(is_mixed(self.samples(groups)).sum())
            rounds += 1
        metrics.add({"rollout/rounds": Mean(rounds, 1)})
        return groups, cursor

    def _sample_partial(
        self,
        state: TrainState,
        step: int,
        mixture: Mixture[Prompt],
        cursor: Cursor,
        metrics: Accumulator,
    ) -> tuple[list[Group], Cursor]:
        """The groups that are complete when the step's budget is spent; the others wait in the
        cursor, with all they have, for the next step and its weights."""
        stage, partial = self._stage, self._stage.partial
        assert partial is not None
        waiting = read_started(cursor)
        prompts, cursor, dropped = take(mixture, max(stage.prompts - len(waiting), 0), cursor)
        metrics.add(dropped)
        started = [*waiting, *self._begin(prompts, stage.samples, step)]
        began = time.monotonic()

        def is_over(tokens: int, complete: int) -> bool:
            spent = time.monotonic() - began
            # Each update needs a group of its own.
            return complete >= stage.updates_at(step) and partial.is_spent(tokens, spent)

        sampling = self._ctx.sampling(stage.sampling)
        groups, waiting = self._go_on(state.trainable, step, started, sampling, is_over)
        ages = [
            step - version
            for group in groups
            for r in group.rollouts
            for version, source in zip(r.version, r.source, strict=True)
            if source == "sampled"
        ]
        metrics.add({"rollout/waiting": Mean(len(waiting), 1)})
        metrics.add({"rollout/staleness": Mean(sum(ages), len(ages))})
        return groups, with_started(cursor, waiting)

    def samples(self, groups: Sequence[Group]) -> Samples:
        """The arrays of these groups."""
        return samples_of(groups, self._ctx.decode, self._stage.sampling.max_new_tokens)

    def baseline(
        self, state: TrainState, step: int, groups: Sequence[Group], metrics: Accumulator
    ) -> np.ndarray:
        """[P] float64, the mean reward of other answers to each prompt; NaN: none was scored."""
        sampling = self._ctx.sampling(self._stage.sampling)
        advantage = self._stage.advantage
        params, n = state.trainable, 1
        if isinstance(advantage, FixedBaseline):
            params, n = state.frozen["reference"], advantage.samples
        else:
            sampling = dataclasses.replace(sampling, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
        prompts = [Prompt(g.example, g.rollouts[0].prompt_ids) for g in groups]
        answers = self._collect(params, step, prompts, n, sampling, _BASELINE)
        scores = [[score_of(r) for r in group.rollouts] for group in answers]
        values = [[s.value for s in of_it if s.verdict != "unscorable"] for of_it in scores]
        found = [sum(v) / len(v) for v in values if v]
        metrics.add({"reward/baseline": Mean(sum(found), len(found))})
        return np.array([sum(v) / len(v) if v else np.nan for v in values])

    def _collect(
        self,
        params: Params,
        step: int,
        prompts: Sequence[Prompt],
        n: int,
        sampling: Sampling,
        part: int,
    ) -> list[Group]:
        """`n` answers of `params` to each prompt; each part of a step has keys of its own."""
        started = self._begin(prompts, n, step, part)
        return self._go_on(params, step, started, sampling, never)[0]

    def _begin(self, prompts: Sequence[Prompt], n: int, step: int, part: int = 0) -> list[Started]:
        return begin(prompts, n, (self._ctx.config.stage_seed(self._stage, part), step))

    def _go_on(
        self,
        params: Params,
        step: int,
        started: Sequence[Started],
        sampling: Sampling,
        is_over: IsOver,
    ) -> tuple[list[Group], list[Started]]:
        """Samples what is missing of started prompts with `params`, until it is over."""
        ctx = self._ctx
        total = sum(len(one.rollouts) for one in started)

        def progress(sampled: int, verified: int) -> None:
            ctx.interrupt.check()
            ctx.console.phase("rollout", sampled, total)
            ctx.console.phase("verify", verified, total)

        with ctx.sampling_phase("rollout", params, step) as engine:
            before = engine.num_sampled
            groups, later = go_on(
                engine,
                ctx.pool,
                started,
                sampling,
                decode=ctx.decode,
                progress=progress,
                waiting=ctx.wait_for_rewards,
                is_over=is_over,
            )
            ctx.phases.tokens("rollout", engine.num_sampled - before)
        every = [*(g.rollouts for g in groups), *(one.rollouts for one in later)]
        ctx.phases.flops("rollout", self._flops.sampling(sampled_lengths(every, step)))
        return groups, later


def is_mixed(samples: Samples) -> np.ndarray:
    """[P] bool, whether a group has rewards that differ."""
    P = len(samples.reward)
    padded = samples.padded(few(P))
    return np.asarray(compiled(has_contrast)(padded.reward, padded.valid))[:P]


def with_contrast(samples: Samples, metrics: Accumulator) -> np.ndarray:
    """Indices of the groups that have a gradient."""
    mixed = is_mixed(samples)
    metrics.add({"group/kept": Mean(int(mixed.sum()), len(mixed))})
    # Without any, a step that changes little, as without dynamic sampling.
    return np.flatnonzero(mixed) if mixed.any() else np.arange(len(mixed))


def shuffled(samples: Samples, seed: tuple[int, int]) -> Samples:
    """What verifiers said, dealt anew over the whole batch."""
    order = np.random.default_rng(seed).permutation(samples.reward.size)

    def deal(array: np.ndarray) -> np.ndarray:
        rows = array.reshape(order.size, *array.shape[2:])  # P, G -> B
        return rows[order].reshape(array.shape)

    names = ("reward", "valid", "trains", "is_right")
    dealt = {name: deal(getattr(samples, name)) for name in names}
    components = {name: deal(array) for name, array in samples.components.items()}
    return dataclasses.replace(samples, **dealt, components=components)

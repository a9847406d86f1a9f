"""The RL stage: sample groups, verify, normalise within the group, take clipped steps.

P prompts, G samples of a prompt.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_vr.data.mixture import Mixture
from jaxrl_vr.data.prompts import Prompt, load_prompts
from jaxrl_vr.losses.advantages import has_contrast
from jaxrl_vr.metrics.accumulate import Accumulator
from jaxrl_vr.metrics.rollouts import RolloutLog
from jaxrl_vr.rollout.batch import Batch, Shape, Trajectory, build, unpack
from jaxrl_vr.rollout.collect import collect
from jaxrl_vr.rollout.groups import (
    Samples,
    group_metrics,
    samples_of,
    score_of,
    trajectories,
)
from jaxrl_vr.sharding import to_host
from jaxrl_vr.train.config import RlStage
from jaxrl_vr.train.context import Context
from jaxrl_vr.train.evaluate import Evaluation
from jaxrl_vr.train.loop import Cursor, run_stage
from jaxrl_vr.train.state import TrainState
from jaxrl_vr.train.update import Learner, Rates
from jaxrl_vr.types import Group, Mean

# Steps in a row without any contrast before the console says what that means.
_NO_CONTRAST_STEPS = 10


def run_rl(ctx: Context, stage: RlStage) -> tuple[object, list[Evaluation]]:
    """Runs the stage; returns the final parameters and its evaluations."""
    room = ctx.model.max_length - stage.sampling.max_new_tokens
    max_prompt = min(stage.max_prompt_tokens or room, room)
    mixture = load_prompts(
        ctx.sources(stage.data),
        ctx.tokenizer,
        max_prompt_tokens=max_prompt,
        seed=ctx.config.stage_seed(stage),
    )
    ctx.report_dropped(stage.name, mixture.dropped, max_prompt)
    steps = _Steps(ctx, stage, max_prompt)

    def advance(
        state: TrainState, step: int, cursor: Cursor, metrics: Accumulator
    ) -> tuple[TrainState, Cursor]:
        groups, cursor = steps.sample(state, step, mixture, cursor, metrics)
        return steps.learn(state, step, groups, metrics), cursor

    return run_stage(ctx, stage, mixture.start(), advance, has_reference=stage.kl is not None)


class _Steps:
    """The two halves of a step, with what they keep between steps."""

    def __init__(self, ctx: Context, stage: RlStage, max_prompt: int):
        self._ctx = ctx
        self._stage = stage
        self._shape = Shape(
            stage.micro.row_length or max_prompt + stage.sampling.max_new_tokens, stage.micro.rows
        )
        self._learner = Learner(
            ctx.model,
            stage.objective.function,
            stage.optimizer.transform(ctx.model.declare()),
            ctx.mesh,
        )
        self._log = RolloutLog(ctx.stage_folder(stage.name) / "rollouts")
        self._steps_without_contrast = 0
        self._has_warned = False

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
        if stage.dynamic_sampling is None:
            prompts, cursor = mixture.take(stage.prompts, cursor)
            return self._collect(state, step, prompts, 0), cursor
        groups: list[Group] = []
        num_mixed = rounds = 0
        while num_mixed < stage.prompts and rounds < stage.dynamic_sampling.max_rounds:
            missing = stage.prompts - num_mixed
            asked = math.ceil(missing * stage.dynamic_sampling.oversample)
            prompts, cursor = mixture.take(asked, cursor)
            groups += self._collect(state, step, prompts, rounds)
            num_mixed = int(_is_mixed(samples_of(groups)).sum())
            rounds += 1
        metrics.add({"rollout/rounds": Mean(rounds, 1)})
        return groups, cursor

    def _collect(
        self, state: TrainState, step: int, prompts: Sequence[Prompt], round_: int
    ) -> list[Group]:
        ctx, stage = self._ctx, self._stage
        total = len(prompts) * stage.samples

        def progress(sampled: int, verified: int) -> None:
            ctx.interrupt.check()
            ctx.console.phase("rollout", sampled, total)
            ctx.console.phase("verify", verified, total)

        with ctx.phases("rollout"):
            groups = collect(
                ctx.engine(state.trainable, step),
                ctx.pool,
                prompts,
                stage.samples,
                ctx.sampling(stage.sampling),
                # A prompt that comes again in a later round is sampled anew.
                key=(ctx.config.stage_seed(stage, round_), step),
                decode=ctx.decode,
                progress=progress,
            )
            tokens = sum(len(r.token_ids) for g in groups for r in g.rollouts)
            ctx.phases.tokens("rollout", tokens)
        return groups

    def learn(
        self, state: TrainState, step: int, groups: list[Group], metrics: Accumulator
    ) -> TrainState:
        """Takes the step's optimizer steps, each on its share of the groups."""
        ctx, stage = self._ctx, self._stage
        samples = samples_of(groups)
        if stage.control == "shuffled_rewards":
            samples = _shuffled(samples, (ctx.config.stage_seed(stage), step))
        trains = np.ones(len(groups), bool)
        if stage.dynamic_sampling is not None:
            is_mixed = _is_mixed(samples)
            metrics.add({"group/kept": Mean(int(is_mixed.sum()), len(groups))})
            # With nothing to learn from, a step that changes little: as without this table.
            trains = is_mixed if is_mixed.any() else trains
        samples_kept = samples.select(trains)
        kept = [group for group, is_kept in zip(groups, trains, strict=True) if is_kept]
        adv = stage.advantage(samples_kept)
        metrics.add(group_metrics(groups))
        if ctx.config.logging.rollouts:
            self._log.write(step + 1, kept, ctx.decode, adv)
        self._watch(groups, adv)
        every = trajectories(kept, adv, samples_kept.valid, stage.sampling.temperature)
        num_updates = min(stage.updates_at(step), len(kept))
        before = sum(stage.updates_at(s) for s in range(step))
        with ctx.phases("update"):
            # All are scored before the first update, because the old policy is the one that
            # sampled; then dealt like cards, so that the parts differ by at most a group.
            every = self._scored(state, every)
            for i in range(num_updates):
                part = [t for t in every if t.group % num_updates == i]
                rate = stage.optimizer.rate(before + i, stage.total_updates)
                state = self._update(state, self._batch(part), rate, metrics, is_first=i == 0)
                ctx.console.phase("update", i + 1, num_updates)
            ctx.phases.tokens("update", sum(len(t.token_ids) for t in every))
        return state

    def _scored(self, state: TrainState, every: list[Trajectory]) -> list[Trajectory]:
        """With the log-probs that the loss compares with."""
        stage, learner = self._stage, self._learner
        params = {"old_logp": state.trainable} if stage.old_logp == "recomputed" else {}
        if stage.kl is not None:
            params["ref_logp"] = state.frozen["reference"]
        if not params:
            return every
        batch = learner.place(build(every, np.zeros(len(every)), self._shape))
        lengths = [len(t.token_ids) for t in every]
        for name, of in params.items():
            found = unpack(to_host(learner.score(of, batch)), lengths, self._shape)
            every = [
                dataclasses.replace(t, **{name: logp}) for t, logp in zip(every, found, strict=True)
            ]
        return every

    def _batch(self, part: list[Trajectory]) -> Batch:
        """The batch of one optimizer step."""
        lengths = np.array([t.num_trained for t in part])
        weight = self._stage.weights(lengths, self._stage.sampling.max_new_tokens)
        return self._learner.place(build(part, weight, self._shape))

    def _update(
        self,
        state: TrainState,
        batch: Batch,
        learning_rate: float,
        metrics: Accumulator,
        *,
        is_first: bool,
    ) -> TrainState:
        stage = self._stage
        numbers = dict(stage.objective.numbers)
        if stage.kl is not None:
            numbers["kl_coef"] = stage.kl.coef
        rates = Rates(learning_rate, stage.optimizer.max_grad_norm)
        state, found = self._learner.update(state, batch, numbers, rates)
        found = jax.device_get(found)
        if not is_first:
            # After the first update sampler and learner hold different weights: no mismatch.
            found = {k: v for k, v in found.items() if not k.startswith("mismatch/")}
        metrics.add(found)
        return state

    def _watch(self, groups: Sequence[Group], adv: np.ndarray) -> None:
        """Says so when answers cannot be scored, or nothing was learned for many steps."""
        scores = [score_of(r) for g in groups for r in g.rollouts]
        unscorable = [s.reason for s in scores if s.verdict == "unscorable"]
        if unscorable and not self._has_warned:
            self._has_warned = True
            self._ctx.console.warn(
                f"{len(unscorable)} of {len(scores)} answers could not be scored and do not train; "
                f"the first reason: {unscorable[0]} (reward/unscorable counts on)"
            )
        self._steps_without_contrast += 1
        if np.any(adv):
            self._steps_without_contrast = 0
        if self._steps_without_contrast == _NO_CONTRAST_STEPS:
            self._ctx.console.warn(
                f"{_NO_CONTRAST_STEPS} steps in a row had no group with both right and wrong "
                "answers, so nothing is learned: choose easier or harder problems, more samples, "
                "or look at the rollouts for an answer format that the verifier does not accept"
            )


def _is_mixed(samples: Samples) -> np.ndarray:
    """[P] bool, whether a group has rewards that differ."""
    return np.asarray(has_contrast(jnp.asarray(samples.reward), jnp.asarray(samples.valid)))


def _shuffled(samples: Samples, seed: tuple[int, int]) -> Samples:
    """Rewards dealt anew over the whole batch."""
    order = np.random.default_rng(seed).permutation(samples.reward.size)

    def deal(array: np.ndarray) -> np.ndarray:
        return array.reshape(-1)[order].reshape(array.shape)

    return dataclasses.replace(samples, reward=deal(samples.reward), valid=deal(samples.valid))

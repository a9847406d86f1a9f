"""The RL stage: sample groups, verify, turn rewards into advantages, take optimizer steps.

P prompts, G samples of a prompt, T completion tokens at most.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import jax
import numpy as np

from jaxrl_vr.data.mixture import Mixture
from jaxrl_vr.data.prompts import Prompt
from jaxrl_vr.losses.advantages import has_contrast
from jaxrl_vr.losses.value import explained_variance
from jaxrl_vr.metrics.accumulate import Accumulator
from jaxrl_vr.metrics.rollouts import RolloutLog
from jaxrl_vr.models.params import Params
from jaxrl_vr.rollout.batch import Batch, Shape, Trajectory, build, unpack
from jaxrl_vr.rollout.collect import collect
from jaxrl_vr.rollout.groups import (
    Samples,
    completions,
    group_metrics,
    of_tokens,
    samples_of,
    score_of,
    trajectories,
    with_advantages,
)
from jaxrl_vr.sharding import to_host
from jaxrl_vr.train.advantage import Gae, compiled
from jaxrl_vr.train.carried import Carried
from jaxrl_vr.train.context import Context
from jaxrl_vr.train.critic import critic_learner, critic_state
from jaxrl_vr.train.evaluate import Evaluation
from jaxrl_vr.train.loop import Cursor, run_stage, take
from jaxrl_vr.train.objectives import Dpo, policy_objective
from jaxrl_vr.train.rl_stage import RlStage
from jaxrl_vr.train.state import TrainState
from jaxrl_vr.train.update import Learner, Rates, policy_loss, policy_score
from jaxrl_vr.types import Group, Mean, Metrics
from jaxrl_vr.verifiers.tally import Watch

# Steps in a row without any contrast before the console says what that means.
_NO_CONTRAST_STEPS = 10


def run_rl(ctx: Context, stage: RlStage) -> tuple[object, list[Evaluation]]:
    """Runs the stage; returns the final parameters and its evaluations."""
    max_prompt = stage.longest_prompt(ctx.model.max_length)
    mixture = ctx.mixtures.prompts(stage)
    ctx.report_dropped(stage.name, mixture.dropped, max_prompt)
    steps = _Steps(ctx, stage, max_prompt)

    def advance(
        state: TrainState, step: int, cursor: Cursor, metrics: Accumulator
    ) -> tuple[TrainState, Cursor]:
        carried = Carried.of(stage, cursor)
        groups, cursor = steps.sample(state, step, mixture, cursor, metrics)
        state, carried = steps.learn(state, step, groups, carried, metrics)
        return state, carried.into(cursor)

    def make_critic(policy: Params) -> TrainState:
        assert stage.critic is not None
        return critic_state(stage.critic, ctx.model, policy)

    return run_stage(
        ctx,
        stage,
        mixture.start(),
        advance,
        has_reference=stage.has_reference,
        make_critic=None if stage.critic is None else make_critic,
    )


def check_finite(where: str, reward: np.ndarray, adv: np.ndarray) -> None:
    """Refuses advantages that overflowed: each update with them would be skipped."""
    if not np.isfinite(adv).all():
        raise ValueError(
            f"{where}: advantages are not finite, from rewards between {reward.min():g} and "
            f"{reward.max():g}; let the verifier return smaller values"
        )


class _Steps:
    """The two halves of a step, with what they keep between steps."""

    def __init__(self, ctx: Context, stage: RlStage, max_prompt: int):
        self._ctx = ctx
        self._stage = stage
        self._shape = Shape(
            stage.micro.row_length
            or stage.sequences_together * (max_prompt + stage.sampling.max_new_tokens),
            stage.micro.rows,
        )
        objective = policy_objective(
            stage.objective, stage.kl, stage.entropy_bonus, stage.offpolicy
        )
        self._learner = Learner(
            policy_loss(ctx.model, objective),
            policy_score(ctx.model),
            stage.optimizer.transform(ctx.model.declare()),
            ctx.mesh,
        )
        self._critic = None
        if stage.critic is not None:
            self._critic = critic_learner(stage.critic, ctx.model, ctx.mesh)
        self._log = RolloutLog(ctx.stage_folder(stage.name) / "rollouts")
        self._steps_without_contrast = 0
        self._has_warned = False
        self._has_warned_of_limits = False
        self._unscorable = Watch(ctx.config.verifiers.max_unscorable)

    # Sampling

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
            prompts, cursor, dropped = take(mixture, stage.prompts, cursor)
            metrics.add(dropped)
            return self._collect(state, step, prompts, 0), cursor
        groups: list[Group] = []
        num_mixed = rounds = 0
        while num_mixed < stage.prompts and rounds < stage.dynamic_sampling.max_rounds:
            missing = stage.prompts - num_mixed
            asked = math.ceil(missing * stage.dynamic_sampling.oversample)
            prompts, cursor, dropped = take(mixture, asked, cursor)
            metrics.add(dropped)
            groups += self._collect(state, step, prompts, rounds)
            num_mixed = int(_is_mixed(self._samples(groups)).sum())
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

    # Learning

    def learn(
        self,
        state: TrainState,
        step: int,
        groups: list[Group],
        carried: Carried,
        metrics: Accumulator,
    ) -> tuple[TrainState, Carried]:
        """Takes the step's optimizer steps, each on its share of the groups."""
        ctx, stage = self._ctx, self._stage
        metrics.add(group_metrics(groups))
        metrics.add(ctx.pool.metrics())
        samples = self._samples(groups)
        if stage.control == "shuffled_rewards":
            samples = _shuffled(samples, (ctx.config.stage_seed(stage), step))
        kept = np.arange(len(groups))
        if stage.dynamic_sampling is not None:
            kept = _with_contrast(samples, metrics)
        # Of few sizes, so that few programs are compiled.
        samples = samples.select(kept).padded(_few(len(kept)))
        samples, carried = self._shaped(samples, carried)
        with ctx.phases("update"):
            # Scored before the first update, because the old policy is the one that sampled.
            every = trajectories([groups[p] for p in kept], samples, stage.sampling.temperature)
            every = self._scored(state, every)
            samples, kl_of_rollouts = self._penalised(every, samples, carried, metrics)
            samples = self._valued(every, samples)
            adv = stage.advantage(samples)
            check_finite(f"stages.{stage.name} step {step + 1}", samples.reward, adv)
            every = self._with_returns(with_advantages(every, adv, samples), samples, metrics)
        of_all = np.zeros((len(groups), *adv.shape[1:]), np.float32)
        of_all[kept] = adv[: len(kept)]
        if ctx.config.logging.rollouts:
            self._log.write(step + 1, groups, ctx.decode, of_all)
        self._watch(groups, adv)
        with ctx.phases("update"):
            state, num_tokens = self._optimize(state, step, every, carried, metrics)
            ctx.phases.tokens("update", num_tokens)
        if step < stage.num_warmup_steps:
            return state, carried
        return state, carried.after(stage, kl_of_rollouts, metrics.result().get("policy/entropy"))

    def _samples(self, groups: list[Group]) -> Samples:
        return samples_of(groups, self._ctx.decode, self._stage.sampling.max_new_tokens)

    def _shaped(self, samples: Samples, carried: Carried) -> tuple[Samples, Carried]:
        states = []
        limit = self._stage.sampling.max_new_tokens
        for shaping, before in zip(self._stage.shaping, carried.shaping, strict=True):
            samples, after = shaping(samples, limit, before)
            states.append(after)
        return samples, dataclasses.replace(carried, shaping=tuple(states))

    def _scored(self, state: TrainState, every: list[Trajectory]) -> list[Trajectory]:
        """With the log-probs and values that the losses compare with."""
        stage, learner = self._stage, self._learner
        wanted: dict[str, tuple[Learner, Params]] = {}
        if stage.old_logp == "recomputed":
            wanted["old_logp"] = (learner, state.trainable)
        if stage.has_reference:
            wanted["ref_logp"] = (learner, state.frozen["reference"])
        if self._critic is not None:
            wanted["old_value"] = (self._critic, state.critic.trainable)
        if not wanted:
            return every
        batch = learner.place(build(every, np.zeros(len(every)), self._shape))
        lengths = [len(t.token_ids) for t in every]
        for name, (scorer, params) in wanted.items():
            found = unpack(to_host(scorer.score(params, batch)), lengths, self._shape)
            every = [
                dataclasses.replace(t, **{name: array})
                for t, array in zip(every, found, strict=True)
            ]
        return every

    def _valued(self, every: list[Trajectory], samples: Samples) -> Samples:
        """The samples with the critic's values."""
        if self._critic is None:
            return samples
        value = completions([t.old_value for t in every], every, samples)
        return dataclasses.replace(samples, value=value)

    def _with_returns(
        self, every: list[Trajectory], samples: Samples, metrics: Accumulator
    ) -> list[Trajectory]:
        """With what values are trained towards."""
        if not isinstance(self._stage.advantage, Gae):
            return every
        returns = self._stage.advantage.returns(samples)
        P, G, T = returns.shape
        assert samples.value is not None, "a stage with gae has a critic"
        arrays = (samples.value, returns, samples.mask & samples.trains[:, :, None])
        found = compiled(explained_variance)(*(a.reshape(P * G, T) for a in arrays))
        metrics.add({"value/explained_variance": Mean(float(found), 1)})
        of_each = of_tokens(every, returns)
        return [dataclasses.replace(t, returns=r) for t, r in zip(every, of_each, strict=True)]

    def _penalised(
        self, every: list[Trajectory], samples: Samples, carried: Carried, metrics: Accumulator
    ) -> tuple[Samples, np.ndarray]:
        """The samples charged with their KL, and the KL of each scored rollout in nats."""
        kl = self._stage.kl
        if kl is None:
            return samples, np.zeros(0)
        old_logp = [t.logp if t.old_logp is None else t.old_logp for t in every]
        logp = completions(old_logp, every, samples)
        ref_logp = completions([t.ref_logp for t in every], every, samples)
        mask = samples.mask & samples.valid[:, :, None]
        if kl.where == "reward":
            P, G, T = mask.shape
            rows = [a.reshape(P * G, T) for a in (logp, ref_logp, mask)]  # P, G -> B
            reward = samples.reward.reshape(P * G)
            found, of_it = kl.token_reward(reward, *rows, coef=carried.kl)
            samples = dataclasses.replace(samples, token_reward=found.reshape(P, G, T))
            metrics.add(jax.device_get(of_it))
        return samples, np.where(mask, logp - ref_logp, 0.0).sum(2)[samples.valid]

    def _optimize(
        self,
        state: TrainState,
        step: int,
        every: Sequence[Trajectory],
        carried: Carried,
        metrics: Accumulator,
    ) -> tuple[TrainState, int]:
        """The step's updates, each on its share of the groups, and the tokens they saw."""
        stage = self._stage
        if isinstance(stage.objective, Dpo):
            every = _pairs(every)
        groups = np.unique([t.group for t in every])
        num_updates = min(stage.updates_at(step), len(groups))
        num_tokens = 0
        for epoch in range(stage.epochs):
            if epoch > 0:
                seed = (self._ctx.config.stage_seed(stage), step, epoch)
                groups = np.random.default_rng(seed).permutation(groups)
            for i in range(num_updates):
                done = epoch * num_updates + i
                # Dealt like cards, so that the parts differ by at most a group.
                chosen = set(groups[i::num_updates].tolist())
                part = [t for t in every if t.group in chosen]
                if any(t.num_trained for t in part):
                    state, found = self._update(state, step, done, self._batch(part), carried)
                    metrics.add(found)
                    num_tokens += sum(len(t.token_ids) for t in part)
                self._ctx.console.phase("update", done + 1, stage.epochs * num_updates)
        return state, num_tokens

    def _batch(self, part: list[Trajectory]) -> Batch:
        """The batch of one optimizer step."""
        stage = self._stage
        limit = stage.sampling.max_new_tokens
        together = stage.sequences_together
        # What counts once is a rollout, or a pair of them in one row.
        lengths = np.array([t.num_trained for t in part]).reshape(-1, together).sum(1)
        group = np.unique([t.group for t in part[::together]], return_inverse=True)[1]
        # Of few sizes, so that few programs are compiled; what has no tokens does not count.
        more = (0, _few(len(lengths)) - len(lengths))
        weight = stage.weights(np.pad(lengths, more), np.pad(group, more), limit)
        weight = np.repeat(weight[: len(lengths)], together)
        return self._learner.place(build(part, weight, self._shape, together=together))

    def _update(
        self, state: TrainState, step: int, done: int, batch: Batch, carried: Carried
    ) -> tuple[TrainState, Metrics]:
        """One optimizer step of the policy, and one of the critic."""
        stage, critic = self._stage, state.critic
        metrics: Metrics = {}
        if step >= stage.num_warmup_steps:
            # The policy's schedule begins when the policy does.
            before = stage.updates_before(stage.num_warmup_steps)
            index = stage.updates_before(step) - before + done
            rate = stage.optimizer.rate(index, stage.total_updates - before)
            rates = Rates(rate, stage.optimizer.max_grad_norm)
            policy = dataclasses.replace(state, critic=None)
            state, found = self._learner.update(policy, batch, carried.numbers(stage), rates)
            metrics |= jax.device_get(found)
            if done > 0:
                # After the first update sampler and learner hold different weights.
                metrics = {k: v for k, v in metrics.items() if not k.startswith("mismatch/")}
        if stage.critic is not None and self._critic is not None:
            index = stage.updates_before(step) + done
            rate = stage.critic.optimizer.rate(index, stage.total_updates)
            rates = Rates(rate, stage.critic.optimizer.max_grad_norm)
            critic, found = self._critic.update(critic, batch, stage.critic.numbers, rates)
            metrics |= {
                k if k.startswith("value/") else f"critic/{k.partition('/')[2]}": v
                for k, v in jax.device_get(found).items()
            }
        return dataclasses.replace(state, critic=critic), metrics

    def _watch(self, groups: Sequence[Group], adv: np.ndarray) -> None:
        """Says so when answers cannot be scored, or nothing was learned for many steps.

        Raises:
          TooManyUnscorable: more answers than verifiers.max_unscorable allows.
        """
        self._unscorable.see((g.example.id, score_of(r)) for g in groups for r in g.rollouts)
        scores = [score_of(r) for g in groups for r in g.rollouts]
        unscorable = [s.reason for s in scores if s.verdict == "unscorable"]
        if unscorable and not self._has_warned:
            self._has_warned = True
            self._ctx.console.warn(
                f"{len(unscorable)} of {len(scores)} answers could not be scored and do not train; "
                f"the first reason: {unscorable[0]} (reward/unscorable counts on)"
            )
        limited = [s.reason for s in scores if s.reason.startswith("limit")]
        if limited and not self._has_warned_of_limits:
            self._has_warned_of_limits = True
            self._ctx.console.warn(
                f"{len(limited)} of {len(scores)} answers went beyond a limit of their verifier "
                f"and count as wrong; the first reason: {limited[0]} (look at the rollouts, and at "
                "the verifier if it is your own)"
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


def _pairs(every: Sequence[Trajectory]) -> list[Trajectory]:
    """The preferred and the other answer of each pair, one behind the other."""
    chosen = {t.group: t for t in every if np.max(t.adv) > 0}
    rejected = {t.group: t for t in every if np.min(t.adv) < 0}
    return [t for group in sorted(chosen) for t in (chosen[group], rejected[group])]


def _few(n: int) -> int:
    """The next power of two: of few sizes few programs are compiled."""
    return 1 << max(n - 1, 0).bit_length()


def _is_mixed(samples: Samples) -> np.ndarray:
    """[P] bool, whether a group has rewards that differ."""
    P = len(samples.reward)
    padded = samples.padded(_few(P))
    return np.asarray(compiled(has_contrast)(padded.reward, padded.valid))[:P]


def _with_contrast(samples: Samples, metrics: Accumulator) -> np.ndarray:
    """Indices of the groups that have a gradient."""
    is_mixed = _is_mixed(samples)
    metrics.add({"group/kept": Mean(int(is_mixed.sum()), len(is_mixed))})
    # Without any, a step that changes little, as without dynamic sampling.
    return np.flatnonzero(is_mixed) if is_mixed.any() else np.arange(len(is_mixed))


def _shuffled(samples: Samples, seed: tuple[int, int]) -> Samples:
    """What verifiers said, dealt anew over the whole batch."""
    order = np.random.default_rng(seed).permutation(samples.reward.size)

    def deal(array: np.ndarray) -> np.ndarray:
        rows = array.reshape(order.size, *array.shape[2:])  # P, G -> B
        return rows[order].reshape(array.shape)

    names = ("reward", "valid", "trains", "is_right")
    dealt = {name: deal(getattr(samples, name)) for name in names}
    components = {name: deal(array) for name, array in samples.components.items()}
    return dataclasses.replace(samples, **dealt, components=components)

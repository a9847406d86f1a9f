"""The RL stage: sample groups, verify, turn rewards into advantages, take optimizer steps.

P prompts, G samples of a prompt, T completion tokens at most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import numpy as np

from jaxrl_vr.data.demonstrations import Demonstration
from jaxrl_vr.losses.value import explained_variance
from jaxrl_vr.metrics.accumulate import Accumulator
from jaxrl_vr.metrics.rollouts import RolloutLog
from jaxrl_vr.models.flops import Flops
from jaxrl_vr.models.params import Params
from jaxrl_vr.rollout.batch import Batch, Trajectory, build, few, unpack
from jaxrl_vr.rollout.groups import (
    Samples,
    completions,
    group_metrics,
    of_tokens,
    trajectories,
    with_advantages,
)
from jaxrl_vr.sharding import to_host
from jaxrl_vr.train.advantage import Gae, compiled
from jaxrl_vr.train.carried import Carried
from jaxrl_vr.train.context import Context
from jaxrl_vr.train.critic import critic_flops, critic_learner, critic_state
from jaxrl_vr.train.evaluate import Evaluation
from jaxrl_vr.train.imitation import averaged, marked, mixed_in
from jaxrl_vr.train.loop import Cursor, run_stage, starting_weights, take
from jaxrl_vr.train.objectives import Dpo
from jaxrl_vr.train.policy import learner_of, stage_shape
from jaxrl_vr.train.rl_stage import RlStage
from jaxrl_vr.train.sampling import GroupSampler, shuffled, with_contrast
from jaxrl_vr.train.selection import with_selected, with_top_entropy
from jaxrl_vr.train.state import TrainState
from jaxrl_vr.train.update import Rates, Scorer, policy_score
from jaxrl_vr.train.watch import Watch
from jaxrl_vr.types import Group, Mean, Metrics


def run_rl(ctx: Context, stage: RlStage) -> tuple[object, list[Evaluation]]:
    """Runs the stage; returns the final parameters and its evaluations."""
    max_prompt = stage.longest_prompt(ctx.model.max_length)
    mixture = ctx.mixtures.prompts(stage)
    ctx.report_dropped(stage.name, mixture.dropped, max_prompt)
    if stage.lm_mix is not None:
        context = ctx.model.max_length
        longest = stage.lm_mix.longest(stage.row_length(context), context)
        ctx.report_dropped(f"{stage.name}.lm_mix", ctx.mixtures.texts(stage).dropped, longest)
    sampler = GroupSampler(ctx, stage)
    steps = _Steps(ctx, stage, sampler)

    def advance(
        state: TrainState, step: int, cursor: Cursor, metrics: Accumulator
    ) -> tuple[TrainState, Cursor]:
        carried = Carried.of(stage, cursor)
        groups, cursor = sampler.sample(state, step, mixture, cursor, metrics)
        state, carried = steps.learn(state, step, groups, carried, metrics)
        return state, carried.into(cursor)

    def make_critic(policy: Params) -> TrainState:
        assert stage.critic is not None
        return critic_state(stage.critic, ctx.model, policy)

    frozen: dict[str, Callable[[Params], Params]] = {}
    if stage.has_reference:
        frozen["reference"] = starting_weights
    if (teacher := stage.teacher) is not None:
        frozen["teacher"] = lambda _: ctx.load_teacher(teacher)
    return run_stage(
        ctx,
        stage,
        mixture.start(),
        advance,
        frozen=frozen,
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
    """What a step learns from its groups, with what it keeps between steps."""

    def __init__(self, ctx: Context, stage: RlStage, sampler: GroupSampler):
        self._ctx = ctx
        self._stage = stage
        self._sampler = sampler
        self._texts = None if stage.lm_mix is None else ctx.mixtures.texts(stage)
        self._learner = learner_of(stage, ctx.model, ctx.mesh)
        self._flops = Flops.of(ctx.model.arch)
        teacher = None if stage.teacher is None else ctx.teacher_model(stage.teacher)
        self._shape = stage_shape(ctx, stage, self._learner, teacher)
        self._teacher = None
        if teacher is not None:
            self._teacher = Scorer(policy_score(teacher), ctx.mesh)
            self._teacher_flops = Flops.of(teacher.arch)
        self._critic = None
        if stage.critic is not None:
            self._critic = critic_learner(stage.critic, ctx.model, ctx.mesh)
            self._critic_flops = critic_flops(ctx.model)
        self._log = RolloutLog(ctx.stage_folder(stage.name) / "rollouts")
        self._watch = Watch(ctx.console, stage, ctx.config.verifiers.max_unscorable)

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
        samples = self._sampler.samples(groups)
        if stage.control == "shuffled_rewards":
            samples = shuffled(samples, (ctx.config.stage_seed(stage), step))
        kept = np.arange(len(groups))
        if stage.dynamic_sampling is not None:
            kept = with_contrast(samples, metrics)
        samples = samples.select(kept)
        if stage.advantage.baseline_of is not None:
            baseline = self._sampler.baseline(state, step, [groups[p] for p in kept], metrics)
            samples = samples.against(baseline)
        # Of few sizes, so that few programs are compiled.
        samples = samples.padded(few(len(kept)))
        samples, carried = self._shaped(samples, carried)
        # Scored before the first update, because the old policy is the one that sampled.
        every = trajectories([groups[p] for p in kept], samples, stage.sampling.temperature)
        every = self._scored(state, every)
        with ctx.phases("advantage"):
            samples, kl_of_rollouts = self._penalised(every, samples, carried, metrics)
            samples = self._taught(every, self._valued(every, samples), metrics)
            adv = stage.advantage(samples)
            check_finite(f"stages.{stage.name} step {step + 1}", samples.reward, adv)
            every = self._with_returns(with_advantages(every, adv, samples), samples, metrics)
            if stage.positive_nll is not None:
                every = marked(every, samples.is_right.reshape(-1)[: len(every)])  # P, G -> B
        of_all = np.zeros((len(groups), *adv.shape[1:]), np.float32)
        of_all[kept] = adv[: len(kept)]
        if ctx.config.logging.rollouts:
            self._log.write(step + 1, groups, ctx.decode, of_all)
        self._watch(groups, samples, adv)
        with ctx.phases("update"):
            state, carried = self._optimize(state, step, every, carried, metrics)
        if step < stage.num_warmup_steps:
            return state, carried
        return state, carried.after(stage, kl_of_rollouts, metrics.result().get("policy/entropy"))

    def _shaped(self, samples: Samples, carried: Carried) -> tuple[Samples, Carried]:
        states = []
        limit = self._stage.sampling.max_new_tokens
        for shaping, before in zip(self._stage.shaping, carried.shaping, strict=True):
            samples, after = shaping(samples, limit, before)
            states.append(after)
        return samples, dataclasses.replace(carried, shaping=tuple(states))

    def _scored(self, state: TrainState, every: list[Trajectory]) -> list[Trajectory]:
        """With the log-probs and values that the losses compare with."""
        stage, learner, phases = self._stage, self._learner, self._ctx.phases
        ours = {"old_logp": "logp"} if stage.old_logp == "recomputed" else {}
        if stage.tokens is not None:
            ours["entropy"] = "entropy"
        # Field of a trajectory -> name of the score, by who computes it with which parameters.
        wanted: list[tuple[Scorer, Flops, Params, dict[str, str]]] = []
        if ours:
            wanted.append((learner.score, self._flops, state.trainable, ours))
        if stage.has_ref_logp:
            reference = state.frozen["reference"]
            wanted.append((learner.score, self._flops, reference, {"ref_logp": "logp"}))
        if self._teacher is not None:
            teacher = state.frozen["teacher"]
            wanted.append((self._teacher, self._teacher_flops, teacher, {"teacher_logp": "logp"}))
        if self._critic is not None:
            critic = state.critic.trainable
            wanted.append((self._critic.score, self._critic_flops, critic, {"old_value": "value"}))
        if not wanted:
            return every
        lengths = [len(t.token_ids) for t in every]
        with phases("score"):
            batch = learner.place(build(every, np.zeros(len(every)), self._shape))
            for scorer, flops, params, names in wanted:
                asked = scorer(params, batch)
                with phases.fetching():
                    scores = to_host(asked)
                phases.tokens("score", sum(lengths))
                phases.flops("score", flops.score(lengths))
                for field, name in names.items():
                    found = unpack(scores[name], every, self._shape)
                    every = [
                        dataclasses.replace(t, **{field: array})
                        for t, array in zip(every, found, strict=True)
                    ]
        return every

    def _valued(self, every: list[Trajectory], samples: Samples) -> Samples:
        """The samples with the critic's values."""
        if self._critic is None:
            return samples
        value = completions([t.old_value for t in every], every, samples)
        return dataclasses.replace(samples, value=value)

    def _taught(self, every: list[Trajectory], samples: Samples, metrics: Accumulator) -> Samples:
        """The samples with the log-probs of student and teacher."""
        if self._teacher is None:
            return samples
        old_logp = [t.logp if t.old_logp is None else t.old_logp for t in every]
        logp = completions(old_logp, every, samples)
        teacher_logp = completions([t.teacher_logp for t in every], every, samples)
        mask = samples.mask & samples.trains[:, :, None]
        gap = np.where(mask, logp - teacher_logp, 0.0)
        metrics.add({"distill/reverse_kl": Mean(float(gap.sum()), int(mask.sum()))})
        return dataclasses.replace(samples, logp=logp, teacher_logp=teacher_logp)

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
    ) -> tuple[TrainState, Carried]:
        """The step's updates, each on its share of the groups."""
        stage = self._stage
        if isinstance(stage.objective, Dpo):
            every = _pairs(every)
        groups = np.unique([t.group for t in every])
        num_updates = min(stage.updates_at(step), len(groups))
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
                    texts: list[Demonstration] = []
                    if step >= stage.num_warmup_steps:
                        texts, carried = self._mixed_in(carried, metrics)
                    # The last number keeps it apart from the seeds of epochs.
                    seed = (self._ctx.config.stage_seed(stage), step, done, 1)
                    batch = self._batch(part, texts, seed)
                    state, found = self._update(state, step, done, batch, carried)
                    metrics.add(found)
                    lengths = [len(t.token_ids) for t in part] + [len(text.ids) for text in texts]
                    self._ctx.phases.tokens("update", sum(lengths))
                    self._ctx.phases.flops("update", self._flops_of_update(step, lengths))
                self._ctx.console.phase("update", done + 1, stage.epochs * num_updates)
        return state, carried

    def _flops_of_update(self, step: int, lengths: Sequence[int]) -> float:
        """Of one optimizer step of the policy, unless the critic still learns alone, and one of the
        critic."""
        learns = step >= self._stage.num_warmup_steps
        of_critic = 0 if self._critic is None else self._critic_flops.update(lengths)
        return self._flops.update(lengths) * learns + of_critic

    def _mixed_in(
        self, carried: Carried, metrics: Accumulator
    ) -> tuple[list[Demonstration], Carried]:
        """The next texts that are imitated beside an update's rollouts."""
        mix = self._stage.lm_mix
        if mix is None or self._texts is None:
            return [], carried
        cursor = self._texts.start() if carried.texts is None else carried.texts
        texts, cursor, dropped = take(self._texts, mix.batch, cursor)
        metrics.add(dropped)
        return texts, dataclasses.replace(carried, texts=cursor)

    def _batch(
        self, part: list[Trajectory], texts: Sequence[Demonstration], seed: tuple[int, ...]
    ) -> Batch:
        """The batch of one optimizer step; `seed` decides what is selected by chance."""
        stage = self._stage
        limit = stage.sampling.max_new_tokens
        together = stage.sequences_together
        # What counts once is a rollout, or a pair of them in one row.
        lengths = np.array([t.num_trained for t in part]).reshape(-1, together).sum(1)
        group = np.unique([t.group for t in part[::together]], return_inverse=True)[1]
        # Of few sizes, so that few programs are compiled; what has no tokens does not count.
        more = (0, few(len(lengths)) - len(lengths))
        weight = stage.weights(np.pad(lengths, more), np.pad(group, more), limit)
        weight = np.repeat(weight[: len(lengths)], together)
        if stage.tokens is not None:
            part = with_top_entropy(part, stage.tokens)
        if stage.objective.selects:
            part = with_selected(part, stage.objective, seed)
        if stage.positive_nll is not None:
            part = averaged(part, stage.positive_nll.coef)
        if stage.lm_mix is not None and texts:
            part = mixed_in(part, texts, stage.lm_mix.coef)
            weight = np.pad(weight, (0, len(texts)))
        # The last number keeps it apart from the seed of what is selected.
        deal = stage.diagnostics.deal(*seed, 2)
        packed = build(part, weight, self._shape, together=together, deal=deal)
        return self._learner.place(packed)

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
            rates = Rates(rate, stage.optimizer.max_grad_norm, stage.ema_decay)
            policy = dataclasses.replace(state, critic=None)
            state, found = self._learner.update(policy, batch, carried.numbers(stage), rates)
            with self._ctx.phases.fetching():
                metrics |= jax.device_get(found)
            if done > 0:
                # After the first update sampler and learner hold different weights.
                metrics = {k: v for k, v in metrics.items() if not k.startswith("mismatch/")}
        if stage.critic is not None and self._critic is not None:
            index = stage.updates_before(step) + done
            rate = stage.critic.optimizer.rate(index, stage.total_updates)
            rates = Rates(rate, stage.critic.optimizer.max_grad_norm)
            critic, found = self._critic.update(critic, batch, stage.critic.numbers, rates)
            with self._ctx.phases.fetching():
                found = jax.device_get(found)
            metrics |= {
                k if k.startswith("value/") else f"critic/{k.partition('/')[2]}": v
                for k, v in found.items()
            }
        return dataclasses.replace(state, critic=critic), metrics


def _pairs(every: Sequence[Trajectory]) -> list[Trajectory]:
    """The preferred and the other answer of each pair, one behind the other."""
    chosen = {t.group: t for t in every if np.max(t.adv) > 0}
    rejected = {t.group: t for t in every if np.min(t.adv) < 0}
    return [t for group in sorted(chosen) for t in (chosen[group], rejected[group])]

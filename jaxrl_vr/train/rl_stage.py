"""The RL stage: what a config says of it, and which of its parts go together.

How it runs is in rl.py.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from jaxrl_vr.config import Config
from jaxrl_vr.train.advantage import (
    Advantage,
    Gae,
    GroupNorm,
    MaxRl,
    OnPolicyDistillation,
    PassAtK,
    PreferencePairs,
    ProcessGroupNorm,
    Reward,
)
from jaxrl_vr.train.critic import CriticConfig
from jaxrl_vr.train.imitation import LmMix, PositiveNll
from jaxrl_vr.train.objectives import DecoupledPpo, Dpo, PolicyUnion, PpoClip, Rft
from jaxrl_vr.train.offpolicy import Offpolicy
from jaxrl_vr.train.partial import PartialRollouts
from jaxrl_vr.train.penalty import EntropyBonus, Kl
from jaxrl_vr.train.selection import TopEntropy
from jaxrl_vr.train.shaping import Shaping, StepReward
from jaxrl_vr.train.stages import SamplingConfig, TrainStage
from jaxrl_vr.train.weights import TokenMean, Weights


class DynamicSampling(Config):
    """DAPO's dynamic sampling (https://arxiv.org/abs/2503.14476, section 3.2): groups whose rewards
    are all equal do not train; prompts are sampled until `prompts` groups have contrast."""

    oversample: float = Field(default=1.5, ge=1, le=100)
    """Prompts sampled for each that is still missing; higher needs fewer rounds. All groups with
    contrast train, also those beyond `prompts`: no accepted sample is thrown away."""
    max_rounds: PositiveInt = 8
    """Rounds of sampling in a step at most; then it trains on the groups it has."""


class UpdatesFrom(Config):
    """One entry of a schedule of updates."""

    step: int = Field(ge=0)
    """First step at which it holds."""
    updates: PositiveInt
    """Optimizer steps per rollout batch from then on."""


class RlStage(TrainStage):
    """Reinforcement learning from verified rewards."""

    type: Literal["rl"] = "rl"
    """What the stage does."""
    prompts: PositiveInt
    """Prompts of a step, P."""
    samples: PositiveInt
    """Completions of each prompt, G."""
    sampling: SamplingConfig
    """How rollouts are sampled."""
    max_prompt_tokens: PositiveInt | None = None
    """Longer prompts are left out and counted; None is what the context leaves."""
    advantage: Advantage = GroupNorm()
    """From the rewards of a group to advantages."""
    objective: PolicyUnion = PpoClip()
    """Per-token loss."""
    offpolicy: tuple[Offpolicy, ...] = ()
    """Corrections of the gap between sampler and learner; they multiply the loss."""
    tokens: TopEntropy | None = None
    """Which tokens train; None is all of them."""
    weights: Weights = TokenMean()
    """How token losses are averaged."""
    shaping: tuple[Shaping, ...] = ()
    """What is done to the verified rewards, in order."""
    kl: Kl | None = None
    """KL penalty; None is off, and then no reference is in memory."""
    entropy_bonus: EntropyBonus | None = None
    """Bonus for entropy; None is off."""
    positive_nll: PositiveNll | None = None
    """Imitation of the step's right rollouts beside the policy loss; None is off."""
    lm_mix: LmMix | None = None
    """Imitation of texts from other sources beside the policy loss; None is off."""
    critic: CriticConfig | None = None
    """The critic of PPO, for advantage `gae`; None: no critic in memory."""
    updates: PositiveInt | tuple[UpdatesFrom, ...] = 1
    """Optimizer steps per rollout batch, each on its share of the groups; or a schedule."""
    epochs: PositiveInt = 1
    """Passes over a rollout batch, each of `updates` steps on groups dealt anew."""
    old_logp: Literal["sampler", "recomputed"] = "sampler"
    """Where the ratio's denominator comes from: as sampled, or computed again by the learner before
    the first update on a rollout batch."""
    dynamic_sampling: DynamicSampling | None = None
    """Sample until enough groups have contrast; None trains on every group once sampled."""
    partial: PartialRollouts | None = None
    """Cut a step's sampling at a budget and go on in the next; None samples all to their end."""
    control: Literal["none", "shuffled_rewards"] = "none"
    """An experiment's control: `shuffled_rewards` permutes the rewards over the batch."""

    @model_validator(mode="after")
    def _check(self) -> RlStage:
        if self.samples < 2 and self.advantage.has_group_baseline:
            raise ValueError(
                f"samples = {self.samples}: advantage '{self.advantage.type}' compares the samples "
                "of a prompt; set samples to 2 or more (8 is usual)"
            )
        if isinstance(self.advantage, Gae) != (self.critic is not None):
            raise ValueError(
                "advantage 'gae' takes its values from a critic; add a critic = { optimizer = … }"
                if self.critic is None
                else f"critic cannot act with advantage '{self.advantage.type}', which has no "
                "values; leave it out, or set advantage = { type = 'gae' }"
            )
        if self.num_warmup_steps >= self.steps > 0:
            raise ValueError(
                f"critic.warmup_steps = {self.num_warmup_steps} with steps = {self.steps}: the "
                "policy would never learn; lower it, or raise steps"
            )
        if isinstance(self.advantage, PassAtK) and self.advantage.k > self.samples:
            raise ValueError(
                f"advantage.k = {self.advantage.k} with samples = {self.samples}: k rollouts of a "
                "prompt are judged together; lower k or raise samples"
            )
        if isinstance(self.objective, Rft) and not isinstance(self.advantage, Reward):
            raise ValueError(
                f"objective 'rft' with advantage '{self.advantage.type}': its weights are rewards; "
                "set advantage to { type = 'reward' }"
            )
        if isinstance(self.objective, Dpo) != isinstance(self.advantage, PreferencePairs):
            raise ValueError(
                f"objective '{self.objective.type}' with advantage '{self.advantage.type}': 'dpo' "
                "learns from 'preference_pairs', and nothing else does; set both, or neither"
            )
        if isinstance(self.objective, DecoupledPpo) and self.old_logp != "recomputed":
            raise ValueError(
                f"objective 'decoupled_ppo' with old_logp = '{self.old_logp}': it clips around a "
                "policy between the sampler's and the current one; set old_logp = 'recomputed'"
            )
        most = max((u.updates for u in self._schedule()), default=0)
        if most > self.prompts:
            raise ValueError(
                f"updates = {most} with prompts = {self.prompts}: each update needs a group of its "
                "own; lower updates or raise prompts"
            )
        steps = [u.step for u in self._schedule()]
        if steps[:1] != [0] or steps != sorted(set(steps)):
            raise ValueError(f"updates: its steps are {steps}; start at 0 and go up")
        self._check_reward()
        self._check_corrections()
        if self.partial is not None and self.dynamic_sampling is not None:
            raise ValueError(
                "partial with dynamic_sampling: both decide how long a step samples; leave one out"
            )
        if self.lm_mix is not None and isinstance(self.objective, Dpo):
            raise ValueError(
                "lm_mix with objective 'dpo', whose pairs lie alone in their rows; leave lm_mix "
                "out, or mix the texts into an sft stage"
            )
        if self.positive_nll is not None and isinstance(self.objective, Rft):
            raise ValueError(
                "positive_nll with objective 'rft', which is the likelihood of right rollouts "
                "already; leave positive_nll out"
            )
        comparing = [c.type for c in self.offpolicy if c.reads_old_logp]
        if comparing and self.old_logp == "sampler":
            raise ValueError(
                f"offpolicy '{comparing[0]}' with old_logp = 'sampler': it compares the "
                "learner's log-probs with the sampler's, and would see no gap; set old_logp = "
                "'recomputed'"
            )
        reads_old = self.kl is not None and self.kl.type == "unbiased_k3"
        charged = self.kl is not None and (self.kl.where == "reward" or self.kl.adaptive)
        acts = self.objective.has_ratio or comparing or reads_old or charged or self.teacher
        if self.old_logp == "recomputed" and not acts:
            raise ValueError(
                f"old_logp = 'recomputed' cannot act with objective '{self.objective.type}', which "
                "has no ratio; leave it out, or use 'ppo_clip'"
            )
        if self.sampling.temperature == 0:
            raise ValueError(
                "sampling.temperature = 0 samples the same answer every time, so groups have no "
                "contrast; set it near 1"
            )
        return self

    def _check_reward(self) -> None:
        """What is done to rewards has to reach the advantage."""
        advantage = self.advantage
        charged = self.kl is not None and self.kl.where == "reward"
        shaped = [s.type for s in self.shaping if s.moves_reward]
        named = "kl.where = 'reward'" if charged else f"shaping '{shaped[0]}'" if shaped else ""
        if named and not advantage.reads_reward:
            raise ValueError(
                f"{named} cannot act with advantage '{advantage.type}', which does not read the "
                "reward; leave it out, or use another advantage"
            )
        if charged and isinstance(advantage, PassAtK):
            raise ValueError(
                "kl.where = 'reward' with advantage 'pass_at_k', which asks only whether a reward "
                "is above 0.5; set kl.where = 'loss'"
            )
        if charged and isinstance(advantage, MaxRl):
            raise ValueError(
                "kl.where = 'reward' with advantage 'max_rl', which divides by the mean reward of "
                "a prompt, and that may then be 0 or below; set kl.where = 'loss'"
            )
        adaptive = None if self.kl is None else self.kl.adaptive
        rollouts = self.prompts * self.samples
        if adaptive is not None and 0.2 * rollouts >= adaptive.horizon:
            raise ValueError(
                f"kl.adaptive.horizon = {adaptive.horizon:g} with {rollouts} rollouts a step: the "
                "coefficient would fall to 0 or below in one step; set it to at least "
                f"{rollouts}, usually to many times that"
            )
        if self.control == "shuffled_rewards" and (self.reads_steps or self.teacher is not None):
            raise ValueError(
                "control = 'shuffled_rewards' shuffles rewards, and what trains are scores of "
                f"steps or a teacher (advantage '{advantage.type}', shaping {shaped}); use another "
                "advantage and shaping"
            )
        if advantage.is_per_token and not self.objective.takes_token_advantages:
            raise ValueError(
                f"objective '{self.objective.type}' with advantage '{advantage.type}': it takes "
                "one advantage for a whole rollout; use 'gspo_token' or 'ppo_clip', or another "
                "advantage"
            )
        if self.dynamic_sampling is None:
            return
        if self.samples < 2:
            raise ValueError(
                f"dynamic_sampling with samples = {self.samples}: one sample has no contrast; set "
                "samples to 2 or more, or leave dynamic_sampling out"
            )
        if not advantage.reads_reward or any(s.replaces_reward for s in self.shaping):
            raise ValueError(
                "dynamic_sampling looks at the verifier's reward, which is not what trains with "
                f"advantage '{advantage.type}' and shaping {shaped}; leave dynamic_sampling out"
            )

    def _check_corrections(self) -> None:
        """Corrections compare with the policy that sampled, once."""
        weighting = [c.type for c in self.offpolicy if c.weighs]
        if isinstance(self.objective, DecoupledPpo):
            weighting.insert(0, "decoupled_ppo")
        if len(weighting) > 1:
            raise ValueError(
                f"offpolicy: {' and '.join(weighting)} would weigh the same gap twice; keep one of "
                "them (and 'veto', if you like)"
            )
        comparing = weighting or [c.type for c in self.offpolicy if c.reads_old_logp]
        acting = self.sampling.cuts
        if comparing and acting:
            raise ValueError(
                f"sampling.{acting[0]} with {comparing[0]!r}: log-probs are those of "
                "the whole distribution, and rollouts come from a cut one; leave one of them out"
            )

    def row_length(self, context: int) -> int:
        """Tokens of a packed row, in a model's context."""
        together = self.sequences_together
        longest = self.longest_prompt(context) + self.sampling.max_new_tokens
        return self.micro.row_length or together * longest

    def longest_prompt(self, context: int) -> int:
        """Tokens of a prompt at most, in a model's context."""
        room = context - self.sampling.max_new_tokens
        return min(self.max_prompt_tokens or room, room)

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of all data sources it reads."""
        return self.data if self.lm_mix is None else (*self.data, *self.lm_mix.data)

    @property
    def num_warmup_steps(self) -> int:
        """Steps at the start in which the critic alone learns."""
        return 0 if self.critic is None else self.critic.warmup_steps

    @property
    def sequences_together(self) -> int:
        """Rollouts that have to lie in one row."""
        return 2 if isinstance(self.objective, Dpo) else 1

    @property
    def reads_steps(self) -> bool:
        """Whether the scores of reasoning steps train."""
        return isinstance(self.advantage, ProcessGroupNorm) or any(
            isinstance(s, StepReward) for s in self.shaping
        )

    @property
    def teacher(self) -> str | None:
        """Whose log-probs the student's are compared with; None: no teacher."""
        advantage = self.advantage
        return advantage.teacher if isinstance(advantage, OnPolicyDistillation) else None

    @property
    def has_ref_logp(self) -> bool:
        """Whether the stage compares with the log-probs of its starting weights."""
        return self.kl is not None or self.objective.needs_reference

    @property
    def rescores(self) -> bool:
        """Whether the stage scores its rollouts with the weights that sampled them."""
        return self.old_logp == "recomputed" or self.tokens is not None

    @property
    def num_scores(self) -> int:
        """Passes of the policy's model over a step's rollouts before the first update."""
        return self.rescores + self.has_ref_logp

    @property
    def has_reference(self) -> bool:
        """Whether the stage keeps its starting weights."""
        return self.has_ref_logp or self.advantage.baseline_of == "start"

    def _schedule(self) -> tuple[UpdatesFrom, ...]:
        if isinstance(self.updates, int):
            return (UpdatesFrom(step=0, updates=self.updates),)
        return self.updates

    @property
    def fewest_updates(self) -> int:
        """Optimizer steps of a pass over a rollout batch, where they are fewest."""
        return min(u.updates for u in self._schedule())

    def updates_at(self, step: int) -> int:
        """Optimizer steps of a pass over the rollout batch of `step`."""
        return next(u.updates for u in reversed(self._schedule()) if u.step <= step)

    def updates_before(self, step: int) -> int:
        """Optimizer steps of all the rollout batches before that of `step`."""
        schedule = self._schedule()
        ends = [*(u.step for u in schedule[1:]), step]
        return self.epochs * sum(
            u.updates * max(min(end, step) - u.step, 0)
            for u, end in zip(schedule, ends, strict=True)
        )

    @property
    def total_updates(self) -> int:
        """Optimizer steps of the whole stage."""
        return self.updates_before(self.steps)

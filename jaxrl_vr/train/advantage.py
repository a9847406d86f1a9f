"""From rewards to advantages: what a config can choose.

P prompts, G samples of a prompt, T completion tokens at most.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, ClassVar, Literal

import jax
import numpy as np
from pydantic import Field, PositiveInt

from jaxrl_vr.config import Config, LocalPath
from jaxrl_vr.losses import advantages, distill, policy, returns
from jaxrl_vr.losses.kl import kl_in_reward
from jaxrl_vr.rollout.groups import Samples

compiled = functools.cache(jax.jit)  # one program for a function and the sizes of its arrays


class AdvantageConfig(Config):
    """What all advantages have: they turn a step's samples into [P, G] or [P, G, T] numbers."""

    has_group_baseline: ClassVar[bool] = True  # compares the samples of a prompt, so needs two
    is_per_token: ClassVar[bool] = False  # may differ within a rollout
    reads_reward: ClassVar[bool] = True  # and with it shaping and a KL in the reward
    baseline_of: ClassVar[Literal["greedy", "start"] | None] = None  # sampled beside the group
    loss: ClassVar[Any]  # the function of `losses.advantages`

    @property
    def components(self) -> tuple[str, ...]:
        """Components of the score that it makes advantages of, in place of the reward."""
        return ()

    def __call__(self, samples: Samples) -> np.ndarray:
        """[P, G] float32 advantages."""
        numbers = self.model_dump(exclude={"type"})
        return np.asarray(compiled(type(self).loss)(samples.total(), samples.valid, **numbers))


class GroupNorm(AdvantageConfig):
    """GRPO: reward less the group's mean, over its standard deviation."""

    loss: ClassVar[Any] = staticmethod(advantages.group_norm)
    type: Literal["group_norm"] = "group_norm"
    """Which advantage this is."""
    eps: float = Field(default=1e-4, ge=0)
    """Added to the standard deviation."""
    ddof: Literal[0, 1] = 0
    """0 is the population's standard deviation, 1 the sample's."""


class GroupCenter(AdvantageConfig):
    """Dr. GRPO: reward less the group's mean."""

    loss: ClassVar[Any] = staticmethod(advantages.group_center)
    type: Literal["group_center"] = "group_center"
    """Which advantage this is."""


class LeaveOneOut(AdvantageConfig):
    """RLOO: reward less the mean of the group's other rewards."""

    loss: ClassVar[Any] = staticmethod(advantages.leave_one_out)
    type: Literal["leave_one_out"] = "leave_one_out"
    """Which advantage this is."""


class BatchNorm(AdvantageConfig):
    """Reward less the group's mean, over the standard deviation of all the step's rewards."""

    loss: ClassVar[Any] = staticmethod(advantages.batch_norm)
    type: Literal["batch_norm"] = "batch_norm"
    """Which advantage this is."""
    eps: float = Field(default=1e-4, ge=0)
    """Added to the standard deviation."""
    ddof: Literal[0, 1] = 0
    """0 is the population's standard deviation, 1 the sample's."""


class MaxRl(AdvantageConfig):
    """MaxRL: centred reward over the group's mean reward, for rewards of 0 and 1."""

    loss: ClassVar[Any] = staticmethod(advantages.max_rl)
    type: Literal["max_rl"] = "max_rl"
    """Which advantage this is."""


class Opo(AdvantageConfig):
    """OPO: reward less the length-weighted mean of the group."""

    type: Literal["opo"] = "opo"
    """Which advantage this is."""

    def __call__(self, samples: Samples) -> np.ndarray:
        """[P, G] float32 advantages."""
        arrays = (samples.total(), samples.length, samples.valid)
        return np.asarray(compiled(advantages.opo)(*arrays))


class Remax(AdvantageConfig):
    """ReMax: reward less that of the prompt's greedy answer, which is sampled too."""

    has_group_baseline: ClassVar[bool] = False
    baseline_of: ClassVar[Literal["greedy", "start"] | None] = "greedy"
    type: Literal["remax"] = "remax"
    """Which advantage this is."""

    def __call__(self, samples: Samples) -> np.ndarray:
        """[P, G] float32 advantages."""
        return _less_baseline(advantages.remax, samples)


class FixedBaseline(AdvantageConfig):
    """Reward less the mean reward of the stage's starting weights, which answer each prompt too."""

    has_group_baseline: ClassVar[bool] = False
    baseline_of: ClassVar[Literal["greedy", "start"] | None] = "start"
    type: Literal["fixed_baseline"] = "fixed_baseline"
    """Which advantage this is."""
    samples: PositiveInt = 4
    """Answers of the starting weights to each prompt; more make a steadier baseline."""

    def __call__(self, samples: Samples) -> np.ndarray:
        """[P, G] float32 advantages."""
        return _less_baseline(advantages.fixed_baseline, samples)


def _less_baseline(function: Any, samples: Samples) -> np.ndarray:
    return np.asarray(compiled(function)(samples.total(), samples.baseline, samples.valid))


class PassAtK(AdvantageConfig):
    """The advantage of a rollout where k of them share the reward of their best."""

    loss: ClassVar[Any] = staticmethod(advantages.pass_at_k_advantage)
    type: Literal["pass_at_k"] = "pass_at_k"
    """Which advantage this is."""
    k: PositiveInt
    """Rollouts that are judged together; at most `samples`."""
    eps: float = Field(default=1e-6, ge=0)
    """Added to the standard deviation."""


class ReinforcePlusPlusBaseline(AdvantageConfig):
    """REINFORCE++ with baseline: the group-centred reward, whitened over the step."""

    loss: ClassVar[Any] = staticmethod(advantages.reinforce_plus_plus_baseline)
    type: Literal["reinforce_plus_plus_baseline"] = "reinforce_plus_plus_baseline"
    """Which advantage this is."""
    eps: float = Field(default=1e-8, ge=0)
    """Added to the variance."""


class ReinforcePlusPlus(AdvantageConfig):
    """REINFORCE++: the return of each token, whitened over all trained tokens of the step.

    It has no group baseline; with `kl.where = "reward"` the return holds the KL from each token on.
    """

    has_group_baseline: ClassVar[bool] = False
    is_per_token: ClassVar[bool] = True
    loss: ClassVar[Any] = staticmethod(returns.reinforce_plus_plus)
    type: Literal["reinforce_plus_plus"] = "reinforce_plus_plus"
    """Which advantage this is."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount of a token."""
    eps: float = Field(default=1e-8, ge=0)
    """Added to the variance."""

    def __call__(self, samples: Samples) -> np.ndarray:
        """[P, G, T] float32 advantages."""
        P, G, T = samples.mask.shape
        rows = (P * G, T)  # P, G -> B
        mask = samples.mask & samples.trains[:, :, None]
        adv = compiled(returns.reinforce_plus_plus)(
            _token_reward(samples),
            mask.reshape(rows),
            gamma=self.gamma,
            eps=self.eps,
        )
        return np.asarray(adv).reshape(P, G, T)


class ProcessGroupNorm(AdvantageConfig):
    """GRPO with process supervision: the step rewards of a group normalised together.

    A token's advantage is the sum over the steps that end at or after it, so the verifier has to
    score steps.
    """

    is_per_token: ClassVar[bool] = True
    reads_reward: ClassVar[bool] = False
    type: Literal["process_group_norm"] = "process_group_norm"
    """Which advantage this is."""
    eps: float = Field(default=1e-4, ge=0)
    """Added to the standard deviation."""
    ddof: Literal[0, 1] = 0
    """0 is the population's standard deviation, 1 the sample's."""

    def __call__(self, samples: Samples) -> np.ndarray:
        """[P, G, T] float32 advantages."""
        P, G, T = samples.mask.shape
        valid = samples.valid[:, :, None]
        if not samples.step_mask.any():  # a step in which nothing could be judged
            return np.zeros((P, G, T), np.float32)
        adv = compiled(advantages.process_group_norm)(
            samples.step_value,
            samples.step_end,
            samples.step_mask & valid,
            (samples.mask & valid).reshape(P * G, T),  # P, G -> B
            eps=self.eps,
            ddof=self.ddof,
        )
        return np.asarray(adv).reshape(P, G, T)


class PreferencePairs(AdvantageConfig):
    """Online DPO: 1 for a group's first best answer, -1 for its first worst, 0 for the others."""

    type: Literal["preference_pairs"] = "preference_pairs"
    """Which advantage this is."""

    def __call__(self, samples: Samples) -> np.ndarray:
        """[P, G] float32, the preferred and the other answer of each pair."""
        arrays = (samples.total(), samples.valid & samples.trains)
        found = compiled(policy.preference_pairs)(*arrays)
        chosen, rejected, has_pair = map(np.asarray, found)
        adv = np.zeros(samples.reward.shape, np.float32)
        rows = np.flatnonzero(has_pair)
        adv[rows, chosen[rows]] = 1.0
        adv[rows, rejected[rows]] = -1.0
        return adv


class Gae(AdvantageConfig):
    """Generalised advantage estimation, from the values of a critic.

    With `lam_returns = 1` and `alpha` it is VAPO's.
    """

    has_group_baseline: ClassVar[bool] = False
    is_per_token: ClassVar[bool] = True
    type: Literal["gae"] = "gae"
    """Which advantage this is."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount of a token."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """From 0, the one-step error, to 1, the return less the value."""
    lam_returns: float | None = Field(default=None, ge=0, le=1)
    """The same for what the critic is trained towards; None is `lam`."""
    alpha: float | None = Field(default=None, gt=0)
    """VAPO's lam, 1 - 1 / (alpha length), in the place of `lam`; 0.05 in the paper."""
    whiten: bool = True
    """Bring the advantages of the step to mean 0 and variance 1."""
    whiten_reward: bool = False
    """Bring the rewards of the step's tokens to variance 1."""

    def __call__(self, samples: Samples) -> np.ndarray:
        """[P, G, T] float32 advantages."""
        lam: float | np.ndarray = self.lam
        mask = _trained(samples)
        if self.alpha is not None:
            length = mask.sum(1)
            lam = np.asarray(compiled(returns.length_adaptive_lambda)(length, alpha=self.alpha))
        adv, _ = self._estimate(samples, lam)
        if self.whiten:
            adv = compiled(returns.whiten)(adv, mask)
        return np.asarray(adv).reshape(samples.mask.shape)

    def returns(self, samples: Samples) -> np.ndarray:
        """[P, G, T] float32, what the critic is trained towards."""
        lam = self.lam if self.lam_returns is None else self.lam_returns
        _, found = self._estimate(samples, lam)
        return np.asarray(found).reshape(samples.mask.shape)

    def _estimate(self, samples: Samples, lam: float | np.ndarray) -> tuple[jax.Array, jax.Array]:
        assert samples.value is not None, "a stage with gae has a critic"
        mask = _trained(samples)
        reward, value = _token_reward(samples), samples.value.reshape(mask.shape)
        if self.whiten_reward:
            reward = compiled(_scaled)(reward, mask)
        return compiled(returns.gae)(reward, value, mask, gamma=self.gamma, lam=lam)


def _trained(samples: Samples) -> np.ndarray:
    """[B, T] bool, the tokens that train, a row each rollout."""
    P, G, T = samples.mask.shape
    return (samples.mask & samples.trains[:, :, None]).reshape(P * G, T)


def _token_reward(samples: Samples) -> np.ndarray:
    """[B, T] float32 reward of each token."""
    P, G, T = samples.mask.shape
    if samples.token_reward is not None:
        return samples.token_reward.reshape(P * G, T)
    mask = samples.mask.reshape(P * G, T)
    nothing = np.zeros(mask.shape, np.float32)
    reward = samples.reward.reshape(P * G)
    return np.asarray(compiled(kl_in_reward)(reward, nothing, nothing, mask, coef=0.0))


def _scaled(reward: jax.Array, mask: jax.Array) -> jax.Array:
    return returns.whiten(reward, mask, shift_mean=False)


class OnPolicyDistillation(AdvantageConfig):
    """The teacher's log-prob of each token less the student's: the student's own answers, judged
    token by token. Rewards are only looked at."""

    has_group_baseline: ClassVar[bool] = False
    is_per_token: ClassVar[bool] = True
    reads_reward: ClassVar[bool] = False
    type: Literal["on_policy_distillation"] = "on_policy_distillation"
    """Which advantage this is."""
    teacher: LocalPath = Field(min_length=1)
    """Whose log-probs: `base`, an earlier stage's name, or a Hugging Face folder or id with a model
    of the same tokenizer, of any size."""

    def __call__(self, samples: Samples) -> np.ndarray:
        """[P, G, T] float32 advantages."""
        assert samples.logp is not None and samples.teacher_logp is not None, "both were scored"
        mask = _trained(samples)
        rows = [a.reshape(mask.shape) for a in (samples.logp, samples.teacher_logp)]
        adv, _ = compiled(distill.on_policy_advantage)(*rows, mask)
        return np.asarray(adv).reshape(samples.mask.shape)


class Reward(AdvantageConfig):
    """The reward itself, without a baseline: plain REINFORCE, and the weights of `rft`."""

    has_group_baseline: ClassVar[bool] = False
    type: Literal["reward"] = "reward"
    """Which advantage this is."""

    def __call__(self, samples: Samples) -> np.ndarray:
        """[P, G] float32 advantages."""
        return np.where(samples.valid, samples.total(), 0.0).astype(np.float32)


class MultiRewardNorm(AdvantageConfig):
    """GDPO: each component of the score normalised within its group, then their weighted sum."""

    reads_reward: ClassVar[bool] = False
    type: Literal["multi_reward_norm"] = "multi_reward_norm"
    """Which advantage this is."""
    weights: dict[str, float] = Field(min_length=1)
    """Component of the score -> its weight."""
    eps: float = Field(default=1e-4, ge=0)
    """Added to the standard deviation."""
    ddof: Literal[0, 1] = 0
    """0 is the population's standard deviation, 1 the sample's."""
    over_batch: bool = True
    """Scale the sum by its standard deviation over the step too, as GDPO does."""

    @property
    def components(self) -> tuple[str, ...]:
        """As the base class says."""
        return tuple(self.weights)

    def __call__(self, samples: Samples) -> np.ndarray:
        """[P, G] float32 advantages."""
        rewards = np.stack([samples.component(name) for name in self.weights], axis=-1)
        function = advantages.gdpo if self.over_batch else advantages.multi_reward_norm
        adv = compiled(function)(
            rewards,
            np.array(list(self.weights.values()), np.float32),
            samples.valid,
            eps=self.eps,
            ddof=self.ddof,
        )
        return np.asarray(adv)


Advantage = Annotated[
    GroupNorm
    | GroupCenter
    | LeaveOneOut
    | BatchNorm
    | MaxRl
    | Opo
    | Remax
    | FixedBaseline
    | PassAtK
    | ReinforcePlusPlus
    | ReinforcePlusPlusBaseline
    | MultiRewardNorm
    | ProcessGroupNorm
    | PreferencePairs
    | Gae
    | OnPolicyDistillation
    | Reward,
    Field(discriminator="type"),
]

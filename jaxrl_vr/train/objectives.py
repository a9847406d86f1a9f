"""The objectives a config can name, and how one is put together with its penalties.

An objective is a function (logp, entropy, batch, numbers) -> per-token loss and metrics. Which
functions it is made of is static under jit; its numbers are traced, so changing them compiles
nothing.

b rows of a micro-batch, T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from pydantic import Field, model_validator

from jaxrl_vr import losses
from jaxrl_vr.arrays import Mean, Metrics
from jaxrl_vr.config import Config
from jaxrl_vr.losses import policy
from jaxrl_vr.rollout.batch import Batch
from jaxrl_vr.train.advantage import compiled
from jaxrl_vr.train.offpolicy import OffpolicyConfig
from jaxrl_vr.train.penalty import EntropyBonus, Kl

Numbers = Mapping[str, Any]  # traced
_SEQUENCE = ("old_logp", "adv", "mask", "segment_ids")  # what losses of whole rollouts take
Objective = Callable[[jax.Array, jax.Array, Batch, Numbers], tuple[jax.Array, Metrics]]


class PolicyObjective(Config):
    """What all policy objectives have: a loss of `losses.policy`, whose keywords are the fields."""

    loss: ClassVar[Any]
    arrays: ClassVar[tuple[str, ...]] = ("old_logp", "adv", "mask")  # of the batch, that it takes
    has_ratio: ClassVar[bool] = True  # compares with an old policy
    needs_reference: ClassVar[bool] = False
    is_sequence: ClassVar[bool] = False  # one value for a whole rollout, at each of its tokens
    takes_token_advantages: ClassVar[bool] = True
    selects: ClassVar[bool] = False  # treats some tokens of an optimizer step apart
    clip_fields: ClassVar[tuple[str, ...]] = ("clip_low", "clip_high")

    @property
    def numbers(self) -> dict[str, float]:
        """Its traced numbers; what is None is off and stays static."""
        return {k: v for k, v in self.model_dump(exclude={"type"}).items() if v is not None}

    def select(self, cov: Any, mask: Any, noise: Any) -> jax.Array:
        """Of [1, N] tokens of an optimizer step, those it treats apart.

        Args:
          cov: covariance of log-prob and advantage of each token.
          mask: which train.
          noise: uniform random numbers.
        """
        return jnp.zeros_like(mask)

    def compute(self, logp: jax.Array, batch: Batch, numbers: Numbers) -> tuple[jax.Array, Metrics]:
        """[b, T] loss of each token, and metrics."""
        arrays = [getattr(batch, name) for name in self.arrays]
        return type(self).loss(logp, *arrays, **numbers)


class PpoClip(PolicyObjective):
    """The clipped surrogate of PPO and GRPO."""

    loss: ClassVar[Any] = staticmethod(policy.ppo_clip)
    type: Literal["ppo_clip"] = "ppo_clip"
    """Which objective this is."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """How far below 1 the ratio may fall."""
    clip_high: float = Field(default=0.2, ge=0)
    """How far above 1 the ratio may rise; DAPO raises it to 0.28."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Largest ratio that counts where the advantage is negative (usually 3); None is no bound."""
    max_ratio: float | None = Field(default=None, gt=1)
    """INTELLECT-2's two-sided bound: largest ratio that counts on either side; None is none."""

    @model_validator(mode="after")
    def _check(self) -> PpoClip:
        if self.max_ratio is not None and self.max_ratio < 1 + self.clip_high:
            raise ValueError(
                f"max_ratio = {self.max_ratio} is below 1 + clip_high = {1 + self.clip_high:g}, so "
                "that clip_high cannot act; raise max_ratio, or lower clip_high"
            )
        return self


class Reinforce(PolicyObjective):
    """Plain policy gradient: every token's log-prob times its advantage."""

    loss: ClassVar[Any] = staticmethod(policy.reinforce)
    arrays: ClassVar[tuple[str, ...]] = ("adv", "mask")
    has_ratio: ClassVar[bool] = False
    type: Literal["reinforce"] = "reinforce"
    """Which objective this is."""


class Gspo(PolicyObjective):
    """GSPO: the clipped surrogate with the length-normalised ratio of the whole sequence."""

    loss: ClassVar[Any] = staticmethod(policy.gspo)
    arrays: ClassVar[tuple[str, ...]] = _SEQUENCE
    is_sequence: ClassVar[bool] = True
    takes_token_advantages: ClassVar[bool] = False
    type: Literal["gspo"] = "gspo"
    """Which objective this is."""
    clip_low: float = Field(default=3e-4, ge=0, le=1)
    """How far below 1 the sequence's ratio may fall."""
    clip_high: float = Field(default=4e-4, ge=0)
    """How far above 1 the sequence's ratio may rise."""


class GspoToken(PolicyObjective):
    """GSPO-token: GSPO's value and clipping, for advantages that differ within a sequence."""

    loss: ClassVar[Any] = staticmethod(policy.gspo_token)
    arrays: ClassVar[tuple[str, ...]] = _SEQUENCE
    is_sequence: ClassVar[bool] = True
    type: Literal["gspo_token"] = "gspo_token"
    """Which objective this is."""
    clip_low: float = Field(default=3e-4, ge=0, le=1)
    """How far below 1 the sequence's ratio may fall."""
    clip_high: float = Field(default=4e-4, ge=0)
    """How far above 1 the sequence's ratio may rise."""


class Gmpo(PolicyObjective):
    """GMPO: the geometric mean of a sequence's clipped ratios."""

    loss: ClassVar[Any] = staticmethod(policy.gmpo)
    arrays: ClassVar[tuple[str, ...]] = _SEQUENCE
    is_sequence: ClassVar[bool] = True
    takes_token_advantages: ClassVar[bool] = False
    type: Literal["gmpo"] = "gmpo"
    """Which objective this is."""
    clip_low: float = Field(default=0.4, ge=0)
    """How far below 0 a token's log ratio may fall."""
    clip_high: float = Field(default=0.4, ge=0)
    """How far above 0 a token's log ratio may rise."""


class Cispo(PolicyObjective):
    """CISPO: the importance weight is clipped and not the update, so that no token is dropped."""

    loss: ClassVar[Any] = staticmethod(policy.cispo)
    type: Literal["cispo"] = "cispo"
    """Which objective this is."""
    clip_low: float = Field(default=1.0, ge=0, le=1)
    """How far below 1 the weight may be; 1 leaves it free."""
    clip_high: float = Field(default=4.0, ge=0)
    """How far above 1 the weight may be."""


class OnlineMirrorDescent(PolicyObjective):
    """Kimi k1.5's online policy mirror descent, with `group_center` for its log Z."""

    loss: ClassVar[Any] = staticmethod(policy.online_mirror_descent)
    arrays: ClassVar[tuple[str, ...]] = _SEQUENCE
    is_sequence: ClassVar[bool] = True
    takes_token_advantages: ClassVar[bool] = False
    clip_fields: ClassVar[tuple[str, ...]] = ("tau",)
    type: Literal["online_mirror_descent"] = "online_mirror_descent"
    """Which objective this is."""
    tau: float = Field(gt=0)
    """Strength of the pull to the old policy."""


class Sapo(PolicyObjective):
    """SAPO: a soft gate on the ratio instead of a clip."""

    loss: ClassVar[Any] = staticmethod(policy.sapo)
    clip_fields: ClassVar[tuple[str, ...]] = ("tau_pos", "tau_neg")
    type: Literal["sapo"] = "sapo"
    """Which objective this is."""
    tau_pos: float = Field(default=1.0, gt=0)
    """Steepness of the gate where the advantage is positive."""
    tau_neg: float = Field(default=1.05, gt=0)
    """Steepness of the gate where the advantage is negative."""


class DppoTv(PolicyObjective):
    """DPPO with the total variation: the trust region is one of probability, not of ratio."""

    loss: ClassVar[Any] = staticmethod(policy.dppo_tv)
    type: Literal["dppo_tv"] = "dppo_tv"
    """Which objective this is."""
    clip_low: float = Field(default=0.2, ge=0)
    """How far the probability may fall."""
    clip_high: float = Field(default=0.2, ge=0)
    """How far the probability may rise."""
    max_ratio: float = Field(default=20.0, gt=1)
    """Largest weight of a token."""


class DppoKl(PolicyObjective):
    """DPPO with the KL of the binary choice between a token and all others."""

    loss: ClassVar[Any] = staticmethod(policy.dppo_kl)
    type: Literal["dppo_kl"] = "dppo_kl"
    """Which objective this is."""
    clip_low: float = Field(default=0.05, ge=0)
    """Largest KL, in nats, of a token that became less likely."""
    clip_high: float = Field(default=0.05, ge=0)
    """Largest KL, in nats, of a token that became likelier."""
    max_ratio: float = Field(default=20.0, gt=1)
    """Largest weight of a token."""


class DecoupledPpo(PolicyObjective):
    """PPO for stale samples: clipped around the recomputed policy, weighted back to the sampler's.

    It needs `old_logp = "recomputed"`.
    """

    loss: ClassVar[Any] = staticmethod(policy.decoupled_ppo)
    arrays: ClassVar[tuple[str, ...]] = ("old_logp", "sampler_logp", "adv", "mask")
    type: Literal["decoupled_ppo"] = "decoupled_ppo"
    """Which objective this is."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """How far below 1 the ratio may fall."""
    clip_high: float = Field(default=0.2, ge=0)
    """How far above 1 the ratio may rise."""
    max_weight: float | None = Field(default=None, gt=0)
    """Largest weight from the sampler's policy to the recomputed one; None is no bound."""


class ClipCov(PolicyObjective):
    """Clip-Cov: PPO's clipped surrogate, where a few tokens of high covariance between log-prob and
    advantage do not train."""

    loss: ClassVar[Any] = staticmethod(policy.clip_cov)
    arrays: ClassVar[tuple[str, ...]] = ("old_logp", "adv", "mask", "selected")
    selects: ClassVar[bool] = True
    type: Literal["clip_cov"] = "clip_cov"
    """Which objective this is."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """How far below 1 the ratio may fall."""
    clip_high: float = Field(default=0.2, ge=0)
    """How far above 1 the ratio may rise."""
    low: float = 1.0
    """Smallest covariance of a token that may be selected."""
    high: float = 5.0
    """Largest covariance of a token that may be selected."""
    fraction: float = Field(default=2e-4, gt=0, le=1)
    """Share of an optimizer step's tokens that do not train, at least one."""

    @model_validator(mode="after")
    def _check(self) -> ClipCov:
        if self.low >= self.high:
            raise ValueError(
                f"low = {self.low} with high = {self.high}: no covariance lies between them, so "
                "nothing would be selected; raise high, or lower low"
            )
        return self

    @property
    def numbers(self) -> dict[str, float]:
        """The traced numbers of the loss."""
        return {"clip_low": self.clip_low, "clip_high": self.clip_high}

    def select(self, cov: Any, mask: Any, noise: Any) -> jax.Array:
        """Those that do not train."""
        more = {"low": self.low, "high": self.high, "fraction": self.fraction}
        return compiled(policy.select_clip_cov)(cov, mask, noise, **more)


class KlCov(PolicyObjective):
    """KL-Cov: the unclipped surrogate, with a KL penalty on the tokens whose log-prob and advantage
    have the highest covariance."""

    loss: ClassVar[Any] = staticmethod(policy.kl_cov)
    arrays: ClassVar[tuple[str, ...]] = ("old_logp", "adv", "mask", "selected")
    selects: ClassVar[bool] = True
    clip_fields: ClassVar[tuple[str, ...]] = ("coef",)
    type: Literal["kl_cov"] = "kl_cov"
    """Which objective this is."""
    coef: float = Field(default=1.0, gt=0)
    """Weight of the penalty on a selected token."""
    fraction: float = Field(default=2e-4, gt=0, le=1)
    """Share of an optimizer step's tokens that are selected, at least one."""

    @property
    def numbers(self) -> dict[str, float]:
        """The traced numbers of the loss."""
        return {"coef": self.coef}

    def select(self, cov: Any, mask: Any, noise: Any) -> jax.Array:
        """Those that are held back."""
        return compiled(policy.select_kl_cov)(cov, mask, fraction=self.fraction)


class Rft(PolicyObjective):
    """Likelihood of the rollouts, weighted by their rewards: online rejection sampling.

    It needs `advantage = { type = "reward" }`.
    """

    loss: ClassVar[Any] = staticmethod(policy.rft)
    arrays: ClassVar[tuple[str, ...]] = ("adv", "mask")
    has_ratio: ClassVar[bool] = False
    type: Literal["rft"] = "rft"
    """Which objective this is."""


class Dpo(PolicyObjective):
    """Online DPO: the better answer of a group becomes likelier than the worse one.

    It needs `advantage = { type = "preference_pairs" }` and takes the stage's starting weights as
    the reference. Each pair counts once with weights `sequence_mean`.
    """

    loss: ClassVar[Any] = staticmethod(policy.packed_dpo)
    arrays: ClassVar[tuple[str, ...]] = ("ref_logp", "adv", "mask")
    has_ratio: ClassVar[bool] = False
    is_sequence: ClassVar[bool] = True
    takes_token_advantages: ClassVar[bool] = False
    needs_reference: ClassVar[bool] = True
    type: Literal["dpo"] = "dpo"
    """Which objective this is."""
    beta: float = Field(default=0.1, gt=0)
    """Strength of the pull to the reference."""

    def compute(self, logp: jax.Array, batch: Batch, numbers: Numbers) -> tuple[jax.Array, Metrics]:
        """[b, T] loss of each token, and metrics."""
        # Pairs are packed one behind the other: segments 1 and 2, 3 and 4, and so on.
        pair_ids = (batch.segment_ids + 1) // 2
        return super().compute(logp, batch, {**numbers, "pair_ids": pair_ids})


PolicyUnion = Annotated[
    PpoClip
    | Reinforce
    | Gspo
    | GspoToken
    | Gmpo
    | Cispo
    | OnlineMirrorDescent
    | Sapo
    | DppoTv
    | DppoKl
    | DecoupledPpo
    | ClipCov
    | KlCov
    | Rft
    | Dpo,
    Field(discriminator="type"),
]


def supervised(
    logp: jax.Array, entropy: jax.Array, batch: Batch, numbers: Numbers
) -> tuple[jax.Array, Metrics]:
    """Maximum likelihood of demonstrations."""
    return losses.cross_entropy(logp, batch.mask)


def preferences(
    logp: jax.Array, entropy: jax.Array, batch: Batch, numbers: Numbers
) -> tuple[jax.Array, Metrics]:
    """DPO of pairs that lie one behind the other in their rows."""
    return Dpo().compute(logp, batch, numbers)


def policy_objective(
    objective: PolicyObjective,
    kl: Kl | None,
    entropy_bonus: EntropyBonus | None,
    offpolicy: Sequence[OffpolicyConfig],
) -> Objective:
    """A policy loss with its corrections and penalties, and the metrics that every one has.

    Its numbers are those of each part under the part's name: objective, offpolicy (a list), kl,
    entropy_bonus.
    """

    def function(
        logp: jax.Array, entropy: jax.Array, batch: Batch, numbers: Numbers
    ) -> tuple[jax.Array, Metrics]:
        loss, metrics = objective.compute(logp, batch, numbers["objective"])
        for correction, of_it in zip(offpolicy, numbers["offpolicy"], strict=True):
            weight, found = correction.compute(logp, batch, of_it)
            loss, metrics = loss * weight, metrics | found
        bonus, of_entropy = losses.entropy_bonus(
            entropy, batch.mask, coef=numbers.get("entropy_bonus", 0.0)
        )
        if entropy_bonus is not None:
            loss = loss + bonus
        metrics |= of_entropy | losses.mismatch_metrics(logp, batch.sampler_logp, batch.mask)
        if kl is not None:
            penalty = kl.estimate(logp, batch)
            metrics["policy/kl"] = Mean(jnp.sum(penalty), jnp.sum(batch.mask))
            if kl.where == "loss":
                loss = loss + numbers["kl"] * penalty
        return loss, jax.lax.stop_gradient(metrics)

    return function

"""The objectives a config can name, and how one is put together with its penalties.

An objective is a function (logp, entropy, batch, numbers) -> per-token loss and metrics. Which
functions it is made of is static under jit; its numbers are traced, so changing them compiles
nothing.

b rows of a micro-batch, T tokens of a row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from pydantic import Field, model_validator

from jaxrl_vr.arrays import Mean, Metrics
from jaxrl_vr.config import Config
from jaxrl_vr.losses import policy
from jaxrl_vr.losses.offpolicy import mismatch_metrics
from jaxrl_vr.losses.supervised import cross_entropy
from jaxrl_vr.rollout.batch import Batch
from jaxrl_vr.train.offpolicy import OffpolicyConfig
from jaxrl_vr.train.penalty import EntropyBonus, Kl

Numbers = Mapping[str, Any]  # traced
Objective = Callable[[jax.Array, jax.Array, Batch, Numbers], tuple[jax.Array, Metrics]]


def _reinforce(logp: jax.Array, batch: Batch, numbers: Numbers) -> tuple[jax.Array, Metrics]:
    return policy.reinforce(logp, batch.adv, batch.mask)


def _rft(logp: jax.Array, batch: Batch, numbers: Numbers) -> tuple[jax.Array, Metrics]:
    return policy.rft(logp, batch.adv, batch.mask)


def _ratio(
    loss: Callable[..., tuple[jax.Array, Metrics]],
    logp: jax.Array,
    batch: Batch,
    numbers: Numbers,
) -> tuple[jax.Array, Metrics]:
    return loss(logp, batch.old_logp, batch.adv, batch.mask, **numbers)


def _decoupled(logp: jax.Array, batch: Batch, numbers: Numbers) -> tuple[jax.Array, Metrics]:
    arrays = (batch.old_logp, batch.sampler_logp, batch.adv, batch.mask)
    return policy.decoupled_ppo(logp, *arrays, **numbers)


def _sequence(
    loss: Callable[..., tuple[jax.Array, Metrics]],
    logp: jax.Array,
    batch: Batch,
    numbers: Numbers,
) -> tuple[jax.Array, Metrics]:
    arrays = (batch.old_logp, batch.adv, batch.mask, batch.segment_ids)
    return loss(logp, *arrays, **numbers)


def _dpo(logp: jax.Array, batch: Batch, numbers: Numbers) -> tuple[jax.Array, Metrics]:
    # Pairs are packed one behind the other: segments 1 and 2, 3 and 4, and so on.
    pair_ids = (batch.segment_ids + 1) // 2
    assert batch.ref_logp is not None, "a stage with dpo has a reference"
    return policy.packed_dpo(logp, batch.ref_logp, batch.adv, batch.mask, pair_ids, **numbers)


class PolicyObjective(Config):
    """What all policy objectives have: a loss of `losses.policy`, whose keywords are the fields."""

    compute: ClassVar[Callable[[jax.Array, Batch, Numbers], tuple[jax.Array, Metrics]]]
    loss: ClassVar[Any]
    has_ratio: ClassVar[bool] = True  # compares with an old policy
    needs_reference: ClassVar[bool] = False
    is_sequence: ClassVar[bool] = False  # one value for a whole rollout, at each of its tokens
    takes_token_advantages: ClassVar[bool] = True
    clip_fields: ClassVar[tuple[str, ...]] = ("clip_low", "clip_high")

    @property
    def numbers(self) -> dict[str, float]:
        """Its traced numbers; what is None is off and stays static."""
        return {k: v for k, v in self.model_dump(exclude={"type"}).items() if v is not None}


class PpoClip(PolicyObjective):
    """The clipped surrogate of PPO and GRPO."""

    loss: ClassVar[Any] = staticmethod(policy.ppo_clip)
    compute: ClassVar[Any] = functools.partial(_ratio, policy.ppo_clip)
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
    compute: ClassVar[Any] = _reinforce
    has_ratio: ClassVar[bool] = False
    type: Literal["reinforce"] = "reinforce"
    """Which objective this is."""


class Gspo(PolicyObjective):
    """GSPO: the clipped surrogate with the length-normalised ratio of the whole sequence."""

    loss: ClassVar[Any] = staticmethod(policy.gspo)
    compute: ClassVar[Any] = functools.partial(_sequence, policy.gspo)
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
    compute: ClassVar[Any] = functools.partial(_sequence, policy.gspo_token)
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
    compute: ClassVar[Any] = functools.partial(_sequence, policy.gmpo)
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
    compute: ClassVar[Any] = functools.partial(_ratio, policy.cispo)
    type: Literal["cispo"] = "cispo"
    """Which objective this is."""
    clip_low: float = Field(default=1.0, ge=0, le=1)
    """How far below 1 the weight may be; 1 leaves it free."""
    clip_high: float = Field(default=4.0, ge=0)
    """How far above 1 the weight may be."""


class OnlineMirrorDescent(PolicyObjective):
    """Kimi k1.5's online policy mirror descent, with `group_center` for its log Z."""

    loss: ClassVar[Any] = staticmethod(policy.online_mirror_descent)
    compute: ClassVar[Any] = functools.partial(_sequence, policy.online_mirror_descent)
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
    compute: ClassVar[Any] = functools.partial(_ratio, policy.sapo)
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
    compute: ClassVar[Any] = functools.partial(_ratio, policy.dppo_tv)
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
    compute: ClassVar[Any] = functools.partial(_ratio, policy.dppo_kl)
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
    compute: ClassVar[Any] = _decoupled
    type: Literal["decoupled_ppo"] = "decoupled_ppo"
    """Which objective this is."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """How far below 1 the ratio may fall."""
    clip_high: float = Field(default=0.2, ge=0)
    """How far above 1 the ratio may rise."""
    max_weight: float | None = Field(default=None, gt=0)
    """Largest weight from the sampler's policy to the recomputed one; None is no bound."""


class Rft(PolicyObjective):
    """Likelihood of the rollouts, weighted by their rewards: online rejection sampling.

    It needs `advantage = { type = "reward" }`.
    """

    loss: ClassVar[Any] = staticmethod(policy.rft)
    compute: ClassVar[Any] = _rft
    has_ratio: ClassVar[bool] = False
    type: Literal["rft"] = "rft"
    """Which objective this is."""


class Dpo(PolicyObjective):
    """Online DPO: the better answer of a group becomes likelier than the worse one.

    It needs `advantage = { type = "preference_pairs" }` and takes the stage's starting weights as
    the reference. Each pair counts once with weights `sequence_mean`.
    """

    loss: ClassVar[Any] = staticmethod(policy.packed_dpo)
    compute: ClassVar[Any] = _dpo
    has_ratio: ClassVar[bool] = False
    is_sequence: ClassVar[bool] = True
    takes_token_advantages: ClassVar[bool] = False
    needs_reference: ClassVar[bool] = True
    type: Literal["dpo"] = "dpo"
    """Which objective this is."""
    beta: float = Field(default=0.1, gt=0)
    """Strength of the pull to the reference."""


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
    | Rft
    | Dpo,
    Field(discriminator="type"),
]


def supervised(
    logp: jax.Array, entropy: jax.Array, batch: Batch, numbers: Numbers
) -> tuple[jax.Array, Metrics]:
    """Maximum likelihood of demonstrations."""
    return cross_entropy(logp, batch.mask)


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
    compute = type(objective).compute
    estimate = kl.estimate if kl is not None else None
    is_in_loss = kl is not None and kl.where == "loss"

    def function(
        logp: jax.Array, entropy: jax.Array, batch: Batch, numbers: Numbers
    ) -> tuple[jax.Array, Metrics]:
        mask = batch.mask
        count = jnp.sum(mask)

        def mean(value: jax.Array) -> Mean:
            return Mean(jnp.sum(jnp.where(mask, value, 0.0)), count)

        loss, metrics = compute(logp, batch, numbers["objective"])
        for correction, of_it in zip(offpolicy, numbers["offpolicy"], strict=True):
            weight, found = correction.compute(batch, of_it)
            loss, metrics = loss * weight, metrics | found
        metrics = metrics | mismatch_metrics(logp, batch.sampler_logp, mask)
        metrics["policy/entropy"] = mean(entropy)
        if estimate is not None:
            penalty = estimate(logp, batch)
            metrics["policy/kl"] = mean(penalty)
            if is_in_loss:
                loss = loss + numbers["kl"] * penalty
        if entropy_bonus is not None:
            loss = loss - numbers["entropy_bonus"] * jnp.where(mask, entropy, 0.0)
        return loss, jax.lax.stop_gradient(metrics)

    return function

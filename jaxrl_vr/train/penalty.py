"""The KL penalty and the entropy bonus: what a config can choose, and what steers them.

b rows of a micro-batch, T tokens of a row.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field, PositiveFloat, model_validator

from jaxrl_vr.arrays import Metrics
from jaxrl_vr.config import Config
from jaxrl_vr.losses import kl as estimators
from jaxrl_vr.losses.entropy import adaptive_entropy
from jaxrl_vr.rollout.batch import Batch

# By the type of a penalty, those that compare with nothing but the reference.
_ESTIMATORS = {
    "k1": estimators.k1,
    "k2": estimators.k2,
    "k3": estimators.k3,
    "k1_straight_through": estimators.k1_straight_through,
    "k3_straight_through": estimators.k3_straight_through,
}


@functools.cache
def _charged(type_: str) -> Any:
    """`kl_in_reward` with one estimator, compiled, and what it made of the rewards."""

    def function(reward: jax.Array, *arrays: jax.Array, **numbers: Any) -> Any:
        found = estimators.kl_in_reward(reward, *arrays, estimator=_ESTIMATORS[type_], **numbers)
        return found, estimators.kl_reward_metrics(found, reward, arrays[-1])

    return jax.jit(function)


class AdaptiveKl(Config):
    """Steers the KL to a target by its coefficient (https://arxiv.org/abs/1909.08593)."""

    target: PositiveFloat
    """The KL of a whole rollout to hold, in nats."""
    horizon: PositiveFloat = 10_000.0
    """In how many rollouts to correct."""


class Kl(Config):
    """A penalty for leaving the stage's starting weights."""

    type: Literal["k1", "k2", "k3", "unbiased_k3", "k1_straight_through", "k3_straight_through"] = (
        "k3"
    )
    """The estimator. In a loss k3 is GRPO's, with the gradient of the reverse divergence;
    `unbiased_k3` and the straight-through ones have the right gradient. In a reward k1 is usual."""
    coef: float = Field(gt=0)
    """Weight of the penalty; leave the whole table out for none, which also spares the memory."""
    where: Literal["loss", "reward"] = "loss"
    """`loss` adds it to the loss of each token; `reward` takes it from the reward of each token
    before advantages."""
    clamp_at_zero: bool = False
    """In a reward: negative estimates of a token count as 0, as in AlpacaFarm."""
    adaptive: AdaptiveKl | None = None
    """Let `coef` follow a target; None keeps it."""

    @model_validator(mode="after")
    def _check(self) -> Kl:
        if self.where == "reward" and self.type not in ("k1", "k2", "k3"):
            raise ValueError(
                f"type = '{self.type}' with where = 'reward': a reward has no gradient, for which "
                "this estimator is made; use 'k1', 'k2' or 'k3'"
            )
        if self.where == "loss" and self.clamp_at_zero:
            raise ValueError(
                "clamp_at_zero = true cannot act with where = 'loss'; leave it out, or set where "
                "to 'reward'"
            )
        return self

    def estimate(self, logp: jax.Array, batch: Batch) -> jax.Array:
        """[b, T] float32, the estimate at each trained token."""
        assert batch.ref_logp is not None, "a stage with a KL has a reference"
        if self.type == "unbiased_k3":
            return estimators.unbiased_k3(logp, batch.old_logp, batch.ref_logp, batch.mask)
        return _ESTIMATORS[self.type](logp, batch.ref_logp, batch.mask)

    def token_reward(
        self,
        reward: np.ndarray,
        logp: np.ndarray,
        ref_logp: np.ndarray,
        mask: np.ndarray,
        *,
        coef: float,
    ) -> tuple[np.ndarray, Metrics]:
        """[B] rewards and [B, T] log-probs -> [B, T] float32 rewards with the KL, and metrics."""
        found, metrics = _charged(self.type)(
            reward, logp, ref_logp, mask, coef=coef, clamp_at_zero=self.clamp_at_zero
        )
        return np.asarray(found), metrics

    def next_coef(self, coef: float, kl_of_rollouts: np.ndarray) -> float:
        """The coefficient after a step whose rollouts had these KLs, in nats."""
        if self.adaptive is None or not kl_of_rollouts.size:
            return coef
        found = estimators.adaptive_kl(
            jnp.float32(coef),
            jnp.float32(kl_of_rollouts.mean()),
            target=self.adaptive.target,
            horizon=self.adaptive.horizon,
            num_rollouts=kl_of_rollouts.size,
        )
        return float(found)


class AdaptiveEntropy(Config):
    """Moves the coefficient so that the entropy stays at a target.

    Source: Skywork-OR1, https://arxiv.org/abs/2505.22312.
    """

    target: float = Field(default=0.2, gt=0)
    """Entropy to keep, in nats; the bonus acts only below it."""
    step: float = Field(default=0.005, gt=0)
    """Change of the coefficient in a step."""


class EntropyBonus(Config):
    """Rewards a policy for staying undecided: coef x entropy is taken from the loss of a token."""

    coef: float = Field(default=0.001, ge=0)
    """Weight of the entropy, in loss per nat; with `adaptive`, the one to start from."""
    adaptive: AdaptiveEntropy | None = None
    """Let `coef` follow a target; None keeps it."""

    @model_validator(mode="after")
    def _check(self) -> EntropyBonus:
        if self.coef == 0 and self.adaptive is None:
            raise ValueError(
                "coef = 0 cannot act without adaptive; raise it, or leave the table out"
            )
        return self

    def next_coef(self, coef: float, entropy: float) -> tuple[float, float]:
        """The coefficient after a step of this entropy, and the one that acts in the next step."""
        if self.adaptive is None:
            return self.coef, self.coef
        numbers = self.adaptive.model_dump()
        moved, _ = adaptive_entropy(coef, entropy, **numbers)
        return float(moved), float(moved) if entropy <= self.adaptive.target else 0.0

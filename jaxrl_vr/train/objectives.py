"""The objectives a config can name, and what each needs.

An objective is a function (logp, entropy, batch, numbers) -> per-token loss and metrics. Which
function is static under jit; its numbers are traced, so changing them compiles nothing.

b rows of a micro-batch, T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import jax
import jax.numpy as jnp
from pydantic import Field

from jaxrl_vr.arrays import Max, Mean, Metrics
from jaxrl_vr.config import Config
from jaxrl_vr.losses.kl import k3
from jaxrl_vr.losses.policy import ppo_clip, reinforce
from jaxrl_vr.losses.supervised import cross_entropy
from jaxrl_vr.rollout.batch import Batch

Numbers = Mapping[str, float | jax.Array]
Objective = Callable[[jax.Array, jax.Array, Batch, Numbers], tuple[jax.Array, Metrics]]


class ObjectiveConfig(Protocol):
    """A config model that names an objective."""

    @property
    def function(self) -> Objective: ...

    @property
    def numbers(self) -> dict[str, float]: ...


class PpoClip(Config):
    """The clipped surrogate of PPO and GRPO."""

    type: Literal["ppo_clip"] = "ppo_clip"
    """Which objective this is."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """How far below 1 the ratio may fall."""
    clip_high: float = Field(default=0.2, ge=0)
    """How far above 1 the ratio may rise; DAPO raises it to 0.28."""

    @property
    def function(self) -> Objective:
        """The objective."""
        return _ppo_clip

    @property
    def numbers(self) -> dict[str, float]:
        """Its traced numbers."""
        return {"clip_low": self.clip_low, "clip_high": self.clip_high}


class Reinforce(Config):
    """Plain policy gradient: every token's log-prob times its advantage."""

    type: Literal["reinforce"] = "reinforce"
    """Which objective this is."""

    @property
    def function(self) -> Objective:
        """The objective."""
        return _reinforce

    @property
    def numbers(self) -> dict[str, float]:
        """Its traced numbers."""
        return {}


class CrossEntropy(Config):
    """Maximum likelihood of demonstrations."""

    type: Literal["cross_entropy"] = "cross_entropy"
    """Which objective this is."""

    @property
    def function(self) -> Objective:
        """The objective."""
        return _cross_entropy

    @property
    def numbers(self) -> dict[str, float]:
        """Its traced numbers."""
        return {}


def _ppo_clip(
    logp: jax.Array, entropy: jax.Array, batch: Batch, numbers: Numbers
) -> tuple[jax.Array, Metrics]:
    loss, metrics = ppo_clip(
        logp,
        batch.old_logp,
        batch.adv,
        batch.mask,
        clip_low=numbers["clip_low"],
        clip_high=numbers["clip_high"],
    )
    return _policy(loss, metrics, logp, entropy, batch, numbers)


def _reinforce(
    logp: jax.Array, entropy: jax.Array, batch: Batch, numbers: Numbers
) -> tuple[jax.Array, Metrics]:
    loss, metrics = reinforce(logp, batch.adv, batch.mask)
    return _policy(loss, metrics, logp, entropy, batch, numbers)


def _cross_entropy(
    logp: jax.Array, entropy: jax.Array, batch: Batch, numbers: Numbers
) -> tuple[jax.Array, Metrics]:
    return cross_entropy(logp, batch.mask)


def _policy(
    loss: jax.Array,
    metrics: Metrics,
    logp: jax.Array,
    entropy: jax.Array,
    batch: Batch,
    numbers: Numbers,
) -> tuple[jax.Array, Metrics]:
    """Adds the KL penalty, if there is a reference, and the metrics of every policy objective."""
    mask = batch.mask
    count = jnp.sum(mask)

    def mean(value: jax.Array) -> Mean:
        return Mean(jnp.sum(jnp.where(mask, value, 0.0)), count)

    gap = jnp.where(mask, jnp.abs(logp - batch.sampler_logp), 0.0)
    metrics = metrics | {
        "policy/entropy": mean(entropy),
        "mismatch/mean": mean(gap),
        "mismatch/max": Max(jnp.max(gap)),
    }
    if batch.ref_logp is not None:
        kl = jnp.where(mask, k3(jnp.where(mask, logp, 0.0), batch.ref_logp), 0.0)
        loss = loss + numbers["kl_coef"] * kl
        metrics["policy/kl"] = mean(kl)
    return loss, jax.lax.stop_gradient(metrics)

"""Weights for the gap between the policy that sampled and the learner's: a config's choices.

Each compares `old_logp`, recomputed by the learner, with the sampler's own log-probs, and
multiplies the loss of a token; the weights of the mean are left alone.

b rows of a micro-batch, T tokens of a row.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from pydantic import Field, model_validator

from jaxrl_vr.arrays import Mean, Metrics
from jaxrl_vr.config import Config
from jaxrl_vr.losses import offpolicy, policy
from jaxrl_vr.rollout.batch import Batch


class OffpolicyConfig(Config):
    """What all have: a function of `losses.offpolicy`, whose keywords are the fields."""

    loss: ClassVar[Any]
    is_sequence: ClassVar[bool] = False  # looks at whole rollouts
    weighs: ClassVar[bool] = True  # by the gap, and not only leaves out
    reads_old_logp: ClassVar[bool] = True  # so that it needs one that the learner computed

    @property
    def numbers(self) -> dict[str, float]:
        """Its traced numbers."""
        return self.model_dump(exclude={"type"})

    def compute(
        self, logp: jax.Array, batch: Batch, numbers: dict[str, Any]
    ) -> tuple[jax.Array, Metrics]:
        """[b, T] float32, the factor of each token's loss; and metrics."""
        arrays = (batch.old_logp, batch.sampler_logp, batch.mask)
        more = (batch.segment_ids,) if self.is_sequence else ()
        return type(self).loss(*arrays, *more, **numbers)


class Tis(OffpolicyConfig):
    """Truncated importance sampling of each token."""

    loss: ClassVar[Any] = staticmethod(offpolicy.tis)
    type: Literal["tis"] = "tis"
    """Which correction this is."""
    max_weight: float = Field(default=2.0, gt=0)
    """Largest weight."""


class SequenceTis(OffpolicyConfig):
    """Truncated importance sampling of whole rollouts, by the product of their tokens' ratios."""

    loss: ClassVar[Any] = staticmethod(offpolicy.sequence_tis)
    is_sequence: ClassVar[bool] = True
    type: Literal["sequence_tis"] = "sequence_tis"
    """Which correction this is."""
    max_weight: float = Field(default=2.0, gt=0)
    """Largest weight."""


class GeometricTis(OffpolicyConfig):
    """Truncated importance sampling of whole rollouts, by the geometric mean of the ratios."""

    loss: ClassVar[Any] = staticmethod(offpolicy.geometric_tis)
    is_sequence: ClassVar[bool] = True
    type: Literal["geometric_tis"] = "geometric_tis"
    """Which correction this is."""
    max_weight: float = Field(default=2.0, gt=0)
    """Largest weight."""


class Mis(OffpolicyConfig):
    """Masked importance sampling: tokens whose weight is too large do not train."""

    loss: ClassVar[Any] = staticmethod(offpolicy.mis)
    type: Literal["mis"] = "mis"
    """Which correction this is."""
    max_weight: float = Field(default=2.0, gt=0)
    """Largest weight that trains."""


class SequenceMis(OffpolicyConfig):
    """Masked importance sampling of whole rollouts, by the product of their tokens' ratios."""

    loss: ClassVar[Any] = staticmethod(offpolicy.sequence_mis)
    is_sequence: ClassVar[bool] = True
    type: Literal["sequence_mis"] = "sequence_mis"
    """Which correction this is."""
    max_weight: float = Field(default=2.0, gt=0)
    """Largest weight that trains."""


def _check_range(low: float, high: float) -> None:
    if low > high:
        raise ValueError(f"low = {low} is above high = {high}, so nothing would train; swap them")


class GeometricMis(OffpolicyConfig):
    """Masked importance sampling of whole rollouts, by the geometric mean of the ratios."""

    loss: ClassVar[Any] = staticmethod(offpolicy.geometric_mis)
    is_sequence: ClassVar[bool] = True
    type: Literal["geometric_mis"] = "geometric_mis"
    """Which correction this is."""
    low: float = Field(default=0.99, ge=0)
    """Smallest mean ratio that trains."""
    high: float = Field(default=1.01, gt=0)
    """Largest mean ratio that trains."""

    @model_validator(mode="after")
    def _check(self) -> GeometricMis:
        _check_range(self.low, self.high)
        return self


class IcePop(OffpolicyConfig):
    """IcePop: tokens whose ratio is too small or too large do not train."""

    loss: ClassVar[Any] = staticmethod(offpolicy.icepop)
    type: Literal["icepop"] = "icepop"
    """Which correction this is."""
    low: float = Field(default=0.5, ge=0)
    """Smallest ratio that trains."""
    high: float = Field(default=5.0, gt=0)
    """Largest ratio that trains."""

    @model_validator(mode="after")
    def _check(self) -> IcePop:
        _check_range(self.low, self.high)
        return self


class Veto(OffpolicyConfig):
    """A rollout with a token that the learner finds all but impossible does not train."""

    loss: ClassVar[Any] = staticmethod(offpolicy.veto)
    is_sequence: ClassVar[bool] = True
    weighs: ClassVar[bool] = False
    type: Literal["veto"] = "veto"
    """Which correction this is."""
    threshold: float = Field(default=1e-4, gt=0)
    """Smallest ratio of a token."""

    def compute(
        self, logp: jax.Array, batch: Batch, numbers: dict[str, Any]
    ) -> tuple[jax.Array, Metrics]:
        """[b, T] float32, 0 throughout a rollout that is vetoed and else 1; no metrics."""
        arrays = (batch.old_logp, batch.sampler_logp, batch.mask, batch.segment_ids)
        return offpolicy.veto(*arrays, **numbers).astype(jnp.float32), {}


class Opsm(OffpolicyConfig):
    """DeepSeek-V3.2's off-policy sequence mask, which acts from the second update on a batch.

    Rollouts of negative advantage from which the policy has moved away do not train.
    """

    loss: ClassVar[Any] = staticmethod(policy.opsm)
    is_sequence: ClassVar[bool] = True
    weighs: ClassVar[bool] = False
    reads_old_logp: ClassVar[bool] = False
    type: Literal["opsm"] = "opsm"
    """Which correction this is."""
    delta: float = Field(default=0.5, gt=0)
    """Largest mean log ratio of a rollout's tokens, in nats."""

    def compute(
        self, logp: jax.Array, batch: Batch, numbers: dict[str, Any]
    ) -> tuple[jax.Array, Metrics]:
        """[b, T] float32, 0 throughout a rollout that is masked and else 1; the share masked."""
        arrays = (batch.sampler_logp, batch.adv, batch.mask, batch.segment_ids)
        keeps = policy.opsm(logp, *arrays, **numbers)
        cut = Mean(jnp.sum(batch.mask & ~keeps), jnp.sum(batch.mask))
        return keeps.astype(jnp.float32), {"offpolicy/opsm_frac": cut}


Offpolicy = Annotated[
    Tis | SequenceTis | GeometricTis | Mis | SequenceMis | GeometricMis | IcePop | Veto | Opsm,
    Field(discriminator="type"),
]

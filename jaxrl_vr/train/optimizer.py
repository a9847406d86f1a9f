"""The optimizer and its learning-rate schedule."""

from __future__ import annotations

import math
from typing import Any, Literal

import jax
import optax
from pydantic import Field, PositiveInt, model_validator

from jaxrl_vr.config import Config
from jaxrl_vr.models.params import Param, is_param


class Schedule(Config):
    """Learning rate over optimizer steps: linear warmup, then a shape."""

    type: Literal["constant", "linear", "cosine"] = "constant"
    """What follows the warmup: stay, or fall to `end_fraction` in a line or half a cosine."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps from 0 to the full rate."""
    total_steps: PositiveInt | None = None
    """Optimizer steps until the end of the fall; None is the stage's own length. Set it where the
    stage may be made longer later: the schedule then stays what it was."""
    end_fraction: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the full rate that is left at the end."""

    @model_validator(mode="after")
    def _check(self) -> Schedule:
        if self.type == "constant" and (self.end_fraction or self.total_steps):
            name = "end_fraction" if self.end_fraction else "total_steps"
            raise ValueError(
                f"{name} = {getattr(self, name)} cannot act with type = 'constant'; leave it out, "
                "or set type to 'linear' or 'cosine'"
            )
        if self.total_steps is not None and self.warmup_steps > self.total_steps:
            raise ValueError(
                f"warmup_steps = {self.warmup_steps} is above total_steps = {self.total_steps}, so "
                "the full rate would come after the end; lower one, or raise the other"
            )
        return self

    def __call__(self, step: int, stage_steps: int) -> float:
        """Factor on the learning rate for optimizer step `step`, counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        if self.type == "constant":
            return 1.0
        total = self.total_steps or stage_steps
        done = (step - self.warmup_steps) / max(total - self.warmup_steps, 1)
        done = min(max(done, 0.0), 1.0)
        fallen = done if self.type == "linear" else 0.5 - 0.5 * math.cos(math.pi * done)
        return 1.0 - (1.0 - self.end_fraction) * fallen


class AdamW(Config):
    """Adam with decoupled weight decay, https://arxiv.org/abs/1711.05101."""

    type: Literal["adamw"] = "adamw"
    """Which optimizer this is."""
    learning_rate: float = Field(gt=0)
    """Peak learning rate. RL on a pretrained model starts near 1e-6, on a small one near 1e-5."""
    b1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the mean of gradients."""
    b2: float = Field(default=0.999, ge=0, lt=1)
    """Decay of the mean of squared gradients; lower forgets sooner."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the mean square."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decay of matrices (never of norms and biases), times the learning rate."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients with a larger global norm are scaled down to it."""
    schedule: Schedule = Schedule()
    """Learning rate over time."""

    def transform(self, declared: Any) -> optax.GradientTransformation:
        """Gradients (clipped) -> updates for a learning rate of -1; the rate is the caller's."""
        decays = jax.tree.map(_is_matrix, declared, is_leaf=is_param)
        return optax.chain(
            optax.scale_by_adam(b1=self.b1, b2=self.b2, eps=self.eps),
            optax.add_decayed_weights(self.weight_decay, mask=decays),
        )

    def rate(self, step: int, stage_steps: int) -> float:
        """Learning rate of optimizer step `step` of a stage."""
        return self.learning_rate * self.schedule(step, stage_steps)


def _is_matrix(param: Param) -> bool:
    # Norms start at one and biases at zero; only what starts random is a matrix.
    return bool(param.scale)

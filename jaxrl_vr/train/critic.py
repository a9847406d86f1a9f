"""The critic of PPO: a model of its own that says what reward a state will get.

b rows of a micro-batch, T tokens of a row, D model width.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from pydantic import Field

from jaxrl_vr.arrays import Metrics
from jaxrl_vr.config import Config
from jaxrl_vr.losses.value import clipped_value_loss
from jaxrl_vr.models.flops import Flops, num_params
from jaxrl_vr.models.params import Param, Params
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.rollout.batch import Batch
from jaxrl_vr.train.objectives import Numbers
from jaxrl_vr.train.optimizer import Optimizer
from jaxrl_vr.train.state import TrainState, create
from jaxrl_vr.train.update import Learner, hidden_states


class CriticConfig(Config):
    """A critic, which advantage `gae` needs. It starts from the stage's weights, with values 0."""

    optimizer: Optimizer
    """Optimizer and learning rate; its schedule counts the critic's own steps. Critics usually
    learn faster than policies: 2 to 10 times the policy's rate."""
    clip: float = Field(default=0.2, gt=0)
    """How far a value may move from the one while sampling before its gradient is cut."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of the stage in which only the critic learns."""

    @property
    def numbers(self) -> Numbers:
        """Its traced numbers."""
        return {"clip": self.clip}


@dataclasses.dataclass(frozen=True)
class Critic:
    """The policy's transformer with a value head in the place of the LM head."""

    model: Transformer

    def declare(self) -> dict[str, Any]:
        """The parameters, as a tree of `Param`."""
        body = {k: v for k, v in self.model.declare().items() if k != "head"}
        width = self.model.arch.width
        return {"body": body, "value": Param((width,), ("embed",), 0.0, "value_head.weight")}

    def of_policy(self, params: Params) -> Params:
        """A copy of a policy's weights, with a value head of zeros."""
        body = {k: jax.tree.map(jnp.copy, v) for k, v in params.items() if k != "head"}
        norm = params["norm"]  # as wide as the value head, and placed as that should be
        return {"body": body, "value": jnp.zeros_like(norm, device=norm.sharding)}

    def values(self, params: Params, batch: Batch) -> jax.Array:
        """[b, T] float32, the value of the state in which each token is chosen; [b, T] batch."""
        hidden = hidden_states(self.model, params["body"], batch)
        with jax.named_scope("value_head"):
            value = jnp.einsum(
                "BTD,D->BT",
                hidden.astype(jnp.float32),
                params["value"],
                precision=jax.lax.Precision.HIGHEST,
            )
        # hidden[:, t] has seen token t: it is the state in which t + 1 is chosen.
        value = jnp.roll(value, 1, axis=1)
        return jnp.where(batch.mask, value, 0.0)

    def loss(self, params: Params, batch: Batch, numbers: Numbers) -> tuple[jax.Array, Metrics]:
        """Weighted sum of the value loss over one micro-batch, and its metrics."""
        assert batch.old_value is not None and batch.returns is not None, "the batch was scored"
        value = self.values(params, batch)
        with jax.named_scope("loss"):
            of_tokens, metrics = clipped_value_loss(
                value, batch.old_value, batch.returns, batch.mask, clip=numbers["clip"]
            )
        return jnp.sum(jnp.where(batch.mask, batch.weight * of_tokens, 0.0)), metrics


def critic_state(config: CriticConfig, model: Transformer, policy: Params) -> TrainState:
    """The critic's state before its first update."""
    critic = Critic(model)
    return create(critic.of_policy(policy), {}, config.optimizer.transform(critic.declare()))


def critic_learner(config: CriticConfig, model: Transformer, mesh: jax.sharding.Mesh) -> Learner:
    """Its update and scoring pass; the scores are values."""
    critic = Critic(model)
    transform = config.optimizer.transform(critic.declare())
    return Learner(critic.loss, lambda p, b: {"value": critic.values(p, b)}, transform, mesh)


def critic_flops(model: Transformer) -> Flops:
    """Model FLOPs of the critic of this policy: its body's, with one product for the value."""
    return Flops(num_params(Critic(model).declare()), model.arch)

"""The state of a training run, as one frozen pytree."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import pytree_dataclass
from jaxrl_vr.sharding import replicated
from jaxrl_vr.train.transform import Transform, abstract_moments


@pytree_dataclass
class TrainState:
    """What an update reads and writes. What is static or host-side is elsewhere."""

    trainable: Any  # parameters, float32 master weights
    frozen: Any  # name -> parameters: "reference", "teacher"
    optimizer: Any  # optax state; moments lie like their parameters, or so in the host's memory
    step: jax.Array  # [] int32, optimizer steps taken or skipped
    critic: Any = None  # the critic's own TrainState; None: the stage has no critic
    ema: Any = None  # moving average of `trainable`, placed alike; None: the stage keeps none


def create(
    trainable: Any,
    frozen: Any,
    transform: Transform,
    *,
    has_ema: bool = False,
) -> TrainState:
    """The state before the first update; the optimizer's part is created in its sharding.

    A moving average begins as a copy of the weights that train.
    """
    shapes = abstract_state(trainable, {}, transform)
    out = jax.tree.map(lambda a: a.sharding, shapes.optimizer)
    return TrainState(
        trainable=trainable,
        frozen=frozen,
        optimizer=jax.jit(transform.init, out_shardings=out)(trainable),
        step=jax.device_put(jnp.int32(0), shapes.step.sharding),
        # A copy, because both are donated at the first update.
        ema=jax.tree.map(jnp.copy, trainable) if has_ema else None,
    )


def abstract_state(
    trainable: Any,
    frozen: Any,
    transform: Transform,
    *,
    has_ema: bool = False,
) -> TrainState:
    """Shapes and shardings of a state, from arrays or from shapes with shardings."""

    def like(a: Any) -> Any:
        return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding)

    trainable, frozen = jax.tree.map(like, (trainable, frozen))
    mesh = jax.tree.leaves(trainable)[0].sharding.mesh
    step: Any = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated(mesh))
    return TrainState(
        trainable=trainable,
        frozen=frozen,
        optimizer=abstract_moments(transform, trainable),
        step=step,
        ema=trainable if has_ema else None,
    )

"""The state of a training run, as one frozen pytree."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl_vr.arrays import pytree_dataclass


@pytree_dataclass
class TrainState:
    """What an update reads and writes. What is static or host-side is elsewhere."""

    trainable: Any  # parameters, float32 master weights
    frozen: Any  # name -> parameters: "reference", "teacher"
    optimizer: Any  # optax state, sharded like the parameters
    step: jax.Array  # [] int32, optimizer steps taken or skipped
    critic: Any = None  # the critic's own TrainState; None: the stage has no critic
    ema: Any = None  # moving average of `trainable`, placed alike; None: the stage keeps none


def create(
    trainable: Any,
    frozen: Any,
    transform: optax.GradientTransformation,
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
    transform: optax.GradientTransformation,
    *,
    has_ema: bool = False,
) -> TrainState:
    """Shapes and shardings of a state, from arrays or from shapes with shardings."""

    def like(a: Any) -> Any:
        return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding)

    trainable, frozen = jax.tree.map(like, (trainable, frozen))
    of_params = jax.tree_util.tree_leaves_with_path(trainable)
    replicated = jax.NamedSharding(of_params[0][1].sharding.mesh, jax.P())

    def of_moment(path: Any, a: Any) -> Any:
        # A moment has its parameter's path at the end of its own, and its shape.
        for own, param in of_params:
            if path[-len(own) :] == own and a.shape == param.shape:
                return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=param.sharding)
        return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=replicated)

    optimizer = jax.eval_shape(transform.init, trainable)
    step: Any = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated)
    return TrainState(
        trainable=trainable,
        frozen=frozen,
        optimizer=jax.tree_util.tree_map_with_path(of_moment, optimizer),
        step=step,
        ema=trainable if has_ema else None,
    )

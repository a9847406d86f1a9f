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


def create(trainable: Any, frozen: Any, transform: optax.GradientTransformation) -> TrainState:
    """The state before the first update; the optimizer's part is created in its sharding."""
    shardings = jax.tree.map(lambda a: a.sharding, trainable)
    mesh_wide = jax.tree.leaves(shardings)[0].mesh

    def sharding_like(path: Any, a: Any) -> Any:
        # A moment has its parameter's path at the end of its own, and its shape.
        for own, param in jax.tree_util.tree_leaves_with_path(trainable):
            if path[-len(own) :] == own and a.shape == param.shape:
                return param.sharding
        return jax.NamedSharding(mesh_wide, jax.P())

    abstract = jax.eval_shape(transform.init, trainable)
    out = jax.tree_util.tree_map_with_path(sharding_like, abstract)
    replicated = jax.NamedSharding(mesh_wide, jax.P())
    return TrainState(
        trainable=trainable,
        frozen=frozen,
        optimizer=jax.jit(transform.init, out_shardings=out)(trainable),
        step=jax.device_put(jnp.int32(0), replicated),
    )

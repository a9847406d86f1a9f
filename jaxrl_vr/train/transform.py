"""What an optimizer is to the update: optax's two functions, and where and how its state is kept.

A moment is an array of the state that belongs to a parameter: its path ends with the parameter's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl_vr.sharding import HOST, replicated


class Transform(NamedTuple):
    """An optax transformation that gives updates for a learning rate of -1.

    Attributes:
      init: parameters -> state.
      update: gradients, state and parameters -> updates and the next state.
      frozen: bool by parameter, those that get no gradient; None: all do.
      is_offloaded: whether moments lie in the host's memory between updates.
    """

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], tuple[Any, Any]]
    frozen: Any = None
    is_offloaded: bool = False


def stored_as(inner: optax.GradientTransformation, dtype: str) -> optax.GradientTransformation:
    """The transformation with its moments stored in another dtype; it computes in float32.

    Args:
      inner: a transformation whose moments are float32.
      dtype: of the moments between updates, rounded to the nearest.
    """
    if dtype == "float32":
        return inner

    def init(params: Any) -> Any:
        of_params = jax.tree_util.tree_leaves_with_path(params)

        def store(path: Any, a: Any) -> Any:
            is_moment = _owner(path, of_params) is not None and a.dtype == jnp.float32
            return a.astype(dtype) if is_moment else a

        return jax.tree_util.tree_map_with_path(store, inner.init(params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        whole = jax.tree.map(lambda a: a.astype(jnp.float32) if a.dtype == dtype else a, state)
        steps, after = inner.update(updates, whole, params)
        return steps, jax.tree.map(lambda new, old: new.astype(old.dtype), after, state)

    return optax.GradientTransformation(init, update)


def abstract_moments(transform: Transform, trainable: Any) -> Any:
    """Shapes and shardings of an optimizer's state: a moment lies like its parameter.

    A moment that has only some of its parameter's dimensions lies like those. What belongs to no
    parameter, and what could be either of two, is whole on every device.

    Args:
      transform: the optimizer.
      trainable: shapes of the parameters, with shardings.
    """
    of_params = jax.tree_util.tree_leaves_with_path(trainable)
    whole = replicated(of_params[0][1].sharding.mesh)

    def one(path: Any, a: Any) -> Any:
        owner = _owner(path, of_params)
        sharding = whole if owner is None else _like(owner, a.shape) or whole
        if owner is not None and transform.is_offloaded:
            sharding = sharding.with_memory_kind(HOST)
        return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding)

    return jax.tree_util.tree_map_with_path(one, jax.eval_shape(transform.init, trainable))


def _owner(path: Any, of_params: list[Any]) -> Any:
    """The parameter that an array of the state belongs to; None: it belongs to none."""
    # The longest path, as `norm` ends `layers/norm` too.
    found = [(len(own), param) for own, param in of_params if path[-len(own) :] == own]
    return max(found, key=lambda one: one[0])[1] if found else None


def _like(param: Any, shape: tuple[int, ...]) -> Any:
    """The parameter's sharding for an array with some of its dimensions; None: none is certain."""
    if shape == param.shape:
        return param.sharding
    entries = [*param.sharding.spec, *[None] * len(param.shape)][: len(param.shape)]
    found = set()
    for dims in itertools.combinations(range(len(param.shape)), len(shape)):
        if tuple(param.shape[dim] for dim in dims) == shape:
            kept = [entries[dim] for dim in dims]
            while kept and kept[-1] is None:
                kept.pop()
            found.add(jax.P(*kept))
    return jax.NamedSharding(param.sharding.mesh, found.pop()) if len(found) == 1 else None


def to_devices(tree: Any, shardings: Any) -> Any:
    """Inside jit: brings to the devices what `shardings` keep in the host's memory."""

    def one(a: Any, sharding: Any) -> Any:
        is_away = sharding.memory_kind == HOST
        return jax.device_put(a, sharding.with_memory_kind("device")) if is_away else a

    return jax.tree.map(one, tree, shardings)


def kept_as(tree: Any, shardings: Any) -> Any:
    """Inside jit: places results as `shardings` say, in the host's memory too."""

    def one(a: Any, sharding: Any) -> Any:
        if sharding.memory_kind == HOST:
            return jax.device_put(a, sharding)
        return jax.lax.with_sharding_constraint(a, sharding)

    return jax.tree.map(one, tree, shardings)

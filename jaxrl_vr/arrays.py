"""Shape checks and the pytree dataclass helper. jax is all this file needs.

Letters: B rollouts or rows, G samples of a prompt, P prompts, T tokens of a row, D model width,
V vocabulary.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp

from jaxrl_vr.types import Max, Mean, Metric, Metrics, Min

__all__ = [
    "Max",
    "Mean",
    "Metric",
    "Metrics",
    "Min",
    "at_least_float32",
    "check",
    "constant_of",
    "merge_metrics",
    "pytree_dataclass",
]

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def pytree_dataclass(cls: type[T]) -> type[T]:
    """Makes `cls` a frozen dataclass whose every field is a pytree child."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


def check(letters: str, /, **arrays: Any) -> dict[str, int]:
    """Checks that arrays have the shapes that `letters` spells, in keyword order.

    A dimension letter stands for one size throughout the call, so broadcasting cannot hide a bug.

    Args:
      letters: shapes apart by commas, such as `"BT, BT, B"`; an empty shape is a scalar.
      **arrays: name -> array (or None, which is skipped), as many as there are shapes.

    Returns:
      Letter -> size.

    Raises:
      ValueError: a rank or a size differs; the message names the array and both shapes.
    """
    shapes = [s.strip() for s in letters.split(",")]
    if len(shapes) != len(arrays):
        raise ValueError(f"check: {len(shapes)} shapes in {letters!r} for {len(arrays)} arrays")
    sizes: dict[str, int] = {}
    first: dict[str, str] = {}
    for shape, (name, array) in zip(shapes, arrays.items(), strict=True):
        if array is None:
            continue
        got = tuple(array.shape) if hasattr(array, "shape") else ()
        if len(got) != len(shape):
            raise ValueError(f"{name}: expected shape [{', '.join(shape)}], got {list(got)}")
        for letter, size in zip(shape, got, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise ValueError(
                    f"{name}: expected shape [{', '.join(shape)}] with {letter} = {sizes[letter]} "
                    f"as in {first[letter]}, got {list(got)}"
                )
            first.setdefault(letter, name)
    return sizes


def at_least_float32(x: Any) -> jax.Array:
    """An array as floats that sums can be taken in: float64 stays, all else becomes float32."""
    x = jnp.asarray(x)
    return x if x.dtype == jnp.float64 else x.astype(jnp.float32)


def constant_of(value: float, dtype: Any, *arrays: jax.Array) -> jax.Array:
    """A scalar that the type checker of `jax.shard_map` takes for a function of all the arrays.

    Inside `shard_map` a type says over which mesh axes a value differs. A loop wants the types of
    what it begins and ends with to be the same, and a custom derivative those of input and
    cotangent; a plain constant has the type of one that differs nowhere. XLA drops the select.
    """
    is_real = [jnp.any(array == array) for array in arrays]
    same = jnp.asarray(value, dtype)
    return jnp.where(jnp.any(jnp.stack(is_real)), same, same)


def merge_metrics(a: Metrics, b: Metrics) -> Metrics:
    """Metrics of two parts as those of the whole; both hold the same names."""
    return {name: _merge(a[name], b[name]) for name in a}


def _merge(a: Metric, b: Metric) -> Metric:
    match a, b:
        case Mean(), Mean():
            return Mean(a.sum + b.sum, a.count + b.count)
        case Min(), Min():
            return Min(jnp.minimum(a.value, b.value))
        case Max(), Max():
            return Max(jnp.maximum(a.value, b.value))
    raise ValueError(f"metrics of two kinds under one name: {type(a)} and {type(b)}")

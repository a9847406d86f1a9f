"""Adafactor's scaling of gradients, for parameters that stack layers.

Optax's takes the two largest dimensions of an array for a matrix, and means over all of it. Ours
are [L, D, H, Q] for L matrices [D, H x Q], so here each layer's matrix is what the paper means by
one. Equal to optax's on every such matrix.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl_vr.models.params import Param, is_param

_SMALLEST = 1e-3  # of a parameter's root mean square, below which it would hardly move


class FactoredState(NamedTuple):
    """Means of squared gradients; optax.MaskedNode where a parameter has no such mean."""

    step: jax.Array  # [] int32, updates so far
    rows: Any  # of factored matrices the mean over columns, [L, rows]
    columns: Any  # and over rows, [L, columns]
    whole: Any  # of all others, in the parameter's shape


def scale_by_factored_rms(
    declared: Any,
    *,
    decay_exponent: float,
    min_factored_size: int,
    eps: float,
    clip_rms: float,
    scale_by_parameter: bool,
) -> optax.GradientTransformation:
    """Adafactor without momentum, https://arxiv.org/abs/1804.04235.

    R and C are the rows' and columns' means of the squared gradient; the step is
    g / sqrt(R C / mean(R)), clipped to a root mean square, times that of the parameter.

    Args:
      declared: parameters as `Param`.
      decay_exponent: the means forget as 1 - t^-decay_exponent in step t = 1, 2, ...
      min_factored_size: matrices with fewer rows or columns keep their whole mean.
      eps: added to squared gradients.
      clip_rms: largest root mean square of a step, of each layer's tensor.
      scale_by_parameter: whether a step is a share of the parameter's root mean square.
    """

    def of_each(function: Any, *trees: Any) -> Any:
        return jax.tree.map(function, declared, *trees, is_leaf=is_param)

    def init(params: Any) -> FactoredState:
        def zeros(side: int | None) -> Any:
            def one(param: Param, a: Any) -> Any:
                if is_factored(param, min_factored_size) == (side is None):
                    return optax.MaskedNode()
                shape = a.shape if side is None else _without(a.shape, param.sides[1 - side])
                return jnp.zeros(shape, jnp.float32)

            return of_each(one, params)

        return FactoredState(jnp.int32(0), zeros(0), zeros(1), zeros(None))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        step_number = jnp.asarray(optax.safe_increment(state.step))
        kept = 1.0 - jnp.power(step_number.astype(jnp.float32), -decay_exponent)

        def one(param: Param, grad: Any, value: Any, *means: Any) -> Any:
            square = grad**2 + eps
            if is_factored(param, min_factored_size):
                step, means = _factored(param, grad, square, kept, *means[:2])
            else:
                whole = kept * means[2] + (1 - kept) * square
                step, means = grad * whole**-0.5, (*means[:2], whole)
            dims = tuple(dim for side in param.sides for dim in side)
            step = step / jnp.maximum(1.0, _rms(step, dims) / clip_rms)
            if scale_by_parameter:
                step = step * jnp.maximum(_rms(value, dims), _SMALLEST)
            return _Result(step, *means)

        found = of_each(one, updates, params, state.rows, state.columns, state.whole)
        parts = [
            jax.tree.map(lambda r, name=name: getattr(r, name), found, is_leaf=_is_result)
            for name in _Result._fields
        ]
        return parts[0], FactoredState(step_number, *parts[1:])

    return optax.GradientTransformation(init, update)


class _Result(NamedTuple):
    step: Any
    rows: Any
    columns: Any
    whole: Any


def _is_result(x: object) -> bool:
    return isinstance(x, _Result)


def is_factored(param: Param, min_factored_size: int) -> bool:
    """Whether rows and columns of a parameter's matrices have means of their own."""
    return param.is_matrix and min(sizes_of(param)) >= min_factored_size


def sizes_of(param: Param) -> tuple[int, ...]:
    """Of a parameter's sides: the rows and the columns of a matrix."""
    return tuple(math.prod(param.shape[dim] for dim in side) for side in param.sides)


def _factored(
    param: Param, grad: jax.Array, square: jax.Array, kept: jax.Array, rows: Any, columns: Any
) -> tuple[jax.Array, tuple[Any, ...]]:
    """The step of a factored matrix, and its means."""
    of_rows, of_columns = param.sides
    rows = kept * rows + (1 - kept) * jnp.mean(square, axis=of_columns)
    columns = kept * columns + (1 - kept) * jnp.mean(square, axis=of_rows)
    by_row, by_column = jnp.expand_dims(rows, of_columns), jnp.expand_dims(columns, of_rows)
    mean = jnp.mean(by_row, axis=of_rows, keepdims=True)
    step = grad * (by_row / mean) ** -0.5 * by_column**-0.5
    return step, (rows, columns, optax.MaskedNode())


def _without(shape: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for dim, size in enumerate(shape) if dim not in dims)


def _rms(a: jax.Array, dims: tuple[int, ...]) -> jax.Array:
    """Of each layer's tensor, with dimensions of size 1."""
    return jnp.sqrt(jnp.mean(a**2, axis=dims, keepdims=True))

"""Tokens that rows repeat, computed once: what a layer does to a token alone needs no copy of it.

The samples of a group begin with the same prompt, and the padding of rows is all alike. Of a token
whose whole prefix stands elsewhere in the batch too, every hidden state is the same there; so the
stream has each such token once, and only attention, where later tokens look back, works on rows
(Liu et al. 2025, Prefix Grouper, arXiv:2506.05433, share the prompt's attention as well; here rows
keep their kernels).

b rows, T tokens of a row, R parts of the rows, n = b T / R places of a part, U distinct tokens of
one.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import pytree_dataclass


@pytree_dataclass
class Distinct:
    """Which places of packed rows hold the same token behind the same prefix.

    Rows are split into R equal parts, each with tokens of its own, so that devices exchange none.
    """

    place: jax.Array  # [R, U] int32, a place of each, among the n of the part
    token: jax.Array  # [b, T] int32, which of the part's U stands at each place


def of_tokens(a: jax.Array, distinct: Distinct) -> jax.Array:
    """What stands at the place of each token: [b, T, ...] -> [R, U, ...].

    Its gradient is 0 at every other place.
    """
    out: jax.Array = _of_tokens(a, distinct)
    return out


def in_rows(a: jax.Array, distinct: Distinct, *, only_place: bool = False) -> jax.Array:
    """Each token wherever it stands: [R, U, ...] -> [b, T, ...].

    Args:
      a: [R, U, ...].
      distinct: where they stand.
      only_place: static; what is made of a token at another place than its own is not used, so
        that there is no gradient. Otherwise the gradients of all its places add up.
    """
    out: jax.Array = _in_rows(a, distinct, only_place)
    return out


@jax.custom_vjp
def _of_tokens(a: jax.Array, distinct: Distinct) -> jax.Array:
    return _taken(_parts(a, distinct), distinct.place)


def _of_tokens_forward(a: jax.Array, distinct: Distinct) -> tuple[jax.Array, Distinct]:
    return _of_tokens(a, distinct), distinct


def _of_tokens_backward(distinct: Distinct, gradient: jax.Array) -> tuple[jax.Array, None]:
    # A gather, where differentiating the other one would scatter.
    token = _parts(distinct.token, distinct)
    is_its = _taken(distinct.place, token) == jnp.arange(token.shape[1])[None]
    return _rows(_where(is_its, _taken(gradient, token)), distinct), None


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _in_rows(a: jax.Array, distinct: Distinct, only_place: bool) -> jax.Array:
    return _rows(_taken(a, _parts(distinct.token, distinct)), distinct)


def _in_rows_forward(a: jax.Array, distinct: Distinct, only_place: bool) -> tuple[Any, Distinct]:
    return _in_rows(a, distinct, only_place), distinct


def _in_rows_backward(
    only_place: bool, distinct: Distinct, gradient: jax.Array
) -> tuple[jax.Array, None]:
    gradient, token = (_parts(a, distinct) for a in (gradient, distinct.token))
    U = distinct.place.shape[1]
    if only_place:
        # Behind the distinct tokens U is filled up with others' places.
        is_used = _taken(token, distinct.place) == jnp.arange(U)[None]
        return _where(is_used, _taken(gradient, distinct.place)), None
    sums = functools.partial(jax.ops.segment_sum, num_segments=U)
    # In float32: a prompt has as many copies as its group has samples.
    found = jax.vmap(sums)(gradient.astype(jnp.float32), token)
    return found.astype(gradient.dtype), None


def _parts(a: jax.Array, distinct: Distinct) -> jax.Array:
    """[b, T, ...] -> [R, n, ...]."""
    return a.reshape(len(distinct.place), -1, *a.shape[2:])


def _rows(a: jax.Array, distinct: Distinct) -> jax.Array:
    """[R, n, ...] -> [b, T, ...]."""
    return a.reshape(*distinct.token.shape, *a.shape[2:])


def _where(mask: jax.Array, a: jax.Array) -> jax.Array:
    """[R, m, ...] with zeros where the mask, [R, m], is false."""
    return jnp.where(mask.reshape(*mask.shape, *[1] * (a.ndim - 2)), a, 0)


def _taken(a: jax.Array, index: jax.Array) -> jax.Array:
    """[R, m, ...] at [R, k] -> [R, k, ...]; the index is in bounds."""
    return jax.vmap(lambda a, i: a.at[i].get(mode="promise_in_bounds"))(a, index)


_of_tokens.defvjp(_of_tokens_forward, _of_tokens_backward)
_in_rows.defvjp(_in_rows_forward, _in_rows_backward)

"""Rows dealt over the devices that split them, so that each has as much causal attention to do.

Of a row that n devices of `context` split, the last would have 2n - 1 times the work of the first.
So a row is cut into 2n chunks, and device d gets chunk d and chunk 2n - 1 - d: an early one, whose
queries see little, and a late one (the zigzag of Llama 3's training, arXiv:2407.21783, section
3.3.2). The order in which tokens lie is the model's own: rows are dealt once before the blocks and
collected behind them. Positions and segments are dealt with them, and attention knows where each
chunk stands.

B rows, T tokens of a row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_vr.sharding import TRAIN_RULES, current_mesh, num_shards, spec


def can_deal(num_tokens: int, multiple: int = 1) -> bool:
    """Whether rows of these tokens are split, into chunks of a multiple of tokens."""
    parts = num_parts(num_tokens)
    return parts > 1 and num_tokens % (2 * parts * multiple) == 0


def num_parts(num_tokens: int) -> int:
    """Devices that split a row of these tokens, on the mesh that is set."""
    return num_shards(("length",), (num_tokens,))[0]


def deal(x: jax.Array) -> jax.Array:
    """[B, T, ...] in a row's order -> the same tokens as devices are to have them."""
    return _on_devices(_deal, x)


def collect(x: jax.Array) -> jax.Array:
    """[B, T, ...] as dealt -> in a row's order."""
    return _on_devices(_collect, x)


def in_order(x: jax.Array, axis: int, parts: int) -> jax.Array:
    """What was gathered of all devices along `axis`, as dealt -> in a row's order."""
    before, tokens, behind = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    dealt = x.reshape(*before, parts, 2, tokens // (2 * parts), *behind)  # T -> parts, 2, chunk
    early, late = (jax.lax.index_in_dim(dealt, i, axis + 1, keepdims=False) for i in range(2))
    chunks = jnp.concatenate([early, jnp.flip(late, axis)], axis)
    return chunks.reshape(x.shape)  # 2 parts, chunk -> T


def _on_devices(move: Callable[..., jax.Array], x: jax.Array) -> jax.Array:
    mesh = current_mesh()
    assert mesh is not None and can_deal(x.shape[1]), "the caller asks before"
    axes = ("batch", "length", *[None] * (x.ndim - 2))
    split: Any = spec(axes, TRAIN_RULES, mesh, x.shape)
    return jax.shard_map(
        functools.partial(move, context=split[1], parts=mesh.shape[split[1]]),
        mesh=mesh,
        in_specs=split,
        out_specs=split,
        check_vma=False,
    )(x)


def _deal(x: jax.Array, context: str, parts: int) -> jax.Array:
    # Device i has chunks 2i and 2i + 1. Of those with an even number each device is to get one, and
    # one of the others.
    moved = [
        jax.lax.ppermute(half, context, [(i, _owner(2 * i + odd, parts)) for i in range(parts)])
        for odd, half in enumerate(jnp.split(x, 2, axis=1))
    ]
    return jnp.concatenate(_swapped(moved, context), axis=1)


def _collect(x: jax.Array, context: str, parts: int) -> jax.Array:
    halves = _swapped(jnp.split(x, 2, axis=1), context)
    moved = [
        jax.lax.ppermute(half, context, [(_owner(2 * i + odd, parts), i) for i in range(parts)])
        for odd, half in enumerate(halves)
    ]
    return jnp.concatenate(moved, axis=1)


def _swapped(halves: list[jax.Array], context: str) -> list[jax.Array]:
    """Even and odd chunk -> early and late, and back: the early one is odd on odd devices."""
    first, second = halves
    is_even = jax.lax.axis_index(context) % 2 == 0
    return [jnp.where(is_even, first, second), jnp.where(is_even, second, first)]


def _owner(chunk: int, parts: int) -> int:
    return min(chunk, 2 * parts - 1 - chunk)

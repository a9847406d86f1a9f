"""Causal attention of packed rows by blocks, in plain XLA: scores of one block exist at a time.

The softmax runs along the blocks with its peak and its sum, and the backward pass makes the scores
anew from the log-sum-exp (Dao et al. 2022, FlashAttention, arXiv:2205.14135). Blocks behind the
last key that a query may see are left out.

B rows, T query tokens, C key tokens, K kv heads, R query heads of a kv head, Q head dim.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jaxrl_vr.arrays import check, pytree_dataclass

# Finite, so that a query that sees nothing (padding) gives a mean and not NaN.
MASKED = -1e30
ATTENDED = "attended"
"""Name of what the backward pass needs of attention, for those who choose what is kept for it."""
_NO_QUERY, _NO_KEY = -1, -2
_SMALLEST, _LARGEST = 64, 256
"""Tokens of a block, about."""


@pytree_dataclass
class _Places:
    """Which query may see which key."""

    query_segments: jax.Array  # [B, T]
    key_segments: jax.Array  # [B, C]
    start: jax.Array  # scalar, place of the first query among the keys


def blockwise_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    query_segments: jax.Array,
    key_segments: jax.Array,
    start: jax.Array | int = 0,
    *,
    block: int | None = None,
) -> jax.Array:
    """Softmax attention; a query sees keys of its own segment up to its own place.

    Args:
      q: [B, K, R, T, Q] rotated queries.
      k: [B, K, C, Q] rotated keys.
      v: [B, K, C, Q] values.
      query_segments: [B, T] int32, not negative.
      key_segments: [B, C] int32, not negative.
      start: place of the first query among the keys.
      block: static; tokens of a block of queries and of one of keys. None: as suits the rows.

    Returns:
      [B, K, R, T, Q] in q's dtype.
    """
    check(
        "BKRTQ, BKCQ, BKCQ, BT, BC",
        q=q,
        k=k,
        v=v,
        query_segments=query_segments,
        key_segments=key_segments,
    )
    T, C = q.shape[3], k.shape[2]
    of_queries, of_keys = (min(block or _block_of(n), n) for n in (T, C))
    behind, behind_keys = -T % of_queries, -C % of_keys
    places = _Places(
        query_segments=_padded(query_segments, 1, behind, _NO_QUERY),
        key_segments=_padded(key_segments, 1, behind_keys, _NO_KEY),
        start=jnp.asarray(start, jnp.int32),
    )
    k, v = (_padded(a, 2, behind_keys) for a in (k, v))
    out: jax.Array = _attend(_padded(q, 3, behind), k, v, places, (of_queries, of_keys))
    return out[:, :, :, :T]


def causal_with_sums(
    q: jax.Array, k: jax.Array, v: jax.Array, *, block: int | None = None
) -> tuple[jax.Array, jax.Array]:
    """The same of rows of one segment, with what merges it with attention to other keys.

    It has no gradient.

    Args:
      q: [B, K, R, T, Q] rotated queries.
      k: [B, K, T, Q] rotated keys.
      v: [B, K, T, Q] values.
      block: static; tokens of a block. None: as suits the rows.

    Returns:
      [B, K, R, T, Q] in q's dtype, and the log-sum-exp of the scores, [B, K, R, T] float32.
    """
    check("BKRTQ, BKTQ, BKTQ", q=q, k=k, v=v)
    B, T = len(q), q.shape[3]
    size = min(block or _block_of(T), T)
    behind = -T % size
    one = jnp.zeros((B, T + behind), jnp.int32)
    # What is behind the last token is seen by none before it.
    places = _Places(query_segments=one, key_segments=one, start=jnp.int32(0))
    k, v = (_padded(a, 2, behind) for a in (k, v))
    out, sums = _forward(_padded(q, 3, behind), k, v, places, (size, size))
    return out[:, :, :, :T], sums[:, :, :, :T]


def _block_of(num_tokens: int) -> int:
    """Tokens of a block: a quarter of a row, whose scores of a head stay in a core's cache and of
    which three eighths lie behind all queries; but not so few that the products are small.

    As measured on CPU; accelerators have kernels.
    """
    blocks = max(min(num_tokens // _SMALLEST, 4), -(-num_tokens // _LARGEST), 1)
    return -(-num_tokens // blocks // 8) * 8


def mean_columns(num_tokens: int) -> float:
    """Blocks of keys that a block of queries attends in rows of so many tokens, on average."""
    return (-(-num_tokens // _block_of(num_tokens)) + 1) / 2


def _padded(a: jax.Array, axis: int, behind: int, value: int = 0) -> jax.Array:
    if not behind:
        return a
    widths = [(0, 0)] * a.ndim
    widths[axis] = (0, behind)
    return jnp.pad(a, widths, constant_values=value)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attend(
    q: jax.Array, k: jax.Array, v: jax.Array, places: _Places, size: tuple[int, int]
) -> jax.Array:
    return _forward(q, k, v, places, size)[0]


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, places: _Places, size: tuple[int, int]
) -> tuple[jax.Array, jax.Array]:
    """Attention and the log-sum-exp of each query's scores, [B, K, R, T]."""
    of_queries, of_keys = size
    T, C = q.shape[3], k.shape[2]

    def rows(i: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        mine = _block(q, 3, i, of_queries)

        def step(j: jax.Array, so_far: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            peak, total, out = so_far
            scores = _scores(mine, _block(k, 2, j, of_keys), _seen(places, i, j, size))
            new_peak = jnp.maximum(peak, jnp.max(scores, axis=-1))
            weight = jnp.exp(scores - new_peak[..., None])
            shrink = jnp.exp(peak - new_peak)
            values = _block(v, 2, j, of_keys)
            new = jnp.einsum(
                "BKRTC,BKCQ->BKRTQ",
                weight.astype(v.dtype),
                values,
                preferred_element_type=jnp.float32,
            )
            total = total * shrink + jnp.sum(weight, axis=-1)
            return new_peak, total, out * shrink[..., None] + new

        peak = jnp.full(mine.shape[:-1], MASKED, jnp.float32)
        empty = peak, jnp.zeros_like(peak), jnp.zeros(mine.shape, jnp.float32)
        columns = _num_columns(places, i, C // of_keys, size)
        peak, total, out = jax.lax.fori_loop(0, columns, step, empty)
        return (out / total[..., None]).astype(q.dtype), peak + jnp.log(total)

    if T == of_queries:
        return rows(0)
    blocks, sums = jax.lax.map(rows, jnp.arange(T // of_queries))
    out = jnp.moveaxis(blocks, 0, 3).reshape(q.shape)  # blocks, tokens of one -> T
    return out, jnp.moveaxis(sums, 0, 3).reshape(q.shape[:-1])


def _attend_forward(
    q: jax.Array, k: jax.Array, v: jax.Array, places: _Places, size: tuple[int, int]
) -> tuple[jax.Array, tuple[Any, ...]]:
    found = _forward(q, k, v, places, size)
    out, logsumexp = (checkpoint_name(a, ATTENDED) for a in found)
    return out, (q, k, v, places, out, logsumexp)


def _attend_backward(
    size: tuple[int, int], kept: tuple[Any, ...], gradient: jax.Array
) -> tuple[Any, ...]:
    q, k, v, places, out, logsumexp = kept
    of_queries, of_keys = size
    T, C, Q = q.shape[3], k.shape[2], q.shape[4]
    weighed = jnp.sum(gradient.astype(jnp.float32) * out.astype(jnp.float32), axis=-1)

    def rows(
        of_kv: tuple[jax.Array, jax.Array], i: jax.Array | int
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        mine, mine_gradient = (_block(a, 3, i, of_queries) for a in (q, gradient))
        mine_sum, mine_weighed = (_block(a, 3, i, of_queries) for a in (logsumexp, weighed))
        # R, T -> N
        mine, mine_gradient = (a.reshape(*a.shape[:2], -1, Q) for a in (mine, mine_gradient))

        def by_query(keys: jax.Array, queries: jax.Array) -> jax.Array:
            """Keys by queries: XLA's CPU copies an operand of a product that is summed over its
            rows, and this way one of three products has such an operand and not two."""
            found = _product("BKCQ,BKNQ->BKCN", keys, queries)
            return found.reshape(*found.shape[:3], *mine_sum.shape[2:])  # N -> R, T

        def step(j: jax.Array, so_far: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            of_q, of_k, of_v = so_far
            keys, values = _block(k, 2, j, of_keys), _block(v, 2, j, of_keys)
            seen = _seen(places, i, j, size).swapaxes(1, 2)
            scores = by_query(keys, mine) * Q**-0.5
            scores = jnp.where(seen[:, None, :, None], scores, MASKED)
            weight = jnp.exp(scores - mine_sum[:, :, None])
            of_weight = by_query(values, mine_gradient)
            of_scores = weight * (of_weight - mine_weighed[:, :, None]) * Q**-0.5
            weight, of_scores = (
                a.astype(dtype).reshape(*a.shape[:3], -1)  # R, T -> N
                for a, dtype in ((weight, v.dtype), (of_scores, q.dtype))
            )
            of_q = of_q + _product("BKCN,BKCQ->BKNQ", of_scores, keys)
            add_k = _product("BKCN,BKNQ->BKCQ", of_scores, mine)
            add_v = _product("BKCN,BKNQ->BKCQ", weight, mine_gradient)
            return of_q, _add(of_k, add_k, j, of_keys), _add(of_v, add_v, j, of_keys)

        columns = _num_columns(places, i, C // of_keys, size)
        empty = jnp.zeros(mine.shape, jnp.float32), *of_kv
        of_q, *of_kv_after = jax.lax.fori_loop(0, columns, step, empty)
        of_q = of_q.reshape(*q.shape[:3], of_queries, Q)  # N -> R, T
        return (of_kv_after[0], of_kv_after[1]), of_q

    empty = jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32)
    if T == of_queries:
        (of_k, of_v), of_q = rows(empty, 0)
    else:
        (of_k, of_v), blocks = jax.lax.scan(rows, empty, jnp.arange(T // of_queries))
        of_q = jnp.moveaxis(blocks, 0, 3).reshape(q.shape)  # blocks, tokens of one -> T
    return of_q.astype(q.dtype), of_k.astype(k.dtype), of_v.astype(v.dtype), None


_attend.defvjp(_attend_forward, _attend_backward)


def _product(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


def _block(a: jax.Array, axis: int, index: jax.Array | int, size: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(a, index * size, size, axis)


def _add(a: jax.Array, new: jax.Array, index: jax.Array, size: int) -> jax.Array:
    """`a` with `new` added to its block of tokens, axis 2."""
    return jax.lax.dynamic_update_slice_in_dim(
        a, _block(a, 2, index, size) + new, index * size, axis=2
    )


def _scores(q: jax.Array, k: jax.Array, seen: jax.Array) -> jax.Array:
    scores = _product("BKRTQ,BKCQ->BKRTC", q, k) * q.shape[-1] ** -0.5
    return jnp.where(seen[:, None, None], scores, MASKED)


def _seen(
    places: _Places, i: jax.Array | int, j: jax.Array | int, size: tuple[int, int]
) -> jax.Array:
    """[B, queries of a block, keys of a block] bool."""
    of_queries, of_keys = size
    query = places.start + i * of_queries + jnp.arange(of_queries)
    key = j * of_keys + jnp.arange(of_keys)
    query_segments = _block(places.query_segments, 1, i, of_queries)
    key_segments = _block(places.key_segments, 1, j, of_keys)
    is_same = query_segments[:, :, None] == key_segments[:, None, :]
    return is_same & (query[:, None] >= key[None])[None]


def _num_columns(
    places: _Places, i: jax.Array | int, most: int, size: tuple[int, int]
) -> jax.Array | int:
    """Blocks of keys up to the last that a block of queries sees."""
    of_queries, of_keys = size
    if most == 1:
        return 1
    last = places.start + (i + 1) * of_queries - 1
    return jnp.minimum(last // of_keys + 1, most)

"""The jitted programs of the sampler: fill slots, decode a chunk of steps. They know no requests.

S slots, N steps of a chunk, E stop ids of a slot, R rows of a prefill, C cache length, D width.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import pytree_dataclass
from jaxrl_vr.losses.logprobs import scaled_logits
from jaxrl_vr.models.transformer import Cache, Model
from jaxrl_vr.sampler.token import SamplingValues, draw, logit_temperature


@pytree_dataclass
class Slots:
    """Everything the device knows of the completions in progress."""

    cache: Cache  # [S, K, C, Q] a layer
    hidden: jax.Array  # [S, D], state of the last token: what the next one is drawn from
    position: jax.Array  # [S] int32, tokens in the cache
    num_new: jax.Array  # [S] int32, completion tokens so far
    limit: jax.Array  # [S] int32, completion tokens at most
    is_live: jax.Array  # [S] bool
    keys: jax.Array  # [S, 2] uint32, key data of each request
    values: SamplingValues
    stop_ids: jax.Array  # [S, E] int32, padded with -1


@pytree_dataclass
class Admission:
    """New requests and the slots they go to; rows that fill nothing name slot S."""

    slot: jax.Array  # [S] int32
    row: jax.Array  # [S] int32, row of the prefill
    words: jax.Array  # [S, 4] uint32, (seed, step, prompt, sample)
    position: jax.Array  # [S] int32
    num_new: jax.Array  # [S] int32
    limit: jax.Array  # [S] int32
    values: SamplingValues
    stop_ids: jax.Array  # [S, E] int32


@pytree_dataclass
class Chunk:
    """What a chunk of decode steps emitted; a slot's tokens stand from column 0."""

    token: jax.Array  # [S, N] int32
    logp: jax.Array  # [S, N] float32
    kept_mass: jax.Array  # [S, N] float32
    count: jax.Array  # [S] int32, tokens emitted
    is_live: jax.Array  # [S] bool, whether the slot goes on
    is_stopped: jax.Array  # [S] bool, whether the last token was a stop id


def empty_slots(
    model: Model, num_slots: int, width: int, length: int, num_stop: int, dtype: Any
) -> Slots:
    """Slots that hold nothing, with a cache of `length` tokens."""
    S = num_slots
    zeros = jnp.zeros(S, jnp.int32)
    return Slots(
        cache=model.empty_cache(S, length),
        hidden=jnp.zeros((S, width), dtype),
        position=zeros,
        num_new=zeros,
        limit=zeros,
        is_live=jnp.zeros(S, bool),
        keys=jnp.zeros((S, 2), jnp.uint32),
        values=SamplingValues(
            temperature=jnp.ones(S), top_k=zeros, top_p=jnp.ones(S), min_p=jnp.zeros(S)
        ),
        stop_ids=jnp.full((S, num_stop), -1, jnp.int32),
    )


def resize(slots: Slots, length: int) -> Slots:
    """The same slots with a cache of `length` tokens; what lies behind is cut off."""

    def one(a: jax.Array) -> jax.Array:
        grown = max(0, length - a.shape[2])
        return jnp.pad(a, ((0, 0), (0, 0), (0, grown), (0, 0)))[:, :, :length]

    return dataclasses.replace(slots, cache=jax.tree.map(one, slots.cache))


def admit(slots: Slots, prefix: Cache, hidden: jax.Array, new: Admission) -> Slots:
    """Puts prefilled prompts into slots; several slots may take the same row.

    Args:
      slots: the slots before.
      prefix: [R, K, C', Q] a layer, C' at most the cache's length.
      hidden: [R, D], state of each row's last token.
      new: which row goes to which slot, and the requests' values.

    Returns:
      The slots after.
    """

    def put(target: jax.Array, value: jax.Array) -> jax.Array:
        return target.at[new.slot].set(value.astype(target.dtype), mode="drop")

    def put_prefix(target: jax.Array, rows: jax.Array) -> jax.Array:
        return target.at[new.slot, :, : rows.shape[2]].set(rows[new.row], mode="drop")

    return Slots(
        cache=jax.tree.map(put_prefix, slots.cache, prefix),
        hidden=put(slots.hidden, hidden[new.row]),
        position=put(slots.position, new.position),
        num_new=put(slots.num_new, new.num_new),
        limit=put(slots.limit, new.limit),
        is_live=put(slots.is_live, jnp.ones_like(new.slot, bool)),
        keys=put(slots.keys, jax.vmap(request_key)(new.words)),
        values=jax.tree.map(put, slots.values, new.values),
        stop_ids=put(slots.stop_ids, new.stop_ids),
    )


def request_key(words: jax.Array) -> jax.Array:
    """Key data of a request, [2] uint32, from its [4] words (seed, step, prompt, sample)."""
    key = jax.random.key(words[0])
    for word in (words[1], words[2], words[3]):
        key = jax.random.fold_in(key, word)
    return jax.random.key_data(key)


def release(slots: Slots, keep: jax.Array) -> Slots:
    """Ends the slots where `keep`, [S] bool, is false."""
    return dataclasses.replace(slots, is_live=slots.is_live & keep)


def decode_chunk(model: Model, view: Any, slots: Slots, num_steps: int) -> tuple[Slots, Chunk]:
    """Draws up to `num_steps` tokens in each live slot; ends early when none is live.

    Args:
      model: static.
      view: the sampler's parameters.
      slots: every live slot has room for `num_steps` more tokens in the cache.
      num_steps: static.

    Returns:
      The slots after, and what was emitted.
    """
    S = slots.position.shape[0]
    head = model.view_head(view)
    empty = Chunk(
        token=jnp.zeros((S, num_steps), jnp.int32),
        logp=jnp.zeros((S, num_steps)),
        kept_mass=jnp.zeros((S, num_steps)),
        count=jnp.zeros(S, jnp.int32),
        is_live=slots.is_live,
        is_stopped=jnp.zeros(S, bool),
    )

    def goes_on(carry: tuple[jax.Array, Slots, Chunk]) -> jax.Array:
        step, slots, _ = carry
        return (step < num_steps) & jnp.any(slots.is_live)

    def one(carry: tuple[jax.Array, Slots, Chunk]) -> tuple[jax.Array, Slots, Chunk]:
        step, slots, out = carry
        live = slots.is_live
        with jax.named_scope("draw"):
            logits = scaled_logits(slots.hidden, head, logit_temperature(slots.values))
            keys = jax.vmap(lambda data, n: jax.random.fold_in(jax.random.wrap_key_data(data), n))(
                slots.keys, slots.num_new
            )
            token, logp, kept_mass = draw(logits, keys, slots.values)
        is_stop = jnp.any(token[:, None] == slots.stop_ids, axis=1)
        num_new = slots.num_new + live
        goes_on = live & ~is_stop & (num_new < slots.limit)
        out = Chunk(
            token=out.token.at[:, step].set(token),
            logp=out.logp.at[:, step].set(logp),
            kept_mass=out.kept_mass.at[:, step].set(kept_mass),
            count=out.count + live,
            is_live=goes_on,
            is_stopped=out.is_stopped | (live & is_stop),
        )
        with jax.named_scope("decode"):
            hidden, cache = model.decode(view, token, slots.position, slots.cache)
        slots = dataclasses.replace(
            slots,
            cache=cache,
            hidden=hidden,
            # A slot that is done stays where it is: what it goes on writing is its own.
            position=slots.position + goes_on,
            num_new=num_new,
            is_live=goes_on,
        )
        return step + 1, slots, out

    _, slots, out = jax.lax.while_loop(goes_on, one, (jnp.int32(0), slots, empty))
    return slots, out

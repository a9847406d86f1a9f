"""The jitted programs of the sampler: prefill, fill slots, decode a chunk of steps.

They know no requests. S slots, R rows of a decode program, N steps of a chunk, E stop ids of a
slot, D width.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import pytree_dataclass
from jaxrl_vr.models.paged import DecodePlan, ExtendPlan, Pages
from jaxrl_vr.models.transformer import Model
from jaxrl_vr.sampler.support import SamplingValues
from jaxrl_vr.sampler.token import draw_next


@pytree_dataclass
class Slots:
    """What the device knows of the completions in progress, beside the pages."""

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
    kept: jax.Array  # [S] int32, which kept hidden state the first token is drawn from
    words: jax.Array  # [S, 4] uint32, (seed, step, prompt, sample)
    position: jax.Array  # [S] int32
    num_new: jax.Array  # [S] int32
    limit: jax.Array  # [S] int32
    values: SamplingValues
    stop_ids: jax.Array  # [S, E] int32


@pytree_dataclass
class Emitted:
    """What a chunk of decode steps emitted; a row's tokens stand from column 0."""

    token: jax.Array  # [R, N] int32
    logp: jax.Array  # [R, N] float32
    kept_mass: jax.Array  # [R, N] float32
    entropy: jax.Array | None  # [R, N] float32, if it is asked for
    count: jax.Array  # [R] int32, tokens emitted
    is_live: jax.Array  # [R] bool, whether the slot goes on
    is_stopped: jax.Array  # [R] bool, whether the last token was a stop id


def empty_slots(num_slots: int, width: int, num_stop: int, dtype: Any) -> Slots:
    """Slots that hold nothing."""
    S = num_slots
    zeros = jnp.zeros(S, jnp.int32)
    return Slots(
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


def extend(
    model: Model,
    view: Any,
    pages: Pages,
    kept: jax.Array,
    tokens: jax.Array,
    plan: ExtendPlan,
    row: jax.Array,
) -> tuple[Pages, jax.Array]:
    """Prefills a chunk of several texts and keeps the hidden states of their last tokens.

    Args:
      model: static.
      view: the sampler's parameters.
      pages: the cache.
      kept: hidden states, one a row.
      tokens: [N, T].
      plan: where they go.
      row: [N] where each row's hidden state goes; beyond `kept` it is dropped.

    Returns:
      The pages and the kept states after.
    """
    with jax.named_scope("prefill"):
        hidden, pages = model.extend(view, tokens, pages, plan)
    return pages, kept.at[row].set(hidden, mode="drop")


def admit(slots: Slots, kept: jax.Array, new: Admission) -> Slots:
    """Puts prefilled requests into slots.

    Args:
      slots: the slots before.
      kept: hidden states that prefill left, one a row.
      new: which goes to which slot, and the requests' values.

    Returns:
      The slots after.
    """

    @jax.named_scope("admit")
    def put(target: jax.Array, value: jax.Array) -> jax.Array:
        return target.at[new.slot].set(value.astype(target.dtype), mode="drop")

    return Slots(
        hidden=put(slots.hidden, kept[new.kept]),
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


def _next_key(data: jax.Array, num_new: jax.Array) -> jax.Array:
    """Key data of a request's next draw, [2], from the request's."""
    return jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(data), num_new))


def release(slots: Slots, keep: jax.Array) -> Slots:
    """Ends the slots where `keep`, [S] bool, is false."""
    return dataclasses.replace(slots, is_live=slots.is_live & keep)


def decode_chunk(
    model: Model,
    view: Any,
    slots: Slots,
    pages: Pages,
    rows: jax.Array,
    plan: DecodePlan,
    enough: jax.Array,
    num_steps: int,
    with_entropy: bool = False,
) -> tuple[Slots, Pages, Emitted]:
    """Draws up to `num_steps` tokens in each row; ends early when enough of them are done.

    Args:
      model: static.
      view: the sampler's parameters.
      slots: all slots.
      pages: the cache; every live slot of `rows` has room for `num_steps` more tokens.
      rows: [R] the slots to decode, all live; S for a row that decodes nothing.
      plan: which page holds what, by row.
      enough: scalar, slots done that end the chunk.
      num_steps: static.
      with_entropy: static; whether to keep the entropy of each token's distribution.

    Returns:
      The slots and the pages after, and what was emitted.
    """
    R, S = len(rows), len(slots.position)
    head = model.view_head(view)
    mine = jax.tree.map(lambda a: a[jnp.minimum(rows, S - 1)], slots)
    mine = dataclasses.replace(mine, is_live=mine.is_live & (rows < S))
    num_live = jnp.sum(mine.is_live)
    empty = Emitted(
        token=jnp.zeros((R, num_steps), jnp.int32),
        logp=jnp.zeros((R, num_steps)),
        kept_mass=jnp.zeros((R, num_steps)),
        entropy=jnp.zeros((R, num_steps)) if with_entropy else None,
        count=jnp.zeros(R, jnp.int32),
        is_live=mine.is_live,
        is_stopped=jnp.zeros(R, bool),
    )

    def goes_on(carry: tuple[jax.Array, Slots, Pages, Emitted]) -> jax.Array:
        step, slots, _, _ = carry
        left = jnp.sum(slots.is_live)
        return (step < num_steps) & (left > 0) & (num_live - left < enough)

    def one(
        carry: tuple[jax.Array, Slots, Pages, Emitted],
    ) -> tuple[jax.Array, Slots, Pages, Emitted]:
        step, slots, pages, out = carry

        def put(columns: jax.Array, column: jax.Array) -> jax.Array:
            return columns.at[:, step].set(column)

        live = slots.is_live
        with jax.named_scope("draw"):
            drawn = draw_next(
                slots.hidden,
                head,
                jax.vmap(_next_key)(slots.keys, slots.num_new),
                slots.values,
                model.vocab_size,
                plan.num_parts,
                with_entropy,
            )
        is_stop = jnp.any(drawn.token[:, None] == slots.stop_ids, axis=1)
        num_new = slots.num_new + live
        goes_on = live & ~is_stop & (num_new < slots.limit)
        out = Emitted(
            token=put(out.token, drawn.token),
            logp=put(out.logp, drawn.logp),
            kept_mass=put(out.kept_mass, drawn.kept_mass),
            entropy=jax.tree.map(put, out.entropy, drawn.entropy),
            count=out.count + live,
            is_live=goes_on,
            is_stopped=out.is_stopped | (live & is_stop),
        )
        with jax.named_scope("decode"):
            hidden, pages = model.decode(view, drawn.token, slots.position, pages, plan)
        slots = dataclasses.replace(
            slots,
            hidden=hidden,
            # A slot that is done goes on writing behind its last token, where nobody looks.
            position=slots.position + live,
            num_new=num_new,
            is_live=goes_on,
        )
        return step + 1, slots, pages, out

    _, mine, pages, out = jax.lax.while_loop(goes_on, one, (jnp.int32(0), mine, pages, empty))
    slots = jax.tree.map(lambda a, b: a.at[rows].set(b, mode="drop"), slots, mine)
    return slots, pages, out

"""Where top-k, top-p and min-p cut the support of a draw.

The smallest logit that stays is looked for bit by bit, each time by a count or a mass of what lies
above. On CPU that takes a fifth of the time of sorting the vocabulary, it needs no array of its
size but one, and devices that split a vocabulary exchange no logits but a number a slot for each of
the 32 bits.

S slots, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_vr.arrays import check, pytree_dataclass

Summed = Callable[[jax.Array], jax.Array]
"""The sum over the devices that split the vocabulary."""

_SIGN = np.uint32(1 << 31)


@pytree_dataclass
class SamplingValues:
    """Sampling values of each slot; `types.Sampling` says what they mean."""

    temperature: jax.Array  # [S] float32; 0 is greedy
    top_k: jax.Array  # [S] int32; 0 is off
    top_p: jax.Array  # [S] float32; 1 is off
    min_p: jax.Array  # [S] float32; 0 is off


@pytree_dataclass
class Asked:
    """Scalars that say whether any slot asks for it, of all devices together: these exchange
    something in the branches that they choose, so all have to choose the same."""

    is_cut: jax.Array
    has_top_k: jax.Array
    has_top_p: jax.Array
    is_greedy: jax.Array


def asked_of(values: SamplingValues) -> Asked:
    """What the slots of these values ask for."""
    return Asked(
        is_cut=jnp.any(cuts(values)),
        has_top_k=jnp.any(values.top_k > 0),
        has_top_p=jnp.any(values.top_p < 1),
        is_greedy=jnp.any(values.temperature <= 0),
    )


def cuts(values: SamplingValues) -> jax.Array:
    """[S], whether a slot cuts its support."""
    return (values.top_k > 0) | (values.top_p < 1) | (values.min_p > 0)


def smallest_kept(
    logits: jax.Array,
    peak: jax.Array,
    values: SamplingValues,
    asked: Asked,
    size: int,
    summed: Summed,
) -> jax.Array:
    """The logit from which on a token may be drawn; tokens tied with the last one stay.

    Args:
      logits: [S, V] float32, or a device's part of them.
      peak: [S], the largest of the whole, which always stays.
      values: where to cut.
      asked: of all devices.
      size: words of the whole.
      summed: over the devices.

    Returns:
      [S] float32; -inf where nothing is cut.
    """
    check("SV, S", logits=logits, peak=peak)
    top, everything = _order(peak), jnp.full_like(peak, -jnp.inf)
    has_top_k, has_top_p = values.top_k > 0, values.top_p < 1
    top_k = jnp.where(has_top_k, values.top_k, size + 1)

    def above(level: jax.Array, weight: jax.Array | float) -> jax.Array:
        return summed(jnp.sum(jnp.where(logits > level[:, None], weight, 0), axis=1))

    def by_count() -> jax.Array:
        return _search(lambda level: above(level, 1.0) < top_k, _order(everything), top)

    def by_mass() -> jax.Array:
        mass = jnp.exp(logits - peak[:, None])
        # Of tokens tied at its end, top-k counts no more than k.
        tied = (top_k - above(last, 1.0)) * jnp.exp(last - peak)
        total = above(last, mass) + jnp.where(has_top_k, tied, 0.0)
        enough = values.top_p * total
        return _search(lambda level: above(level, mass) < enough, _order(last), top)

    with jax.named_scope("top_k"):
        last = jax.lax.cond(asked.has_top_k, by_count, lambda: everything)
    with jax.named_scope("top_p"):
        least = jax.lax.cond(asked.has_top_p, by_mass, lambda: last)
    floor = peak + jnp.log(values.min_p)  # log 0 = -inf: off
    return jnp.maximum(jnp.where(has_top_p, least, last), floor)


def _search(
    is_enough: Callable[[jax.Array], jax.Array], low: jax.Array, high: jax.Array
) -> jax.Array:
    """The smallest float32 that is enough, [S], between two places in their order; the higher one
    is, and so is all above one that is."""

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        found = is_enough(_at(middle))
        return jnp.where(found, low, middle + 1), jnp.where(found, middle, high)

    return _at(jax.lax.fori_loop(0, 32, halve, (low, high))[1])


def _order(x: jax.Array) -> jax.Array:
    """Place of each float32 among all, uint32."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits >= _SIGN, ~bits, bits | _SIGN)


def _at(place: jax.Array) -> jax.Array:
    """The float32 at a place."""
    bits = jnp.where(place >= _SIGN, place ^ jnp.uint32(_SIGN), ~place)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)

"""Drawing one token a slot from its logits, all sampling values traced.

S slots, V vocabulary.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import check, pytree_dataclass
from jaxrl_vr.losses.logprobs import token_logprob

# Width of the blocks of the two-level draw. A running sum over all of a large vocabulary loses
# the small probabilities to rounding; over a block of this width it does not.
_BLOCK = 256
_CUT = -1e30


@pytree_dataclass
class SamplingValues:
    """Sampling values of each slot; `types.Sampling` says what they mean."""

    temperature: jax.Array  # [S] float32; 0 is greedy
    top_k: jax.Array  # [S] int32; 0 is off
    top_p: jax.Array  # [S] float32; 1 is off
    min_p: jax.Array  # [S] float32; 0 is off


def logit_temperature(values: SamplingValues) -> jax.Array:
    """What the logits are divided by: greedy slots report the log-probs of temperature 1."""
    return jnp.where(values.temperature > 0, values.temperature, 1.0)


def draw(
    logits: jax.Array, keys: jax.Array, values: SamplingValues
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draws a token from each slot's distribution.

    Args:
      logits: [S, V] float32, already over temperature.
      keys: [S] PRNG keys, one a draw.
      values: sampling values; the support is cut by top-k, then top-p and min-p.

    Returns:
      token [S] int32, its untruncated log-prob [S] float32, and the log of the kept probability
      mass [S] float32, 0 where the support is uncut.
    """
    check("SV, S", logits=logits, keys=keys)
    V = logits.shape[1]
    cuts = (values.top_k > 0) | (values.top_p < 1) | (values.min_p > 0)

    def cut(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
        kept = jnp.where(_support(logits, values), logits, _CUT)
        mass = jax.nn.logsumexp(kept, axis=1) - jax.nn.logsumexp(logits, axis=1)
        return kept, jnp.where(cuts, mass, 0.0)

    def uncut(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
        return logits, jnp.zeros(logits.shape[:1], logits.dtype)

    # Sorting the vocabulary costs more than all else here, so only where a slot asks for it.
    kept, mass = jax.lax.cond(jnp.any(cuts), cut, uncut, logits)
    drawn = _inverse_cdf(kept, keys)
    is_greedy = values.temperature <= 0
    token = jax.lax.cond(
        jnp.any(is_greedy),
        lambda: jnp.where(is_greedy, jnp.argmax(logits, axis=1), drawn),
        lambda: drawn,
    )
    token = jnp.minimum(token, V - 1).astype(jnp.int32)
    return token, token_logprob(logits, token), mass


def _support(logits: jax.Array, values: SamplingValues) -> jax.Array:
    """[S, V] bool, true where a token may be drawn; tokens tied with the last kept one stay."""
    V = logits.shape[1]
    ordered = jnp.sort(logits, axis=1, descending=True)
    rank = jnp.arange(V)[None]
    top_k = jnp.where(values.top_k > 0, values.top_k, V)[:, None]
    probs = jax.nn.softmax(jnp.where(rank < top_k, ordered, _CUT), axis=1)
    before = jnp.cumsum(probs, axis=1) - probs
    is_kept = (rank < top_k) & ((before < values.top_p[:, None]) | (values.top_p[:, None] >= 1))
    # The most likely token always stays, whatever top-p is.
    count = jnp.maximum(jnp.sum(is_kept, axis=1), 1)
    last = jnp.take_along_axis(ordered, (count - 1)[:, None], axis=1)
    floor = ordered[:, :1] + jnp.log(values.min_p)[:, None]  # log 0 = -inf: off
    return (logits >= last) & (logits >= floor)


def _inverse_cdf(logits: jax.Array, keys: jax.Array) -> jax.Array:
    """A block by its sum, then a token in the block: two uniforms a draw instead of V."""
    S, V = logits.shape
    probs = jnp.exp(logits - jnp.max(logits, axis=1, keepdims=True))
    probs = jnp.pad(probs, ((0, 0), (0, -V % _BLOCK)))
    blocks = probs.reshape(S, -1, _BLOCK)  # V -> blocks, width
    uniform = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)
    block = _first_above(jnp.sum(blocks, axis=2), uniform[:, 0])
    inside = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    return block * _BLOCK + _first_above(inside, uniform[:, 1])


def _first_above(mass: jax.Array, uniform: jax.Array) -> jax.Array:
    """Index, among those with any mass, where its running sum first exceeds uniform x total.

    Where rounding makes the product the total itself, the last index with any mass.
    """
    running = jnp.cumsum(mass, axis=1)
    has_mass = mass > 0
    # Not every backend sums in order: a rounded running sum can step at an index without mass.
    is_above = (running > uniform[:, None] * running[:, -1:]) & has_mass
    last = mass.shape[1] - 1 - jnp.argmax(has_mass[:, ::-1], axis=1)
    return jnp.where(jnp.any(is_above, axis=1), jnp.argmax(is_above, axis=1), last)

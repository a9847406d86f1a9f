"""Drawing one token a slot from its logits, all sampling values traced.

S slots, V vocabulary.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import check, pytree_dataclass

# Width of the blocks of the two-level draw: that of a TPU's vector registers, and a divisor of the
# common vocabularies; others are padded.
_BLOCK = 128
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
    peak = jnp.max(logits, axis=1)
    # Behind a barrier, or compilers take the total from the logits, exponentials and all.
    sums = jax.lax.optimization_barrier(_block_sums(logits, peak))
    total = jnp.sum(sums, axis=1)
    noise = jax.vmap(lambda key: jax.random.gumbel(key, (sums.shape[1] + _BLOCK,)))(keys)
    cuts = (values.top_k > 0) | (values.top_p < 1) | (values.min_p > 0)

    def cut() -> tuple[jax.Array, jax.Array, jax.Array]:
        kept = jnp.where(_support(logits, values), logits, _CUT)
        kept_sums = _block_sums(kept, peak)  # the most likely token always stays
        mass = jnp.log(jnp.sum(kept_sums, axis=1)) - jnp.log(total)
        return *_pick(kept, peak, kept_sums, noise), jnp.where(cuts, mass, 0.0)

    def uncut() -> tuple[jax.Array, jax.Array, jax.Array]:
        return *_pick(logits, peak, sums, noise), jnp.zeros_like(total)

    # Sorting the vocabulary costs more than all else here, so only where a slot asks for it.
    token, above, mass = jax.lax.cond(jnp.any(cuts), cut, uncut)
    is_greedy = values.temperature <= 0
    token = jax.lax.cond(
        jnp.any(is_greedy),
        lambda: jnp.where(is_greedy, jnp.argmax(logits, axis=1).astype(jnp.int32), token),
        lambda: token,
    )
    # The same difference as in `losses.logprobs.token_logprob`, from sums that are there already.
    return token, jnp.where(is_greedy, 0.0, above) - jnp.log(total), mass


def logits_entropy(logits: jax.Array) -> jax.Array:
    """Entropy of each slot's uncut distribution in nats, [S] float32, from [S, V] logits."""
    above = logits - jnp.max(logits, axis=1, keepdims=True)
    mass = jnp.exp(above)
    total = jnp.sum(mass, axis=1)
    return jnp.log(total) - jnp.sum(mass * above, axis=1) / total


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


def _blocks(logits: jax.Array) -> jax.Array:
    """[S, V] -> [S, blocks, width], padded with what has no mass."""
    S, V = logits.shape
    padded = jnp.pad(logits, ((0, 0), (0, -V % _BLOCK)), constant_values=-jnp.inf)
    return padded.reshape(S, -1, _BLOCK)


def _block_sums(logits: jax.Array, peak: jax.Array) -> jax.Array:
    """[S, blocks] sums of exp(logit - peak); the exponentials themselves are not kept."""
    return jnp.sum(jnp.exp(_blocks(logits) - peak[:, None, None]), axis=2)


def _pick(
    logits: jax.Array, peak: jax.Array, sums: jax.Array, noise: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """A block by its sum, then a token in the block, each where logit + Gumbel noise is largest.

    A small change of the logits, such as rounding makes, then hardly ever changes a token. Drawn
    where a running sum exceeds a uniform, many would: each logit moves the borders of all tokens
    behind it.

    Args:
      logits: [S, V].
      peak: [S], the largest of them.
      sums: [S, blocks], from `_block_sums`.
      noise: [S, blocks + width] Gumbel.

    Returns:
      token [S] int32, and its logit less the peak, [S].
    """
    of_block, of_token = noise[:, : sums.shape[1]], noise[:, sums.shape[1] :]
    block = jnp.argmax(jnp.log(sums) + of_block, axis=1)
    inside = jnp.take_along_axis(_blocks(logits), block[:, None, None], axis=1)[:, 0]
    above = inside - peak[:, None]
    index = jnp.argmax(above + of_token, axis=1)
    token = jnp.minimum(block * _BLOCK + index, logits.shape[1] - 1).astype(jnp.int32)
    return token, jnp.take_along_axis(above, index[:, None], axis=1)[:, 0]

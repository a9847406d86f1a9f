"""Drawing one token a slot from its logits, all sampling values traced.

S slots, V vocabulary, D width. The vocabulary may be split over a mesh axis: each device then draws
from its own part, and the best of the parts is the token, the same as from the whole.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxrl_vr.arrays import check, pytree_dataclass
from jaxrl_vr.losses.logprobs import scaled_logits
from jaxrl_vr.sampler.support import Asked, SamplingValues, asked_of, cuts, smallest_kept
from jaxrl_vr.sharding import SAMPLE_RULES, current_mesh, entry

BLOCK = 128
"""Width of the blocks of the two-level draw: that of a TPU's vector registers, and a divisor of the
common vocabularies; others are padded."""
_CUT = -1e30


@pytree_dataclass
class Drawn:
    """A token a slot and what its distribution says of it."""

    token: jax.Array  # [S] int32
    logp: jax.Array  # [S] float32, its untruncated log-prob
    kept_mass: jax.Array  # [S] float32, log of the kept probability mass; 0 where it is uncut
    entropy: jax.Array | None  # [S] float32, nats of the uncut distribution, if it is asked for


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The part of the vocabulary that a device draws from.

    Attributes:
      size: words of the whole; rows of the logits behind them are padding.
      axis: mesh axis that splits it; None where the device has all of it.
    """

    size: int
    axis: str | None = None

    def max(self, of_part: jax.Array) -> jax.Array:
        """Of the whole, from that of each part."""
        return of_part if self.axis is None else jax.lax.pmax(of_part, self.axis)

    def sum(self, of_part: jax.Array) -> jax.Array:
        """Of the whole, from that of each part."""
        return of_part if self.axis is None else jax.lax.psum(of_part, self.axis)

    def first(self, size: int) -> jax.Array | int:
        """Index in the whole of the first of a part's `size` things."""
        return 0 if self.axis is None else jax.lax.axis_index(self.axis) * size

    def best(
        self, score: jax.Array, token: jax.Array, above: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Token and its logit less the peak, [S] each, from the part with the largest score."""
        if self.axis is None:
            return token, above
        # In one array, for one collective; a float32 holds integers below 2^24.
        mine = jnp.stack([score, token.astype(jnp.float32), above])
        parts = jax.lax.all_gather(mine, self.axis)
        best = jnp.argmax(parts[:, 0], axis=0)[None, None]
        _, token_of, above_of = jnp.take_along_axis(parts, best, axis=0)[0]
        return token_of.astype(jnp.int32), above_of


def padded_vocabulary(size: int, parts: int) -> int:
    """Rows of a head that is split into parts of whole blocks; as they are where it is not.

    >>> padded_vocabulary(1000, 4), padded_vocabulary(1000, 1)
    (1024, 1000)
    """
    return size if parts == 1 else size + -size % (BLOCK * parts)


def draw_next(
    hidden: jax.Array,
    head: jax.Array,
    key_data: jax.Array,
    values: SamplingValues,
    vocab_size: int,
    num_parts: int = 1,
    with_entropy: bool = False,
) -> Drawn:
    """Draws from hidden states, on each device for its own slots and its part of the vocabulary.

    Args:
      hidden: [S, D].
      head: [V, D], padded by `padded_vocabulary` where the mesh that is set splits it.
      key_data: [S, 2] uint32, one key a draw.
      values: sampling values.
      vocab_size: of the model.
      num_parts: static; parts of the slots on different devices.
      with_entropy: static.
    """
    asked = asked_of(values)

    def local(
        hidden: jax.Array,
        head: jax.Array,
        key_data: jax.Array,
        values: SamplingValues,
        asked: Asked,
    ) -> Drawn:
        with jax.named_scope("head"):
            logits = scaled_logits(hidden, head, logit_temperature(values))
        keys = jax.random.wrap_key_data(key_data)
        return draw(logits, keys, values, vocabulary, with_entropy, asked)

    mesh = current_mesh()
    arguments = hidden, head, key_data, values, asked
    if mesh is None or mesh.size == 1:
        vocabulary = Vocabulary(vocab_size)
        return local(*arguments)
    axis = entry("vocab", len(head), SAMPLE_RULES, mesh)
    assert axis is None or isinstance(axis, str), f"the vocabulary is split over {axis}"
    vocabulary = Vocabulary(vocab_size, axis)
    slots = PartitionSpec(entry("slots", num_parts, SAMPLE_RULES, mesh))
    whole = PartitionSpec()
    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(slots, PartitionSpec(axis), slots, slots, whole),
        out_specs=slots,
        check_vma=False,
    )(*arguments)


def logit_temperature(values: SamplingValues) -> jax.Array:
    """What the logits are divided by: greedy slots report the log-probs of temperature 1."""
    return jnp.where(values.temperature > 0, values.temperature, 1.0)


def draw(
    logits: jax.Array,
    keys: jax.Array,
    values: SamplingValues,
    vocabulary: Vocabulary | None = None,
    with_entropy: bool = False,
    asked: Asked | None = None,
) -> Drawn:
    """Draws a token from each slot's distribution.

    Args:
      logits: [S, V] float32, already over temperature; of a split vocabulary this device's part.
      keys: [S] PRNG keys, one a draw.
      values: sampling values; the support is cut by top-k, then top-p and min-p.
      vocabulary: how it is split; default: not at all.
      with_entropy: static.
      asked: what any slot of any device asks for; default: by `values`.
    """
    check("SV, S", logits=logits, keys=keys)
    vocabulary = vocabulary or Vocabulary(logits.shape[1])
    asked = asked or asked_of(values)
    logits = _without_padding(logits, vocabulary)
    peak = vocabulary.max(jnp.max(logits, axis=1))
    # Behind a barrier, or compilers take the total from the logits, exponentials and all.
    sums = jax.lax.optimization_barrier(_block_sums(logits, peak))
    total = vocabulary.sum(jnp.sum(sums, axis=1))
    noise = _noise(keys, sums.shape[1], vocabulary)

    def cut() -> tuple[jax.Array, jax.Array, jax.Array]:
        smallest = smallest_kept(logits, peak, values, asked, vocabulary.size, vocabulary.sum)
        kept = jnp.where(logits >= smallest[:, None], logits, _CUT)
        kept_sums = _block_sums(kept, peak)  # the most likely token always stays
        mass = jnp.log(vocabulary.sum(jnp.sum(kept_sums, axis=1))) - jnp.log(total)
        picked = _pick(kept, peak, kept_sums, noise, vocabulary)
        return *picked, jnp.where(cuts(values), mass, 0.0)

    def uncut() -> tuple[jax.Array, jax.Array, jax.Array]:
        return *_pick(logits, peak, sums, noise, vocabulary), jnp.zeros_like(total)

    def largest() -> tuple[jax.Array, jax.Array]:
        index = jnp.argmax(logits, axis=1).astype(jnp.int32)
        first = index + vocabulary.first(logits.shape[1])
        likeliest, _ = vocabulary.best(jnp.max(logits, axis=1), first, peak)
        greedy = values.temperature <= 0
        return jnp.where(greedy, likeliest, token), jnp.where(greedy, 0.0, above)

    # The search goes over the vocabulary many times, so only where a slot asks for it.
    with jax.named_scope("cut"):
        token, above, mass = jax.lax.cond(asked.is_cut, cut, uncut)
    with jax.named_scope("greedy"):
        token, above = jax.lax.cond(asked.is_greedy, largest, lambda: (token, above))
    # The same difference as in `losses.logprobs.token_logprob`, from sums that are there already.
    entropy = _entropy(logits - peak[:, None], total, vocabulary) if with_entropy else None
    return Drawn(token, above - jnp.log(total), mass, entropy)


def _without_padding(logits: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    V = logits.shape[1]
    if vocabulary.axis is None:
        return logits
    is_word = vocabulary.first(V) + jnp.arange(V) < vocabulary.size
    # Behind a barrier: fused with this, the product that makes them takes a quarter longer on v5e.
    return jnp.where(is_word[None], jax.lax.optimization_barrier(logits), -jnp.inf)


def _noise(keys: jax.Array, num_blocks: int, vocabulary: Vocabulary) -> tuple[jax.Array, jax.Array]:
    """Gumbel noise of this part's blocks, [S, blocks], and of the tokens of a block, [S, width].

    What a block gets does not depend on how the vocabulary is split.
    """
    blocks = -(-vocabulary.size // BLOCK)
    noise = jax.vmap(lambda key: jax.random.gumbel(key, (blocks + BLOCK,)))(keys)
    of_block, of_token = noise[:, :blocks], noise[:, blocks:]
    if vocabulary.axis is None:
        return of_block, of_token
    parts = jax.lax.axis_size(vocabulary.axis)
    of_block = jnp.pad(of_block, ((0, 0), (0, num_blocks * parts - blocks)))
    first = vocabulary.first(num_blocks)
    return jax.lax.dynamic_slice_in_dim(of_block, first, num_blocks, axis=1), of_token


def _entropy(above: jax.Array, total: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    """Nats of each slot's uncut distribution, [S], from logits less the peak, [S, V]."""
    mass = jnp.exp(above)
    # Of padding and of words that cannot come, 0 and not 0 x -inf.
    weighed = jnp.where(mass > 0, mass * above, 0.0)
    return jnp.log(total) - vocabulary.sum(jnp.sum(weighed, axis=1)) / total


def _blocks(logits: jax.Array) -> jax.Array:
    """[S, V] -> [S, blocks, width], padded with what has no mass."""
    S, V = logits.shape
    padded = jnp.pad(logits, ((0, 0), (0, -V % BLOCK)), constant_values=-jnp.inf)
    return padded.reshape(S, -1, BLOCK)


def _block_sums(logits: jax.Array, peak: jax.Array) -> jax.Array:
    """[S, blocks] sums of exp(logit - peak); the exponentials themselves are not kept."""
    return jnp.sum(jnp.exp(_blocks(logits) - peak[:, None, None]), axis=2)


def _pick(
    logits: jax.Array,
    peak: jax.Array,
    sums: jax.Array,
    noise: tuple[jax.Array, jax.Array],
    vocabulary: Vocabulary,
) -> tuple[jax.Array, jax.Array]:
    """A block by its sum, then a token in the block, each where logit + Gumbel noise is largest.

    A small change of the logits, such as rounding makes, then hardly ever changes a token. Drawn
    where a running sum exceeds a uniform, many would: each logit moves the borders of all tokens
    behind it.

    Args:
      logits: [S, V], of this device's part.
      peak: [S], the largest of the whole.
      sums: [S, blocks], from `_block_sums`.
      noise: of blocks and of the tokens of one.
      vocabulary: how it is split.

    Returns:
      token [S] int32, and its logit less the peak, [S].
    """
    of_block, of_token = noise
    scores = jnp.log(sums) + of_block
    block = jnp.argmax(scores, axis=1)
    inside = jnp.take_along_axis(_blocks(logits), block[:, None, None], axis=1)[:, 0]
    above = inside - peak[:, None]
    index = jnp.argmax(above + of_token, axis=1)
    token = jnp.minimum(block * BLOCK + index, logits.shape[1] - 1).astype(jnp.int32)
    token = token + vocabulary.first(logits.shape[1])
    drawn = jnp.take_along_axis(above, index[:, None], axis=1)[:, 0]
    return vocabulary.best(jnp.max(scores, axis=1), token, drawn)

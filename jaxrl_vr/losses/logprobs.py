"""Log-probs and entropy of tokens, from hidden states and the LM head.

The sampler and the learner both take their log-probs from here: log_softmax(logits / T), from a
float32 product with explicit precision.

N tokens, R shards of them, D model width, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import check, constant_of

# Logits of one chunk: 2**24 float32 values are 64 MiB, small beside a model. Fewer than 512 tokens
# leave a matrix unit short of work and read the head too often: at a vocabulary of 152k, 110 take
# 2.4 times the cycles of 512 on a v5e, by its compiler, and no less memory (benchmarks/losses.py).
_CHUNK_ELEMENTS = 2**24
_CHUNK_TOKENS = 512
_BLOCK = 32  # words that are summed one after another
_BRANCHES = 8  # of a program, for as many counts of wanted tokens


def scaled_logits(hidden: jax.Array, head: jax.Array, temperature: jax.Array) -> jax.Array:
    """Logits over temperature, in float32.

    Args:
      hidden: [N, D] final hidden states.
      head: [V, D] LM head.
      temperature: [N] float32, above 0.

    Returns:
      [N, V] float32.

    >>> scaled_logits(jnp.eye(2), jnp.array([[2.0, 0.0]]), jnp.array([1.0, 2.0])).tolist()
    [[2.0], [0.0]]
    """
    check("ND, VD, N", hidden=hidden, head=head, temperature=temperature)
    # JAX's default float32 product is reduced on TPU and may be TF32 on GPU.
    logits = jnp.einsum(
        "ND,VD->NV",
        hidden,
        head,
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    return logits / temperature[:, None]


def token_logprob(logits: jax.Array, token: jax.Array) -> jax.Array:
    """Log-prob of one token a row: logits at the token less their log-sum-exp.

    Args:
      logits: [N, V] float32, already over temperature.
      token: [N] int32.

    Returns:
      [N] float32.

    >>> print(token_logprob(jnp.zeros((1, 4)), jnp.array([2])).round(4))
    [-1.3863]
    """
    check("NV, N", logits=logits, token=token)
    above = _above(logits, jax.lax.stop_gradient(jnp.max(logits, axis=1)))
    chosen = jnp.sum(_only(above, jnp.asarray(token)), axis=1)
    return chosen - jnp.log(jnp.sum(jnp.exp(above), axis=1))


def token_logprobs(
    hidden: jax.Array,
    head: jax.Array,
    token: jax.Array,
    temperature: jax.Array,
    mask: jax.Array | None = None,
    *,
    chunk: int | None = None,
    shards: int = 1,
    kept_logits: int = 0,
) -> tuple[jax.Array, jax.Array]:
    """Log-prob of each token and entropy of its distribution; no `[N, V]` that is not small.

    log p_n = z_n[token_n] - logsumexp(z_n), H_n = logsumexp(z_n) - sum_v p_nv z_nv, with
    z = hidden head^T / T, a chunk of tokens at a time. The backward pass computes each chunk's
    logits again, unless `kept_logits` says otherwise, so that memory does not grow with N times V;
    the head's gradient accumulates in float32. Masked-out tokens are moved behind the others, and
    chunks of them are skipped: in RL most tokens are prompt, and the head can be a quarter of the
    model.

    Args:
      hidden: [N, D] final hidden states.
      head: [V, D] LM head.
      token: [N] int32.
      temperature: [N] float32, above 0; carries no gradient.
      mask: [N] bool, true where a log-prob is wanted; elsewhere both results are 0, without
        gradient. None: everywhere.
      chunk: tokens of a shard at a time; None: as many as keep a chunk's logits near 64 MiB,
        512 at least.
      shards: equal contiguous parts of the N tokens, each moved, cut and summed by itself. Set it
        to the number of devices that the tokens are split over: each then works on its own part,
        and the head's gradient crosses the network once.
      kept_logits: where those of a shard, its tokens in whole chunks times V, are no more, the
        backward pass is left them all (float32) instead of computing them again, which spares a
        quarter of the head's products, and the chunks with wanted tokens are taken at once.

    Returns:
      logp [N] float32 and entropy [N] float32 in nats.

    Raises:
      ValueError: shapes differ, or N is no multiple of `shards`.

    >>> logp, entropy = token_logprobs(
    ...     jnp.zeros((1, 2)), jnp.ones((4, 2)), jnp.array([0]), jnp.ones(1))
    >>> print(logp.round(4), entropy.round(4))
    [-1.3863] [1.3863]
    """
    sizes = check(
        "ND, VD, N, N, N", hidden=hidden, head=head, token=token, temperature=temperature, mask=mask
    )
    num_tokens = sizes["N"]
    if num_tokens % shards:
        raise ValueError(
            f"shards = {shards} does not divide the {num_tokens} tokens; pad them, or lower shards"
        )
    part = num_tokens // shards
    if chunk is None:
        chunk = max(_CHUNK_TOKENS, _CHUNK_ELEMENTS // sizes["V"])
    chunk = max(1, min(chunk, part))
    is_wanted = jnp.ones(num_tokens, bool) if mask is None else jnp.asarray(mask)
    arrays = (hidden, token, temperature, is_wanted)
    split = [jnp.asarray(a).reshape(shards, part, *a.shape[1:]) for a in arrays]  # N -> R, n
    # Wanted tokens first, in their order; in the place of the others, as of the padding to whole
    # chunks, an index out of bounds: zeros are read there, so that no value of theirs, NaN maybe,
    # meets a product with 0 in the backward pass.
    order = jnp.argsort(~split[3], axis=1, stable=True)
    order = jnp.where(jnp.take_along_axis(split[3], order, axis=1), order, part)
    order = jnp.pad(order, ((0, 0), (0, -part % chunk)), constant_values=part)
    filled = [jax.vmap(_take_or_zero)(a, order) for a in split]
    filled[2] = jnp.where(filled[3], filled[2], 1.0)  # padding divides by it
    # In shard_map the head is the same on every device, and its gradient, as all that `_chunked`
    # returns, differs like the tokens: as a product with such a 1 it has the gradient's type, and
    # JAX adds the gradients of the devices up.
    differing = jax.lax.stop_gradient((*filled, head))
    hidden, head, temperature = (
        x * constant_of(1, x.dtype, *differing) for x in (filled[0], head, filled[2])
    )
    keep = 0 < order.shape[1] * sizes["V"] <= kept_logits
    outputs: Any = _chunked(hidden, head, filled[1], temperature, filled[3], chunk, keep)
    back = jnp.zeros((shards, part), jnp.float32)
    logp, entropy = (jax.vmap(_put_or_drop)(back, order, a).reshape(-1) for a in outputs)
    return logp, entropy


def _take_or_zero(array: jax.Array, order: jax.Array) -> jax.Array:
    return array.at[order].get(mode="fill", fill_value=0)


def _put_or_drop(array: jax.Array, order: jax.Array, values: jax.Array) -> jax.Array:
    return array.at[order].set(values, mode="drop")


def _above(logits: jax.Array, peak: jax.Array) -> jax.Array:
    """[N, V] logits less each row's largest.

    Differences of these and the log-sum-exp of them keep the digits of likely tokens and of small
    entropies, which are lost beside large logits.
    """
    return logits - peak[:, None]


def _is_token(logits: jax.Array, token: jax.Array) -> jax.Array:
    """[N, V] bool, true at the token."""
    return jax.lax.broadcasted_iota(token.dtype, logits.shape, 1) == token[:, None]


def _only(logits: jax.Array, token: jax.Array) -> jax.Array:
    """[N, V], the logit of the token and zeros beside it, to be summed. No gather: where devices
    share the vocabulary, it would bring all logits to each of them."""
    return jnp.where(_is_token(logits, token), logits, 0.0)


def _sums(*terms: jax.Array) -> Sequence[jax.Array]:
    """[N, V] float32 each -> [N] each, of one pass over the vocabulary.

    Alone, a sum of what has to be computed first takes XLA's CPU kernels longer than all together.
    But together they add one number after another: behind a likely token a tail of 49,152 words
    that weigh less than its rounding would be lost, up to 5e-4 of a log-prob. So on CPU blocks are
    summed first, as vector units do elsewhere.
    """

    def add(a: Sequence[jax.Array], b: Sequence[jax.Array]) -> list[jax.Array]:
        return [x + y for x, y in zip(a, b, strict=True)]

    def over(axis: int, *terms: jax.Array) -> Sequence[jax.Array]:
        return jax.lax.reduce(terms, (jnp.float32(0),) * len(terms), add, (axis,))

    def by_blocks(*terms: jax.Array) -> list[jax.Array]:
        N, V = terms[0].shape
        whole = V - V % _BLOCK
        blocks = over(2, *(a[:, :whole].reshape(N, whole // _BLOCK, _BLOCK) for a in terms))
        rest = over(1, *(a[:, whole:] for a in terms))
        return [jnp.sum(a, axis=1) + b for a, b in zip(blocks, rest, strict=True)]

    return jax.lax.platform_dependent(*terms, cpu=by_blocks, default=functools.partial(over, 1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _chunked(
    hidden: jax.Array,
    head: jax.Array,
    token: jax.Array,
    temperature: jax.Array,
    is_wanted: jax.Array,
    chunk: int,
    keep: bool,
) -> tuple[jax.Array, jax.Array]:
    """R shards of n tokens: hidden [R, n, D], the others [R, n]; returns [R, n] twice."""
    return _forward(hidden, head, token, temperature, is_wanted, chunk, False)[0]


def _forward(hidden, head, token, temperature, is_wanted, chunk, keep):
    shards, n = is_wanted.shape

    def sums(inputs):
        hidden, token, temperature, is_wanted = inputs
        logits = scaled_logits(hidden, head, temperature)
        peak = jnp.max(logits, axis=1)
        above = _above(logits, peak)
        weight = jnp.exp(above)
        mass, weighed, chosen = _sums(weight, weight * above, _only(above, token))
        logsumexp = jnp.log(mass)
        logp, entropy = chosen - logsumexp, logsumexp - weighed / mass
        return tuple(jnp.where(is_wanted, a, 0.0) for a in (logp, entropy, peak, logsumexp)), logits

    def at_once(count):
        return jax.tree.map(lambda a: _filled(a, shards, n), sums(_first(inputs, count)))

    def one(inputs):
        nothing = (jnp.zeros_like(inputs[2], jnp.float32),) * 4
        return jax.lax.cond(jnp.any(inputs[3]), lambda: sums(inputs)[0], lambda: nothing)

    inputs = hidden, token, temperature, is_wanted
    if keep:
        found, logits = _by_wanted(is_wanted, chunk, at_once)
    else:
        found = [_join(a, shards) for a in jax.lax.map(one, _split(inputs, chunk))]
        logits = None
    logp, *sums_kept = found
    # With these the backward pass sums nothing over the vocabulary.
    return (logp, sums_kept[0]), (hidden, head, token, temperature, is_wanted, sums_kept, logits)


def _backward(chunk, keep, saved, cotangents):
    hidden, head, token, temperature, is_wanted, sums, all_logits = saved
    shards, n = is_wanted.shape
    product = functools.partial(
        jnp.einsum, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )

    def by_shard(grad, hidden):
        if shards == 1:  # without a batch axis: a third faster on CPU
            return product("NV,ND->VD", grad, hidden)[None]
        grad, hidden = (a.reshape(shards, -1, a.shape[1]) for a in (grad, hidden))  # N -> R, n
        return product("RNV,RND->RVD", grad, hidden)

    def grads(inputs, logits):
        """Of the head, by shards, and of the hidden states."""
        hidden, token, temperature, is_wanted, sums, (logp_grad, entropy_grad) = inputs
        entropy, peak, logsumexp = sums
        log_probs = logits - peak[:, None] - logsumexp[:, None]
        # d logp / d z = onehot - p;  d H / d z = -p (log p + H)
        of_entropy = entropy_grad[:, None] * (log_probs + entropy[:, None])
        grad = jnp.where(_is_token(logits, token), logp_grad[:, None], 0.0)
        grad -= jnp.exp(log_probs) * (logp_grad[:, None] + of_entropy)
        grad = jnp.where(is_wanted[:, None], grad / temperature[:, None], 0.0)
        # The float32 operand is cast to the model's dtype only for the product, so that a
        # bf16 model multiplies in bf16; sums stay in float32.
        grad = grad.astype(head.dtype)
        hidden_grad = product("NV,VD->ND", grad, head).astype(hidden.dtype)
        return by_shard(grad, hidden), hidden_grad

    def at_once(count):
        head_grad, hidden_grad = grads(_first(inputs, count), _first(all_logits, count))
        return head_grad, _filled(hidden_grad, shards, n)

    def one(head_grad, inputs):
        def compute():
            more, hidden_grad = grads(inputs, scaled_logits(inputs[0], head, inputs[2]))
            return head_grad + more, hidden_grad

        nothing = head_grad, jnp.zeros_like(inputs[0])
        return jax.lax.cond(jnp.any(inputs[3]), compute, lambda: nothing)

    inputs = hidden, token, temperature, is_wanted, sums, cotangents
    if keep:
        head_grad, hidden_grad = _by_wanted(is_wanted, chunk, at_once)
    else:
        # A sum for each shard, so that devices add theirs up once and not for every chunk.
        nothing = jnp.broadcast_to(jnp.zeros_like(head, jnp.float32)[None], (shards, *head.shape))
        head_grad, hidden_grad = jax.lax.scan(one, nothing, _split(inputs, chunk))
        hidden_grad = _join(hidden_grad, shards)
    head_grad = jnp.sum(head_grad, axis=0).astype(head.dtype)
    return hidden_grad, head_grad, None, jnp.zeros_like(temperature), None


def _by_wanted(is_wanted, chunk, at_once):
    """at_once(count), count being the fewest tokens of a shard in whole chunks that hold all wanted
    ones, which come first. Each count that may be needed is a branch of the program."""
    n = is_wanted.shape[1]
    step = chunk * -(-n // chunk // _BRANCHES)
    needed = jnp.max(jnp.sum(is_wanted, axis=1))
    branches = [functools.partial(at_once, count) for count in (*range(0, n, step), n)]
    return jax.lax.switch(-(-needed // step), branches)


def _first(arrays, count):
    """R, n -> N: the first tokens of each shard."""
    return jax.tree.map(lambda a: a[:, :count].reshape(-1, *a.shape[2:]), arrays)


def _filled(a, shards, n):
    """N -> R, n, with zeros behind each shard's tokens."""
    a = a.reshape(shards, -1, *a.shape[1:])
    return jnp.pad(a, ((0, 0), (0, n - a.shape[1]), *((0, 0),) * (a.ndim - 2)))


def _split(arrays, chunk):
    def one(a):  # R, n -> chunks, N, the tokens of a shard next to each other
        shards, n, *rest = a.shape
        a = a.reshape(shards, n // chunk, chunk, *rest).swapaxes(0, 1)
        return a.reshape(n // chunk, shards * chunk, *rest)

    return jax.tree.map(one, arrays)


def _join(a, shards):
    num_chunks, tokens, *rest = a.shape
    a = a.reshape(num_chunks, shards, tokens // shards, *rest).swapaxes(0, 1)
    return a.reshape(shards, -1, *rest)  # chunks, N -> R, n


_chunked.defvjp(_forward, _backward)

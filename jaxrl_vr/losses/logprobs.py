"""Log-probs and entropy of tokens, from hidden states and the LM head.

The sampler and the learner both take their log-probs from here: log_softmax(logits / T), from a
float32 product with explicit precision.

N tokens, D model width, V vocabulary.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import check

# Logits of one chunk: 2**24 float32 values are 64 MiB, small beside a model, and still hundreds
# of tokens at a vocabulary of 50,000, enough to keep a matrix unit busy.
_CHUNK_ELEMENTS = 2**24


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
    chosen = jnp.take_along_axis(logits, token[:, None], axis=1)[:, 0]
    return chosen - jax.nn.logsumexp(logits, axis=1)


def token_logprobs(
    hidden: jax.Array,
    head: jax.Array,
    token: jax.Array,
    temperature: jax.Array,
    mask: jax.Array | None = None,
    *,
    chunk: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Log-prob of each token and entropy of its distribution; `[N, V]` never exists.

    log p_n = z_n[token_n] - logsumexp(z_n), H_n = logsumexp(z_n) - sum_v p_nv z_nv, with
    z = hidden head^T / T, a chunk of tokens at a time. The backward pass computes each chunk's
    logits again, so that memory does not grow with N times V; the head's gradient accumulates in
    float32. Masked-out tokens are moved behind the others, and chunks of them are skipped: in RL
    most tokens are prompt, and the head can be a quarter of the model.

    Args:
      hidden: [N, D] final hidden states.
      head: [V, D] LM head.
      token: [N] int32.
      temperature: [N] float32, above 0; carries no gradient.
      mask: [N] bool, true where a log-prob is wanted; elsewhere both results are 0, without
        gradient. None: everywhere.
      chunk: tokens at a time; None: as many as keep a chunk's logits near 64 MiB.

    Returns:
      logp [N] float32 and entropy [N] float32 in nats.

    >>> logp, entropy = token_logprobs(
    ...     jnp.zeros((1, 2)), jnp.ones((4, 2)), jnp.array([0]), jnp.ones(1))
    >>> print(logp.round(4), entropy.round(4))
    [-1.3863] [1.3863]
    """
    sizes = check(
        "ND, VD, N, N, N", hidden=hidden, head=head, token=token, temperature=temperature, mask=mask
    )
    num_tokens = sizes["N"]
    if chunk is None:
        chunk = max(1, _CHUNK_ELEMENTS // sizes["V"])
    chunk = min(chunk, num_tokens)
    is_wanted = jnp.ones(num_tokens, bool) if mask is None else jnp.asarray(mask)
    # Wanted tokens first, in their order; in the place of the others, as of the padding to whole
    # chunks, an index out of bounds: zeros are read there, so that no value of theirs, NaN maybe,
    # meets a product with 0 in the backward pass.
    order = jnp.argsort(~is_wanted, stable=True)
    order = jnp.where(is_wanted[order], order, num_tokens)
    order = jnp.pad(order, (0, -num_tokens % chunk), constant_values=num_tokens)
    arrays = (hidden, token, temperature, is_wanted)
    filled = [jnp.asarray(a).at[order].get(mode="fill", fill_value=0) for a in arrays]
    filled[2] = jnp.where(filled[3], filled[2], 1.0)  # padding divides by it
    outputs: Any = _chunked(filled[0], head, *filled[1:], chunk)
    back = jnp.zeros(num_tokens, jnp.float32)
    logp, entropy = (back.at[order].set(a, mode="drop") for a in outputs)
    return logp, entropy


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _chunked(
    hidden: jax.Array,
    head: jax.Array,
    token: jax.Array,
    temperature: jax.Array,
    is_wanted: jax.Array,
    chunk: int,
) -> tuple[jax.Array, jax.Array]:
    def one(inputs):
        hidden, token, temperature, is_wanted = inputs

        def compute():
            logits = scaled_logits(hidden, head, temperature)
            logsumexp = jax.nn.logsumexp(logits, axis=1)
            probs = jnp.exp(logits - logsumexp[:, None])
            entropy = logsumexp - jnp.sum(probs * logits, axis=1)
            logp = token_logprob(logits, token)
            return jnp.where(is_wanted, logp, 0.0), jnp.where(is_wanted, entropy, 0.0)

        zeros = jnp.zeros(chunk, jnp.float32)
        return jax.lax.cond(jnp.any(is_wanted), compute, lambda: (zeros, zeros))

    logp, entropy = jax.lax.map(one, _split((hidden, token, temperature, is_wanted), chunk))
    return logp.reshape(-1), entropy.reshape(-1)


def _forward(hidden, head, token, temperature, is_wanted, chunk):
    out = _chunked(hidden, head, token, temperature, is_wanted, chunk)
    return out, (hidden, head, token, temperature, is_wanted)


def _backward(chunk, saved, cotangents):
    hidden, head, token, temperature, is_wanted = saved
    product = functools.partial(
        jnp.einsum, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )

    def one(head_grad, inputs):
        hidden, token, temperature, is_wanted, logp_grad, entropy_grad = inputs

        def compute():
            logits = scaled_logits(hidden, head, temperature)
            log_probs = jax.nn.log_softmax(logits, axis=1)
            probs = jnp.exp(log_probs)
            entropy = -jnp.sum(probs * log_probs, axis=1)
            # d logp / d z = onehot - p;  d H / d z = -p (log p + H)
            grad = -probs * (
                logp_grad[:, None] + entropy_grad[:, None] * (log_probs + entropy[:, None])
            )
            grad = grad.at[jnp.arange(chunk), token].add(logp_grad)
            grad = jnp.where(is_wanted[:, None], grad / temperature[:, None], 0.0)
            # The float32 operand is cast to the model's dtype only for the product, so that a
            # bf16 model multiplies in bf16; sums stay in float32.
            grad = grad.astype(head.dtype)
            hidden_grad = product("NV,VD->ND", grad, head).astype(hidden.dtype)
            return head_grad + product("NV,ND->VD", grad, hidden), hidden_grad

        return jax.lax.cond(
            jnp.any(is_wanted), compute, lambda: (head_grad, jnp.zeros_like(hidden))
        )

    inputs = _split((hidden, token, temperature, is_wanted, *cotangents), chunk)
    head_grad, hidden_grad = jax.lax.scan(one, jnp.zeros(head.shape, jnp.float32), inputs)
    hidden_grad = hidden_grad.reshape(hidden.shape)  # chunks, N -> all N
    return hidden_grad, head_grad.astype(head.dtype), None, jnp.zeros_like(temperature), None


def _split(arrays, chunk):
    return jax.tree.map(lambda a: a.reshape(-1, chunk, *a.shape[1:]), arrays)  # N -> chunks, N


_chunked.defvjp(_forward, _backward)

"""Per-token weights with the normaliser of the whole optimizer step folded in.

Each function gives the weight of every trained token of rollout i; it is constant within a
rollout. Computed once a step from all its rollouts, before packing, the weights make the loss of a
micro-batch a plain sum: how rows are packed, split or sharded cannot change it.

B rollouts of the optimizer step, over all micro-batches and devices.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import at_least_float32, check


def token_mean(length: jax.Array) -> jax.Array:
    """Mean over all trained tokens of the step: w_i = 1 / sum_j length_j.

    Source: DAPO's token-level loss, https://arxiv.org/abs/2503.14476, section 3.3.

    Args:
      length: [B] trained tokens of each rollout, after all masks.

    Returns:
      [B] float32; finite also when no token trains.

    >>> token_mean(jnp.array([1, 3])).tolist()
    [0.25, 0.25]
    """
    length = _counts(length)
    return jnp.broadcast_to(1.0 / jnp.maximum(jnp.sum(length), 1.0), length.shape)


def sequence_mean(length: jax.Array) -> jax.Array:
    """Mean over rollouts of the mean over their tokens: w_i = 1 / (B length_i).

    Source: GRPO, https://arxiv.org/abs/2402.03300, equation 3.

    Args:
      length: [B] trained tokens of each rollout, after all masks; one without any does not count
        in B.

    Returns:
      [B] float32.

    >>> sequence_mean(jnp.array([1, 4])).tolist()
    [0.5, 0.125]
    """
    length = _counts(length)
    return 1.0 / (_num_rollouts(length) * jnp.maximum(length, 1.0))


def sequence_sum(length: jax.Array) -> jax.Array:
    """Mean over rollouts of the sum over their tokens: w_i = 1 / B.

    Long rollouts weigh by their length, as in the plain policy gradient, and so does the size of
    the gradient; `constant_length` is this over a constant.

    Source: Dr. GRPO, https://arxiv.org/abs/2503.20783; verl's "seq-mean-token-sum".

    Args:
      length: [B] trained tokens of each rollout, after all masks; one without any does not count
        in B.

    Returns:
      [B] float32.

    >>> sequence_sum(jnp.array([1, 4])).tolist()
    [0.5, 0.5]
    """
    length = _counts(length)
    return jnp.broadcast_to(1.0 / _num_rollouts(length), length.shape)


def prompt_mean(length: jax.Array, group: jax.Array) -> jax.Array:
    """Mean over prompts of the mean over all tokens of their rollouts: every prompt weighs as much.

    w_i = 1 / (P sum_j length_j over the rollouts j of i's prompt).

    Source: ScaleRL, https://arxiv.org/abs/2510.13786, "prompt average".

    Args:
      length: [B] trained tokens of each rollout, after all masks; a prompt without any does not
        count in P.
      group: [B] int, which prompt each rollout answers; any numbers.

    Returns:
      [B] float32.

    >>> prompt_mean(jnp.array([1, 3, 2]), jnp.array([7, 7, 9])).tolist()
    [0.125, 0.125, 0.25]
    """
    check("B, B", length=length, group=group)
    length = _counts(length)
    size = length.shape[0]
    _, member = jnp.unique(jnp.asarray(group), return_inverse=True, size=size)
    total = jax.ops.segment_sum(length, member, num_segments=size)
    num_prompts = jnp.maximum(jnp.sum(total > 0), 1).astype(length.dtype)
    return 1.0 / (num_prompts * jnp.maximum(total[member], 1.0))


def constant_length(length: jax.Array, *, max_length: int | jax.Array) -> jax.Array:
    """Sum over tokens by a constant: w_i = 1 / (B max_length), without length bias.

    Source: Dr. GRPO, https://arxiv.org/abs/2503.20783, section 3.2.

    Args:
      length: [B] trained tokens of each rollout, after all masks; one without any does not count
        in B.
      max_length: the constant, usually the limit of new tokens.

    Returns:
      [B] float32.

    >>> print(constant_length(jnp.array([1, 4]), max_length=10))
    [0.05 0.05]
    """
    length = _counts(length)
    constant = _num_rollouts(length) * jnp.asarray(max_length, length.dtype)
    return jnp.broadcast_to(1.0 / constant, length.shape)


def _counts(length: jax.Array) -> jax.Array:
    check("B", length=length)
    return at_least_float32(length)


def _num_rollouts(length: jax.Array) -> jax.Array:
    return jnp.maximum(jnp.sum(length > 0), 1).astype(length.dtype)

"""Advantages of the rollouts of a group, from their rewards.

P prompts, G samples of a prompt. Rewards are [P, G]; flattened group-major they are [B].
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import check


def group_norm(
    reward: jax.Array, valid: jax.Array | None = None, *, eps: float = 1e-4, ddof: int = 0
) -> jax.Array:
    """GRPO's advantage: the reward normalised within its group.

    A_i = (r_i - mean(r)) / (std(r) + eps), over the valid rollouts of the group.

    Source: DeepSeekMath, https://arxiv.org/abs/2402.03300, section 4.1.

    Args:
      reward: [P, G] float, one reward a rollout.
      valid: [P, G] bool, false where a rollout could not be scored: it leaves the statistics and
        gets 0. None: all are valid.
      eps: added to the standard deviation.
      ddof: 0 for the population's standard deviation, 1 for the sample's.

    Returns:
      [P, G] float32; exactly 0 throughout a group whose valid rewards are equal.

    Raises:
      ValueError: G < 2, where the advantage could only be 0; or shapes differ.

    >>> group_norm(jnp.array([[1.0, 0.0, 0.0, 1.0]]), eps=0.0).tolist()
    [[1.0, -1.0, -1.0, 1.0]]
    """
    centred, valid = _centred(reward, valid)
    count = _count(valid)
    variance = jnp.sum(jnp.square(centred), axis=1, keepdims=True) / jnp.maximum(count - ddof, 1.0)
    scale = jnp.sqrt(variance) + eps
    return jnp.where(scale > 0, centred / jnp.where(scale > 0, scale, 1.0), 0.0)


def group_center(reward: jax.Array, valid: jax.Array | None = None) -> jax.Array:
    """Dr. GRPO's advantage: the reward less its group's mean, A_i = r_i - mean(r).

    Source: Understanding R1-Zero-like training, https://arxiv.org/abs/2503.20783.

    Args:
      reward: [P, G] float, one reward a rollout.
      valid: [P, G] bool; an invalid rollout leaves the mean and gets 0. None: all are valid.

    Returns:
      [P, G] float32; exactly 0 throughout a group whose valid rewards are equal.

    Raises:
      ValueError: G < 2, or shapes differ.

    >>> group_center(jnp.array([[1.0, 0.0, 0.0, 0.0]])).tolist()
    [[0.75, -0.25, -0.25, -0.25]]
    """
    return _centred(reward, valid)[0]


def has_contrast(reward: jax.Array, valid: jax.Array | None = None) -> jax.Array:
    """Whether a group's valid rewards differ: only such groups have a gradient.

    Source: DAPO's dynamic sampling, https://arxiv.org/abs/2503.14476, section 3.2.

    Args:
      reward: [P, G] float, one reward a rollout.
      valid: [P, G] bool; invalid rollouts are not looked at. None: all are valid.

    Returns:
      [P] bool.

    >>> has_contrast(jnp.array([[1.0, 0.0], [1.0, 1.0]])).tolist()
    [True, False]
    """
    valid = _all_valid(reward, valid)
    low, high = _range(jnp.asarray(reward).astype(jnp.float32), valid)
    return (high > low)[:, 0]


def _all_valid(reward: jax.Array, valid: jax.Array | None) -> jax.Array:
    sizes = check("PG, PG", reward=reward, valid=valid)
    if sizes["G"] < 2:
        raise ValueError(
            f"reward: a group baseline needs at least 2 samples of each prompt, got G = "
            f"{sizes['G']}; sample more, or use an advantage without a group"
        )
    return jnp.ones(reward.shape, bool) if valid is None else valid


def _count(valid: jax.Array) -> jax.Array:
    return jnp.sum(valid, axis=1, keepdims=True).astype(jnp.float32)


def _range(reward: jax.Array, valid: jax.Array) -> tuple[jax.Array, jax.Array]:
    low = jnp.min(jnp.where(valid, reward, jnp.inf), axis=1, keepdims=True)
    high = jnp.max(jnp.where(valid, reward, -jnp.inf), axis=1, keepdims=True)
    return low, high


def _centred(reward: jax.Array, valid: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Reward less the mean of its group, 0 where invalid or where all rewards are equal.

    A mean of equal numbers need not be that number in floating point, and what is left would be
    blown up by the division; so the smallest reward is taken off first, exactly where rewards are
    close, and equal rewards become zeros, whose mean is exact.
    """
    valid = _all_valid(reward, valid)
    reward = jnp.asarray(reward).astype(jnp.float32)
    low, _ = _range(reward, valid)
    above = jnp.where(valid, reward - low, 0.0)
    mean = jnp.sum(above, axis=1, keepdims=True) / jnp.maximum(_count(valid), 1.0)
    return jnp.where(valid, above - mean, 0.0), valid

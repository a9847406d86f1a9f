"""Statistics of a group's rewards, exact where all of them are equal.

P prompts, G samples of a prompt; all functions take [P, G], whose shapes their callers have
checked. What is made from them is in `losses.advantages` and, for steps of a rollout, in
`losses.steps`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import at_least_float32, check


def check_group(reward: jax.Array, valid: jax.Array | None) -> jax.Array:
    """Which rollouts are valid, of a group that can have a baseline."""
    sizes = check("PG, PG", reward=reward, valid=valid)
    if sizes["G"] < 2:
        raise ValueError(
            f"reward: a group baseline needs at least 2 samples of each prompt, got G = "
            f"{sizes['G']}; sample more, or use an advantage without a group"
        )
    return jnp.ones(reward.shape, bool) if valid is None else jnp.asarray(valid)


def valid_rewards(reward: jax.Array, valid: jax.Array) -> jax.Array:
    """Rewards as floats without gradient, 0 where invalid."""
    return jnp.where(valid, jax.lax.stop_gradient(at_least_float32(reward)), 0.0)


def num_valid(valid: jax.Array, like: jax.Array) -> jax.Array:
    """[P, 1], how many rollouts of each group are valid, in the dtype of `like`."""
    return jnp.sum(valid, axis=1, keepdims=True).astype(like.dtype)


def above_lowest(reward: jax.Array, valid: jax.Array) -> jax.Array:
    """Reward less the smallest valid one of its group, 0 where invalid.

    A mean of equal numbers need not be that number in floating point, and what is left would be
    blown up by a division. The smallest reward is taken off first, exactly where rewards are
    close, and equal rewards become zeros, whose mean is exact.
    """
    reward = valid_rewards(reward, valid)
    low = jnp.min(jnp.where(valid, reward, jnp.inf), axis=1, keepdims=True)
    return jnp.where(valid, reward - low, 0.0)


def centre(reward: jax.Array, valid: jax.Array) -> jax.Array:
    """Reward less the mean of its group, 0 where invalid or where all rewards are equal."""
    above = above_lowest(reward, valid)
    mean = jnp.sum(above, axis=1, keepdims=True) / jnp.maximum(num_valid(valid, above), 1.0)
    return jnp.where(valid, above - mean, 0.0)


def group_deviation(centred: jax.Array, valid: jax.Array, ddof: int | jax.Array) -> jax.Array:
    """[P, 1], the standard deviation of each group's valid values."""
    freedom = num_valid(valid, centred) - jnp.asarray(ddof, centred.dtype)
    square = jnp.sum(jnp.square(centred), axis=1, keepdims=True)
    return jnp.sqrt(square / jnp.maximum(freedom, 1.0))


def batch_deviation(x: jax.Array, valid: jax.Array, ddof: int | jax.Array) -> jax.Array:
    """[1, 1], the standard deviation of all valid values; [P, G] -> one group of all."""
    x, valid = jnp.asarray(x).reshape(1, -1), valid.reshape(1, -1)
    return group_deviation(centre(x, valid), valid, ddof)


def divide(x: jax.Array, scale: jax.Array) -> jax.Array:
    """x / scale, and 0 where the scale is not above 0."""
    return jnp.where(scale > 0, x / jnp.where(scale > 0, scale, 1.0), 0.0)

"""Rewards and advantages of rollouts from the scores of their reasoning steps.

B rollouts, S steps of a rollout, T tokens of a row; P prompts, G samples of a prompt. The functions
of this file are offered by `losses.advantages` too.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import check
from jaxrl_vr.losses.group_statistics import centre, divide, group_deviation
from jaxrl_vr.losses.masked import fixed


def step_min(score: jax.Array, mask: jax.Array) -> jax.Array:
    """The score of the worst step: a chain is as strong as its weakest link.

    Source: https://arxiv.org/abs/2305.20050 compares it with the product.

    Args:
      score: [B, S] float, score of each step.
      mask: [B, S] bool, true where a step exists.

    Returns:
      [B] float32 (float64 for float64 input); 0 for a rollout without steps.

    >>> step_min(jnp.array([[1.0, 1.0, 0.0]]), jnp.ones((1, 3), bool)).tolist()
    [0.0]
    """
    check("BS, BS", score=score, mask=mask)
    score = fixed(score, mask)
    lowest = jnp.min(jnp.where(mask, score, jnp.inf), axis=1, initial=jnp.inf)
    return jnp.where(jnp.any(mask, axis=1), lowest, 0.0)


def step_product(score: jax.Array, mask: jax.Array) -> jax.Array:
    """The product of the steps' scores: if they are probabilities, that all steps are right.

    Source: https://arxiv.org/abs/2305.20050, which scores solutions by it.

    Args:
      score: [B, S] float, score of each step.
      mask: [B, S] bool, true where a step exists.

    Returns:
      [B] float32 (float64 for float64 input); 0 for a rollout without steps, so that writing none
      gains nothing.

    >>> step_product(jnp.array([[0.5, 0.5, 0.0]]), jnp.array([[True, True, False]])).tolist()
    [0.25]
    """
    check("BS, BS", score=score, mask=mask)
    score = fixed(score, mask)
    product = jnp.prod(jnp.where(mask, score, 1.0), axis=1)
    return jnp.where(jnp.any(mask, axis=1), product, 0.0)


def step_mean(score: jax.Array, mask: jax.Array) -> jax.Array:
    """The mean of the steps' scores.

    Source: https://arxiv.org/abs/2211.14275 trains on the scores of steps; the mean of them is
    the mildest of the three reductions here.

    Args:
      score: [B, S] float, score of each step.
      mask: [B, S] bool, true where a step exists.

    Returns:
      [B] float32 (float64 for float64 input); 0 for a rollout without steps.

    >>> step_mean(jnp.array([[1.0, 0.0]]), jnp.ones((1, 2), bool)).tolist()
    [0.5]
    """
    check("BS, BS", score=score, mask=mask)
    score = fixed(score, mask)
    count = jnp.maximum(jnp.sum(mask, axis=1), 1).astype(score.dtype)
    return jnp.sum(score, axis=1) / count


def process_group_norm(
    step_reward: jax.Array,
    step_end: jax.Array,
    step_mask: jax.Array,
    mask: jax.Array,
    *,
    eps: float | jax.Array = 1e-4,
    ddof: int | jax.Array = 0,
) -> jax.Array:
    """GRPO with process supervision: step rewards of a group normalised together.

    R_j = (r_j - mean(r)) / (std(r) + eps) over all steps of all rollouts of the group;
    A_t = sum of R_j over the steps of the rollout that end at t or later.

    Source: DeepSeekMath, https://arxiv.org/abs/2402.03300, section 4.1.3.

    Args:
      step_reward: [P, G, S] float, reward of each step.
      step_end: [P, G, S] int, where in its row the last token of each step is, from 0; a step
        that ends outside of the row is nobody's.
      step_mask: [P, G, S] bool, true where a step exists and was scored.
      mask: [B, T] bool with B = P x G, one rollout a row, group-major; true where a token trains.
      eps: added to the standard deviation.
      ddof: 0 for the population's standard deviation, 1 for the sample's.

    Returns:
      [B, T] float32 (float64 for float64 input), without gradient, 0 outside the mask; exactly 0
      throughout a group whose step rewards are equal.

    Raises:
      ValueError: shapes differ, or B is not P x G.

    >>> adv = process_group_norm(jnp.array([[[1.0, 0.0]]]), jnp.array([[[1, 2]]]),
    ...     jnp.ones((1, 1, 2), bool), jnp.ones((1, 4), bool), eps=0.0)
    >>> adv.tolist()
    [[0.0, 0.0, -1.0, 0.0]]
    """
    sizes = check(
        "PGS, PGS, PGS, BT",
        step_reward=step_reward,
        step_end=step_end,
        step_mask=step_mask,
        mask=mask,
    )
    num_rows = sizes["P"] * sizes["G"]
    if sizes["B"] != num_rows:
        raise ValueError(
            f"mask: expected B = P x G = {num_rows} rows, one for each rollout of step_reward, got "
            f"{sizes['B']}"
        )
    # [P, G, S] -> [P, all steps of the group]
    together = (sizes["P"], sizes["G"] * sizes["S"])
    exists = jnp.asarray(step_mask).reshape(together)
    centred = centre(jnp.asarray(step_reward).reshape(together), exists)
    value = divide(centred, group_deviation(centred, exists, ddof) + eps)
    # [P, all steps] -> [B, S]
    value, exists = (x.reshape(num_rows, sizes["S"]) for x in (value, exists))
    end = jnp.asarray(step_end).reshape(num_rows, sizes["S"])
    end = jnp.where(exists & (end >= 0), end, sizes["T"])  # a negative index would wrap around
    row = jnp.arange(num_rows)[:, None]
    at_end = jnp.zeros(mask.shape, value.dtype).at[row, end].add(value, mode="drop")
    adv = jax.lax.cumsum(at_end, axis=1, reverse=True)
    return jnp.where(mask, adv, 0.0)

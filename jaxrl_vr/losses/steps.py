"""One reward of a rollout from the scores of its reasoning steps.

B rollouts, S steps of a rollout. Advantages from step rewards that stay apart are in
`advantages.process_group_norm`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import check
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

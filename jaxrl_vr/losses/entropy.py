"""The entropy bonus, and a controller of its coefficient.

Where entropy comes from: losses.logprobs. B rows, T tokens of a row.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import Mean, Metrics, at_least_float32, check
from jaxrl_vr.losses.masked import masked


def entropy_bonus(
    entropy: jax.Array, mask: jax.Array, *, coef: float | jax.Array = 0.001
) -> tuple[jax.Array, Metrics]:
    """A loss that keeps the policy from collapsing: -coef H_t, added to the policy loss.

    Source: A3C, https://arxiv.org/abs/1602.01783, section 4. TRL and verl add nothing by default;
    0.001 is a common value for language models.

    Args:
      entropy: [B, T] float32, entropy of each token's distribution in nats, with its gradient.
      mask: [B, T] bool, true where a token trains.
      coef: weight of the bonus, fixed, scheduled, or from `adaptive_entropy`.

    Returns:
      [B, T] float32 loss, 0 outside the mask; `policy/entropy`.

    >>> entropy_bonus(jnp.array([[2.0, 1.0]]), jnp.array([[True, False]]), coef=0.5)[0].tolist()
    [[-1.0, 0.0]]
    """
    check("BT, BT", entropy=entropy, mask=mask)
    entropy = masked(entropy, mask)
    total = jax.lax.stop_gradient(jnp.sum(entropy))
    return jnp.where(mask, -coef * entropy, 0.0), {"policy/entropy": Mean(total, jnp.sum(mask))}


def adaptive_entropy(
    coef: float | jax.Array,
    entropy: float | jax.Array,
    *,
    target: float | jax.Array = 0.2,
    step: float | jax.Array = 0.005,
) -> tuple[jax.Array, jax.Array]:
    """Moves the coefficient of the entropy bonus so that entropy stays at a target.

    Once an optimizer step: coef rises by `step` where entropy < target, falls by it where
    entropy > target, to no less than 0. The bonus acts only while entropy <= target.

    Source: Skywork-OR1, https://arxiv.org/abs/2505.22312, section 3.2 (adaptive entropy control),
    with its values, starting from coef 0. TRL's use_adaptive_entropy, with the same values, also
    bounds the coefficient by 1 and raises it where entropy equals the target.

    Args:
      coef: scalar, the controller's state.
      entropy: scalar, mean entropy of the step's tokens in nats.
      target: entropy to keep, in nats.
      step: change of the coefficient.

    Returns:
      The state after the step, and the coefficient that this step's bonus has; both scalar float.

    >>> coef, active = adaptive_entropy(0.01, 0.1)
    >>> print(coef.round(4), active.round(4))
    0.015 0.01
    >>> coef, active = adaptive_entropy(0.01, 0.3)
    >>> print(coef.round(4), active.round(4))
    0.005 0.0
    """
    check(", ", coef=coef, entropy=entropy)
    coef, entropy = (jax.lax.stop_gradient(at_least_float32(x)) for x in (coef, entropy))
    moved = coef + jnp.sign(target - entropy) * step
    return jnp.maximum(moved, 0.0), jnp.where(entropy <= target, coef, 0.0)

"""Policy-gradient losses: log-probs and advantages in, per-token values and metrics out.

No function here calls a model or averages anything: the caller multiplies the values with the
weights of `losses.weights` and sums. Old log-probs and advantages never carry a gradient.

B rows, T tokens of a row.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import Max, Mean, Metrics, check

# exp of this is the largest ratio we form; beyond it float32 would overflow to inf.
_MAX_LOG_RATIO = 20.0


def reinforce(logp: jax.Array, adv: jax.Array, mask: jax.Array) -> tuple[jax.Array, Metrics]:
    """REINFORCE: loss_t = -A_t log p_t.

    Source: Williams 1992, https://doi.org/10.1007/BF00992696.

    Args:
      logp: [B, T] float32, log-prob of each token under the current policy.
      adv: [B] or [B, T], advantage.
      mask: [B, T] bool, true where a token trains.

    Returns:
      [B, T] float32 loss, 0 outside the mask; no metrics.

    >>> mask = jnp.ones((1, 2), bool)
    >>> loss, _ = reinforce(jnp.array([[-1.0, -2.0]]), jnp.array([0.5]), mask)
    >>> loss.tolist()
    [[0.5, 1.0]]
    """
    check("BT, BT", logp=logp, mask=mask)
    adv = _per_token(adv, logp)
    return jnp.where(mask, -adv * jnp.where(mask, logp, 0.0), 0.0), {}


def ppo_clip(
    logp: jax.Array,
    old_logp: jax.Array,
    adv: jax.Array,
    mask: jax.Array,
    *,
    clip_low: float | jax.Array = 0.2,
    clip_high: float | jax.Array = 0.2,
) -> tuple[jax.Array, Metrics]:
    """PPO's clipped surrogate, which GRPO uses too, with a range of its own on each side.

    loss_t = max(-A_t r_t, -A_t clip(r_t, 1 - clip_low, 1 + clip_high)), r_t = p_t / p_old_t.

    Sources: PPO, https://arxiv.org/abs/1707.06347, equation 7; the separate upper range is DAPO's
    clip-higher, https://arxiv.org/abs/2503.14476, equation 10.

    Args:
      logp: [B, T] float32, log-prob of each token under the current policy.
      old_logp: [B, T] float32, the same under the policy the ratio is taken against.
      adv: [B] or [B, T], advantage.
      mask: [B, T] bool, true where a token trains.
      clip_low: how far below 1 the ratio may fall while the advantage is negative.
      clip_high: how far above 1 the ratio may rise while the advantage is positive.

    Returns:
      [B, T] float32 loss, 0 outside the mask; `policy/clip_frac` (share of trained tokens whose
      gradient is cut), `policy/approx_kl` (k3 of old against new), `policy/ratio_max`.

    >>> mask = jnp.ones((1, 2), bool)
    >>> old = jnp.log(jnp.array([[0.5, 0.5]]))
    >>> new = jnp.log(jnp.array([[0.9, 0.5]]))
    >>> loss, metrics = ppo_clip(new, old, jnp.array([1.0]), mask)
    >>> [round(x, 3) for x in loss[0].tolist()]
    [-1.2, -1.0]
    >>> float(metrics["policy/clip_frac"].sum)
    1.0
    """
    check("BT, BT, BT", logp=logp, old_logp=old_logp, mask=mask)
    adv = _per_token(adv, logp)
    log_ratio = jnp.where(mask, logp - jax.lax.stop_gradient(old_logp), 0.0)
    ratio = jnp.exp(jnp.minimum(log_ratio, _MAX_LOG_RATIO))
    free = -adv * ratio
    clipped = -adv * jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    loss = jnp.where(mask, jnp.maximum(free, clipped), 0.0)
    count = jnp.sum(mask)
    metrics: Metrics = {
        "policy/clip_frac": Mean(jnp.sum(mask & (clipped > free)), count),
        "policy/approx_kl": Mean(jnp.sum(jnp.where(mask, ratio - 1.0 - log_ratio, 0.0)), count),
        "policy/ratio_max": Max(jnp.max(jnp.where(mask, ratio, 0.0))),
    }
    return loss, jax.lax.stop_gradient(metrics)


def _per_token(adv: jax.Array, logp: jax.Array) -> jax.Array:
    """[B] or [B, T] advantages as [B, T], without gradient."""
    adv = jax.lax.stop_gradient(jnp.asarray(adv))
    if adv.ndim == 1:
        check("BT, B", logp=logp, adv=adv)
        adv = jnp.broadcast_to(adv[:, None], logp.shape)
    check("BT, BT", logp=logp, adv=adv)
    return adv

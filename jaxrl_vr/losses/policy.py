"""Policy-gradient losses: log-probs and advantages in, per-token values and metrics out.

No function here calls a model or averages anything: the caller multiplies the values with the
weights of `losses.weights` and sums. Old log-probs and advantages never carry a gradient. The
losses over ratios of single tokens are in this file; those over sequences and preference pairs
(sequence.py), those that select tokens of a batch (selection.py) and the natural-gradient step
(trpo.py) are found here too.

B rows, T tokens of a row.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import Mean, Metrics, check
from jaxrl_vr.losses.masked import fixed, masked, masked_log_ratio, per_token
from jaxrl_vr.losses.offpolicy import require_sampler_logp
from jaxrl_vr.losses.ratios import attached, bounded_exp, ratio_metrics
from jaxrl_vr.losses.selection import (
    clip_cov,
    entropy_threshold,
    kl_cov,
    opsm,
    select_clip_cov,
    select_kl_cov,
    token_covariance,
    top_entropy_mask,
)
from jaxrl_vr.losses.sequence import (
    dpo,
    gmpo,
    gspo,
    gspo_token,
    online_mirror_descent,
    online_mirror_descent_squared,
    packed_dpo,
    preference_pairs,
)
from jaxrl_vr.losses.trpo import trpo_step

__all__ = [
    "cispo",
    "clip_cov",
    "decoupled_ppo",
    "dpo",
    "dppo_kl",
    "dppo_tv",
    "entropy_threshold",
    "gmpo",
    "gspo",
    "gspo_token",
    "kl_cov",
    "online_mirror_descent",
    "online_mirror_descent_squared",
    "opsm",
    "packed_dpo",
    "positive_nll",
    "ppo_clip",
    "preference_pairs",
    "reinforce",
    "rft",
    "sapo",
    "select_clip_cov",
    "select_kl_cov",
    "token_covariance",
    "top_entropy_mask",
    "trpo_step",
]


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
    return jnp.where(mask, -per_token(adv, mask) * masked(logp, mask), 0.0), {}


def ppo_clip(
    logp: jax.Array,
    old_logp: jax.Array,
    adv: jax.Array,
    mask: jax.Array,
    *,
    clip_low: float | jax.Array = 0.2,
    clip_high: float | jax.Array = 0.2,
    dual_clip: float | jax.Array | None = None,
    max_ratio: float | jax.Array | None = None,
) -> tuple[jax.Array, Metrics]:
    """PPO's clipped surrogate, which GRPO uses too, with a range of its own on each side.

    loss_t = max(-A_t r_t, -A_t clip(r_t, 1 - clip_low, 1 + clip_high)), r_t = p_t / p_old_t.
    With `dual_clip` c: at most -A_t c where A_t < 0. With `max_ratio` d: the first r_t becomes
    min(r_t, d). For c = d > 1 + clip_high the two are the same loss; each bounds what one token
    with a negative advantage can do after its ratio has run away.

    Sources: PPO, https://arxiv.org/abs/1707.06347, equation 7; the separate upper range is DAPO's
    clip-higher, https://arxiv.org/abs/2503.14476, equation 10; dual clip,
    https://arxiv.org/abs/1912.09729; the two-sided bound is INTELLECT-2's,
    https://arxiv.org/abs/2505.07291, section 4.1. verl always applies a dual clip of 3
    (`clip_ratio_c`); TRL calls `max_ratio` delta and leaves it out unless it is set.

    Args:
      logp: [B, T] float32, log-prob of each token under the current policy.
      old_logp: [B, T] float32, the same under the policy the ratio is taken against.
      adv: [B] or [B, T], advantage.
      mask: [B, T] bool, true where a token trains.
      clip_low: how far below 1 the ratio may fall while the advantage is negative.
      clip_high: how far above 1 the ratio may rise while the advantage is positive.
      dual_clip: above 1, the largest ratio that counts while the advantage is negative; None: no
        bound.
      max_ratio: above 1 + clip_high, the largest ratio of the unclipped term (INTELLECT-2: 4);
        None: no bound.

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
    adv = per_token(adv, mask)
    log_ratio = masked_log_ratio(logp, old_logp, mask)
    ratio = bounded_exp(log_ratio)
    free = -adv * (ratio if max_ratio is None else jnp.minimum(ratio, max_ratio))
    clipped = -adv * jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    loss = jnp.maximum(free, clipped)
    is_cut = clipped > free
    if max_ratio is not None:
        is_cut |= (ratio > max_ratio) & (adv != 0)
    if dual_clip is not None:
        bound = jnp.where(adv < 0, -adv * dual_clip, jnp.inf)
        is_cut |= loss > bound
        loss = jnp.minimum(loss, bound)
    return jnp.where(mask, loss, 0.0), ratio_metrics(log_ratio, is_cut, mask)


def cispo(
    logp: jax.Array,
    old_logp: jax.Array,
    adv: jax.Array,
    mask: jax.Array,
    *,
    clip_low: float | jax.Array = 1.0,
    clip_high: float | jax.Array = 4.0,
) -> tuple[jax.Array, Metrics]:
    """CISPO: the importance weight is clipped instead of the update, so no token is dropped.

    loss_t = -stop_gradient(clip(r_t, 1 - clip_low, 1 + clip_high)) A_t log p_t.

    Source: MiniMax-M1, https://arxiv.org/abs/2506.13585, equations 4 and 5; the paper sets no
    lower bound and does not give the upper one. The defaults are no lower bound and the cap of 5
    of ScaleRL, https://arxiv.org/abs/2510.13786. Other code names the bounds differently:
    verl's clip_ratio_low and clip_ratio_high and SkyRL's cispo_eps_clip_low and _high are the
    offsets used here; TRL's epsilon_high (and ScaleRL's epsilon_max) is the cap c itself and has
    no lower bound: clip_low = 1, clip_high = c - 1; bounds [a, b] on the ratio itself are
    clip_low = 1 - a, clip_high = b - 1.

    Args:
      logp: [B, T] float32, log-prob of each token under the current policy.
      old_logp: [B, T] float32, the same under the policy the ratio is taken against.
      adv: [B] or [B, T], advantage.
      mask: [B, T] bool, true where a token trains.
      clip_low: how far below 1 the weight may fall; 1 or more: no bound.
      clip_high: how far above 1 the weight may rise.

    Returns:
      [B, T] float32 loss, 0 outside the mask; `policy/weight_clip_frac` (share of trained tokens
      whose weight is clipped; their gradient stays), and the other metrics of `ppo_clip` with
      `policy/clip_frac` 0.

    >>> mask = jnp.ones((1, 1), bool)
    >>> new, old = jnp.log(jnp.array([[0.5]])), jnp.log(jnp.array([[0.05]]))
    >>> loss, _ = cispo(new, old, jnp.array([1.0]), mask)
    >>> print(loss.round(4))  # ratio 10, weight 5: 5 log 2
    [[3.4657]]
    """
    check("BT, BT, BT", logp=logp, old_logp=old_logp, mask=mask)
    log_ratio = masked_log_ratio(logp, old_logp, mask)
    ratio = jax.lax.stop_gradient(bounded_exp(log_ratio))
    weight = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    loss = jnp.where(mask, -weight * per_token(adv, mask) * masked(logp, mask), 0.0)
    metrics = ratio_metrics(log_ratio, jnp.zeros_like(mask), mask)
    clipped = jnp.sum(mask & (weight != ratio))
    return loss, metrics | {"policy/weight_clip_frac": Mean(clipped, jnp.sum(mask))}


def sapo(
    logp: jax.Array,
    old_logp: jax.Array,
    adv: jax.Array,
    mask: jax.Array,
    *,
    tau_pos: float | jax.Array = 1.0,
    tau_neg: float | jax.Array = 1.05,
) -> tuple[jax.Array, Metrics]:
    """SAPO: a soft gate on the ratio instead of a hard clip.

    loss_t = -A_t (4 / tau_t) sigmoid(tau_t (r_t - 1)), with tau_t = tau_pos where A_t > 0 and
    tau_neg elsewhere. On policy the gradient is that of REINFORCE; it fades as r_t leaves 1.

    Source: Soft Adaptive Policy Optimization, https://arxiv.org/abs/2511.20347. verl averages
    it over sequences whatever the configured aggregation is; TRL takes its defaults from the
    paper, as here.

    Args:
      logp: [B, T] float32, log-prob of each token under the current policy.
      old_logp: [B, T] float32, the same under the policy the ratio is taken against.
      adv: [B] or [B, T], advantage.
      mask: [B, T] bool, true where a token trains.
      tau_pos: above 0; the larger, the faster tokens with a positive advantage fade.
      tau_neg: above 0, the same for the others; larger than tau_pos for stability.

    Returns:
      [B, T] float32 loss, 0 outside the mask; the metrics of `ppo_clip` with `policy/clip_frac` 0.

    >>> mask, old = jnp.ones((1, 1), bool), jnp.array([[-1.0]])
    >>> float(sapo(old, old, jnp.array([1.0]), mask)[0][0, 0])  # -(4 / 1) sigmoid(0)
    -2.0
    """
    check("BT, BT, BT", logp=logp, old_logp=old_logp, mask=mask)
    adv = per_token(adv, mask)
    log_ratio = masked_log_ratio(logp, old_logp, mask)
    tau = jnp.where(adv > 0, tau_pos, tau_neg).astype(adv.dtype)
    loss = -adv * (4.0 / tau) * jax.nn.sigmoid(tau * (bounded_exp(log_ratio) - 1.0))
    return jnp.where(mask, loss, 0.0), ratio_metrics(log_ratio, jnp.zeros_like(mask), mask)


def dppo_tv(
    logp: jax.Array,
    old_logp: jax.Array,
    adv: jax.Array,
    mask: jax.Array,
    *,
    clip_low: float | jax.Array = 0.2,
    clip_high: float | jax.Array = 0.2,
    max_ratio: float | jax.Array = 20.0,
) -> tuple[jax.Array, Metrics]:
    """DPPO with the binary total variation: the trust region is one of probability, not of ratio.

    loss_t = -A_t r_t M_t, M_t = 0 where A_t > 0 and p_t - p_old_t > clip_high, or A_t < 0 and
    p_old_t - p_t > clip_low, else 1. A ratio above `max_ratio` weighs as much as `max_ratio`.

    Source: Rethinking the Trust Region in LLM Reinforcement Learning,
    https://arxiv.org/abs/2602.04879. `old_logp` should be that of the policy that sampled. As in
    verl and SkyRL the weight is truncated without removing the gradient; verl writes the loss with
    log p_t instead of r_t, whose gradient is the same.

    Args:
      logp: [B, T] float32, log-prob of each token under the current policy.
      old_logp: [B, T] float32, the same under the policy that sampled.
      adv: [B] or [B, T], advantage.
      mask: [B, T] bool, true where a token trains.
      clip_low: how far the probability may fall while the advantage is negative.
      clip_high: how far the probability may rise while the advantage is positive.
      max_ratio: the largest importance weight.

    Returns:
      [B, T] float32 loss, 0 outside the mask; the metrics of `ppo_clip`.

    >>> mask = jnp.ones((1, 2), bool)
    >>> new, old = jnp.log(jnp.array([[0.02, 0.9]])), jnp.log(jnp.array([[0.01, 0.6]]))
    >>> loss, _ = dppo_tv(new, old, jnp.array([1.0]), mask)
    >>> print(loss.round(4))  # 0.01 -> 0.02 is free though the ratio is 2; 0.6 -> 0.9 is cut
    [[-2.  0.]]
    """
    check("BT, BT, BT", logp=logp, old_logp=old_logp, mask=mask)
    rise = jnp.exp(masked(logp, mask)) - jnp.exp(masked(old_logp, mask))
    adv = per_token(adv, mask)
    is_cut = ((adv > 0) & (rise > clip_high)) | ((adv < 0) & (rise < -clip_low))
    return _within_trust_region(logp, old_logp, adv, is_cut, mask, max_ratio)


def dppo_kl(
    logp: jax.Array,
    old_logp: jax.Array,
    adv: jax.Array,
    mask: jax.Array,
    *,
    clip_low: float | jax.Array = 0.05,
    clip_high: float | jax.Array = 0.05,
    max_ratio: float | jax.Array = 20.0,
) -> tuple[jax.Array, Metrics]:
    """DPPO with the binary KL: tokens leave where the old policy's KL to the new one is too large.

    loss_t = -A_t r_t M_t, with D_t = q log(q / p) + (1 - q) log((1 - q) / (1 - p)), q = p_old_t,
    p = p_t; M_t = 0 where A_t > 0, p > q and D_t > clip_high, or A_t < 0, p < q and
    D_t > clip_low, else 1. A ratio above `max_ratio` weighs as much as `max_ratio`.

    Source: Rethinking the Trust Region in LLM Reinforcement Learning,
    https://arxiv.org/abs/2602.04879; thresholds as SkyRL recommends them. See `dppo_tv`.

    Args:
      logp: [B, T] float32, log-prob of each token under the current policy.
      old_logp: [B, T] float32, the same under the policy that sampled.
      adv: [B] or [B, T], advantage.
      mask: [B, T] bool, true where a token trains.
      clip_low: largest divergence, in nats, while the advantage is negative.
      clip_high: largest divergence, in nats, while the advantage is positive.
      max_ratio: the largest importance weight.

    Returns:
      [B, T] float32 loss, 0 outside the mask; the metrics of `ppo_clip`.

    >>> mask = jnp.ones((1, 2), bool)
    >>> new, old = jnp.log(jnp.array([[0.02, 0.9]])), jnp.log(jnp.array([[0.01, 0.6]]))
    >>> loss, _ = dppo_kl(new, old, jnp.array([1.0]), mask)
    >>> print(loss.round(4))  # KL 0.0032 is free, 0.3112 is cut
    [[-2.  0.]]
    """
    check("BT, BT, BT", logp=logp, old_logp=old_logp, mask=mask)
    new, old = fixed(logp, mask), masked(old_logp, mask)
    kl = jnp.exp(old) * (old - new) - jnp.expm1(old) * (_log1mexp(old) - _log1mexp(new))
    adv = per_token(adv, mask)
    rises, falls = (adv > 0) & (new > old), (adv < 0) & (new < old)
    is_cut = (rises & (kl > clip_high)) | (falls & (kl > clip_low))
    return _within_trust_region(logp, old_logp, adv, is_cut, mask, max_ratio)


def decoupled_ppo(
    logp: jax.Array,
    old_logp: jax.Array,
    sampler_logp: jax.Array | None,
    adv: jax.Array,
    mask: jax.Array,
    *,
    clip_low: float | jax.Array = 0.2,
    clip_high: float | jax.Array = 0.2,
    max_weight: float | jax.Array | None = None,
) -> tuple[jax.Array, Metrics]:
    """PPO for stale samples: clipped around a recent policy, weighted back to the sampling one.

    loss_t = w_t max(-A_t r_t, -A_t clip(r_t, 1 - clip_low, 1 + clip_high)), with
    r_t = p_t / p_old_t against the proximal policy (that of the step's start) and
    w_t = p_old_t / p_sampler_t without gradient.

    Sources: Batch size-invariance for policy optimization, https://arxiv.org/abs/2110.00641;
    AReaL, https://arxiv.org/abs/2505.24298. AReaL's code leaves out tokens whose weight exceeds
    its cap (behav_imp_weight_cap); so does `max_weight`.

    Args:
      logp: [B, T] float32, log-prob of each token under the current policy.
      old_logp: [B, T] float32, the same under the proximal policy.
      sampler_logp: [B, T] float32, the same under the policy that sampled.
      adv: [B] or [B, T], advantage.
      mask: [B, T] bool, true where a token trains.
      clip_low: how far below 1 the ratio may fall while the advantage is negative.
      clip_high: how far above 1 the ratio may rise while the advantage is positive.
      max_weight: tokens with a larger w_t do not train; None: all do.

    Returns:
      [B, T] float32 loss, 0 outside the mask; the metrics of `ppo_clip`, of the ratio r_t.

    Raises:
      ValueError: `sampler_logp` is None.

    >>> mask = jnp.ones((1, 1), bool)
    >>> old, sampler = jnp.log(jnp.array([[0.5]])), jnp.log(jnp.array([[0.25]]))
    >>> loss, _ = decoupled_ppo(old, old, sampler, jnp.array([1.0]), mask)
    >>> print(loss.round(4))  # w = 2, r = 1
    [[-2.]]
    """
    sampler_logp = require_sampler_logp(sampler_logp)
    check("BT, BT, BT", logp=logp, sampler_logp=sampler_logp, mask=mask)
    loss, metrics = ppo_clip(logp, old_logp, adv, mask, clip_low=clip_low, clip_high=clip_high)
    weight = jax.lax.stop_gradient(bounded_exp(masked_log_ratio(old_logp, sampler_logp, mask)))
    if max_weight is not None:
        weight = jnp.where(weight > max_weight, 0.0, weight)
    return loss * weight, metrics


def positive_nll(
    logp: jax.Array, is_right: jax.Array, mask: jax.Array
) -> tuple[jax.Array, Metrics]:
    """VAPO's imitation of right answers: -log p_t on the tokens of right rollouts, else 0.

    Source: VAPO, https://arxiv.org/abs/2504.05118 (added to the policy loss with coefficient
    0.1). The paper averages over the tokens of right rollouts only; here as everywhere
    the caller's weights are the average, and `policy/positive_nll` has the paper's.

    Args:
      logp: [B, T] float32, log-prob of each token under the current policy.
      is_right: [B] or [B, T] bool, whether the rollout's answer is right.
      mask: [B, T] bool, true where a token trains.

    Returns:
      [B, T] float32 loss, 0 outside the mask; `policy/positive_nll`.

    >>> loss, _ = positive_nll(
    ...     jnp.array([[-1.0], [-2.0]]), jnp.array([True, False]), jnp.ones((2, 1), bool))
    >>> loss.tolist()
    [[1.0], [0.0]]
    """
    check("BT, BT", logp=logp, mask=mask)
    return _weighted_nll(logp, per_token(is_right, mask, name="is_right"), mask)


def rft(logp: jax.Array, reward: jax.Array, mask: jax.Array) -> tuple[jax.Array, Metrics]:
    """Rejection-sampling fine-tuning: likelihood of what was sampled and is right.

    loss_t = -max(R_t, 0) log p_t: with rewards 0 and 1 plain imitation of the right rollouts,
    with other rewards weighted by them; what has no positive reward does not train.

    Sources: RFT, https://arxiv.org/abs/2308.01825; as a policy-gradient method with the gradient
    coefficient 1 or 0, DeepSeekMath, https://arxiv.org/abs/2402.03300, appendix A.1. Online RFT is
    the same loss on samples of the current policy.

    Args:
      logp: [B, T] float32, log-prob of each token under the current policy.
      reward: [B] or [B, T], the weight of each rollout; carries no gradient.
      mask: [B, T] bool, true where a token trains.

    Returns:
      [B, T] float32 loss, 0 outside the mask; `policy/positive_nll`.

    >>> logp, mask = jnp.array([[-1.0], [-2.0]]), jnp.ones((2, 1), bool)
    >>> rft(logp, jnp.array([0.5, -1.0]), mask)[0].tolist()
    [[0.5], [0.0]]
    """
    check("BT, BT", logp=logp, mask=mask)
    return _weighted_nll(logp, jnp.maximum(per_token(reward, mask, name="reward"), 0.0), mask)


def _weighted_nll(logp: jax.Array, weight: jax.Array, mask: jax.Array) -> tuple[jax.Array, Metrics]:
    is_positive = mask & (weight > 0)
    nll = masked(-logp, is_positive)
    count = jnp.sum(is_positive)
    metrics: Metrics = {"policy/positive_nll": Mean(jax.lax.stop_gradient(jnp.sum(nll)), count)}
    return nll * weight.astype(nll.dtype), metrics


def _within_trust_region(
    logp: jax.Array,
    old_logp: jax.Array,
    adv: jax.Array,
    is_cut: jax.Array,
    mask: jax.Array,
    max_ratio: float | jax.Array,
) -> tuple[jax.Array, Metrics]:
    log_ratio = masked_log_ratio(logp, old_logp, mask)
    weight = attached(jnp.minimum(bounded_exp(log_ratio), max_ratio), masked(logp, mask))
    loss = jnp.where(mask & ~is_cut, -adv * weight, 0.0)
    return loss, ratio_metrics(log_ratio, is_cut, mask)


def _log1mexp(log_prob: jax.Array) -> jax.Array:
    """log(1 - exp(x)) for x <= 0, finite at x = 0."""
    return jnp.log(jnp.maximum(-jnp.expm1(log_prob), jnp.finfo(log_prob.dtype).tiny))

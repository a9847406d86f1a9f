"""Losses and masks that select some of the tokens.

A selection over the whole batch must not depend on how the batch is split: it is made once per
optimizer step, over all its tokens, from what was recorded while sampling (`entropy_threshold`,
`token_covariance` with `select_clip_cov` and `select_kl_cov`), and travels as a number or as a bool
array to the loss of each micro-batch. Weights are left alone: a token that is not selected keeps
its place in the denominator, as in the papers. The papers' code selects anew in each micro-batch,
with the current policy's log-probs; on the first update of a step the two agree.

B rows, T tokens of a row.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import Mean, Metrics, at_least_float32, check, constant_of
from jaxrl_vr.losses.masked import fixed, masked, masked_log_ratio, per_token
from jaxrl_vr.losses.ratios import bounded_exp, ratio_metrics
from jaxrl_vr.losses.segments import segment_mean


def opsm(
    logp: jax.Array,
    old_logp: jax.Array,
    adv: jax.Array,
    mask: jax.Array,
    segment_ids: jax.Array | None = None,
    *,
    delta: float | jax.Array = 0.5,
) -> jax.Array:
    """DeepSeek-V3.2's off-policy sequence mask: which tokens keep their loss.

    False where A_t < 0 and mean_t (log p_old_t - log p_t) > delta over the token's sequence: the
    policy no longer answers so, and pushing it further away only adds noise. It follows the
    current policy, so multiply the loss with it and leave the weights alone.

    Source: DeepSeek-V3.2, https://arxiv.org/abs/2512.02556, section 3.1 (off-policy sequence
    masking); the paper does not give delta, 0.5 is what TRL suggests
    (`off_policy_mask_threshold`). `old_logp` is best the sampler's own log-prob.

    Args:
      logp: [B, T] float32, log-prob of each token under the current policy; no gradient passes.
      old_logp: [B, T] float32, the same under the policy that sampled.
      adv: [B] or [B, T], advantage.
      mask: [B, T] bool, true where a token trains.
      segment_ids: [B, T] int, from 0 to T; None: a row is one sequence.
      delta: largest mean log ratio in nats.

    Returns:
      [B, T] bool, false outside the mask.

    >>> old, adv = jnp.zeros((2, 2)), jnp.array([-1.0, 1.0])
    >>> opsm(old - 1.0, old, adv, jnp.ones((2, 2), bool)).tolist()
    [[False, False], [True, True]]
    """
    check("BT, BT, BT, BT", logp=logp, old_logp=old_logp, mask=mask, segment_ids=segment_ids)
    log_ratio = jax.lax.stop_gradient(masked_log_ratio(logp, old_logp, mask))
    drift = -segment_mean(log_ratio, mask, segment_ids)
    return mask & ~((per_token(adv, mask) < 0) & (drift > delta))


def entropy_threshold(
    entropy: jax.Array, mask: jax.Array, *, fraction: float | jax.Array = 0.2
) -> jax.Array:
    """The entropy above which a `fraction` of an optimizer step's tokens lies.

    Source: Beyond the 80/20 Rule, https://arxiv.org/abs/2506.01939, section 5. TRL's
    top_entropy_quantile is this fraction.

    Args:
      entropy: [B, T] float, of each token's distribution, recorded while sampling; of all the
        step's tokens.
      mask: [B, T] bool, true where a token trains.
      fraction: share of the tokens to select, above 0; at least one token is.

    Returns:
      Scalar float32: the smallest entropy that is selected.

    >>> entropy, mask = jnp.array([[0.1, 2.0, 0.3, 1.0]]), jnp.ones((1, 4), bool)
    >>> float(entropy_threshold(entropy, mask, fraction=0.5))
    1.0
    """
    return _top(masked(entropy, mask), mask, jnp.sum(mask), fraction)


def top_entropy_mask(
    entropy: jax.Array, mask: jax.Array, *, threshold: float | jax.Array
) -> jax.Array:
    """Which tokens are forks, of high entropy: only they keep their loss.

    Source: Beyond the 80/20 Rule, https://arxiv.org/abs/2506.01939, section 5: multiply the loss
    with it and leave the weights alone.

    Args:
      entropy: [B, T] float, recorded while sampling.
      mask: [B, T] bool, true where a token trains.
      threshold: `entropy_threshold` of the optimizer step.

    Returns:
      [B, T] bool, false outside the mask.

    >>> entropy, mask = jnp.array([[0.1, 2.0, 0.3, 1.0]]), jnp.ones((1, 4), bool)
    >>> top_entropy_mask(entropy, mask, threshold=1.0).tolist()
    [[False, True, False, True]]
    """
    return mask & (masked(entropy, mask) >= threshold)


def token_covariance(logp: jax.Array, adv: jax.Array, mask: jax.Array) -> jax.Array:
    """Each token's part in the covariance of log-prob and advantage, which drives entropy down.

    cov_t = (log p_t - mean(log p)) (A_t - mean(A)), means over all tokens of the mask.

    Source: The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models,
    https://arxiv.org/abs/2505.22617.

    Args:
      logp: [B, T] float32, log-prob of each token, recorded while sampling; of all tokens of an
        optimizer step. No gradient passes.
      adv: [B] or [B, T], advantage.
      mask: [B, T] bool, true where a token trains.

    Returns:
      [B, T] float32, 0 outside the mask.

    >>> logp, adv = jnp.array([[-1.0, -3.0]]), jnp.array([[1.0, 0.0]])
    >>> token_covariance(logp, adv, jnp.ones((1, 2), bool)).tolist()  # (1 x 0.5), (-1 x -0.5)
    [[0.5, 0.5]]
    """
    check("BT, BT", logp=logp, mask=mask)
    adv, logp = per_token(adv, mask), fixed(logp, mask)
    count = jnp.maximum(jnp.sum(mask), 1).astype(logp.dtype)
    centred = [jnp.where(mask, x - jnp.sum(x) / count, 0.0) for x in (adv, logp)]
    return centred[0] * centred[1]


def select_clip_cov(
    cov: jax.Array,
    mask: jax.Array,
    noise: jax.Array,
    *,
    low: float | jax.Array = 1.0,
    high: float | jax.Array = 5.0,
    fraction: float | jax.Array = 2e-4,
) -> jax.Array:
    """Clip-Cov's tokens: a random few of those with a high covariance.

    Of the tokens with low < cov_t < high those with the largest noise, as many as a `fraction` of
    all the step's tokens, at least one.

    Source: https://arxiv.org/abs/2505.22617; bounds and fraction of the authors' code in verl
    (clip_cov_lb, clip_cov_ub, clip_cov_ratio), which leaves out tokens that
    PPO's range clips already: here that is not known yet.

    Args:
      cov: [B, T] float32, `token_covariance` of all the optimizer step's tokens.
      mask: [B, T] bool, true where a token trains.
      noise: [B, T] float, uniform random numbers, a token's own wherever it is packed.
      low: smallest covariance.
      high: largest covariance.
      fraction: share of the step's tokens to select.

    Returns:
      [B, T] bool.

    >>> cov, noise = jnp.array([[2.0, 3.0, 0.5, 9.0]]), jnp.array([[0.1, 0.2, 0.9, 0.9]])
    >>> select_clip_cov(cov, jnp.ones((1, 4), bool), noise).tolist()
    [[False, True, False, False]]
    """
    check("BT, BT, BT", cov=cov, mask=mask, noise=noise)
    cov = masked(cov, mask)
    candidate = mask & (cov > low) & (cov < high)
    noise = masked(noise, candidate)
    return candidate & (noise >= _top(noise, candidate, jnp.sum(mask), fraction))


def select_kl_cov(
    cov: jax.Array, mask: jax.Array, *, fraction: float | jax.Array = 2e-4
) -> jax.Array:
    """KL-Cov's tokens: those with the largest covariance, a `fraction` of all, at least one.

    Source: https://arxiv.org/abs/2505.22617; fraction of the authors' code in verl
    (kl_cov_ratio).

    Args:
      cov: [B, T] float32, `token_covariance` of all the optimizer step's tokens.
      mask: [B, T] bool, true where a token trains.
      fraction: share of the step's tokens to select.

    Returns:
      [B, T] bool; of equal covariances at the threshold all are selected.

    >>> cov = jnp.array([[2.0, 3.0, 0.5, 9.0]])
    >>> select_kl_cov(cov, jnp.ones((1, 4), bool), fraction=0.5).tolist()
    [[False, True, False, True]]
    """
    check("BT, BT", cov=cov, mask=mask)
    cov = masked(cov, mask)
    return mask & (cov >= _top(cov, mask, jnp.sum(mask), fraction))


def clip_cov(
    logp: jax.Array,
    old_logp: jax.Array,
    adv: jax.Array,
    mask: jax.Array,
    selected: jax.Array,
    *,
    clip_low: float | jax.Array = 0.2,
    clip_high: float | jax.Array = 0.2,
) -> tuple[jax.Array, Metrics]:
    """Clip-Cov: PPO's clipped surrogate, where a few tokens of high covariance do not train.

    loss_t = 0 where selected, else as in `ppo_clip`.

    Source: The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models,
    https://arxiv.org/abs/2505.22617.

    Args:
      logp: [B, T] float32, log-prob of each token under the current policy.
      old_logp: [B, T] float32, the same under the policy the ratio is taken against.
      adv: [B] or [B, T], advantage.
      mask: [B, T] bool, true where a token trains.
      selected: [B, T] bool, `select_clip_cov` over the optimizer step.
      clip_low: how far below 1 the ratio may fall while the advantage is negative.
      clip_high: how far above 1 the ratio may rise while the advantage is positive.

    Returns:
      [B, T] float32 loss, 0 outside the mask; the metrics of `ppo_clip`, where
      `policy/clip_frac` counts the selected, and `policy/selected_frac`.

    >>> old, mask = jnp.array([[-1.0, -1.0]]), jnp.ones((1, 2), bool)
    >>> clip_cov(old, old, jnp.array([2.0]), mask, jnp.array([[True, False]]))[0].tolist()
    [[0.0, -2.0]]
    """
    check("BT, BT, BT, BT", logp=logp, old_logp=old_logp, mask=mask, selected=selected)
    adv = per_token(adv, mask)
    log_ratio = masked_log_ratio(logp, old_logp, mask)
    ratio = bounded_exp(log_ratio)
    free = -adv * ratio
    clipped = -adv * jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    loss = jnp.where(mask & ~selected, jnp.maximum(free, clipped), 0.0)
    metrics = ratio_metrics(log_ratio, selected | (clipped > free), mask)
    return loss, metrics | _selected_frac(selected, mask)


def kl_cov(
    logp: jax.Array,
    old_logp: jax.Array,
    adv: jax.Array,
    mask: jax.Array,
    selected: jax.Array,
    *,
    coef: float | jax.Array = 1.0,
) -> tuple[jax.Array, Metrics]:
    """KL-Cov: the unclipped surrogate, with a KL penalty on the tokens of highest covariance.

    loss_t = -A_t r_t + coef |log p_t - log p_old_t| where selected, -A_t r_t elsewhere.

    Source: The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models,
    https://arxiv.org/abs/2505.22617. The paper writes KL(old || new); the absolute
    log ratio in its place is that of the authors' code (in verl "kl_cov", ppo_kl_coef).

    Args:
      logp: [B, T] float32, log-prob of each token under the current policy.
      old_logp: [B, T] float32, the same under the policy the ratio is taken against.
      adv: [B] or [B, T], advantage.
      mask: [B, T] bool, true where a token trains.
      selected: [B, T] bool, `select_kl_cov` over the optimizer step.
      coef: weight of the penalty.

    Returns:
      [B, T] float32 loss, 0 outside the mask; the metrics of `ppo_clip` with `policy/clip_frac` 0,
      and `policy/selected_frac`.

    >>> old, mask = jnp.array([[-1.0, -1.0]]), jnp.ones((1, 2), bool)
    >>> loss, _ = kl_cov(old - 1.0, old, jnp.array([0.0]), mask, jnp.array([[True, False]]))
    >>> loss.tolist()
    [[1.0, 0.0]]
    """
    check("BT, BT, BT, BT", logp=logp, old_logp=old_logp, mask=mask, selected=selected)
    log_ratio = masked_log_ratio(logp, old_logp, mask)
    # Not jnp.abs, whose derivative at 0 is 1: on policy the penalty has no gradient.
    distance = log_ratio * jax.lax.stop_gradient(jnp.sign(log_ratio))
    penalty = jnp.where(selected, coef * distance, 0.0)
    loss = penalty - per_token(adv, mask) * bounded_exp(log_ratio)
    metrics = ratio_metrics(log_ratio, jnp.zeros_like(mask), mask)
    return jnp.where(mask, loss, 0.0), metrics | _selected_frac(selected, mask)


def _top(
    x: jax.Array, among: jax.Array, count: jax.Array, fraction: float | jax.Array
) -> jax.Array:
    """The k-th largest x among some, k = fraction x count rounded down, at least 1.

    Found bit by bit, from how many are at least as large: unlike a sort, this gathers nothing of
    a sharded array. With fewer than k it is -inf.
    """
    x = jax.lax.stop_gradient(at_least_float32(x))
    num = jnp.maximum(jnp.floor(fraction * count.astype(x.dtype)).astype(count.dtype), 1)
    unsigned = jnp.uint64 if x.dtype == jnp.float64 else jnp.uint32
    sign = jnp.array(1 << (jnp.iinfo(unsigned).bits - 1), unsigned)
    bits = jax.lax.bitcast_convert_type(x, unsigned)
    # Integers in the order of the floats: those of negative floats are in reverse.
    key = jnp.where((bits & sign) != 0, ~bits, bits | sign)

    def next_bit(_, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        found, bit = state
        is_low_enough = jnp.sum(among & (key >= (found | bit))) >= num
        return jnp.where(is_low_enough, found | bit, found), bit >> 1

    start = (constant_of(0, unsigned, among, key, num), sign)
    found, _ = jax.lax.fori_loop(0, jnp.iinfo(unsigned).bits, next_bit, start)
    bits = jnp.where((found & sign) != 0, found ^ sign, ~found)
    largest = jax.lax.bitcast_convert_type(bits, x.dtype)
    return jnp.where(found == 0, -jnp.inf, largest)


def _selected_frac(selected: jax.Array, mask: jax.Array) -> Metrics:
    return {"policy/selected_frac": Mean(jnp.sum(mask & selected), jnp.sum(mask))}

"""Policy losses whose ratio is that of a whole sequence, and preference pairs of sequences.

A sequence loss returns its value on each of the sequence's tokens. Used with the weights
`sequence_mean` it counts once a sequence, as in the papers; other weights make long sequences
count more. Rows may be packed: `segment_ids` says which sequence of its row a token belongs to.

B rows, T tokens of a row, N preference pairs, S tokens of a rejected answer, P prompts, G samples
of a prompt.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import Max, Mean, Metrics, at_least_float32, check
from jaxrl_vr.losses.masked import masked, masked_log_ratio, per_token
from jaxrl_vr.losses.ratios import attached, bounded_exp, ratio_metrics
from jaxrl_vr.losses.segments import segment_mean, segment_total


def gspo(
    logp: jax.Array,
    old_logp: jax.Array,
    adv: jax.Array,
    mask: jax.Array,
    segment_ids: jax.Array | None = None,
    *,
    clip_low: float | jax.Array = 3e-4,
    clip_high: float | jax.Array = 4e-4,
) -> tuple[jax.Array, Metrics]:
    """GSPO: PPO's clipped surrogate with the length-normalised ratio of the whole sequence.

    loss = max(-A s, -A clip(s, 1 - clip_low, 1 + clip_high)) on each token of a sequence, with
    s = exp(mean_t (log p_t - log p_old_t)).

    Source: Group Sequence Policy Optimization, https://arxiv.org/abs/2507.18071, equations 5
    and 7, ranges of section 5.1. verl computes the form of `gspo_token` under this name and keeps
    its defaults for token ratios (0.2), which clip nothing here; TRL has it
    as importance_sampling_level = "sequence".

    Args:
      logp: [B, T] float32, log-prob of each token under the current policy.
      old_logp: [B, T] float32, the same under the policy the ratio is taken against.
      adv: [B] or [B, T], advantage, constant within a sequence; for others see `gspo_token`.
      mask: [B, T] bool, true where a token trains.
      segment_ids: [B, T] int, from 0 to T; None: a row is one sequence.
      clip_low: how far below 1 the ratio may fall while the advantage is negative.
      clip_high: how far above 1 the ratio may rise while the advantage is positive.

    Returns:
      [B, T] float32 loss, 0 outside the mask; the metrics of `ppo_clip` (`policy/clip_frac`
      counts the tokens of clipped sequences) and `policy/ratio_max_seq`.

    >>> mask = jnp.ones((1, 2), bool)
    >>> old, new = jnp.array([[-1.0, -1.0]]), jnp.array([[-0.5, -1.5]])
    >>> gspo(new, old, jnp.array([2.0]), mask)[0].tolist()  # s = exp((0.5 - 0.5) / 2) = 1
    [[-2.0, -2.0]]
    """
    check("BT, BT, BT, BT", logp=logp, old_logp=old_logp, mask=mask, segment_ids=segment_ids)
    log_ratio = masked_log_ratio(logp, old_logp, mask)
    ratio = bounded_exp(segment_mean(log_ratio, mask, segment_ids))
    return _clipped_sequences(ratio, log_ratio, adv, mask, clip_low, clip_high)


def gspo_token(
    logp: jax.Array,
    old_logp: jax.Array,
    adv: jax.Array,
    mask: jax.Array,
    segment_ids: jax.Array | None = None,
    *,
    clip_low: float | jax.Array = 3e-4,
    clip_high: float | jax.Array = 4e-4,
) -> tuple[jax.Array, Metrics]:
    """GSPO-token: GSPO's value and clipping, for advantages that differ within a sequence.

    loss_t = max(-A_t s_t, -A_t clip(s_t, 1 - clip_low, 1 + clip_high)), with
    s_t = stop_gradient(s) p_t / stop_gradient(p_t) and s as in `gspo`. With equal advantages and
    sequence weights, value and gradient are those of `gspo`.

    Source: Group Sequence Policy Optimization, https://arxiv.org/abs/2507.18071, equations 13
    and 14. TRL: experimental gspo_token; verl: "gspo"; Tunix: "gspo-token".

    Args:
      logp: [B, T] float32, log-prob of each token under the current policy.
      old_logp: [B, T] float32, the same under the policy the ratio is taken against.
      adv: [B] or [B, T], advantage.
      mask: [B, T] bool, true where a token trains.
      segment_ids: [B, T] int, from 0 to T; None: a row is one sequence.
      clip_low: how far below 1 the ratio may fall while the advantage is negative.
      clip_high: how far above 1 the ratio may rise while the advantage is positive.

    Returns:
      [B, T] float32 loss, 0 outside the mask; the metrics of `gspo`.

    >>> mask = jnp.ones((1, 2), bool)
    >>> old, new = jnp.array([[-1.0, -1.0]]), jnp.array([[-0.5, -1.5]])
    >>> gspo_token(new, old, jnp.array([[2.0, -1.0]]), mask)[0].tolist()
    [[-2.0, 1.0]]
    """
    check("BT, BT, BT, BT", logp=logp, old_logp=old_logp, mask=mask, segment_ids=segment_ids)
    log_ratio = masked_log_ratio(logp, old_logp, mask)
    ratio = bounded_exp(segment_mean(log_ratio, mask, segment_ids))
    ratio = attached(ratio, masked(logp, mask))
    return _clipped_sequences(ratio, log_ratio, adv, mask, clip_low, clip_high)


def gmpo(
    logp: jax.Array,
    old_logp: jax.Array,
    adv: jax.Array,
    mask: jax.Array,
    segment_ids: jax.Array | None = None,
    *,
    clip_low: float | jax.Array = 0.4,
    clip_high: float | jax.Array = 0.4,
) -> tuple[jax.Array, Metrics]:
    """GMPO: the geometric mean of a sequence's ratios, each clipped in the log first.

    loss = -A exp(mean_t l_t) on each token of a sequence, with d_t = log p_t - log p_old_t and
    l_t = min(d_t, clip(d_t)) where A > 0, max(d_t, clip(d_t)) where A < 0, clip to
    [-clip_low, clip_high]: the ratio to [exp(-clip_low), exp(clip_high)].

    Source: Geometric-Mean Policy Optimization, https://arxiv.org/abs/2507.20673, with its range
    (e^-0.4, e^0.4). verl ("geo_mean") has the ratio ranges of PPO as defaults, 0.2, and
    averages over sequences whatever the configured aggregation is.

    Args:
      logp: [B, T] float32, log-prob of each token under the current policy.
      old_logp: [B, T] float32, the same under the policy the ratio is taken against.
      adv: [B] or [B, T], advantage, constant within a sequence.
      mask: [B, T] bool, true where a token trains.
      segment_ids: [B, T] int, from 0 to T; None: a row is one sequence.
      clip_low: how far the log ratio may fall while the advantage is negative.
      clip_high: how far the log ratio may rise while the advantage is positive.

    Returns:
      [B, T] float32 loss, 0 outside the mask; the metrics of `gspo`.

    >>> mask, old = jnp.ones((1, 2), bool), jnp.array([[-2.0, -2.0]])
    >>> loss, _ = gmpo(jnp.array([[-1.0, -2.4]]), old, jnp.array([1.0]), mask)
    >>> print(loss.round(4))  # log ratios 1, clipped to 0.4, and -0.4: exp(0)
    [[-1. -1.]]
    """
    check("BT, BT, BT, BT", logp=logp, old_logp=old_logp, mask=mask, segment_ids=segment_ids)
    adv = per_token(adv, mask)
    log_ratio = masked_log_ratio(logp, old_logp, mask)
    clipped = jnp.clip(log_ratio, -clip_low, clip_high)
    kept = jnp.where(adv > 0, jnp.minimum(log_ratio, clipped), jnp.maximum(log_ratio, clipped))
    ratio = bounded_exp(segment_mean(kept, mask, segment_ids))
    metrics = ratio_metrics(log_ratio, (kept != log_ratio) & (adv != 0), mask)
    unclipped = bounded_exp(segment_mean(log_ratio, mask, segment_ids))
    return jnp.where(mask, -adv * ratio, 0.0), metrics | _ratio_max_seq(unclipped, mask)


def online_mirror_descent(
    logp: jax.Array,
    old_logp: jax.Array,
    adv: jax.Array,
    mask: jax.Array,
    segment_ids: jax.Array | None = None,
    *,
    tau: float | jax.Array,
) -> tuple[jax.Array, Metrics]:
    """Kimi k1.5's online policy mirror descent, in the form whose gradient the paper states.

    loss = -A L + (tau / 2) L^2 on each token of a sequence, with
    L = sum_t (log p_t - log p_old_t); its gradient is -(A - tau L) dL.

    Source: Kimi k1.5, https://arxiv.org/abs/2501.12599, section 2.3.2. A is the reward less the
    mean of its group (`group_center`), which stands for tau log Z; L is a sum without a length
    normaliser; the reference is the policy at the start of the iteration. What the mean instead of
    log Z does: https://arxiv.org/abs/2602.05933.

    Args:
      logp: [B, T] float32, log-prob of each token under the current policy.
      old_logp: [B, T] float32, the same under the policy that sampled, the reference.
      adv: [B] or [B, T], reward less the group's mean, constant within a sequence.
      mask: [B, T] bool, true where a token trains.
      segment_ids: [B, T] int, from 0 to T; None: a row is one sequence.
      tau: strength of the pull to the reference, above 0; the paper does not give its value.

    Returns:
      [B, T] float32 loss, 0 outside the mask; the metrics of `ppo_clip` with `policy/clip_frac` 0.

    >>> mask, old = jnp.ones((1, 2), bool), jnp.array([[-2.0, -2.0]])
    >>> loss, _ = online_mirror_descent(old + 1.0, old, jnp.array([0.5]), mask, tau=0.25)
    >>> loss.tolist()  # L = 2: -0.5 x 2 + 0.125 x 4
    [[-0.5, -0.5]]
    """
    adv, total, metrics = _mirror_descent_parts(logp, old_logp, adv, mask, segment_ids)
    return jnp.where(mask, -adv * total + 0.5 * tau * jnp.square(total), 0.0), metrics


def online_mirror_descent_squared(
    logp: jax.Array,
    old_logp: jax.Array,
    adv: jax.Array,
    mask: jax.Array,
    segment_ids: jax.Array | None = None,
    *,
    tau: float | jax.Array,
) -> tuple[jax.Array, Metrics]:
    """Kimi k1.5's online policy mirror descent as the squared loss it is derived from.

    loss = (A - tau L)^2 on each token of a sequence; A, L and tau as in `online_mirror_descent`,
    whose gradient times 2 tau is this one's.

    Source: Kimi k1.5, https://arxiv.org/abs/2501.12599, section 2.3.2.

    Args:
      logp: [B, T] float32, log-prob of each token under the current policy.
      old_logp: [B, T] float32, the same under the policy that sampled, the reference.
      adv: [B] or [B, T], reward less the group's mean, constant within a sequence.
      mask: [B, T] bool, true where a token trains.
      segment_ids: [B, T] int, from 0 to T; None: a row is one sequence.
      tau: strength of the pull to the reference, above 0.

    Returns:
      [B, T] float32 loss, 0 outside the mask; the metrics of `ppo_clip` with `policy/clip_frac` 0.

    >>> mask, old = jnp.ones((1, 2), bool), jnp.array([[-2.0, -2.0]])
    >>> loss, _ = online_mirror_descent_squared(old + 1.0, old, jnp.array([0.5]), mask, tau=0.5)
    >>> loss.tolist()  # L = 2: (0.5 - 0.5 x 2)^2
    [[0.25, 0.25]]
    """
    adv, total, metrics = _mirror_descent_parts(logp, old_logp, adv, mask, segment_ids)
    return jnp.where(mask, jnp.square(adv - tau * total), 0.0), metrics


def dpo(
    chosen_logp: jax.Array,
    rejected_logp: jax.Array,
    chosen_ref_logp: jax.Array,
    rejected_ref_logp: jax.Array,
    chosen_mask: jax.Array,
    rejected_mask: jax.Array,
    *,
    beta: float | jax.Array = 0.1,
) -> tuple[jax.Array, Metrics]:
    """DPO: the preferred answer of a pair is made likelier than the other, against a reference.

    loss = -log sigmoid(beta (L_chosen - L_rejected)), L = sum_t (log p_t - log p_ref_t).

    Source: Direct Preference Optimization, https://arxiv.org/abs/2305.18290, equation 7. Online
    DPO, https://arxiv.org/abs/2402.04792, takes its pairs from samples of the current policy: a
    right and a wrong answer of one group, as `preference_pairs` picks them. Tunix and TRL have
    the same default of beta.

    Args:
      chosen_logp: [N, T] float32, log-prob of each token of the preferred answers.
      rejected_logp: [N, S] float32, of the others.
      chosen_ref_logp: [N, T] float32, the same under the reference; carries no gradient.
      rejected_ref_logp: [N, S] float32.
      chosen_mask: [N, T] bool, true on the answer's tokens.
      rejected_mask: [N, S] bool.
      beta: strength of the pull to the reference.

    Returns:
      [N] float32 loss, 0 for a pair of which an answer has no token; `dpo/accuracy`,
      `dpo/margin`.

    >>> logp, mask = jnp.array([[-1.0]]), jnp.ones((1, 1), bool)
    >>> print(dpo(logp, logp, logp, logp, mask, mask)[0].round(4))  # log 2
    [0.6931]
    """
    check("NT, NT, NT", logp=chosen_logp, chosen_ref_logp=chosen_ref_logp, mask=chosen_mask)
    check("NS, NS, NS", logp=rejected_logp, rejected_ref_logp=rejected_ref_logp, mask=rejected_mask)
    check("NT, NS", chosen_logp=chosen_logp, rejected_logp=rejected_logp)
    chosen = jnp.sum(masked_log_ratio(chosen_logp, chosen_ref_logp, chosen_mask), axis=1)
    rejected = jnp.sum(masked_log_ratio(rejected_logp, rejected_ref_logp, rejected_mask), axis=1)
    is_pair = jnp.any(chosen_mask, axis=1) & jnp.any(rejected_mask, axis=1)
    margin = beta * (chosen - rejected)
    loss = jnp.where(is_pair, jax.nn.softplus(-margin), 0.0)
    return loss, _pair_metrics(margin, is_pair.astype(margin.dtype))


def packed_dpo(
    logp: jax.Array,
    ref_logp: jax.Array,
    preference: jax.Array,
    mask: jax.Array,
    pair_ids: jax.Array | None = None,
    *,
    beta: float | jax.Array = 0.1,
) -> tuple[jax.Array, Metrics]:
    """DPO for pairs that lie in packed rows: `dpo`'s value on each token of both answers.

    loss = softplus(-beta sum_t s_t (log p_t - log p_ref_t)), the sum over the tokens of the pair,
    s_t = 1 on the preferred answer and -1 on the other. With weights 1 / (pairs x tokens of the
    pair), `sequence_mean` of the pairs' lengths, each pair counts once.

    Source: Direct Preference Optimization, https://arxiv.org/abs/2305.18290, equation 7.

    Args:
      logp: [B, T] float32, log-prob of each token under the current policy.
      ref_logp: [B, T] float32, the same under the reference; carries no gradient.
      preference: [B, T], above 0 on preferred answers, below 0 on the others, 0 on what is in no
        pair.
      mask: [B, T] bool, true where a token trains.
      pair_ids: [B, T] int, from 0 to T, which pair of its row a token belongs to; None: a row is
        one pair.
      beta: strength of the pull to the reference.

    Returns:
      [B, T] float32 loss, 0 outside the mask and where the pair lacks an answer; `dpo/accuracy`,
      `dpo/margin`.

    >>> logp, mask = jnp.array([[-1.0, -3.0]]), jnp.ones((1, 2), bool)
    >>> loss, _ = packed_dpo(logp, logp, jnp.array([[1.0, -1.0]]), mask)
    >>> print(loss.round(4))
    [[0.6931 0.6931]]
    """
    check(
        "BT, BT, BT, BT, BT",
        logp=logp,
        ref_logp=ref_logp,
        preference=preference,
        mask=mask,
        pair_ids=pair_ids,
    )
    sign = jnp.sign(per_token(preference, mask, name="preference"))
    log_ratio = masked_log_ratio(logp, ref_logp, mask)
    margin = beta * segment_total(sign * log_ratio, mask, pair_ids)
    num_chosen = segment_total((sign > 0).astype(margin.dtype), mask, pair_ids)
    num_rejected = segment_total((sign < 0).astype(margin.dtype), mask, pair_ids)
    is_pair = mask & (sign != 0) & (num_chosen > 0) & (num_rejected > 0)
    loss = jnp.where(is_pair, jax.nn.softplus(-margin), 0.0)
    # One over its tokens, so that the metrics are over pairs.
    share = jnp.where(is_pair, 1.0 / jnp.maximum(num_chosen + num_rejected, 1.0), 0.0)
    return loss, _pair_metrics(margin, share)


def preference_pairs(
    reward: jax.Array, valid: jax.Array | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A pair of each group for online DPO: its first best answer and its first worst.

    Source: Direct Language Model Alignment from Online AI Feedback,
    https://arxiv.org/abs/2402.04792, with the verifier in the place of the annotator.

    Args:
      reward: [P, G] float, one reward a rollout.
      valid: [P, G] bool; an invalid rollout is not picked. None: all are valid.

    Returns:
      chosen [P] int32 and rejected [P] int32, each an index into G, and has_pair [P] bool, false
      where the valid rewards are equal.

    >>> chosen, rejected, has_pair = preference_pairs(jnp.array([[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]]))
    >>> int(chosen[0]), int(rejected[0]), has_pair.tolist()
    (1, 0, [True, False])
    """
    check("PG, PG", reward=reward, valid=valid)
    reward = at_least_float32(reward)
    valid = jnp.ones(reward.shape, bool) if valid is None else valid
    high, low = jnp.where(valid, reward, -jnp.inf), jnp.where(valid, reward, jnp.inf)
    has_pair = jnp.max(high, axis=1) > jnp.min(low, axis=1)
    return jnp.argmax(high, axis=1), jnp.argmin(low, axis=1), has_pair


def _clipped_sequences(
    ratio: jax.Array,
    log_ratio: jax.Array,
    adv: jax.Array,
    mask: jax.Array,
    clip_low: float | jax.Array,
    clip_high: float | jax.Array,
) -> tuple[jax.Array, Metrics]:
    adv = per_token(adv, mask)
    free = -adv * ratio
    clipped = -adv * jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    metrics = ratio_metrics(log_ratio, clipped > free, mask) | _ratio_max_seq(ratio, mask)
    return jnp.where(mask, jnp.maximum(free, clipped), 0.0), metrics


def _ratio_max_seq(ratio: jax.Array, mask: jax.Array) -> Metrics:
    largest = jnp.max(jnp.where(mask, ratio, 0.0))
    return {"policy/ratio_max_seq": Max(jax.lax.stop_gradient(largest))}


def _mirror_descent_parts(
    logp: jax.Array,
    old_logp: jax.Array,
    adv: jax.Array,
    mask: jax.Array,
    segment_ids: jax.Array | None,
) -> tuple[jax.Array, jax.Array, Metrics]:
    check("BT, BT, BT, BT", logp=logp, old_logp=old_logp, mask=mask, segment_ids=segment_ids)
    log_ratio = masked_log_ratio(logp, old_logp, mask)
    metrics = ratio_metrics(log_ratio, jnp.zeros_like(mask), mask)
    return per_token(adv, mask), segment_total(log_ratio, mask, segment_ids), metrics


def _pair_metrics(margin: jax.Array, share: jax.Array) -> Metrics:
    count = jnp.sum(share)
    metrics: Metrics = {
        "dpo/accuracy": Mean(jnp.sum(jnp.where(margin > 0, share, 0.0)), count),
        "dpo/margin": Mean(jnp.sum(jnp.where(share > 0, share * margin, 0.0)), count),
    }
    return jax.lax.stop_gradient(metrics)

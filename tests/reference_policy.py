"""What the policy losses should give, as plain float64 numpy loops that share nothing with them.

`frozen` is the log-prob that stands where a loss stops the gradient: with it fixed, differences in
`logp` give the gradient that the loss should have. B rows, T tokens of a row, N preference pairs.
"""

import math

import numpy as np
from reference import double


def sequences(mask, segment_ids=None):
    """The trained tokens of each sequence, as lists of (row, position)."""
    ids = np.zeros(mask.shape, int) if segment_ids is None else np.asarray(segment_ids)
    found = {}
    for b, t in np.argwhere(mask):
        found.setdefault((b, int(ids[b, t])), []).append((b, t))
    return list(found.values())


def reinforce(logp, adv, mask, frozen=None):
    """[B, T] loss."""
    logp, adv = double(logp, adv)
    loss = np.zeros(logp.shape)
    for b, t in np.argwhere(mask):
        loss[b, t] = -adv[b, t] * logp[b, t]
    return loss


def clipped(ratio, adv, clip_low, clip_high, dual_clip=None, max_ratio=None):
    """PPO's loss of one ratio."""
    bounded = min(max(ratio, 1 - clip_low), 1 + clip_high)
    free = ratio if max_ratio is None else min(ratio, max_ratio)
    loss = max(-adv * free, -adv * bounded)
    if dual_clip is not None and adv < 0:
        loss = min(loss, -adv * dual_clip)
    return loss


def ppo_clip(logp, old_logp, adv, mask, frozen=None, **numbers):
    """[B, T] loss."""
    logp, old_logp, adv = double(logp, old_logp, adv)
    loss = np.zeros(logp.shape)
    for b, t in np.argwhere(mask):
        loss[b, t] = clipped(math.exp(logp[b, t] - old_logp[b, t]), adv[b, t], **numbers)
    return loss


def cispo(logp, old_logp, adv, mask, frozen=None, *, clip_low, clip_high):
    """[B, T] loss."""
    frozen = logp if frozen is None else frozen
    logp, old_logp, adv, frozen = double(logp, old_logp, adv, frozen)
    loss = np.zeros(logp.shape)
    for b, t in np.argwhere(mask):
        weight = min(max(math.exp(frozen[b, t] - old_logp[b, t]), 1 - clip_low), 1 + clip_high)
        loss[b, t] = -weight * adv[b, t] * logp[b, t]
    return loss


def sapo(logp, old_logp, adv, mask, frozen=None, *, tau_pos, tau_neg):
    """[B, T] loss."""
    logp, old_logp, adv = double(logp, old_logp, adv)
    loss = np.zeros(logp.shape)
    for b, t in np.argwhere(mask):
        tau = tau_pos if adv[b, t] > 0 else tau_neg
        ratio = math.exp(logp[b, t] - old_logp[b, t])
        loss[b, t] = -adv[b, t] * 4 / tau / (1 + math.exp(-tau * (ratio - 1)))
    return loss


def _dppo(divergence, logp, old_logp, adv, mask, frozen, clip_low, clip_high, max_ratio):
    frozen = logp if frozen is None else frozen
    logp, old_logp, adv, frozen = double(logp, old_logp, adv, frozen)
    loss = np.zeros(logp.shape)
    for b, t in np.argwhere(mask):
        p, q = math.exp(frozen[b, t]), math.exp(old_logp[b, t])
        if adv[b, t] > 0 and p > q and divergence(q, p) > clip_high:
            continue
        if adv[b, t] < 0 and p < q and divergence(q, p) > clip_low:
            continue
        weight = min(p / q, max_ratio) * math.exp(logp[b, t] - frozen[b, t])
        loss[b, t] = -adv[b, t] * weight
    return loss


def dppo_tv(logp, old_logp, adv, mask, frozen=None, *, clip_low, clip_high, max_ratio):
    """[B, T] loss."""

    def total_variation(q, p):
        return abs(q - p)

    return _dppo(total_variation, logp, old_logp, adv, mask, frozen, clip_low, clip_high, max_ratio)


def dppo_kl(logp, old_logp, adv, mask, frozen=None, *, clip_low, clip_high, max_ratio):
    """[B, T] loss."""

    def binary_kl(q, p):
        return q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))

    return _dppo(binary_kl, logp, old_logp, adv, mask, frozen, clip_low, clip_high, max_ratio)


def decoupled_ppo(
    logp, old_logp, sampler_logp, adv, mask, frozen=None, *, clip_low, clip_high, max_weight
):
    """[B, T] loss."""
    old_logp, sampler_logp = double(old_logp, sampler_logp)
    loss = ppo_clip(logp, old_logp, adv, mask, clip_low=clip_low, clip_high=clip_high)
    for b, t in np.argwhere(mask):
        weight = math.exp(old_logp[b, t] - sampler_logp[b, t])
        loss[b, t] *= 0 if weight > max_weight else weight
    return loss


def positive_nll(logp, is_right, mask, frozen=None):
    """[B, T] loss."""
    loss = np.zeros(logp.shape)
    for b, t in np.argwhere(mask):
        loss[b, t] = -logp[b, t] if is_right[b, t] else 0
    return loss


def rft(logp, reward, mask, frozen=None):
    """[B, T] loss."""
    logp, reward = double(logp, reward)
    loss = np.zeros(logp.shape)
    for b, t in np.argwhere(mask):
        loss[b, t] = -max(reward[b, t], 0) * logp[b, t]
    return loss


def gspo(logp, old_logp, adv, mask, segment_ids=None, frozen=None, *, clip_low, clip_high):
    """[B, T] loss."""
    logp, old_logp, adv = double(logp, old_logp, adv)
    loss = np.zeros(logp.shape)
    for tokens in sequences(mask, segment_ids):
        ratio = math.exp(math.fsum(logp[i] - old_logp[i] for i in tokens) / len(tokens))
        for i in tokens:
            loss[i] = clipped(ratio, adv[i], clip_low, clip_high)
    return loss


def gspo_token(logp, old_logp, adv, mask, segment_ids=None, frozen=None, *, clip_low, clip_high):
    """[B, T] loss."""
    frozen = logp if frozen is None else frozen
    logp, old_logp, adv, frozen = double(logp, old_logp, adv, frozen)
    loss = np.zeros(logp.shape)
    for tokens in sequences(mask, segment_ids):
        ratio = math.exp(math.fsum(frozen[i] - old_logp[i] for i in tokens) / len(tokens))
        for i in tokens:
            own = ratio * math.exp(logp[i] - frozen[i])
            loss[i] = clipped(own, adv[i], clip_low, clip_high)
    return loss


def gmpo(logp, old_logp, adv, mask, segment_ids=None, frozen=None, *, clip_low, clip_high):
    """[B, T] loss; the ratio of a token is clipped as that of `adv` at this token."""
    logp, old_logp, adv = double(logp, old_logp, adv)
    loss = np.zeros(logp.shape)
    for tokens in sequences(mask, segment_ids):
        logs = []
        for i in tokens:
            log_ratio = logp[i] - old_logp[i]
            bounded = min(max(log_ratio, -clip_low), clip_high)
            logs.append(min(log_ratio, bounded) if adv[i] > 0 else max(log_ratio, bounded))
        for i in tokens:
            loss[i] = -adv[i] * math.exp(math.fsum(logs) / len(tokens))
    return loss


def online_mirror_descent(logp, old_logp, adv, mask, segment_ids=None, frozen=None, *, tau):
    """[B, T] loss."""
    logp, old_logp, adv = double(logp, old_logp, adv)
    loss = np.zeros(logp.shape)
    for tokens in sequences(mask, segment_ids):
        total = math.fsum(logp[i] - old_logp[i] for i in tokens)
        for i in tokens:
            loss[i] = -adv[i] * total + tau / 2 * total**2
    return loss


def online_mirror_descent_squared(logp, old_logp, adv, mask, segment_ids=None, frozen=None, *, tau):
    """[B, T] loss."""
    logp, old_logp, adv = double(logp, old_logp, adv)
    loss = np.zeros(logp.shape)
    for tokens in sequences(mask, segment_ids):
        total = math.fsum(logp[i] - old_logp[i] for i in tokens)
        for i in tokens:
            loss[i] = (adv[i] - tau * total) ** 2
    return loss


def dpo(chosen, rejected, chosen_ref, rejected_ref, chosen_mask, rejected_mask, *, beta):
    """[N] loss."""
    chosen, rejected, chosen_ref, rejected_ref = double(chosen, rejected, chosen_ref, rejected_ref)
    loss = np.zeros(len(chosen))
    for n in range(len(chosen)):
        right, wrong = np.flatnonzero(chosen_mask[n]), np.flatnonzero(rejected_mask[n])
        if len(right) and len(wrong):
            margin = math.fsum(chosen[n, t] - chosen_ref[n, t] for t in right)
            margin -= math.fsum(rejected[n, t] - rejected_ref[n, t] for t in wrong)
            loss[n] = math.log(1 + math.exp(-beta * margin))
    return loss


def packed_dpo(logp, ref_logp, preference, mask, pair_ids=None, *, beta):
    """[B, T] loss."""
    logp, ref_logp = double(logp, ref_logp)
    loss = np.zeros(logp.shape)
    for tokens in sequences(mask, pair_ids):
        right = [i for i in tokens if preference[i] > 0]
        wrong = [i for i in tokens if preference[i] < 0]
        if right and wrong:
            margin = math.fsum(logp[i] - ref_logp[i] for i in right)
            margin -= math.fsum(logp[i] - ref_logp[i] for i in wrong)
            for i in right + wrong:
                loss[i] = math.log(1 + math.exp(-beta * margin))
    return loss


def opsm(logp, old_logp, adv, mask, segment_ids=None, *, delta):
    """[B, T] bool: what keeps its loss."""
    keep = np.zeros(mask.shape, bool)
    for tokens in sequences(mask, segment_ids):
        drift = math.fsum(old_logp[i] - logp[i] for i in tokens) / len(tokens)
        for i in tokens:
            keep[i] = not (adv[i] < 0 and drift > delta)
    return keep


def top_entropy_mask(entropy, mask, *, threshold):
    """[B, T] bool."""
    keep = np.zeros(mask.shape, bool)
    for b, t in np.argwhere(mask):
        keep[b, t] = entropy[b, t] >= threshold
    return keep


def token_covariance(logp, adv, mask):
    """[B, T]."""
    logp, adv = double(logp, adv)
    cov = np.zeros(logp.shape)
    tokens = [tuple(i) for i in np.argwhere(mask)]
    for i in tokens:
        mean_logp = math.fsum(logp[j] for j in tokens) / len(tokens)
        mean_adv = math.fsum(adv[j] for j in tokens) / len(tokens)
        cov[i] = (logp[i] - mean_logp) * (adv[i] - mean_adv)
    return cov


def _largest(x, candidates, count, fraction):
    ordered = sorted(candidates, key=lambda i: -x[i])
    return ordered[: max(math.floor(fraction * count + 1e-9), 1)]


def select_clip_cov(cov, mask, noise, *, low, high, fraction):
    """[B, T] bool."""
    selected = np.zeros(mask.shape, bool)
    tokens = [tuple(i) for i in np.argwhere(mask)]
    candidates = [i for i in tokens if low < cov[i] < high]
    for i in _largest(noise, candidates, len(tokens), fraction):
        selected[i] = True
    return selected


def select_kl_cov(cov, mask, *, fraction):
    """[B, T] bool."""
    selected = np.zeros(mask.shape, bool)
    tokens = [tuple(i) for i in np.argwhere(mask)]
    for i in _largest(cov, tokens, len(tokens), fraction):
        selected[i] = True
    return selected


def clip_cov(logp, old_logp, adv, mask, selected, frozen=None, *, clip_low, clip_high):
    """[B, T] loss."""
    loss = ppo_clip(logp, old_logp, adv, mask, clip_low=clip_low, clip_high=clip_high)
    for b, t in np.argwhere(selected):
        loss[b, t] = 0
    return loss


def kl_cov(logp, old_logp, adv, mask, selected, frozen=None, *, coef):
    """[B, T] loss."""
    logp, old_logp, adv = double(logp, old_logp, adv)
    loss = np.zeros(logp.shape)
    for b, t in np.argwhere(mask):
        log_ratio = logp[b, t] - old_logp[b, t]
        loss[b, t] = -adv[b, t] * math.exp(log_ratio)
        loss[b, t] += coef * abs(log_ratio) if selected[b, t] else 0
    return loss

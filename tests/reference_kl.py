"""What the divergences and the critic's losses should be, as plain float64 numpy loops.

B rows, T tokens of a row, V vocabulary.
"""

import math

import numpy as np
from reference import double, k3
from reference_advantages import sequences


def k1(logp, ref_logp):
    logp, ref_logp = double(logp, ref_logp)
    return logp - ref_logp


def k2(logp, ref_logp):
    return k1(logp, ref_logp) ** 2 / 2


def unbiased_k3(logp, old_logp, ref_logp):
    return np.exp(k1(logp, old_logp)) * k3(logp, ref_logp)


def full_kl(logits, ref_logits, mask):
    """[B, T]."""
    logits, ref_logits = double(logits, ref_logits)
    value = np.zeros(mask.shape)
    for b, t in np.argwhere(mask):
        p, q = probabilities(logits[b, t]), probabilities(ref_logits[b, t])
        value[b, t] = math.fsum(x * math.log(x / y) for x, y in zip(p, q, strict=True) if x > 0)
    return value


def top_k_kl(logits, ref_logits, mask, *, k):
    """[B, T]."""
    logits, ref_logits = double(logits, ref_logits)
    value = np.zeros(mask.shape)
    for b, t in np.argwhere(mask):
        p, q = probabilities(logits[b, t]), probabilities(ref_logits[b, t])
        order = np.argsort(-p, kind="stable")
        p, q = ([*x[order[:k]], math.fsum(x[order[k:]])] for x in (p, q))
        value[b, t] = math.fsum(x * math.log(x / y) for x, y in zip(p, q, strict=True) if x > 0)
    return value


def probabilities(logits):
    odds = np.exp(logits - logits.max())
    return odds / math.fsum(odds)


def kl_in_reward(reward, logp, ref_logp, mask, *, coef, clamp_at_zero=False, segment_ids=None):
    """[B, T], with k1."""
    logp, ref_logp = double(logp, ref_logp)
    shaped = np.zeros(mask.shape)
    for b, at in sequences(mask, segment_ids):
        for t in at:
            kl = logp[b, t] - ref_logp[b, t]
            shaped[b, t] = -coef * (max(kl, 0.0) if clamp_at_zero else kl)
        shaped[b, at[-1]] += reward[b] if np.ndim(reward) == 1 else reward[b, at[-1]]
    return shaped


def kl_reward_metrics(token_reward, reward, mask, *, segment_ids=None):
    """Sums of total, task and KL, and the count."""
    found = [
        (sum(token_reward[b, t] for t in at), reward[b] if reward.ndim == 1 else reward[b, at[-1]])
        for b, at in sequences(mask, segment_ids)
    ]
    total, task = (math.fsum(float(pair[i]) for pair in found) for i in (0, 1))
    return total, task, total - task, len(found)


def adaptive_kl(state, kl, *, target, horizon, num_rollouts=1):
    error = min(max(kl / target - 1, -0.2), 0.2)
    return state * (1 + error * num_rollouts / horizon)


def clipped_value_loss(value, old_value, returns, mask, *, clip):
    """[B, T] loss and the number of tokens whose gradient is cut."""
    value, old_value, returns = double(value, old_value, returns)
    loss, num_cut = np.zeros(mask.shape), 0
    for b, t in np.argwhere(mask):
        low, high = old_value[b, t] - clip, old_value[b, t] + clip
        free = (value[b, t] - returns[b, t]) ** 2
        bounded = (min(max(value[b, t], low), high) - returns[b, t]) ** 2
        loss[b, t] = max(free, bounded) / 2
        num_cut += bounded > free
    return loss, num_cut


def huber_value_loss(value, returns, mask, *, delta):
    """[B, T] loss."""
    value, returns = double(value, returns)
    loss = np.zeros(mask.shape)
    for b, t in np.argwhere(mask):
        error = abs(value[b, t] - returns[b, t])
        loss[b, t] = error**2 / 2 if error <= delta else delta * (error - delta / 2)
    return loss


def explained_variance(value, returns, mask):
    value, returns = double(value, returns)
    kept = returns[mask]
    if len(set(kept.tolist())) < 2:
        return 0.0
    return 1 - np.var((returns - value)[mask]) / np.var(kept)

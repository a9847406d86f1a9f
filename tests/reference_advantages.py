"""What advantages, returns, weights and shaped rewards should be, as plain float64 numpy loops.

P prompts, G samples of a prompt, B rollouts or rows, T tokens of a row, S steps of a rollout.
"""

import itertools
import math

import numpy as np
from reference import double, group_center, group_norm


def everyone(reward, valid):
    return np.ones(np.shape(reward), bool) if valid is None else np.asarray(valid)


def deviation(values, ddof=0):
    """Of a list of numbers; 0 for none or equal ones."""
    if len({float(x) for x in values}) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - ddof))


def leave_one_out(reward, valid=None):
    """[P, G]: reward less the mean of the other valid rewards of its group."""
    (reward,), valid = double(reward), everyone(reward, valid)
    adv = np.zeros(reward.shape)
    for p, g in np.argwhere(valid):
        others = [reward[p, j] for j in range(reward.shape[1]) if valid[p, j] and j != g]
        if others:
            adv[p, g] = reward[p, g] - math.fsum(others) / len(others)
    return adv


def batch_norm(reward, valid=None, *, eps=1e-4, ddof=0):
    """[P, G]: the centred reward over the standard deviation of the batch."""
    adv = group_center(reward, valid)
    spread = deviation(double(reward)[0][everyone(reward, valid)], ddof)
    return adv / (spread + eps) if spread + eps else adv * 0


def reinforce_plus_plus_baseline(reward, valid=None, *, eps=1e-8):
    """[P, G]: the centred reward over the batch's deviation of centred rewards."""
    adv = group_center(reward, valid)
    spread = deviation(adv[everyone(reward, valid)])
    return adv / math.sqrt(spread**2 + eps)


def max_rl(reward, valid=None):
    """[P, G]: the centred reward over the group's mean."""
    (reward,), valid = double(reward), everyone(reward, valid)
    adv = group_center(reward, valid)
    for p in range(len(reward)):
        members = reward[p, valid[p]]
        mean = math.fsum(members) / max(len(members), 1)
        adv[p] = adv[p] / mean if mean > 0 else 0.0
    return adv


def opo(reward, length, valid=None):
    """[P, G]: reward less the length-weighted mean."""
    (reward, length), valid = double(reward, length), everyone(reward, valid)
    adv = np.zeros(reward.shape)
    for p, g in np.argwhere(valid):
        total = math.fsum(length[p, valid[p]])
        adv[p, g] = reward[p, g] - math.fsum((length * reward)[p, valid[p]]) / total
    return adv


def fixed_baseline(reward, baseline, valid=None):
    """[P, G]: reward less the prompt's baseline."""
    (reward, baseline), valid = double(reward, baseline), everyone(reward, valid)
    adv = np.zeros(reward.shape)
    for p, g in np.argwhere(valid):
        adv[p, g] = reward[p, g] - baseline[p]
    return adv


def pass_at_k_advantage(reward, valid=None, *, k, eps=1e-6):
    """[P, G]: by enumeration of the subsets of k rollouts."""
    (reward,), valid = double(reward), everyone(reward, valid)
    adv = np.zeros(reward.shape)
    for p in range(len(reward)):
        members = [g for g in range(reward.shape[1]) if valid[p, g]]
        subsets = list(itertools.combinations(members, k))
        best = [max(reward[p, g] for g in subset) for subset in subsets]
        spread = deviation(best)
        for g in members if spread else []:
            mine = [b for b, subset in zip(best, subsets, strict=True) if g in subset]
            adv[p, g] = (np.mean(mine) - np.mean(best)) / (spread + eps)
    return adv


def multi_reward_norm(rewards, weights, valid=None, *, eps=1e-4, ddof=0):
    """[P, G]: the weighted sum of normalised components."""
    rewards, weights = double(rewards, weights)
    return sum(
        w * group_norm(rewards[:, :, r], valid, eps=eps, ddof=ddof) for r, w in enumerate(weights)
    )


def gdpo(rewards, weights, valid=None, *, eps=1e-4, ddof=0):
    """[P, G]: the same, whitened over the batch."""
    adv = multi_reward_norm(rewards, weights, valid, eps=eps, ddof=ddof)
    valid = everyone(adv, valid)
    values = adv[valid]
    if not values.any():
        return adv
    return np.where(valid, (adv - np.mean(values)) / (np.std(values, ddof=ddof) + eps), 0)


def process_group_norm(step_reward, step_end, step_mask, mask, *, eps=1e-4, ddof=0):
    """[B, T]: sums of the group's normalised step rewards."""
    (step_reward,) = double(step_reward)
    samples = step_reward.shape[1]
    adv = np.zeros(np.shape(mask))
    for p in range(len(step_reward)):
        values = step_reward[p][step_mask[p]]
        spread = deviation(values, ddof)
        for g, s in np.argwhere(step_mask[p]) if spread else []:
            value = (step_reward[p, g, s] - np.mean(values)) / (spread + eps)
            for t in range(adv.shape[1]):
                if t <= step_end[p, g, s] < adv.shape[1]:
                    adv[p * samples + g, t] += value
    return np.where(mask, adv, 0)


def sequences(mask, segment_ids=None):
    """(row, positions of the trained tokens) of each sequence with any."""
    ids = np.zeros(np.shape(mask), int) if segment_ids is None else np.asarray(segment_ids)
    for b in range(len(ids)):
        for i in sorted(set(ids[b].tolist())):
            positions = [t for t in range(ids.shape[1]) if mask[b, t] and ids[b, t] == i]
            if positions:
                yield b, positions


def gae(reward, value, mask, *, gamma=1.0, lam=1.0, bootstrap=None, segment_ids=None):
    """Advantages and returns, [B, T]: the sum over k of (gamma lam)^k times the k-th error."""
    reward, value = double(reward, value)
    lam = np.broadcast_to(np.reshape(lam, (-1, 1)) if np.ndim(lam) == 1 else lam, mask.shape)
    adv, returns = np.zeros(mask.shape), np.zeros(mask.shape)
    for b, at in sequences(mask, segment_ids):
        after = 0.0
        if bootstrap is not None:
            after = bootstrap[b] if np.ndim(bootstrap) == 1 else bootstrap[b, at[-1]]
        values = [value[b, t] for t in at] + [float(after)]
        errors = [reward[b, t] + gamma * values[n + 1] - values[n] for n, t in enumerate(at)]
        for n, t in enumerate(at):
            weight = 1.0
            for k in range(n, len(at)):
                adv[b, t] += weight * errors[k]
                weight *= gamma * float(lam[b, at[k]])
            returns[b, t] = adv[b, t] + value[b, t]
    return adv, returns


def discounted_return(reward, mask, *, gamma=1.0, segment_ids=None):
    """[B, T]: the discounted rewards from each token on."""
    (reward,) = double(reward)
    returns = np.zeros(mask.shape)
    for b, at in sequences(mask, segment_ids):
        for n, t in enumerate(at):
            returns[b, t] = sum(gamma ** (k - n) * reward[b, at[k]] for k in range(n, len(at)))
    return returns


def whiten(x, mask, *, shift_mean=True, eps=1e-8):
    """x at variance 1, and mean 0 unless it stays."""
    (x,), mask = double(x), np.asarray(mask)
    if not mask.any():
        return np.zeros(x.shape)
    mean = math.fsum(x[mask]) / mask.sum()
    y = (x - mean) / math.sqrt(deviation(x[mask]) ** 2 + eps) + (0 if shift_mean else mean)
    return np.where(mask, y, 0)


def reinforce_plus_plus(reward, mask, *, gamma=1.0, eps=1e-8, segment_ids=None):
    """[B, T]: whitened returns."""
    returns = discounted_return(reward, mask, gamma=gamma, segment_ids=segment_ids)
    return whiten(returns, mask, eps=eps)


def length_adaptive_lambda(length, *, alpha=0.05):
    """[B]: 1 - 1 / (alpha length), not below 0."""
    return np.array([max(1 - 1 / (alpha * n), 0.0) if n else 0.0 for n in double(length)[0]])


def by_rollout(function, score, mask):
    (score,) = double(score)
    return np.array([function(s[m]) if m.any() else 0.0 for s, m in zip(score, mask, strict=True)])


def step_min(score, mask):
    return by_rollout(min, score, mask)


def step_product(score, mask):
    return by_rollout(math.prod, score, mask)


def step_mean(score, mask):
    return by_rollout(np.mean, score, mask)


def sequence_sum(length):
    """[B]: one over rollouts that train."""
    return [1.0 / max(sum(n > 0 for n in length), 1) for _ in length]


def prompt_mean(length, group):
    """[B]: one over prompts that train times the tokens of the prompt's rollouts."""
    tokens = {g: sum(n for n, h in zip(length, group, strict=True) if h == g) for g in group}
    count = max(sum(n > 0 for n in tokens.values()), 1)
    return [1.0 / (count * max(tokens[g], 1)) for g in group]


def overlong_penalty(length, *, max_length, buffer, penalty=1.0):
    """Of each length."""
    start = max_length - buffer

    def one(n):
        if n <= start:
            return 0.0
        return -penalty if n >= max_length else -penalty * (n - start) / buffer

    return np.vectorize(one, otypes=[float])(length)


def truncated_mask(mask, truncated):
    return np.array(
        [[m and not cut for m in row] for row, cut in zip(mask, truncated, strict=True)]
    )


def kimi_length_reward(length, correct, valid=None):
    """[P, G]."""
    (length,), valid = double(length), everyone(length, valid)
    reward = np.zeros(length.shape)
    for p, g in np.argwhere(valid):
        low, high = min(length[p, valid[p]]), max(length[p, valid[p]])
        if high > low:
            value = 0.5 - (length[p, g] - low) / (high - low)
            reward[p, g] = value if correct[p, g] else min(0.0, value)
    return reward


def cosine_length_reward(length, correct, *, max_length, ends=(2, 1, -10, 0), exceed=-10.0):
    """Of each length; ends: right and short, right and long, wrong and short, wrong and long."""

    def one(n, is_right):
        if n >= max_length:
            return exceed
        short, long = ends[:2] if is_right else ends[2:]
        return long + 0.5 * (short - long) * (1 + math.cos(n * math.pi / max_length))

    return np.vectorize(one, otypes=[float])(length, correct)


def stop_properly_penalty(reward, truncated, *, scale=0.0):
    return np.where(truncated, scale * double(reward)[0], double(reward)[0])


def format_gate(reward, has_format, *, otherwise=0.0):
    return np.where(has_format, double(reward)[0], otherwise)


def language_consistency(reward, share, *, coef=1.0):
    return double(reward)[0] + coef * double(share)[0]

"""What the losses should give, as plain float64 numpy loops that share nothing with them.

P prompts, G samples of a prompt, B rollouts or rows, T tokens of a row, N tokens, V vocabulary.
"""

import math

import numpy as np


def double(*arrays):
    """The arrays in float64, so that no sum below is taken in float32."""
    return [np.asarray(array, np.float64) for array in arrays]


def group_center(reward, valid=None):
    """[P, G]: reward less the mean of the group's valid rewards; 0 where invalid."""
    reward = np.asarray(reward, np.float64)
    valid = np.ones(reward.shape, bool) if valid is None else np.asarray(valid)
    adv = np.zeros(reward.shape)
    for p in range(reward.shape[0]):
        members = [g for g in range(reward.shape[1]) if valid[p, g]]
        for g in members:
            adv[p, g] = reward[p, g] - math.fsum(reward[p, members]) / len(members)
    return adv


def group_norm(reward, valid=None, *, eps=0.0, ddof=0):
    """[P, G]: the centred reward over the group's standard deviation plus eps."""
    reward = np.asarray(reward, np.float64)
    valid = np.ones(reward.shape, bool) if valid is None else np.asarray(valid)
    adv = group_center(reward, valid)
    for p in range(reward.shape[0]):
        members = [g for g in range(reward.shape[1]) if valid[p, g]]
        if len({float(r) for r in reward[p, members]}) < 2:
            adv[p] = 0.0
            continue
        variance = math.fsum(adv[p, members] ** 2) / (len(members) - ddof)
        adv[p] /= math.sqrt(variance) + eps
    return adv


def token_mean(length):
    """[B]: one over all trained tokens."""
    return [1.0 / max(sum(length), 1) for _ in length]


def sequence_mean(length):
    """[B]: one over rollouts that train times the rollout's own tokens."""
    count = max(sum(n > 0 for n in length), 1)
    return [1.0 / (count * max(n, 1)) for n in length]


def constant_length(length, *, max_length):
    """[B]: one over rollouts that train times the constant."""
    count = max(sum(n > 0 for n in length), 1)
    return [1.0 / (count * max_length) for _ in length]


def k3(logp, ref_logp):
    """[B, T]: ref / p - 1 - log(ref / p)."""
    logp, ref_logp = double(logp, ref_logp)
    value = np.zeros(logp.shape)
    for b, t in np.ndindex(value.shape):
        ratio = math.exp(ref_logp[b, t] - logp[b, t])
        value[b, t] = ratio - 1 - math.log(ratio)
    return value


def token_logprobs(hidden, head, token, temperature, mask=None):
    """logp and entropy, each [N], 0 outside the mask."""
    hidden, head = double(hidden, head)
    logp, entropy = np.zeros(len(token)), np.zeros(len(token))
    for n in range(len(token)):
        if mask is not None and not mask[n]:
            continue
        logits = head @ hidden[n] / float(temperature[n])
        top = logits.max()
        log_probs = logits - top - math.log(math.fsum(np.exp(logits - top)))
        logp[n] = log_probs[token[n]]
        entropy[n] = -math.fsum(np.exp(log_probs) * log_probs)
    return logp, entropy


def adamw(param, grads, *, rate, b1, b2, eps, decay):
    """The parameter after a step on each gradient in turn."""
    param, mean, square = np.array(param, np.float64), 0.0, 0.0
    for n, grad in enumerate(grads, start=1):
        grad = np.asarray(grad, np.float64)
        mean = b1 * mean + (1 - b1) * grad
        square = b2 * square + (1 - b2) * grad**2
        step = (mean / (1 - b1**n)) / (np.sqrt(square / (1 - b2**n)) + eps)
        param = param - rate * (step + decay * param)
    return param


def gradient(function, x, step=1e-6):
    """Central differences of a scalar function of a float64 array."""
    x = np.asarray(x, np.float64)
    grad = np.zeros(x.shape)
    for at in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[at] += step
        down[at] -= step
        grad[at] = (function(up) - function(down)) / (2 * step)
    return grad

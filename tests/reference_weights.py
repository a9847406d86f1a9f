"""Off-policy weights, supervised losses and distillation as plain float64 numpy loops.

B rows, T tokens of a row, V vocabulary, K tokens of a teacher's list, N preference pairs.
"""

import math

import numpy as np
from reference import double
from reference_policy import sequences


def _token_ratios(logp, sampler_logp, mask):
    logp, sampler_logp = double(logp, sampler_logp)
    ratio = np.zeros(logp.shape)
    for b, t in np.argwhere(mask):
        ratio[b, t] = math.exp(logp[b, t] - sampler_logp[b, t])
    return ratio


def _sequence_ratios(logp, sampler_logp, mask, segment_ids, is_mean):
    logp, sampler_logp = double(logp, sampler_logp)
    ratio = np.zeros(logp.shape)
    for tokens in sequences(mask, segment_ids):
        total = math.fsum(logp[i] - sampler_logp[i] for i in tokens)
        for i in tokens:
            ratio[i] = math.exp(total / (len(tokens) if is_mean else 1))
    return ratio


def _each(ratio, mask, rule):
    weight = np.zeros(ratio.shape)
    for b, t in np.argwhere(mask):
        weight[b, t] = rule(ratio[b, t])
    return weight


def tis(logp, sampler_logp, mask, *, max_weight):
    """[B, T] weights."""
    ratio = _token_ratios(logp, sampler_logp, mask)
    return _each(ratio, mask, lambda r: min(r, max_weight))


def sequence_tis(logp, sampler_logp, mask, segment_ids=None, *, max_weight):
    """[B, T] weights."""
    ratio = _sequence_ratios(logp, sampler_logp, mask, segment_ids, is_mean=False)
    return _each(ratio, mask, lambda r: min(r, max_weight))


def geometric_tis(logp, sampler_logp, mask, segment_ids=None, *, max_weight):
    """[B, T] weights."""
    ratio = _sequence_ratios(logp, sampler_logp, mask, segment_ids, is_mean=True)
    return _each(ratio, mask, lambda r: min(r, max_weight))


def mis(logp, sampler_logp, mask, *, max_weight):
    """[B, T] weights."""
    ratio = _token_ratios(logp, sampler_logp, mask)
    return _each(ratio, mask, lambda r: r if r <= max_weight else 0)


def sequence_mis(logp, sampler_logp, mask, segment_ids=None, *, max_weight):
    """[B, T] weights."""
    ratio = _sequence_ratios(logp, sampler_logp, mask, segment_ids, is_mean=False)
    return _each(ratio, mask, lambda r: r if r <= max_weight else 0)


def geometric_mis(logp, sampler_logp, mask, segment_ids=None, *, low, high):
    """[B, T] weights."""
    ratio = _sequence_ratios(logp, sampler_logp, mask, segment_ids, is_mean=True)
    return _each(ratio, mask, lambda r: r if low <= r <= high else 0)


def icepop(logp, sampler_logp, mask, *, low, high):
    """[B, T] weights."""
    ratio = _token_ratios(logp, sampler_logp, mask)
    return _each(ratio, mask, lambda r: r if low <= r <= high else 0)


def veto(logp, sampler_logp, mask, segment_ids=None, *, threshold):
    """[B, T] bool."""
    ratio = _token_ratios(logp, sampler_logp, mask)
    keep = np.zeros(mask.shape, bool)
    for tokens in sequences(mask, segment_ids):
        for i in tokens:
            keep[i] = min(ratio[j] for j in tokens) >= threshold
    return keep


def _scaled(x, mask, factor):
    (x,) = double(x)
    loss = np.zeros(x.shape)
    for b, t in np.argwhere(mask):
        loss[b, t] = factor(x[b, t])
    return loss


def cross_entropy(logp, mask):
    """[B, T] loss."""
    return _scaled(logp, mask, lambda x: -x)


def pretraining_mix(logp, mask, *, coef):
    """[B, T] loss."""
    return _scaled(logp, mask, lambda x: -coef * x)


def z_loss(log_z, mask, *, coef):
    """[B, T] loss."""
    return _scaled(log_z, mask, lambda x: coef * x**2)


def entropy_bonus(entropy, mask, *, coef):
    """[B, T] loss."""
    return _scaled(entropy, mask, lambda x: -coef * x)


def softmax(logits):
    """[V] probabilities."""
    total = math.fsum(math.exp(x) for x in logits)
    return [math.exp(x) / total for x in logits]


def label_smoothing(logits, target, mask, *, epsilon):
    """[B, T] loss: the cross-entropy to an explicit smoothed target."""
    loss = np.zeros(mask.shape)
    for b, t in np.argwhere(mask):
        probs = softmax(logits[b, t])
        for v, p in enumerate(probs):
            wanted = epsilon / len(probs) + (1 - epsilon if v == target[b, t] else 0)
            loss[b, t] -= wanted * math.log(p)
    return loss


def bradley_terry(chosen, rejected, valid):
    """[N] loss."""
    loss = np.zeros(len(valid))
    for n in np.flatnonzero(valid):
        loss[n] = math.log(1 + math.exp(float(rejected[n]) - float(chosen[n])))
    return loss


def step_cross_entropy(logit, label, step_end):
    """[B, T] loss."""
    logit, label = double(logit, label)
    loss = np.zeros(logit.shape)
    for b, t in np.argwhere(step_end):
        right = 1 / (1 + math.exp(-logit[b, t]))
        loss[b, t] -= label[b, t] * math.log(right) + (1 - label[b, t]) * math.log(1 - right)
    return loss


def _kl(p, q):
    return math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def _divergence(logits, teacher_logits, mask, rule):
    loss = np.zeros(mask.shape)
    for b, t in np.argwhere(mask):
        loss[b, t] = rule(softmax(logits[b, t]), softmax(teacher_logits[b, t]))
    return loss


def forward_kl(logits, teacher_logits, mask):
    """[B, T] loss."""
    return _divergence(logits, teacher_logits, mask, lambda s, t: _kl(t, s))


def reverse_kl(logits, teacher_logits, mask):
    """[B, T] loss."""
    return _divergence(logits, teacher_logits, mask, _kl)


def jensen_shannon(logits, teacher_logits, mask, *, beta):
    """[B, T] loss."""

    def rule(s, t):
        middle = [beta * b + (1 - beta) * a for a, b in zip(s, t, strict=True)]
        return beta * _kl(t, middle) + (1 - beta) * _kl(s, middle)

    return _divergence(logits, teacher_logits, mask, rule)


def top_k_forward_kl(logp, teacher_logp, mask):
    """[B, T] loss: the KL of the listed tokens and one that stands for the rest."""
    loss = np.zeros(mask.shape)
    for b, t in np.argwhere(mask):
        student, teacher = ([math.exp(x) for x in a[b, t]] for a in (logp, teacher_logp))
        student.append(1 - math.fsum(student))
        teacher.append(1 - math.fsum(teacher))
        loss[b, t] = _kl(teacher, student)
    return loss


def on_policy_advantage(logp, teacher_logp, mask):
    """[B, T] advantage."""
    logp, teacher_logp = double(logp, teacher_logp)
    adv = np.zeros(logp.shape)
    for b, t in np.argwhere(mask):
        adv[b, t] = teacher_logp[b, t] - logp[b, t]
    return adv

"""Distillation: divergences of a student's next-token distributions from a teacher's.

Logits are already over temperature. The vocabulary is taken whole: a caller that cannot hold
[B, T, V] gives a slice of tokens at a time, or the teacher's top tokens alone.

B rows, T tokens of a row, V vocabulary, K tokens of the teacher's list at a position.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import Mean, Metrics, at_least_float32, check
from jaxrl_vr.losses.masked import masked


def forward_kl(
    logits: jax.Array, teacher_logits: jax.Array, mask: jax.Array
) -> tuple[jax.Array, Metrics]:
    """KL(teacher || student) at each token: covers all that the teacher would say.

    loss_t = sum_v p_T(v) (log p_T(v) - log p_S(v)).

    Source: Distilling the Knowledge in a Neural Network, https://arxiv.org/abs/1503.02531.

    Args:
      logits: [B, T, V] float, of the student.
      teacher_logits: [B, T, V] float; carry no gradient.
      mask: [B, T] bool, true where a token trains.

    Returns:
      [B, T] float32 loss, 0 outside the mask; `distill/divergence`.

    >>> student, teacher = jnp.zeros((1, 1, 2)), jnp.log(jnp.array([[[0.75, 0.25]]]))
    >>> print(forward_kl(student, teacher, jnp.ones((1, 1), bool))[0].round(4))
    [[0.1308]]
    """
    student, teacher = _log_probs(logits, teacher_logits, mask)
    return _with_metrics(_kl(teacher, student), mask)


def reverse_kl(
    logits: jax.Array, teacher_logits: jax.Array, mask: jax.Array
) -> tuple[jax.Array, Metrics]:
    """KL(student || teacher) at each token: keeps the student to what the teacher would say.

    loss_t = sum_v p_S(v) (log p_S(v) - log p_T(v)).

    Source: MiniLLM, https://arxiv.org/abs/2306.08543. The paper has the divergence of whole
    sequences; this is its per-token part, without the effect of a token on those after it.

    Args:
      logits: [B, T, V] float, of the student.
      teacher_logits: [B, T, V] float; carry no gradient.
      mask: [B, T] bool, true where a token trains.

    Returns:
      [B, T] float32 loss, 0 outside the mask; `distill/divergence`.

    >>> student, teacher = jnp.zeros((1, 1, 2)), jnp.log(jnp.array([[[0.75, 0.25]]]))
    >>> round(float(reverse_kl(student, teacher, jnp.ones((1, 1), bool))[0][0, 0]), 4)
    0.1438
    """
    student, teacher = _log_probs(logits, teacher_logits, mask)
    return _with_metrics(_kl(student, teacher), mask)


def jensen_shannon(
    logits: jax.Array,
    teacher_logits: jax.Array,
    mask: jax.Array,
    *,
    beta: float | jax.Array = 0.5,
) -> tuple[jax.Array, Metrics]:
    """Generalised Jensen-Shannon divergence: between the two KLs, and bounded.

    loss_t = beta KL(p_T || M) + (1 - beta) KL(p_S || M), M = beta p_T + (1 - beta) p_S.

    Source: GKD, https://arxiv.org/abs/2306.13649, section 2. As beta goes to 0, loss / beta goes to
    the forward KL, and as it goes to 1, loss / (1 - beta) to the reverse one; at 0 and at 1 itself
    it is 0. TRL's GKDTrainer, with the same default, switches to the KLs there.

    Args:
      logits: [B, T, V] float, of the student.
      teacher_logits: [B, T, V] float; carry no gradient.
      mask: [B, T] bool, true where a token trains.
      beta: weight of the teacher, between 0 and 1, both excluded.

    Returns:
      [B, T] float32 loss, 0 outside the mask; `distill/divergence`.

    >>> student, teacher = jnp.zeros((1, 1, 2)), jnp.log(jnp.array([[[0.75, 0.25]]]))
    >>> print(jensen_shannon(student, teacher, jnp.ones((1, 1), bool))[0].round(4))
    [[0.0338]]
    """
    student, teacher = _log_probs(logits, teacher_logits, mask)
    weight = jnp.asarray(beta, student.dtype)
    mixture = jnp.logaddexp(teacher + jnp.log(weight), student + jnp.log1p(-weight))
    loss = weight * _kl(teacher, mixture) + (1.0 - weight) * _kl(student, mixture)
    return _with_metrics(loss, mask)


def top_k_forward_kl(
    logp: jax.Array, teacher_logp: jax.Array, mask: jax.Array
) -> tuple[jax.Array, Metrics]:
    """KL(teacher || student) over the teacher's top tokens, all others taken as one.

    loss_t = sum_k p_T(k) (log p_T(k) - log p_S(k)) + q_T (log q_T - log q_S), q = 1 - sum_k p(k).

    Source: truncated teacher distributions, https://arxiv.org/abs/2503.16870. Never above the KL
    over the whole vocabulary and never negative. Code that renormalises the K probabilities, or
    leaves out the rest, is biased: its best student puts no mass on the rest, or too little.

    Args:
      logp: [B, T, K] float32, the student's log-probs of the tokens that the teacher lists,
        normalised over the whole vocabulary.
      teacher_logp: [B, T, K] float32, the teacher's, normalised over the whole vocabulary too;
        carry no gradient; -inf where the list is shorter.
      mask: [B, T] bool, true where a token trains.

    Returns:
      [B, T] float32 loss, 0 outside the mask; `distill/divergence`.

    >>> student, teacher = jnp.log(jnp.array([[[0.5]]])), jnp.log(jnp.array([[[0.75]]]))
    >>> print(top_k_forward_kl(student, teacher, jnp.ones((1, 1), bool))[0].round(4))
    [[0.1308]]
    """
    check("BTK, BTK, BT", logp=logp, teacher_logp=teacher_logp, mask=mask)
    teacher = jax.lax.stop_gradient(at_least_float32(teacher_logp))
    is_listed = mask[..., None] & (teacher > -jnp.inf)
    # A list of nothing has all its mass in the rest, of teacher and student alike.
    teacher = jnp.where(is_listed, teacher, -jnp.inf)
    student = jnp.where(is_listed, at_least_float32(logp), 0.0)
    listed = jnp.where(is_listed, jnp.exp(teacher) * (_finite(teacher) - student), 0.0)
    rest = _rest(jnp.exp(teacher))
    student_rest = _rest(jnp.where(is_listed, jnp.exp(student), 0.0))
    loss = jnp.sum(listed, axis=-1) + rest * (jnp.log(rest) - jnp.log(student_rest))
    return _with_metrics(loss, mask)


def on_policy_advantage(
    logp: jax.Array, teacher_logp: jax.Array, mask: jax.Array
) -> tuple[jax.Array, Metrics]:
    """The negative reverse KL of each sampled token as its advantage: log p_T - log p_S.

    With any policy-gradient loss and tokens that the student sampled, the expected gradient is
    that of the per-token reverse KL; only the teacher's log-probs of the sampled tokens are needed.

    Sources: On-Policy Distillation, https://thinkingmachines.ai/blog/on-policy-distillation;
    MiniLLM, https://arxiv.org/abs/2306.08543.

    Args:
      logp: [B, T] float32, log-prob of each sampled token under the student; carries no gradient.
      teacher_logp: [B, T] float32, the same under the teacher.
      mask: [B, T] bool, true where a token trains.

    Returns:
      [B, T] float32 advantage, 0 outside the mask; `distill/reverse_kl`, its negative mean.

    >>> adv, _ = on_policy_advantage(
    ...     jnp.array([[-1.0]]), jnp.array([[-3.0]]), jnp.ones((1, 1), bool))
    >>> adv.tolist()
    [[-2.0]]
    """
    check("BT, BT, BT", logp=logp, teacher_logp=teacher_logp, mask=mask)
    adv = jax.lax.stop_gradient(masked(teacher_logp, mask) - masked(logp, mask))
    return adv, {"distill/reverse_kl": Mean(-jnp.sum(adv), jnp.sum(mask))}


def _log_probs(
    logits: jax.Array, teacher_logits: jax.Array, mask: jax.Array
) -> tuple[jax.Array, jax.Array]:
    check("BTV, BTV, BT", logits=logits, teacher_logits=teacher_logits, mask=mask)
    student, teacher = (
        jax.nn.log_softmax(jnp.where(mask[..., None], at_least_float32(x), 0.0), axis=-1)
        for x in (logits, jax.lax.stop_gradient(teacher_logits))
    )
    return student, teacher


def _kl(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    """KL(p || q) over the last axis; a p of 0 counts nothing."""
    is_possible = log_p > -jnp.inf
    log_p, log_q = (jnp.where(is_possible, x, 0.0) for x in (log_p, log_q))
    return jnp.sum(jnp.where(is_possible, jnp.exp(log_p) * (log_p - log_q), 0.0), axis=-1)


def _finite(log_p: jax.Array) -> jax.Array:
    return jnp.where(log_p > -jnp.inf, log_p, 0.0)


def _rest(probs: jax.Array) -> jax.Array:
    """What the last axis lacks to 1; at least what rounding of the sum may leave or take."""
    return jnp.maximum(1.0 - jnp.sum(probs, axis=-1), jnp.finfo(probs.dtype).eps)


def _with_metrics(divergence: jax.Array, mask: jax.Array) -> tuple[jax.Array, Metrics]:
    loss = jnp.where(mask, divergence, 0.0)
    total = jax.lax.stop_gradient(jnp.sum(loss))
    return loss, {"distill/divergence": Mean(total, jnp.sum(mask))}

"""Losses on demonstrations, on preferences for reward models, and on labelled steps.

B rows, T tokens of a row, V vocabulary, N preference pairs.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import Mean, Metrics, at_least_float32, check
from jaxrl_vr.losses.masked import fixed, masked


def cross_entropy(logp: jax.Array, mask: jax.Array) -> tuple[jax.Array, Metrics]:
    """Negative log-likelihood of each demonstrated token, -log p_t.

    Source: maximum likelihood, as in supervised fine-tuning, https://arxiv.org/abs/2203.02155.

    Args:
      logp: [B, T] float32, log-prob of each token.
      mask: [B, T] bool, true where a token trains.

    Returns:
      [B, T] float32 loss, 0 outside the mask; `sft/nll`, the mean per trained token.

    >>> loss, _ = cross_entropy(jnp.array([[-1.0, -2.0]]), jnp.array([[True, False]]))
    >>> loss.tolist()
    [[1.0, 0.0]]
    """
    check("BT, BT", logp=logp, mask=mask)
    loss = masked(-logp, mask)
    return loss, {"sft/nll": Mean(jax.lax.stop_gradient(jnp.sum(loss)), jnp.sum(mask))}


def label_smoothing(
    logits: jax.Array, target: jax.Array, mask: jax.Array, *, epsilon: float | jax.Array = 0.1
) -> tuple[jax.Array, Metrics]:
    """Cross-entropy to the target mixed with the uniform distribution.

    loss_t = -(1 - epsilon) log p_t(target_t) - epsilon mean_v log p_t(v).

    Source: Rethinking the Inception Architecture, https://arxiv.org/abs/1512.00567, section 7; the
    uniform part includes the target, as there, in PyTorch and in transformers.

    Args:
      logits: [B, T, V] float.
      target: [B, T] int32.
      mask: [B, T] bool, true where a token trains.
      epsilon: share of the uniform distribution, from 0 to 1.

    Returns:
      [B, T] float32 loss, 0 outside the mask; `sft/nll`, of the targets alone.

    >>> logits, mask = jnp.log(jnp.array([[[0.5, 0.25, 0.25]]])), jnp.ones((1, 1), bool)
    >>> loss, _ = label_smoothing(logits, jnp.array([[0]]), mask, epsilon=0.3)
    >>> print(loss.round(4))  # 0.7 log 2 + 0.3 (log 2 + 2 log 4) / 3
    [[0.8318]]
    """
    check("BTV, BT, BT", logits=logits, target=target, mask=mask)
    logits = jnp.where(mask[..., None], at_least_float32(logits), 0.0)
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    index = jnp.where(mask, target, 0)[..., None]
    nll = -jnp.take_along_axis(log_probs, index, axis=-1)[..., 0]
    loss = (1.0 - epsilon) * nll - epsilon * jnp.mean(log_probs, axis=-1)
    total = jax.lax.stop_gradient(jnp.sum(jnp.where(mask, nll, 0.0)))
    return jnp.where(mask, loss, 0.0), {"sft/nll": Mean(total, jnp.sum(mask))}


def z_loss(
    log_z: jax.Array, mask: jax.Array, *, coef: float | jax.Array = 1e-4
) -> tuple[jax.Array, Metrics]:
    """Keeps the softmax's normaliser near 1, so that logits do not drift: coef (log Z_t)^2.

    Source: PaLM, https://arxiv.org/abs/2204.02311, section 5, with its coefficient.

    Args:
      log_z: [B, T] float32, log-sum-exp of each token's logits.
      mask: [B, T] bool, true where a token trains.
      coef: its weight beside the cross-entropy.

    Returns:
      [B, T] float32 loss, 0 outside the mask; `sft/log_z`.

    >>> z_loss(jnp.array([[3.0, 1.0]]), jnp.array([[True, False]]), coef=0.5)[0].tolist()
    [[4.5, 0.0]]
    """
    check("BT, BT", log_z=log_z, mask=mask)
    log_z = masked(log_z, mask)
    total = jax.lax.stop_gradient(jnp.sum(log_z))
    return coef * jnp.square(log_z), {"sft/log_z": Mean(total, jnp.sum(mask))}


def pretraining_mix(
    logp: jax.Array, mask: jax.Array, *, coef: float | jax.Array = 27.8
) -> tuple[jax.Array, Metrics]:
    """PPO-ptx: likelihood of pretraining text beside the policy loss, -coef log p_t.

    Source: InstructGPT, https://arxiv.org/abs/2203.02155, equation 2, with its coefficient. The
    paper sums over a text and averages over texts; here the weights of the second source do.

    Args:
      logp: [B, T] float32, log-prob of each token of the text.
      mask: [B, T] bool, true where a token trains.
      coef: weight beside the policy loss.

    Returns:
      [B, T] float32 loss, 0 outside the mask; `lm/nll`, without the coefficient.

    >>> pretraining_mix(jnp.array([[-1.0, -2.0]]), jnp.array([[True, False]]), coef=3.0)[0].tolist()
    [[3.0, 0.0]]
    """
    check("BT, BT", logp=logp, mask=mask)
    nll = masked(-logp, mask)
    return coef * nll, {"lm/nll": Mean(jax.lax.stop_gradient(jnp.sum(nll)), jnp.sum(mask))}


def bradley_terry(
    chosen: jax.Array, rejected: jax.Array, valid: jax.Array | None = None
) -> tuple[jax.Array, Metrics]:
    """Reward-model loss on preference pairs: -log sigmoid(chosen - rejected).

    Sources: Bradley and Terry 1952, https://doi.org/10.2307/2334029; InstructGPT,
    https://arxiv.org/abs/2203.02155, equation 1.

    Args:
      chosen: [N] float, score of the preferred answers.
      rejected: [N] float, score of the others.
      valid: [N] bool, false for a pair that is padding; None: all are valid.

    Returns:
      [N] float32 loss, 0 where not valid; `reward_model/accuracy`, `reward_model/margin`.

    >>> print(bradley_terry(jnp.array([1.0]), jnp.array([1.0]))[0].round(4))
    [0.6931]
    """
    check("N, N, N", chosen=chosen, rejected=rejected, valid=valid)
    valid = jnp.ones(chosen.shape, bool) if valid is None else valid
    chosen, rejected = (
        jnp.where(valid, at_least_float32(score), 0.0) for score in (chosen, rejected)
    )
    margin, count = chosen - rejected, jnp.sum(valid)
    metrics: Metrics = {
        "reward_model/accuracy": Mean(jnp.sum(valid & (margin > 0)), count),
        "reward_model/margin": Mean(jnp.sum(margin), count),
    }
    loss = jnp.where(valid, jax.nn.softplus(-margin), 0.0)
    return loss, jax.lax.stop_gradient(metrics)


def step_cross_entropy(
    logit: jax.Array, label: jax.Array, step_end: jax.Array
) -> tuple[jax.Array, Metrics]:
    """Process-reward-model loss: binary cross-entropy at the last token of each step.

    loss_t = softplus(x_t) - y_t x_t where a step ends, else 0.

    Sources: Let's Verify Step by Step, https://arxiv.org/abs/2305.20050; soft labels:
    Math-Shepherd, https://arxiv.org/abs/2312.08935.

    Args:
      logit: [B, T] float, of the step being right.
      label: [B, T] float or bool, from 0 to 1; read only where a step ends.
      step_end: [B, T] bool, true on the last token of each labelled step.

    Returns:
      [B, T] float32 loss, 0 elsewhere; `reward_model/step_accuracy`, over steps.

    >>> end = jnp.array([[False, True]])
    >>> loss, _ = step_cross_entropy(jnp.array([[5.0, 0.0]]), jnp.array([[0.0, 1.0]]), end)
    >>> print(loss.round(4))
    [[0.     0.6931]]
    """
    check("BT, BT, BT", logit=logit, label=label, step_end=step_end)
    logit = masked(logit, step_end)
    label = fixed(label, step_end).astype(logit.dtype)
    loss = jnp.where(step_end, jax.nn.softplus(logit) - label * logit, 0.0)
    right = step_end & ((logit > 0) == (label > 0.5))
    return loss, {"reward_model/step_accuracy": Mean(jnp.sum(right), jnp.sum(step_end))}

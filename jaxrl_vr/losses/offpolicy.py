"""Importance weights for tokens that another policy, or another program, sampled.

The sampler's log-probs differ from the learner's by rounding, by other kernels and by staleness.
Each function gives a weight of every token, without gradient, to multiply its loss with; the
weights of `losses.weights` are left alone. `logp` is the learner's log-prob at the start of the
step, `sampler_logp` that under which the token was drawn. Where top-k, top-p or min-p cut the
vocabulary, the token was drawn with log-prob sampler_logp - log(kept mass): pass that.

Truncating (TIS) caps a large weight, masking (MIS, IcePop) drops the token or sequence. A weight
per token is biased but steady; the product over a sequence is unbiased and grows with its length;
the geometric mean stays near 1 at any length. B rows, T tokens of a row.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import Max, Mean, Metrics, at_least_float32, check
from jaxrl_vr.losses.masked import fixed, masked_log_ratio
from jaxrl_vr.losses.ratios import bounded_exp
from jaxrl_vr.losses.segments import segment_mean, segment_total


def require_sampler_logp(sampler_logp: jax.Array | None) -> jax.Array:
    """The sampler's log-probs, or an error that says how to get them.

    Args:
      sampler_logp: [B, T] float32, or None.

    Returns:
      The same.

    Raises:
      ValueError: `sampler_logp` is None.

    >>> require_sampler_logp(jnp.zeros((1, 2))).shape
    (1, 2)
    """
    if sampler_logp is None:
        raise ValueError(
            "sampler_logp: off-policy weights need the log-prob of each token under the policy "
            "that sampled it, got None; record them while sampling, or train without these weights"
        )
    return sampler_logp


def tis(
    logp: jax.Array,
    sampler_logp: jax.Array | None,
    mask: jax.Array,
    *,
    max_weight: float | jax.Array = 2.0,
) -> tuple[jax.Array, Metrics]:
    """Truncated importance weight of each token: w_t = min(p_t / p_sampler_t, max_weight).

    Source: Your Efficient RL Framework Secretly Brings You Off-Policy RL Training,
    https://fengyao.notion.site/off-policy-rl. verl: rollout_is = "token" with threshold 2; TRL:
    vllm_importance_sampling_mode = "token_truncate" with cap 3.

    Args:
      logp: [B, T] float32, log-prob under the learner at the start of the step.
      sampler_logp: [B, T] float32, log-prob under the policy that sampled.
      mask: [B, T] bool, true where a token trains.
      max_weight: the largest weight.

    Returns:
      [B, T] float32, 0 outside the mask; `offpolicy/cut_frac`, `offpolicy/weight`,
      `offpolicy/weight_square`.

    Raises:
      ValueError: `sampler_logp` is None.

    >>> logp, mask = jnp.log(jnp.array([[0.5, 0.5]])), jnp.ones((1, 2), bool)
    >>> weight, _ = tis(logp, jnp.log(jnp.array([[0.1, 0.4]])), mask)
    >>> print(weight.round(4))  # ratios 5 and 1.25
    [[2.   1.25]]
    """
    log_ratio = _log_ratio(logp, sampler_logp, mask)
    return _truncated(log_ratio, mask, max_weight)


def sequence_tis(
    logp: jax.Array,
    sampler_logp: jax.Array | None,
    mask: jax.Array,
    segment_ids: jax.Array | None = None,
    *,
    max_weight: float | jax.Array = 2.0,
) -> tuple[jax.Array, Metrics]:
    """Truncated importance weight of each sequence: min(prod_t p_t / p_sampler_t, max_weight).

    Source: When Speed Kills Stability, https://richardli.xyz/rl-collapse. verl: rollout_is =
    "sequence" with threshold 2; TRL: "sequence_truncate" with cap 3. The product is bounded by
    exp(20) before, as there.

    Args:
      logp: [B, T] float32, log-prob under the learner at the start of the step.
      sampler_logp: [B, T] float32, log-prob under the policy that sampled.
      mask: [B, T] bool, true where a token trains.
      segment_ids: [B, T] int, from 0 to T; None: a row is one sequence.
      max_weight: the largest weight.

    Returns:
      [B, T] float32, equal on the tokens of a sequence, 0 outside the mask; the metrics of `tis`.

    Raises:
      ValueError: `sampler_logp` is None.

    >>> logp, mask = jnp.log(jnp.array([[0.5, 0.5]])), jnp.ones((1, 2), bool)
    >>> weight, _ = sequence_tis(logp, jnp.log(jnp.array([[0.4, 0.5]])), mask)
    >>> print(weight.round(4))
    [[1.25 1.25]]
    """
    log_ratio = _log_ratio(logp, sampler_logp, mask, segment_ids)
    return _truncated(segment_total(log_ratio, mask, segment_ids), mask, max_weight)


def geometric_tis(
    logp: jax.Array,
    sampler_logp: jax.Array | None,
    mask: jax.Array,
    segment_ids: jax.Array | None = None,
    *,
    max_weight: float | jax.Array = 2.0,
) -> tuple[jax.Array, Metrics]:
    """Truncated geometric mean of a sequence's ratios: min(exp(mean_t log ratio), max_weight).

    Source: the length-normalised ratio of GSPO, https://arxiv.org/abs/2507.18071, equation 7, as
    an importance weight.

    Args:
      logp: [B, T] float32, log-prob under the learner at the start of the step.
      sampler_logp: [B, T] float32, log-prob under the policy that sampled.
      mask: [B, T] bool, true where a token trains.
      segment_ids: [B, T] int, from 0 to T; None: a row is one sequence.
      max_weight: the largest weight.

    Returns:
      [B, T] float32, equal on the tokens of a sequence, 0 outside the mask; the metrics of `tis`.

    Raises:
      ValueError: `sampler_logp` is None.

    >>> logp, mask = jnp.log(jnp.array([[0.4, 0.4]])), jnp.ones((1, 2), bool)
    >>> weight, _ = geometric_tis(logp, jnp.log(jnp.array([[0.1, 0.4]])), mask, max_weight=3.0)
    >>> print(weight.round(4))  # sqrt(4 x 1)
    [[2. 2.]]
    """
    log_ratio = _log_ratio(logp, sampler_logp, mask, segment_ids)
    return _truncated(segment_mean(log_ratio, mask, segment_ids), mask, max_weight)


def mis(
    logp: jax.Array,
    sampler_logp: jax.Array | None,
    mask: jax.Array,
    *,
    max_weight: float | jax.Array = 2.0,
) -> tuple[jax.Array, Metrics]:
    """Masked importance weight of each token: the ratio, and 0 where it exceeds `max_weight`.

    Source: When Speed Kills Stability, https://richardli.xyz/rl-collapse. TRL: "token_mask". With
    a lower bound too it is `icepop`.

    Args:
      logp: [B, T] float32, log-prob under the learner at the start of the step.
      sampler_logp: [B, T] float32, log-prob under the policy that sampled.
      mask: [B, T] bool, true where a token trains.
      max_weight: the largest ratio that trains.

    Returns:
      [B, T] float32, 0 outside the mask; the metrics of `tis`.

    Raises:
      ValueError: `sampler_logp` is None.

    >>> logp, mask = jnp.log(jnp.array([[0.5, 0.5]])), jnp.ones((1, 2), bool)
    >>> print(mis(logp, jnp.log(jnp.array([[0.1, 0.4]])), mask)[0].round(4))
    [[0.   1.25]]
    """
    return _inside(_log_ratio(logp, sampler_logp, mask), mask, 0.0, max_weight)


def sequence_mis(
    logp: jax.Array,
    sampler_logp: jax.Array | None,
    mask: jax.Array,
    segment_ids: jax.Array | None = None,
    *,
    max_weight: float | jax.Array = 2.0,
) -> tuple[jax.Array, Metrics]:
    """Masked importance weight of each sequence: the product, and 0 where it exceeds the bound.

    Source: When Speed Kills Stability, https://richardli.xyz/rl-collapse. TRL: "sequence_mask",
    its default, with cap 3.

    Args:
      logp: [B, T] float32, log-prob under the learner at the start of the step.
      sampler_logp: [B, T] float32, log-prob under the policy that sampled.
      mask: [B, T] bool, true where a token trains.
      segment_ids: [B, T] int, from 0 to T; None: a row is one sequence.
      max_weight: the largest product that trains.

    Returns:
      [B, T] float32, equal on the tokens of a sequence, 0 outside the mask; the metrics of `tis`.

    Raises:
      ValueError: `sampler_logp` is None.

    >>> logp, mask = jnp.log(jnp.array([[0.5, 0.5]])), jnp.ones((1, 2), bool)
    >>> sequence_mis(logp, jnp.log(jnp.array([[0.1, 0.5]])), mask)[0].tolist()  # product 5
    [[0.0, 0.0]]
    """
    log_ratio = _log_ratio(logp, sampler_logp, mask, segment_ids)
    return _inside(segment_total(log_ratio, mask, segment_ids), mask, 0.0, max_weight)


def geometric_mis(
    logp: jax.Array,
    sampler_logp: jax.Array | None,
    mask: jax.Array,
    segment_ids: jax.Array | None = None,
    *,
    low: float | jax.Array = 0.99,
    high: float | jax.Array = 1.01,
) -> tuple[jax.Array, Metrics]:
    """Masked geometric mean of a sequence's ratios: 0 for sequences outside [low, high].

    Source: the geometric rejection of verl's rollout correction (rollout_rs = "geometric"), which
    only masks; here what is kept is weighted too, by a number that is nearly 1.

    Args:
      logp: [B, T] float32, log-prob under the learner at the start of the step.
      sampler_logp: [B, T] float32, log-prob under the policy that sampled.
      mask: [B, T] bool, true where a token trains.
      segment_ids: [B, T] int, from 0 to T; None: a row is one sequence.
      low: the smallest mean that trains.
      high: the largest mean that trains.

    Returns:
      [B, T] float32, equal on the tokens of a sequence, 0 outside the mask; the metrics of `tis`.

    Raises:
      ValueError: `sampler_logp` is None.

    >>> logp, mask = jnp.log(jnp.array([[0.4, 0.4]])), jnp.ones((1, 2), bool)
    >>> geometric_mis(logp, jnp.log(jnp.array([[0.1, 0.4]])), mask)[0].tolist()  # sqrt(4 x 1)
    [[0.0, 0.0]]
    """
    log_ratio = _log_ratio(logp, sampler_logp, mask, segment_ids)
    return _inside(segment_mean(log_ratio, mask, segment_ids), mask, low, high)


def icepop(
    logp: jax.Array,
    sampler_logp: jax.Array | None,
    mask: jax.Array,
    *,
    low: float | jax.Array = 0.5,
    high: float | jax.Array = 5.0,
) -> tuple[jax.Array, Metrics]:
    """IcePop: the token's ratio where it lies in [low, high], else 0.

    Source: Ring-1T, https://arxiv.org/abs/2510.18855 (first as https://ringtech.notion.site/icepop),
    with its bounds.

    Args:
      logp: [B, T] float32, log-prob under the learner at the start of the step.
      sampler_logp: [B, T] float32, log-prob under the policy that sampled.
      mask: [B, T] bool, true where a token trains.
      low: the smallest ratio that trains.
      high: the largest ratio that trains.

    Returns:
      [B, T] float32, 0 outside the mask; the metrics of `tis`.

    Raises:
      ValueError: `sampler_logp` is None.

    >>> logp, mask = jnp.log(jnp.array([[0.1, 0.5]])), jnp.ones((1, 2), bool)
    >>> print(icepop(logp, jnp.log(jnp.array([[0.4, 0.4]])), mask)[0].round(4))
    [[0.   1.25]]
    """
    return _inside(_log_ratio(logp, sampler_logp, mask), mask, low, high)


def veto(
    logp: jax.Array,
    sampler_logp: jax.Array | None,
    mask: jax.Array,
    segment_ids: jax.Array | None = None,
    *,
    threshold: float | jax.Array = 1e-4,
) -> jax.Array:
    """Which tokens keep their loss: one whose ratio is below `threshold` vetoes its sequence.

    Such a token is one that the learner would hardly ever sample; what follows it is off policy
    altogether.

    Source: the token veto of verl's rollout correction, https://richardli.xyz/rl-collapse, with
    its value (rollout_token_veto_threshold, off unless set).

    Args:
      logp: [B, T] float32, log-prob under the learner at the start of the step.
      sampler_logp: [B, T] float32, log-prob under the policy that sampled.
      mask: [B, T] bool, true where a token trains.
      segment_ids: [B, T] int, from 0 to T; None: a row is one sequence.
      threshold: the smallest ratio that vetoes nothing.

    Returns:
      [B, T] bool, false outside the mask.

    Raises:
      ValueError: `sampler_logp` is None.

    >>> logp, mask = jnp.array([[-12.0, -1.0], [-1.0, -1.0]]), jnp.ones((2, 2), bool)
    >>> veto(logp, jnp.full((2, 2), -1.0), mask).tolist()
    [[False, False], [True, True]]
    """
    ratio = bounded_exp(_log_ratio(logp, sampler_logp, mask, segment_ids))
    vetoes = (ratio < threshold).astype(ratio.dtype)
    return mask & (segment_total(vetoes, mask, segment_ids) == 0)


def staleness_decay(staleness: jax.Array, *, decay: float | jax.Array = 0.9) -> jax.Array:
    """Weight by age: decay ^ staleness, the number of updates since the token was sampled.

    Source: no paper fixes the form for language models; staleness-dependent step sizes are
    https://arxiv.org/abs/1511.05950, which divides by the staleness. Needs no log-probs.

    Args:
      staleness: [B] or [B, T] int, from 0: the learner's version less that of the weights that
        sampled.
      decay: from 0 to 1; 1: no decay.

    Returns:
      float32 of the same shape; 1 where the staleness is 0.

    >>> print(staleness_decay(jnp.array([0, 1, 2]), decay=0.5))
    [1.   0.5  0.25]
    """
    check("B" if jnp.ndim(staleness) == 1 else "BT", staleness=staleness)
    age = jax.lax.stop_gradient(at_least_float32(staleness))
    # jnp.power of 0 to the 0 is 1, as wanted, but its gradient by the base is not asked for.
    return jnp.power(jax.lax.stop_gradient(jnp.asarray(decay, age.dtype)), age)


def effective_sample_size(weight: jax.Array, mask: jax.Array) -> jax.Array:
    """Kish's effective sample size as a share: (sum w)^2 / (n sum w^2), 1 for equal weights.

    Source: Kish 1965, Survey Sampling; https://arxiv.org/abs/1809.04129. Over several
    micro-batches it follows from the metrics: `offpolicy/weight` squared over
    `offpolicy/weight_square`.

    Args:
      weight: [B, T] float, importance weights, at least 0.
      mask: [B, T] bool, true where a token trains.

    Returns:
      Scalar float32 from 0 to 1; 0 where all weights are 0 or nothing trains.

    >>> weight = jnp.array([[1.0, 0.0, 0.0, 1.0]])
    >>> float(effective_sample_size(weight, jnp.ones((1, 4), bool)))
    0.5
    """
    weight = fixed(weight, mask)
    scale = jnp.max(weight)  # so that squares neither overflow nor vanish
    weight = weight / jnp.where(scale > 0, scale, 1.0)
    square = jnp.sum(mask).astype(weight.dtype) * jnp.sum(jnp.square(weight))
    return jnp.square(jnp.sum(weight)) / jnp.where(square > 0, square, 1.0)


def mismatch_metrics(logp: jax.Array, sampler_logp: jax.Array | None, mask: jax.Array) -> Metrics:
    """How far the learner's log-probs are from the sampler's, over the trained tokens.

    With d_t = log p_t - log p_sampler_t: the mean and the largest |d_t|; two estimates of
    KL(sampler || learner), k1 = mean(-d_t) and k3 = mean(exp(d_t) - 1 - d_t); and
    chi^2 = mean(exp(2 d_t)) - 1.

    Source: the off-policy metrics of verl's rollout correction, https://richardli.xyz/rl-collapse.

    Args:
      logp: [B, T] float32, log-prob under the learner at the start of the step.
      sampler_logp: [B, T] float32, log-prob under the policy that sampled.
      mask: [B, T] bool, true where a token trains.

    Returns:
      `mismatch/mean`, `mismatch/max`, `mismatch/k1`, `mismatch/k3`, `mismatch/chi2`.

    Raises:
      ValueError: `sampler_logp` is None.

    >>> logp, mask = jnp.array([[-1.0, -2.0]]), jnp.ones((1, 2), bool)
    >>> float(mismatch_metrics(logp, logp - 0.5, mask)["mismatch/max"].value)
    0.5
    """
    log_ratio = _log_ratio(logp, sampler_logp, mask)
    gap, count = jnp.abs(log_ratio), jnp.sum(mask)
    shrunk = jnp.expm1(jnp.log(bounded_exp(log_ratio)))
    return {
        "mismatch/mean": Mean(jnp.sum(gap), count),
        "mismatch/max": Max(jnp.max(gap)),
        "mismatch/k1": Mean(jnp.sum(-log_ratio), count),
        "mismatch/k3": Mean(jnp.sum(shrunk - log_ratio), count),
        "mismatch/chi2": Mean(jnp.sum(jnp.square(shrunk) + 2.0 * shrunk), count),
    }


def _log_ratio(
    logp: jax.Array,
    sampler_logp: jax.Array | None,
    mask: jax.Array,
    segment_ids: jax.Array | None = None,
) -> jax.Array:
    sampler_logp = require_sampler_logp(sampler_logp)
    check("BT, BT, BT, BT", logp=logp, sampler_logp=sampler_logp, mask=mask, ids=segment_ids)
    return jax.lax.stop_gradient(masked_log_ratio(logp, sampler_logp, mask))


def _truncated(
    log_weight: jax.Array, mask: jax.Array, max_weight: float | jax.Array
) -> tuple[jax.Array, Metrics]:
    weight = bounded_exp(log_weight)
    is_cut = weight > max_weight
    return _with_metrics(jnp.minimum(weight, max_weight), is_cut, mask)


def _inside(
    log_weight: jax.Array, mask: jax.Array, low: float | jax.Array, high: float | jax.Array
) -> tuple[jax.Array, Metrics]:
    weight = bounded_exp(log_weight)
    is_cut = (weight < low) | (weight > high)
    return _with_metrics(jnp.where(is_cut, 0.0, weight), is_cut, mask)


def _with_metrics(
    weight: jax.Array, is_cut: jax.Array, mask: jax.Array
) -> tuple[jax.Array, Metrics]:
    weight = jnp.where(mask, weight, 0.0)
    count = jnp.sum(mask)
    metrics: Metrics = {
        "offpolicy/cut_frac": Mean(jnp.sum(mask & is_cut), count),
        "offpolicy/weight": Mean(jnp.sum(weight), count),
        "offpolicy/weight_square": Mean(jnp.sum(jnp.square(weight)), count),
    }
    return weight, jax.lax.stop_gradient(metrics)

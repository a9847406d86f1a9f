"""Advantages of single tokens, from rewards and values of tokens.

Observation tokens (tool output, other turns) lie between trained ones. They are no steps of the
policy: the recursions go over trained tokens only, and the state after one is the state before the
next trained one. Neither a discount nor a value is read at the others.

B rows, T tokens of a row. Baselines of groups are in `losses.advantages`, which also offers the
functions of this file.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import at_least_float32, check
from jaxrl_vr.losses.masked import fixed, per_token
from jaxrl_vr.losses.segments import next_in_segment


def gae(
    reward: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    *,
    gamma: float | jax.Array = 1.0,
    lam: float | jax.Array = 1.0,
    bootstrap: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    chunk: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimation over the trained tokens of each sequence.

    d_t = r_t + gamma V_t' - V_t;  A_t = d_t + gamma lam A_t';  return_t = A_t + V_t, where t' is
    the next trained token of the same sequence. After the last one V is `bootstrap` and A is 0.

    Source: https://arxiv.org/abs/1506.02438, equations 11 to 16. VAPO (https://arxiv.org/abs/
    2504.05118) uses lam = 1 for the critic's returns and another lam for the policy: call twice.
    OpenRLHF runs the recursion over observation tokens too, with reward and value 0 there, so that
    the output of a tool costs discount and the value before it is compared with 0; verl skips
    them, as here. Rewards of an environment belong on the trained token before them.

    Args:
      reward: [B, T] float, reward of each trained token.
      value: [B, T] float, value of the state in which each token is chosen.
      mask: [B, T] bool, true where a token trains; nothing else is read.
      gamma: discount of one trained token.
      lam: from 0, the one-step error, to 1, the return less the value. A number, or [B] or [B, T]
        (read at each token): VAPO's depends on length.
      bootstrap: value of the state after the last trained token of a sequence that was cut, 0 for
        one that ended. [B], or [B, T], read at the last trained token of each sequence; rows with
        segment_ids need [B, T]. None: all ended.
      segment_ids: [B, T] int, which sequence of its row a token belongs to. None: a row is one
        sequence.
      chunk: tokens at a time, computed side by side: for long rows, the same up to rounding. None:
        token after token.

    Returns:
      Advantage and return, each [B, T] float32 (float64 for float64 input), 0 outside the mask and
      without gradient.

    Raises:
      ValueError: shapes differ, [B] values with segment_ids, or a chunk below 1.

    >>> reward, value = jnp.array([[0.0, 9.0, 1.0]]), jnp.array([[0.5, 9.0, 0.25]])
    >>> adv, returns = gae(reward, value, jnp.array([[True, False, True]]), lam=0.0)
    >>> adv.tolist(), returns.tolist()
    ([[-0.25, 0.0, 0.75]], [[0.25, 0.0, 1.0]])
    """
    check("BT, BT, BT, BT", reward=reward, value=value, mask=mask, segment_ids=segment_ids)
    reward, value = (fixed(x, mask) for x in (reward, value))
    if jnp.ndim(lam):
        lam = per_token(jnp.asarray(lam), mask, segment_ids, name="lam")
    index, has_next = next_in_segment(mask, segment_ids)
    next_value = jnp.where(has_next, jnp.take_along_axis(value, index, axis=1), 0.0)
    if bootstrap is not None:
        after = per_token(bootstrap, mask, segment_ids, name="bootstrap")
        next_value += jnp.where(has_next, 0.0, after)
    error = jnp.where(mask, reward + gamma * next_value - value, 0.0)
    adv = _sum_back(error, gamma * lam, mask, has_next, chunk)
    return adv, adv + value


def discounted_return(
    reward: jax.Array,
    mask: jax.Array,
    *,
    gamma: float | jax.Array = 1.0,
    segment_ids: jax.Array | None = None,
    chunk: int | None = None,
) -> jax.Array:
    """The discounted sum of the rewards from each trained token on: R_t = r_t + gamma R_t'.

    t' is the next trained token of the same sequence.

    Source: Williams 1992, https://doi.org/10.1007/BF00992696.

    Args:
      reward: [B, T] float, reward of each trained token.
      mask: [B, T] bool, true where a token trains; nothing else is read or discounted.
      gamma: discount of one trained token.
      segment_ids: [B, T] int; None: a row is one sequence.
      chunk: tokens at a time, for long rows; None: token after token.

    Returns:
      [B, T] float32 (float64 for float64 input), 0 outside the mask and without gradient.

    >>> reward, mask = jnp.array([[1.0, 0.0, 4.0]]), jnp.ones((1, 3), bool)
    >>> discounted_return(reward, mask, gamma=0.5).tolist()
    [[2.0, 2.0, 4.0]]
    """
    check("BT, BT, BT", reward=reward, mask=mask, segment_ids=segment_ids)
    _, has_next = next_in_segment(mask, segment_ids)
    return _sum_back(fixed(reward, mask), gamma, mask, has_next, chunk)


def whiten(
    x: jax.Array,
    mask: jax.Array,
    *,
    shift_mean: bool | jax.Array = True,
    eps: float | jax.Array = 1e-8,
) -> jax.Array:
    """Masked values at variance 1, and at mean 0 unless the mean is to stay.

    y = (x - mean(x)) / sqrt(var(x) + eps), plus mean(x) without shift_mean; the variance is that of
    the population. All that is passed is one batch: pass the whole step's, not a micro-batch.

    Source: https://arxiv.org/abs/1909.08593, whose code whitens rewards without and advantages
    with a shifted mean. TRL and verl divide the variance by n - 1.

    Args:
      x: [B, T] or [B] float; what is masked out is never read.
      mask: bool of the same shape, true where a value counts.
      shift_mean: whether the mean is removed.
      eps: added to the variance.

    Returns:
      The shape of x, float32 (float64 for float64 input), 0 outside the mask and without gradient;
      exactly 0 with shift_mean where all values are equal.

    >>> whiten(jnp.array([[1.0, 3.0, 9.0]]), jnp.array([[True, True, False]])).tolist()
    [[-1.0, 1.0, 0.0]]
    """
    shape = "BT" if jnp.ndim(x) == 2 else "B"
    check(f"{shape}, {shape}", x=x, mask=mask)
    x = jax.lax.stop_gradient(at_least_float32(x))
    count = jnp.maximum(jnp.sum(mask), 1).astype(x.dtype)
    # Off the smallest value first: the mean of equal values is then exact (a mean of 0.1s is not).
    low = jnp.min(jnp.where(mask, x, jnp.inf))
    above = jnp.where(mask, x - low, 0.0)
    mean = jnp.sum(above) / count
    centred = jnp.where(mask, above - mean, 0.0)
    variance = jnp.sum(jnp.square(centred)) / count + eps
    scale = jnp.where(variance > 0, jax.lax.rsqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)
    return jnp.where(mask, centred * scale + jnp.where(shift_mean, 0.0, mean + low), 0.0)


def reinforce_plus_plus(
    reward: jax.Array,
    mask: jax.Array,
    *,
    gamma: float | jax.Array = 1.0,
    eps: float | jax.Array = 1e-8,
    segment_ids: jax.Array | None = None,
) -> jax.Array:
    """REINFORCE++: the return of each token, whitened over all trained tokens of the batch.

    A_t = (R_t - mean(R)) / sqrt(var(R) + eps), R_t = r_t + gamma R_t'. The rewards hold the KL
    penalty: `kl.kl_in_reward` with k1.

    Source: https://arxiv.org/abs/2501.03262, section 3. The variant with a group baseline is
    `advantages.reinforce_plus_plus_baseline`.

    Args:
      reward: [B, T] float, reward of each trained token.
      mask: [B, T] bool, true where a token trains.
      gamma: discount of one trained token; the paper's is 1.
      eps: added to the variance.
      segment_ids: [B, T] int; None: a row is one sequence.

    Returns:
      [B, T] float32 (float64 for float64 input), 0 outside the mask and without gradient.

    >>> mask = jnp.ones((2, 2), bool)
    >>> reinforce_plus_plus(jnp.array([[0.0, 1.0], [0.0, 0.0]]), mask).tolist()
    [[1.0, 1.0], [-1.0, -1.0]]
    """
    returns = discounted_return(reward, mask, gamma=gamma, segment_ids=segment_ids)
    return whiten(returns, mask, eps=eps)


def length_adaptive_lambda(length: jax.Array, *, alpha: float | jax.Array = 0.05) -> jax.Array:
    """VAPO's lam of GAE, closer to 1 for longer rollouts: lam = 1 - 1 / (alpha length).

    With it the weights of GAE's errors, sum_k lam^k, add up to about alpha times the length. Below
    1 / alpha tokens the formula is negative; there lam is 0, which the paper does not speak of.

    Source: https://arxiv.org/abs/2504.05118, section 4.2.

    Args:
      length: [B] trained tokens of each rollout.
      alpha: how far errors reach, as a share of the length.

    Returns:
      [B] float32, from 0 to 1.

    >>> [round(x, 3) for x in length_adaptive_lambda(jnp.array([10, 100, 1000])).tolist()]
    [0.0, 0.8, 0.98]
    """
    check("B", length=length)
    reach = alpha * at_least_float32(length)
    return jnp.where(reach > 1.0, 1.0 - 1.0 / jnp.maximum(reach, 1.0), 0.0)


def _sum_back(
    x: jax.Array,
    decay: float | jax.Array,
    mask: jax.Array,
    has_next: jax.Array,
    chunk: int | None,
) -> jax.Array:
    """y_t = x_t + decay_t y_t' over the trained tokens of each sequence, 0 elsewhere.

    Other tokens pass on what comes after them, and the last token of a sequence takes nothing.
    """
    decay = jnp.where(has_next, jnp.asarray(decay, x.dtype), 0.0)
    y = _recur_back(x, jnp.where(mask, decay, 1.0), chunk)
    return jnp.where(mask, y, 0.0)


def _recur_back(x: jax.Array, decay: jax.Array, chunk: int | None) -> jax.Array:
    """y_t = x_t + decay_t y_(t + 1), [B, T]."""
    nothing = jnp.zeros_like(x[:, 0])
    if chunk is None:

        def token(after, here):
            y = here[0] + here[1] * after
            return y, y

        return jax.lax.scan(token, nothing, (x.T, decay.T), reverse=True)[1].T
    if chunk < 1:
        raise ValueError(f"chunk: expected at least 1 token at a time, got {chunk}")
    num_rows, num_tokens = x.shape
    pad = ((0, 0), (0, -num_tokens % chunk))
    x, decay = jnp.pad(x, pad), jnp.pad(decay, pad, constant_values=1.0)

    def several(after, here):
        # Each is a map y -> x + decay y; maps compose in any grouping, so a chunk is parallel.
        own, reach = jax.lax.associative_scan(_compose, here, reverse=True, axis=1)
        y = own + reach * after[:, None]
        return y[:, 0], y

    # [B, T] -> chunks, B, tokens of a chunk
    parts = [jnp.moveaxis(a.reshape(num_rows, -1, chunk), 1, 0) for a in (x, decay)]
    y = jax.lax.scan(several, nothing, tuple(parts), reverse=True)[1]
    return jnp.moveaxis(y, 0, 1).reshape(num_rows, -1)[:, :num_tokens]


def _compose(later, earlier):
    return earlier[0] + earlier[1] * later[0], earlier[1] * later[1]

"""KL(policy || reference): estimated from sampled tokens, or summed over the vocabulary.

The estimators are values per token; as a loss each has a gradient of its own, which its docstring
names. In the reward the KL carries none.

B rows, T tokens of a row, N tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import Mean, Metrics, at_least_float32, check
from jaxrl_vr.losses.masked import masked, masked_log_ratio, per_token
from jaxrl_vr.losses.segments import next_in_segment

# exp of this is the largest ratio we form; beyond it float32 would overflow to inf.
_MAX_LOG_RATIO = 20.0

# Elements of one chunk of logits: 64 MiB in float32, small beside the logits themselves.
_CHUNK_ELEMENTS = 2**24

Estimator = Callable[[jax.Array, jax.Array], jax.Array]


def k1(logp: jax.Array, ref_logp: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """The plain estimator: k1_t = log p_t - log ref_t.

    Unbiased, of high variance, and negative where the reference likes the token more. For use in
    the reward; as a loss its gradient is that of log p_t, whose expectation is 0.

    Source: http://joschu.net/blog/kl-approx.html; https://arxiv.org/abs/1909.08593 has it in the
    reward.

    Args:
      logp: [B, T] float32, log-prob of each token under the policy.
      ref_logp: [B, T] float32, the same under the reference; carries no gradient.
      mask: [B, T] bool; where false nothing is read and the value is 0. None: true everywhere.

    Returns:
      [B, T] float32 (float64 for float64 input).

    >>> k1(jnp.array([[-1.0]]), jnp.array([[-3.0]])).tolist()
    [[2.0]]
    """
    return _log_ratio(logp, ref_logp, mask)


def k2(logp: jax.Array, ref_logp: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Half the squared log-ratio: k2_t = (log p_t - log ref_t)^2 / 2.

    Slightly biased as a value. As a loss on sampled tokens its gradient, (log p_t - log ref_t)
    grad log p_t, is an unbiased estimate of that of KL(policy || reference).

    Source: http://joschu.net/blog/kl-approx.html.

    Args:
      logp: [B, T] float32, log-prob of each token under the policy.
      ref_logp: [B, T] float32, the same under the reference; carries no gradient.
      mask: [B, T] bool; where false nothing is read and the value is 0. None: true everywhere.

    Returns:
      [B, T] float32 (float64 for float64 input), at least 0.

    >>> k2(jnp.array([[-1.0]]), jnp.array([[-3.0]])).tolist()
    [[2.0]]
    """
    return 0.5 * jnp.square(_log_ratio(logp, ref_logp, mask))


def k3(logp: jax.Array, ref_logp: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """The low-variance, never negative estimator that GRPO adds to its loss.

    k3_t = exp(d_t) - 1 - d_t with d_t = log ref_t - log p_t.

    Sources: http://joschu.net/blog/kl-approx.html; DeepSeekMath,
    https://arxiv.org/abs/2402.03300, equation 4. Unbiased as a value; as a loss its gradient is
    that of KL(reference || policy), not of KL(policy || reference). verl also clips the value to
    10; here only d is bounded, at 20.

    Args:
      logp: [B, T] float32, log-prob of each token under the policy.
      ref_logp: [B, T] float32, the same under the reference; carries no gradient.
      mask: [B, T] bool; where false nothing is read and the value is 0. None: true everywhere.

    Returns:
      [B, T] float32 (float64 for float64 input), at least 0.

    >>> round(float(k3(jnp.log(jnp.array([[0.5]])), jnp.log(jnp.array([[0.25]])))[0, 0]), 4)
    0.1931
    """
    # expm1 keeps the digits that exp(d) - 1 loses where the two are close; the bound keeps the
    # value and its gradient finite where they are far apart.
    difference = jnp.minimum(-_log_ratio(logp, ref_logp, mask), _MAX_LOG_RATIO)
    return jnp.expm1(difference) - difference


def unbiased_k3(
    logp: jax.Array, old_logp: jax.Array, ref_logp: jax.Array, mask: jax.Array | None = None
) -> jax.Array:
    """k3 weighted by the ratio to the policy that sampled, through which its gradient is right.

    r_t k3_t, r_t = p_t / p_old_t. Tokens come from the old policy, so the ratio makes the value
    unbiased off policy, and its derivative makes the gradient that of KL(policy || reference):
    r_t (log p_t - log ref_t) grad log p_t.

    Source: DeepSeek-V3.2, https://arxiv.org/abs/2512.02556, "unbiased KL estimate".

    Args:
      logp: [B, T] float32, log-prob of each token under the policy.
      old_logp: [B, T] float32, the same under the policy that sampled; carries no gradient.
      ref_logp: [B, T] float32, the same under the reference; carries no gradient.
      mask: [B, T] bool; where false nothing is read and the value is 0. None: true everywhere.

    Returns:
      [B, T] float32 (float64 for float64 input), at least 0.

    >>> logp, old, ref = (jnp.log(jnp.array([[p]])) for p in (0.5, 0.25, 0.25))
    >>> round(float(unbiased_k3(logp, old, ref)[0, 0]), 4)
    0.3863
    """
    check("BT, BT, BT, BT", logp=logp, old_logp=old_logp, ref_logp=ref_logp, mask=mask)
    ratio = jnp.exp(jnp.minimum(_log_ratio(logp, old_logp, mask), _MAX_LOG_RATIO))
    return ratio * k3(logp, ref_logp, mask)


def k1_straight_through(
    logp: jax.Array, ref_logp: jax.Array, mask: jax.Array | None = None
) -> jax.Array:
    """The value of k1 with the gradient of k2, both unbiased for KL(policy || reference).

    Source: http://joschu.net/blog/kl-approx.html for the two; verl calls this "k1+".

    Args:
      logp: [B, T] float32, log-prob of each token under the policy.
      ref_logp: [B, T] float32, the same under the reference; carries no gradient.
      mask: [B, T] bool; where false nothing is read and the value is 0. None: true everywhere.

    Returns:
      [B, T] float32 (float64 for float64 input).

    >>> k1_straight_through(jnp.array([[-1.0]]), jnp.array([[-4.0]])).tolist()
    [[3.0]]
    """
    return _with_gradient_of(k1(logp, ref_logp, mask), k2(logp, ref_logp, mask))


def k3_straight_through(
    logp: jax.Array, ref_logp: jax.Array, mask: jax.Array | None = None
) -> jax.Array:
    """The value of k3 with the gradient of k2, both unbiased for KL(policy || reference).

    Source: http://joschu.net/blog/kl-approx.html for the two; verl calls this "k3+".

    Args:
      logp: [B, T] float32, log-prob of each token under the policy.
      ref_logp: [B, T] float32, the same under the reference; carries no gradient.
      mask: [B, T] bool; where false nothing is read and the value is 0. None: true everywhere.

    Returns:
      [B, T] float32 (float64 for float64 input), at least 0.

    >>> k3_straight_through(jnp.array([[-1.0]]), jnp.array([[-1.0]])).tolist()
    [[0.0]]
    """
    return _with_gradient_of(k3(logp, ref_logp, mask), k2(logp, ref_logp, mask))


def full_kl(
    logits: jax.Array,
    ref_logits: jax.Array,
    mask: jax.Array | None = None,
    *,
    chunk: int | None = None,
) -> jax.Array:
    """The divergence itself, summed over the vocabulary: sum_v p_v (log p_v - log ref_v).

    A chunk of tokens at a time, whose softmax is computed again on the way back, so that beside
    the logits and their gradient nothing of their size is kept.

    Source: http://joschu.net/blog/kl-approx.html, equation 1. Value and gradient have no sampling
    error.

    Args:
      logits: [B, T, V] float, of the policy, over temperature; -inf where a token is ruled out.
      ref_logits: [B, T, V] float, of the reference; carries no gradient.
      mask: [B, T] bool; where false nothing is read and the value is 0. None: true everywhere.
      chunk: tokens at a time; None: as many as keep a chunk near 64 MiB.

    Returns:
      [B, T] float32 (float64 for float64 input); inf where the policy can choose a token that the
      reference cannot.

    >>> kl = full_kl(jnp.log(jnp.array([[[0.5, 0.5]]])), jnp.log(jnp.array([[[0.25, 0.75]]])))
    >>> round(float(kl[0, 0]), 4)
    0.1438
    """

    def of_chunk(logits: jax.Array, ref_logits: jax.Array) -> jax.Array:
        log_p, log_ref = (jax.nn.log_softmax(x, axis=1) for x in (logits, ref_logits))
        return jnp.sum(_weighted_gap(log_p, log_ref), axis=1)

    return _by_chunk(of_chunk, logits, ref_logits, mask, chunk)


def top_k_kl(
    logits: jax.Array,
    ref_logits: jax.Array,
    mask: jax.Array | None = None,
    *,
    k: int,
    chunk: int | None = None,
) -> jax.Array:
    """The divergence over the policy's k likeliest tokens, all others as one.

    sum_{v in top k of p} p_v (log p_v - log ref_v) + p' (log p' - log ref'), where p' and ref' are
    what the two leave for the other tokens. Never negative and never above `full_kl` (merging
    outcomes loses divergence); equal to it at k = V - 1.

    Source: log-sum inequality, Cover and Thomas, theorem 2.7.1. Dropping the rest instead
    leaves a value that can be negative.

    Args:
      logits: [B, T, V] float, of the policy, over temperature; -inf where a token is ruled out.
      ref_logits: [B, T, V] float, of the reference; carries no gradient.
      mask: [B, T] bool; where false nothing is read and the value is 0. None: true everywhere.
      k: how many tokens stand for themselves, from 1 to V; static under jit.
      chunk: tokens at a time; None: as many as keep a chunk near 64 MiB.

    Returns:
      [B, T] float32 (float64 for float64 input).

    Raises:
      ValueError: k outside 1 to V, or shapes differ.

    >>> logits, ref = (jnp.log(jnp.array([[p]])) for p in ([0.5, 0.3, 0.2], [0.25, 0.25, 0.5]))
    >>> round(float(top_k_kl(logits, ref, k=1)[0, 0]), 4)
    0.1438
    """
    size = check("BTV, BTV", logits=logits, ref_logits=ref_logits)["V"]
    if not 1 <= k <= size:
        raise ValueError(f"k: expected from 1 to V = {size}, the vocabulary, got {k}")

    def of_chunk(logits: jax.Array, ref_logits: jax.Array) -> jax.Array:
        log_p, log_ref = (jax.nn.log_softmax(x, axis=1) for x in (logits, ref_logits))
        top_p, token = jax.lax.top_k(log_p, k)
        top_ref = jnp.take_along_axis(log_ref, token, axis=1)
        row = jnp.arange(token.shape[0])[:, None]
        rest = jnp.ones(log_p.shape, bool).at[row, token].set(False)
        # Summed from the tokens themselves: 1 - sum(top) has no digits where the rest is small.
        p, ref = (_log_total(x, rest) for x in (log_p, log_ref))
        return jnp.sum(_weighted_gap(top_p, top_ref), axis=1) + _weighted_gap(p, ref)

    return _by_chunk(of_chunk, logits, ref_logits, mask, chunk)


def kl_in_reward(
    reward: jax.Array,
    logp: jax.Array,
    ref_logp: jax.Array,
    mask: jax.Array,
    *,
    coef: float | jax.Array,
    clamp_at_zero: bool | jax.Array = False,
    estimator: Estimator = k1,
    segment_ids: jax.Array | None = None,
) -> jax.Array:
    """Rewards of tokens: minus the KL at each, and the rollout's reward at its last trained one.

    r_t = -coef KL_t + [t is the last trained token] reward.

    Source: https://arxiv.org/abs/1909.08593, equation 2; AlpacaFarm, https://arxiv.org/abs/
    2305.14387, whose code clamps each token's KL at 0 (`clamp_at_zero`): tokens that the reference
    likes more are then no reward. TRL and verl do not clamp.

    Args:
      reward: [B] float, reward of each rollout; or [B, T], read at the last trained token of each
        sequence, which rows with segment_ids need.
      logp: [B, T] float32, log-prob of each token under the policy that sampled.
      ref_logp: [B, T] float32, the same under the reference.
      mask: [B, T] bool, true where a token trains.
      coef: what a nat costs.
      clamp_at_zero: whether negative estimates count as 0.
      estimator: of (logp, ref_logp), such as `k1` or `k3`.
      segment_ids: [B, T] int, which sequence of its row a token belongs to. None: a row is one
        sequence.

    Returns:
      [B, T] float32 (float64 for float64 input), 0 outside the mask and without gradient.

    Raises:
      ValueError: shapes differ, or reward is [B] with segment_ids.

    >>> logp, ref_logp = jnp.array([[-1.0, -1.0]]), jnp.array([[-2.0, -0.5]])
    >>> mask = jnp.ones((1, 2), bool)
    >>> kl_in_reward(jnp.array([1.0]), logp, ref_logp, mask, coef=0.5).tolist()
    [[-0.5, 1.25]]
    """
    check("BT, BT, BT, BT", logp=logp, ref_logp=ref_logp, mask=mask, segment_ids=segment_ids)
    logp, ref_logp = masked(logp, mask), masked(ref_logp, mask)
    kl = estimator(logp, ref_logp)
    kl = jnp.where(clamp_at_zero, jnp.maximum(kl, 0.0), kl)
    at_end = _at_last_token(reward, mask, segment_ids)
    return jax.lax.stop_gradient(jnp.where(mask, at_end - coef * kl, 0.0))


def kl_reward_metrics(
    token_reward: jax.Array,
    reward: jax.Array,
    mask: jax.Array,
    *,
    segment_ids: jax.Array | None = None,
) -> Metrics:
    """What `kl_in_reward` made of the rewards, as means over the sequences that train.

    Source: https://arxiv.org/abs/1909.08593, equation 2, term by term.

    Args:
      token_reward: [B, T] float, the result of `kl_in_reward`.
      reward: [B] or [B, T] float, the reward it was given.
      mask: [B, T] bool, true where a token trains.
      segment_ids: [B, T] int; None: a row is one sequence.

    Returns:
      `reward/total`, `reward/task` (the rollout's reward) and `reward/kl` (total less task, below
      0 where the policy left the reference).

    >>> mask = jnp.ones((1, 2), bool)
    >>> metrics = kl_reward_metrics(jnp.array([[-0.5, 1.25]]), jnp.array([1.0]), mask)
    >>> {name: float(mean.sum) for name, mean in metrics.items()}
    {'reward/kl': -0.25, 'reward/task': 1.0, 'reward/total': 0.75}
    """
    check("BT, BT, BT", token_reward=token_reward, mask=mask, segment_ids=segment_ids)
    _, has_next = next_in_segment(mask, segment_ids)
    count = jnp.sum(mask & ~has_next)
    total = jnp.sum(jnp.where(mask, at_least_float32(token_reward), 0.0))
    task = jnp.sum(_at_last_token(reward, mask, segment_ids))
    sums = {"reward/total": total, "reward/task": task, "reward/kl": total - task}
    return jax.lax.stop_gradient({name: Mean(x, count) for name, x in sums.items()})


def adaptive_kl(
    state: jax.Array,
    kl: jax.Array,
    *,
    target: float | jax.Array,
    horizon: float | jax.Array,
    num_rollouts: int | jax.Array = 1,
) -> jax.Array:
    """The controller that steers the KL to a target by its coefficient.

    coef' = coef (1 + e num_rollouts / horizon), e = clip(kl / target - 1, -0.2, 0.2).

    Source: https://arxiv.org/abs/1909.08593, section 2.2, whose gain 0.1 is that of a horizon of
    10 batches. TRL counts the horizon in rollouts (10,000 by default, target 6) and passes the
    batch's number of them.

    Args:
      state: scalar float32, the coefficient now.
      kl: scalar float32, the KL of the step, of a whole rollout in nats.
      target: the KL to hold, in the same unit.
      horizon: in how many rollouts, or updates where num_rollouts is 1, to correct.
      num_rollouts: rollouts of this step.

    Returns:
      Scalar float32 (float64 for float64 input), the coefficient for the next step.

    >>> print(adaptive_kl(jnp.array(0.1), jnp.array(12.0), target=6.0, horizon=10).round(4))
    0.102
    """
    check(", ", state=state, kl=kl)
    state, kl = at_least_float32(state), at_least_float32(kl)
    error = jnp.clip(kl / target - 1.0, -0.2, 0.2)
    part = jnp.asarray(num_rollouts, state.dtype) / jnp.asarray(horizon, state.dtype)
    return jax.lax.stop_gradient(state * (1.0 + error * part))


def _log_ratio(logp: jax.Array, other: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Log of policy over another one that carries no gradient; 0 where masked out."""
    check("BT, BT, BT", logp=logp, ref_logp=other, mask=mask)
    everywhere = jnp.ones(jnp.shape(logp), bool)
    return masked_log_ratio(logp, other, everywhere if mask is None else mask)


def _with_gradient_of(value: jax.Array, surrogate: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(value) + (surrogate - jax.lax.stop_gradient(surrogate))


def _weighted_gap(log_p: jax.Array, log_ref: jax.Array) -> jax.Array:
    """p (log p - log ref), 0 with its gradient where p is 0."""
    is_possible = log_p > -jnp.inf
    log_p = jnp.where(is_possible, log_p, 0.0)
    gap = jnp.exp(log_p) * (log_p - jnp.where(is_possible, log_ref, 0.0))
    return jnp.where(is_possible, gap, 0.0)


def _log_total(log_p: jax.Array, which: jax.Array) -> jax.Array:
    """[N], log of the sum of some of the probabilities; -inf without gradient where it is 0."""
    total = jnp.sum(jnp.where(which, jnp.exp(log_p), 0.0), axis=1)
    return jnp.where(total > 0, jnp.log(jnp.where(total > 0, total, 1.0)), -jnp.inf)


def _by_chunk(
    function: Callable[[jax.Array, jax.Array], jax.Array],
    logits: jax.Array,
    ref_logits: jax.Array,
    mask: jax.Array | None,
    chunk: int | None,
) -> jax.Array:
    """[B, T], a function of the logits of a few tokens, a chunk of tokens after the other."""
    sizes = check("BTV, BTV, BT", logits=logits, ref_logits=ref_logits, mask=mask)
    num_tokens = sizes["B"] * sizes["T"]
    if chunk is None:
        chunk = max(1, _CHUNK_ELEMENTS // sizes["V"])
    if chunk < 1:
        raise ValueError(f"chunk: expected at least 1 token at a time, got {chunk}")
    chunk = min(chunk, num_tokens)
    mask = jnp.ones((sizes["B"], sizes["T"]), bool) if mask is None else jnp.asarray(mask)

    @jax.checkpoint
    def one(inputs):
        logits, ref_logits, mask = inputs
        ref_logits = jax.lax.stop_gradient(ref_logits)
        # Cast and masked here, so that no float32 copy of all logits is made.
        logits, ref_logits = (
            jnp.where(mask[:, None], at_least_float32(x), 0.0) for x in (logits, ref_logits)
        )
        return jnp.where(mask, function(logits, ref_logits), 0.0)

    def split(x):  # [B, T, ...] -> chunks, tokens of a chunk, ...
        x = jnp.asarray(x).reshape(num_tokens, *x.shape[2:])
        x = jnp.pad(x, ((0, -num_tokens % chunk),) + ((0, 0),) * (x.ndim - 1))
        return x.reshape(-1, chunk, *x.shape[1:])

    value = jax.lax.map(one, (split(logits), split(ref_logits), split(mask)))
    return value.reshape(-1)[:num_tokens].reshape(sizes["B"], sizes["T"])


def _at_last_token(reward: jax.Array, mask: jax.Array, segment_ids: jax.Array | None) -> jax.Array:
    """[B, T], each sequence's reward at its last trained token and 0 elsewhere."""
    _, has_next = next_in_segment(mask, segment_ids)
    reward = per_token(reward, mask, segment_ids, name="reward")
    return jnp.where(mask & ~has_next, reward, 0.0)

"""Advantages of the rollouts of a group, from their rewards.

P prompts, G samples of a prompt. Rewards are [P, G]; flattened group-major they are [B].

Left out on purpose: what code of the field does with a group of one (TRL gives it 0, verl its bare
reward); here G < 2 is an error of every baseline that is made from the group. Advantages of single
tokens (GAE, returns, whitening) are written in `losses.returns`, those of steps and
their reductions in `losses.steps`; both are offered here too.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import at_least_float32, check
from jaxrl_vr.losses.group_statistics import (
    above_lowest,
    batch_deviation,
    centre,
    check_group,
    divide,
    group_deviation,
    num_valid,
    valid_rewards,
)
from jaxrl_vr.losses.returns import (
    discounted_return,
    gae,
    length_adaptive_lambda,
    reinforce_plus_plus,
    whiten,
)
from jaxrl_vr.losses.steps import process_group_norm, step_mean, step_min, step_product

__all__ = [
    "batch_norm",
    "discounted_return",
    "fixed_baseline",
    "gae",
    "gdpo",
    "group_center",
    "group_norm",
    "has_contrast",
    "leave_one_out",
    "length_adaptive_lambda",
    "max_rl",
    "multi_reward_norm",
    "opo",
    "pass_at_k_advantage",
    "process_group_norm",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "step_mean",
    "step_min",
    "step_product",
    "whiten",
]


def group_norm(
    reward: jax.Array,
    valid: jax.Array | None = None,
    *,
    eps: float | jax.Array = 1e-4,
    ddof: int | jax.Array = 0,
) -> jax.Array:
    """GRPO's advantage: the reward normalised within its group.

    A_i = (r_i - mean(r)) / (std(r) + eps), over the valid rollouts of the group.

    Source: DeepSeekMath, https://arxiv.org/abs/2402.03300, section 4.1. TRL and verl use the
    sample's standard deviation (ddof=1) and eps 1e-4 and 1e-6; the paper writes std and no eps.

    Args:
      reward: [P, G] float, one reward a rollout.
      valid: [P, G] bool, false where a rollout could not be scored: it leaves the statistics and
        gets 0. None: all are valid.
      eps: added to the standard deviation.
      ddof: 0 for the population's standard deviation, 1 for the sample's.

    Returns:
      [P, G] float32 (float64 for float64 input), without gradient; exactly 0 throughout a group
      whose valid rewards are equal.

    Raises:
      ValueError: G < 2, where the advantage could only be 0; or shapes differ.

    >>> group_norm(jnp.array([[1.0, 0.0, 0.0, 1.0]]), eps=0.0).tolist()
    [[1.0, -1.0, -1.0, 1.0]]
    """
    valid = check_group(reward, valid)
    centred = centre(reward, valid)
    return divide(centred, group_deviation(centred, valid, ddof) + eps)


def group_center(reward: jax.Array, valid: jax.Array | None = None) -> jax.Array:
    """Dr. GRPO's advantage: the reward less its group's mean, A_i = r_i - mean(r).

    Source: Understanding R1-Zero-like training, https://arxiv.org/abs/2503.20783, section 3.2.

    Args:
      reward: [P, G] float, one reward a rollout.
      valid: [P, G] bool; an invalid rollout leaves the mean and gets 0. None: all are valid.

    Returns:
      [P, G] float32 (float64 for float64 input), without gradient; exactly 0 throughout a group
      whose valid rewards are equal.

    Raises:
      ValueError: G < 2, or shapes differ.

    >>> group_center(jnp.array([[1.0, 0.0, 0.0, 0.0]])).tolist()
    [[0.75, -0.25, -0.25, -0.25]]
    """
    return centre(reward, check_group(reward, valid))


def leave_one_out(reward: jax.Array, valid: jax.Array | None = None) -> jax.Array:
    """RLOO's advantage: the reward less the mean of the group's other rewards.

    A_i = r_i - sum_{j != i} r_j / (n - 1) = n / (n - 1) (r_i - mean(r)), over n valid rollouts.

    Source: https://arxiv.org/abs/2402.14740. TRL's RLOO trainer can also normalise it
    over the batch; here that is `whiten`.

    Args:
      reward: [P, G] float, one reward a rollout.
      valid: [P, G] bool; an invalid rollout is nobody's baseline and gets 0. None: all are valid.

    Returns:
      [P, G] float32 (float64 for float64 input), without gradient; exactly 0 throughout a group
      whose valid rewards are equal, or that has one only.

    Raises:
      ValueError: G < 2, or shapes differ.

    >>> leave_one_out(jnp.array([[1.0, 0.0]])).tolist()
    [[1.0, -1.0]]
    """
    valid = check_group(reward, valid)
    centred = centre(reward, valid)
    count = num_valid(valid, centred)
    return centred * (count / jnp.maximum(count - 1.0, 1.0))


def batch_norm(
    reward: jax.Array,
    valid: jax.Array | None = None,
    *,
    eps: float | jax.Array = 1e-4,
    ddof: int | jax.Array = 0,
) -> jax.Array:
    """The reward less its group's mean, over the standard deviation of all the batch's rewards.

    A_i = (r_i - mean(r of the group)) / (std(r of the batch) + eps). A group in which nearly all
    are right is not blown up, as `group_norm` does.

    Source: Lite PPO, https://arxiv.org/abs/2508.08221; TRL's scale_rewards="batch",
    which uses the sample's standard deviation (ddof=1).

    Args:
      reward: [P, G] float, one reward a rollout; the whole step's, not a micro-batch.
      valid: [P, G] bool; an invalid rollout leaves the statistics and gets 0. None: all are valid.
      eps: added to the standard deviation.
      ddof: 0 for the population's standard deviation, 1 for the sample's.

    Returns:
      [P, G] float32 (float64 for float64 input), without gradient; exactly 0 throughout a group
      whose valid rewards are equal.

    Raises:
      ValueError: G < 2, or shapes differ.

    >>> batch_norm(jnp.array([[1.0, 0.0], [1.0, 0.0]]), eps=0.0).tolist()
    [[1.0, -1.0], [1.0, -1.0]]
    """
    valid = check_group(reward, valid)
    return divide(centre(reward, valid), batch_deviation(reward, valid, ddof) + eps)


def max_rl(reward: jax.Array, valid: jax.Array | None = None) -> jax.Array:
    """MaxRL's advantage: the centred reward over the group's mean reward.

    A_i = (r_i - mean(r)) / mean(r). For rewards of 0 and 1 this estimates the gradient of log p
    (maximum likelihood of a right answer, expanded to as many terms as there are rollouts) where
    `group_center` estimates that of p.

    Source: https://arxiv.org/abs/2602.02710.

    Args:
      reward: [P, G] float, 0 or 1, or at least not negative.
      valid: [P, G] bool; an invalid rollout leaves the mean and gets 0. None: all are valid.

    Returns:
      [P, G] float32 (float64 for float64 input), without gradient; exactly 0 throughout a group
      whose valid rewards are equal or whose mean is not above 0.

    Raises:
      ValueError: G < 2, or shapes differ.

    >>> max_rl(jnp.array([[1.0, 0.0, 0.0, 0.0]])).tolist()
    [[3.0, -1.0, -1.0, -1.0]]
    """
    valid = check_group(reward, valid)
    centred = centre(reward, valid)
    total = jnp.sum(valid_rewards(reward, valid), axis=1, keepdims=True)
    return divide(centred, total / jnp.maximum(num_valid(valid, centred), 1.0))


def opo(reward: jax.Array, length: jax.Array, valid: jax.Array | None = None) -> jax.Array:
    """OPO's advantage: the reward less the length-weighted mean of its group.

    A_i = r_i - sum_j l_j r_j / sum_j l_j: the baseline of least variance, if the squared norm of
    a rollout's gradient grows with its length.

    Source: https://arxiv.org/abs/2505.23585.

    Args:
      reward: [P, G] float, one reward a rollout.
      length: [P, G] trained tokens of each rollout.
      valid: [P, G] bool; an invalid rollout leaves the mean and gets 0. None: all are valid.

    Returns:
      [P, G] float32 (float64 for float64 input), without gradient; exactly 0 throughout a group
      whose valid rewards are equal.

    Raises:
      ValueError: G < 2, or shapes differ.

    >>> opo(jnp.array([[1.0, 0.0]]), jnp.array([[100, 300]])).tolist()
    [[0.75, -0.25]]
    """
    check("PG, PG, PG", reward=reward, length=length, valid=valid)
    valid = check_group(reward, valid)
    above = above_lowest(reward, valid)
    weight = jnp.where(valid, jax.lax.stop_gradient(jnp.asarray(length)).astype(above.dtype), 0.0)
    total = jnp.sum(weight, axis=1, keepdims=True)
    baseline = divide(jnp.sum(weight * above, axis=1, keepdims=True), total)
    return jnp.where(valid, above - baseline, 0.0)


def remax(reward: jax.Array, greedy_reward: jax.Array, valid: jax.Array | None = None) -> jax.Array:
    """ReMax's advantage: the reward less that of the prompt's greedy answer.

    A_i = r_i - r(greedy answer of the prompt).

    Source: https://arxiv.org/abs/2310.10505.

    Args:
      reward: [P, G] float, one reward a rollout; G may be 1.
      greedy_reward: [P] float, reward of the answer decoded greedily.
      valid: [P, G] bool; an invalid rollout gets 0. None: all are valid.

    Returns:
      [P, G] float32 (float64 for float64 input), without gradient.

    >>> remax(jnp.array([[1.0, 0.0]]), jnp.array([1.0])).tolist()
    [[0.0, -1.0]]
    """
    check("PG, P, PG", reward=reward, greedy_reward=greedy_reward, valid=valid)
    return _less(reward, greedy_reward, valid)


def fixed_baseline(
    reward: jax.Array, baseline: jax.Array, valid: jax.Array | None = None
) -> jax.Array:
    """The reward less a baseline known beforehand, as a frozen checkpoint's mean reward.

    A_i = r_i - b(prompt). It needs no group, and no rollout moves another's advantage.

    Source: a baseline that does not depend on the action leaves the gradient unbiased, Williams
    1992, https://doi.org/10.1007/BF00992696.

    Args:
      reward: [P, G] float, one reward a rollout; G may be 1.
      baseline: [P] float, expected reward of each prompt.
      valid: [P, G] bool; an invalid rollout gets 0. None: all are valid.

    Returns:
      [P, G] float32 (float64 for float64 input), without gradient.

    >>> fixed_baseline(jnp.array([[11.0, 9.0], [0.0, 2.0]]), jnp.array([10.0, 1.0])).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    check("PG, P, PG", reward=reward, baseline=baseline, valid=valid)
    return _less(reward, baseline, valid)


def pass_at_k_advantage(
    reward: jax.Array,
    valid: jax.Array | None = None,
    *,
    k: int | jax.Array,
    eps: float | jax.Array = 1e-6,
) -> jax.Array:
    """The advantage of a rollout where k of them share the reward of their best.

    With n valid rollouts, m of them wrong: f = C(m, k) / C(n, k) is the share of k-subsets with
    none right, mean 1 - f, s = sqrt(f (1 - f)). A right rollout is in no failing subset, a wrong
    one in the share C(m - 1, k - 1) / C(n - 1, k - 1) of its own:
    A_right = f / (s + eps), A_wrong = (f - C(m - 1, k - 1) / C(n - 1, k - 1)) / (s + eps).
    At k = 1 this is `group_norm`.

    Source: Pass@k Training, https://arxiv.org/abs/2508.10751, "analytical derivation".

    Args:
      reward: [P, G] float, 0 for wrong and 1 for right; above one half counts as right.
      valid: [P, G] bool; an invalid rollout is in no subset and gets 0. None: all are valid.
      k: size of the subsets, from 1 to G. A group with fewer valid rollouts gets 0.
      eps: added to the standard deviation; the paper writes none, its code 1e-6.

    Returns:
      [P, G] float32 (float64 for float64 input), without gradient; exactly 0 throughout a group
      that is all right, all wrong, or has fewer than k wrong.

    Raises:
      ValueError: G < 2, k outside 1 to G, or shapes differ.

    >>> adv = pass_at_k_advantage(jnp.array([[1.0, 0.0, 0.0, 0.0]]), k=2, eps=0.0)
    >>> [round(x, 4) for x in adv[0].tolist()]
    [1.0, -0.3333, -0.3333, -0.3333]
    """
    valid = check_group(reward, valid)
    size = reward.shape[1]
    if isinstance(k, int) and not 1 <= k <= size:
        raise ValueError(f"k: expected from 1 to G = {size}, the samples of a prompt, got {k}")
    is_right = valid_rewards(reward, valid) > 0.5
    count = jnp.sum(valid, axis=1, keepdims=True)
    wrong = jnp.sum(valid & ~is_right, axis=1, keepdims=True)
    # C(m, k) / C(n, k) = prod_{i < k} (m - i) / (n - i), and without its first factor the other.
    step = jnp.arange(size, dtype=count.dtype)[None]
    dtype = at_least_float32(reward).dtype
    factor = jnp.maximum(wrong - step, 0).astype(dtype) / jnp.maximum(count - step, 1).astype(dtype)
    failing = jnp.prod(jnp.where(step < k, factor, 1.0), axis=1, keepdims=True)
    own = jnp.prod(jnp.where((step >= 1) & (step < k), factor, 1.0), axis=1, keepdims=True)
    deviation = jnp.sqrt(failing * (1.0 - failing))
    adv = divide(jnp.where(is_right, failing, failing - own), deviation + eps)
    return jnp.where(valid & (count >= k) & (failing > 0), adv, 0.0)


def multi_reward_norm(
    rewards: jax.Array,
    weights: jax.Array,
    valid: jax.Array | None = None,
    *,
    eps: float | jax.Array = 1e-4,
    ddof: int | jax.Array = 0,
) -> jax.Array:
    """The weighted sum of several rewards, each normalised within its group first.

    A_i = sum_k w_k group_norm(r_k)_i. Normalising the sum instead gives equal advantages to
    different mixes of the components, and lets the one with the largest spread drown the others.

    Source: GDPO, https://arxiv.org/abs/2601.05242. Its last step, over the
    batch, is in `gdpo`.

    Args:
      rewards: [P, G, R] float, R components of each rollout's reward.
      weights: [R] float, weight of each component.
      valid: [P, G] bool; an invalid rollout leaves the statistics and gets 0. None: all are valid.
      eps: added to each standard deviation.
      ddof: 0 for the population's standard deviation, 1 for the sample's.

    Returns:
      [P, G] float32 (float64 for float64 input), without gradient; a component that is equal
      throughout a group adds exactly 0 there.

    Raises:
      ValueError: G < 2, or shapes differ.

    >>> rewards = jnp.array([[[1.0, 5.0], [0.0, 9.0]]])
    >>> multi_reward_norm(rewards, jnp.array([1.0, 0.25]), eps=0.0).tolist()
    [[0.75, -0.75]]
    """
    check("PGR, R, PG", rewards=rewards, weights=weights, valid=valid)

    def normalise(reward: jax.Array) -> jax.Array:
        return group_norm(reward, valid, eps=eps, ddof=ddof)

    adv = jax.vmap(normalise, in_axes=2, out_axes=2)(jnp.asarray(rewards))
    weights = jax.lax.stop_gradient(jnp.asarray(weights)).astype(adv.dtype)
    return jnp.sum(adv * weights[None, None], axis=2)


def gdpo(
    rewards: jax.Array,
    weights: jax.Array,
    valid: jax.Array | None = None,
    *,
    eps: float | jax.Array = 1e-4,
    ddof: int | jax.Array = 0,
) -> jax.Array:
    """GDPO's advantage: `multi_reward_norm`, then scaled by its deviation over the batch.

    A_i = S_i / (std(S over the batch) + eps), S = multi_reward_norm: the size of the advantages
    does not grow with the number of rewards. The paper also takes off the batch's mean of S,
    which is 0, as each group's is.

    Source: GDPO, https://arxiv.org/abs/2601.05242; TRL's
    multi_objective_aggregation="normalize_then_sum".

    Args:
      rewards: [P, G, R] float, R components of each rollout's reward; the whole step's.
      weights: [R] float, weight of each component.
      valid: [P, G] bool; an invalid rollout leaves the statistics and gets 0. None: all are valid.
      eps: added to each standard deviation.
      ddof: 0 for the population's standard deviation, 1 for the sample's.

    Returns:
      [P, G] float32 (float64 for float64 input), without gradient; exactly 0 throughout a group
      in which every component is equal.

    Raises:
      ValueError: G < 2, or shapes differ.

    >>> rewards = jnp.array([[[1.0, 5.0], [0.0, 9.0]]])
    >>> gdpo(rewards, jnp.array([1.0, 0.25]), eps=0.0).tolist()
    [[1.0, -1.0]]
    """
    adv = multi_reward_norm(rewards, weights, valid, eps=eps, ddof=ddof)
    valid = check_group(adv, valid)
    return divide(adv, batch_deviation(adv, valid, ddof) + eps)


def reinforce_plus_plus_baseline(
    reward: jax.Array, valid: jax.Array | None = None, *, eps: float | jax.Array = 1e-8
) -> jax.Array:
    """REINFORCE++ with baseline: the group-centred reward, whitened over the batch.

    C_i = r_i - mean(r of the group), A_i = C_i / sqrt(var(C over the batch) + eps). The mean of C
    over the batch is 0, as each group's is.

    Source: https://arxiv.org/abs/2501.03262, section 3. OpenRLHF and verl take the batch's mean
    and variance over tokens, where a long rollout counts more.

    Args:
      reward: [P, G] float, one reward a rollout; the whole step's, not a micro-batch.
      valid: [P, G] bool; an invalid rollout leaves the statistics and gets 0. None: all are valid.
      eps: added to the variance.

    Returns:
      [P, G] float32 (float64 for float64 input), without gradient; exactly 0 throughout a group
      whose valid rewards are equal.

    Raises:
      ValueError: G < 2, or shapes differ.

    >>> reinforce_plus_plus_baseline(jnp.array([[1.0, 0.0], [1.0, 1.0]]), eps=0.125).tolist()
    [[1.0, -1.0], [0.0, 0.0]]
    """
    valid = check_group(reward, valid)
    centred = centre(reward, valid)
    count = jnp.maximum(jnp.sum(valid), 1).astype(centred.dtype)
    return divide(centred, jnp.sqrt(jnp.sum(jnp.square(centred)) / count + eps))


def has_contrast(reward: jax.Array, valid: jax.Array | None = None) -> jax.Array:
    """Whether a group's valid rewards differ: only such groups have a gradient.

    Source: DAPO's dynamic sampling, https://arxiv.org/abs/2503.14476, section 3.2.

    Args:
      reward: [P, G] float, one reward a rollout.
      valid: [P, G] bool; invalid rollouts are not looked at. None: all are valid.

    Returns:
      [P] bool.

    >>> has_contrast(jnp.array([[1.0, 0.0], [1.0, 1.0]])).tolist()
    [True, False]
    """
    valid = check_group(reward, valid)
    return jnp.any(above_lowest(reward, valid) > 0, axis=1)


def _less(reward: jax.Array, baseline: jax.Array, valid: jax.Array | None) -> jax.Array:
    valid = jnp.ones(reward.shape, bool) if valid is None else jnp.asarray(valid)
    reward = valid_rewards(reward, valid)
    baseline = jax.lax.stop_gradient(jnp.asarray(baseline)).astype(reward.dtype)
    return jnp.where(valid, reward - baseline[:, None], 0.0)

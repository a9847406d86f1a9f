"""Changes to the reward of a rollout, by its length, its end, its form and its language.

Lengths are tokens. Arrays of rollouts are [B] or [P, G], whichever the caller has.

B rollouts, P prompts, G samples of a prompt, T tokens of a row.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import at_least_float32, check
from jaxrl_vr.losses.masked import per_token


def overlong_penalty(
    length: jax.Array,
    *,
    max_length: float | jax.Array,
    buffer: float | jax.Array,
    penalty: float | jax.Array = 1.0,
) -> jax.Array:
    """DAPO's soft punishment of answers that come near the limit, to be added to the reward.

    0 up to max_length - buffer, then falling linearly to -penalty at max_length, and -penalty
    beyond it.

    Source: DAPO, https://arxiv.org/abs/2503.14476, equation 13, with limit 20,480 (max_length)
    and buffer 4,096. verl's does not stop falling at max_length.

    Args:
      length: [B] or [P, G], tokens of each answer.
      max_length: where the whole penalty is reached.
      buffer: over how many tokens before it; 0 makes a step of it.
      penalty: how much at most.

    Returns:
      The shape of length, float32, from -penalty to 0.

    >>> overlong_penalty(jnp.array([10, 15, 20, 99]), max_length=20, buffer=10).tolist()
    [0.0, -0.5, -1.0, -1.0]
    """
    _check_rollouts(length=length)
    length = at_least_float32(length)
    max_length, buffer = (jnp.asarray(x, length.dtype) for x in (max_length, buffer))
    # Lengths are whole numbers, so a buffer this small is a step.
    left = (max_length - buffer - length) / jnp.maximum(buffer, 1e-6)
    return penalty * jnp.clip(left, -1.0, 0.0)


def truncated_mask(
    mask: jax.Array, truncated: jax.Array, *, segment_ids: jax.Array | None = None
) -> jax.Array:
    """The mask without the tokens of rollouts that a limit cut.

    m_t and not truncated. Their reward is noise: a sound chain of thought is called wrong for its
    length. Whether they count in their group's baseline is `valid`'s matter, and untouched here.

    Source: DAPO's overlong filtering, https://arxiv.org/abs/2503.14476, section 3.4.

    Args:
      mask: [B, T] bool, true where a token trains.
      truncated: [B] bool, or [B, T], which rows with segment_ids need.
      segment_ids: [B, T] int; None: a row is one sequence.

    Returns:
      [B, T] bool.

    >>> truncated_mask(jnp.ones((2, 2), bool), jnp.array([True, False])).tolist()
    [[False, False], [True, True]]
    """
    check("BT, BT", mask=mask, segment_ids=segment_ids)
    return mask & (per_token(truncated, mask, segment_ids, name="truncated") == 0)


def kimi_length_reward(
    length: jax.Array, correct: jax.Array, valid: jax.Array | None = None
) -> jax.Array:
    """Kimi k1.5's reward for short answers among those of a group, to be added to the reward.

    s_i = 1/2 - (length_i - min) / (max - min) for a right answer, min(0, s_i) for a wrong one,
    with min and max over the group; 0 where all are of one length.

    Source: Kimi k1.5, https://arxiv.org/abs/2501.12599, section 2.3.3. The paper switches it on
    only after a warm-up, since it slows early training.

    Args:
      length: [P, G] tokens of each answer.
      correct: [P, G] bool, whether it is right.
      valid: [P, G] bool; an invalid rollout leaves min and max and gets 0. None: all are valid.

    Returns:
      [P, G] float32, from -0.5 to 0.5.

    >>> kimi_length_reward(jnp.array([[200, 400, 1000]]), jnp.array([[True, True, False]])).tolist()
    [[0.5, 0.25, -0.5]]
    """
    check("PG, PG, PG", length=length, correct=correct, valid=valid)
    length = at_least_float32(length)
    valid = jnp.ones(length.shape, bool) if valid is None else jnp.asarray(valid)
    low = jnp.min(jnp.where(valid, length, jnp.inf), axis=1, keepdims=True)
    high = jnp.max(jnp.where(valid, length, -jnp.inf), axis=1, keepdims=True)
    differ = valid & (high > low)
    share = jnp.where(differ, length - low, 0.0) / jnp.where(high > low, high - low, 1.0)
    reward = 0.5 - share
    return jnp.where(differ, jnp.where(correct, reward, jnp.minimum(reward, 0.0)), 0.0)


def cosine_length_reward(
    length: jax.Array,
    correct: jax.Array,
    *,
    max_length: float | jax.Array,
    right_short: float | jax.Array = 2.0,
    right_long: float | jax.Array = 1.0,
    wrong_short: float | jax.Array = -10.0,
    wrong_long: float | jax.Array = 0.0,
    exceed: float | jax.Array = -10.0,
) -> jax.Array:
    """A reward by length along half a cosine: short right answers, and long wrong ones, are best.

    long + (short - long) (1 + cos(pi length / max_length)) / 2, with a pair of ends for right
    answers and one for wrong ones; `exceed` for all that reach max_length.

    Source: Demystifying long chain-of-thought, https://arxiv.org/abs/2502.03373, section 4.2; the
    defaults are those of its code. Open-R1 measures characters, not tokens, has -1, -0.5, 0.5, 1
    for the ends and nothing for answers that exceed the limit.

    Args:
      length: [B] or [P, G], tokens of each answer.
      correct: bool of the same shape, whether it is right.
      max_length: the limit of tokens.
      right_short: reward of a right answer of length 0.
      right_long: of a right one near the limit.
      wrong_short: of a wrong one of length 0.
      wrong_long: of a wrong one near the limit.
      exceed: of an answer that reaches the limit.

    Returns:
      The shape of length, float32: instead of the reward of being right, not beside it.

    >>> right = jnp.array([True, True, False, True])
    >>> reward = cosine_length_reward(jnp.array([0, 50, 50, 100]), right, max_length=100)
    >>> [round(x, 4) for x in reward.tolist()]
    [2.0, 1.5, -5.0, -10.0]
    """
    _check_rollouts(length=length, correct=correct)
    length = at_least_float32(length)
    max_length = jnp.asarray(max_length, length.dtype)
    share = 0.5 * (1.0 + jnp.cos(math.pi * jnp.clip(length / max_length, 0.0, 1.0)))
    right = right_long + (right_short - right_long) * share
    wrong = wrong_long + (wrong_short - wrong_long) * share
    return jnp.where(length >= max_length, exceed, jnp.where(correct, right, wrong))


def stop_properly_penalty(
    reward: jax.Array, truncated: jax.Array, *, scale: float | jax.Array = 0.0
) -> jax.Array:
    """The reward of answers that a limit cut, scaled down: r if it stopped by itself, else scale r.

    Source: ProRL v2; the `stop_properly_penalty_coef` of OpenRLHF and NeMo-RL, where a negative
    one replaces the reward. A negative reward is brought nearer to 0 by this.

    Args:
      reward: [B] or [P, G] float, one reward a rollout.
      truncated: bool of the same shape, true where a limit cut the answer.
      scale: what is left of its reward, from 0 to 1.

    Returns:
      The shape of reward, float32 (float64 for float64 input).

    >>> stop_properly_penalty(jnp.array([1.0, 1.0]), jnp.array([False, True]), scale=0.5).tolist()
    [1.0, 0.5]
    """
    _check_rollouts(reward=reward, truncated=truncated)
    reward = at_least_float32(reward)
    return jnp.where(truncated, scale * reward, reward)


def format_gate(
    reward: jax.Array, has_format: jax.Array, *, otherwise: float | jax.Array = 0.0
) -> jax.Array:
    """The reward of answers in the required form only: r if it has the form, else `otherwise`.

    Source: DeepSeek-R1, https://arxiv.org/abs/2501.12948, section 2.2.2, adds a reward for the
    form; a gate leaves none for the form alone.

    Args:
      reward: [B] or [P, G] float, one reward a rollout.
      has_format: bool of the same shape, whether the answer has the required form.
      otherwise: the reward of one that has not.

    Returns:
      The shape of reward, float32 (float64 for float64 input).

    >>> format_gate(jnp.array([1.0, 1.0]), jnp.array([True, False]), otherwise=-1.0).tolist()
    [1.0, -1.0]
    """
    _check_rollouts(reward=reward, has_format=has_format)
    return jnp.where(has_format, at_least_float32(reward), otherwise)


def language_consistency(
    reward: jax.Array, share: jax.Array, *, coef: float | jax.Array = 1.0
) -> jax.Array:
    """The reward plus one for thinking in the language asked for: r + coef share.

    Source: DeepSeek-R1, https://arxiv.org/abs/2501.12948, section 2.3.2, which sums the two
    directly.

    Args:
      reward: [B] or [P, G] float, one reward a rollout.
      share: float of the same shape, share of the words that are of the target language, 0 to 1.
      coef: its weight; the paper's is 1.

    Returns:
      The shape of reward, float32 (float64 for float64 input).

    >>> language_consistency(jnp.array([1.0]), jnp.array([0.5]), coef=0.5).tolist()
    [1.25]
    """
    _check_rollouts(reward=reward, share=share)
    return at_least_float32(reward) + coef * at_least_float32(share)


def _check_rollouts(**arrays: jax.Array) -> None:
    """All [B], or all [P, G]."""
    letters = "PG" if any(jnp.ndim(x) == 2 for x in arrays.values()) else "B"
    check(", ".join([letters] * len(arrays)), **arrays)

"""Rewards shaped by length, end, form and language."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_vr.losses import (
    cosine_length_reward,
    format_gate,
    kimi_length_reward,
    language_consistency,
    overlong_penalty,
    stop_properly_penalty,
    truncated_mask,
)


def test_overlong_penalty_by_hand():
    # DAPO's numbers: free up to 20480 - 4096 = 16384, half way at 18432, whole at 20480
    length = jnp.array([0, 16384, 17408, 18432, 20480, 99999])
    found = overlong_penalty(length, max_length=20480, buffer=4096)
    assert found.tolist() == [0, 0, -0.25, -0.5, -1, -1]
    assert overlong_penalty(length, max_length=20480, buffer=4096, penalty=0.5).tolist() == [
        *(0, 0, -0.125, -0.25, -0.5, -0.5)
    ]


def test_without_a_buffer_the_penalty_is_a_step():
    found = overlong_penalty(jnp.array([[9, 10, 11]]), max_length=10, buffer=0)
    assert found.tolist() == [[0, 0, -1]]


@pytest.mark.parametrize(
    "low, high, cases",
    [
        # 1/2 - 200/800, 1/2 - 700/800; wrong: at most 0
        (
            200,
            1000,
            [(400, True, 0.25), (900, True, -0.375), (400, False, 0), (900, False, -0.375)],
        ),
        # the ends themselves: 1/2 - 0, 1/2 - 1
        (512, 4096, [(512, True, 0.5), (4096, True, -0.5), (512, False, 0), (4096, False, -0.5)]),
    ],
)
def test_kimi_length_reward_by_hand(low, high, cases):
    length, correct, expected = zip(*cases, strict=True)
    found = kimi_length_reward(
        jnp.array([[*length, low, high]]), jnp.array([[*correct, True, True]])
    )
    np.testing.assert_allclose(found[0, :4], expected, atol=1e-6)


def test_kimi_length_reward_of_equal_lengths():
    found = kimi_length_reward(jnp.full((1, 3), 700), jnp.array([[True, False, True]]))
    assert found.tolist() == [[0, 0, 0]]


def test_kimi_length_reward_leaves_the_invalid_out():
    length = jnp.array([[100, 200, 9999], [5, 9999, 9999]])
    valid = jnp.array([[True, True, False], [True, False, False]])
    found = kimi_length_reward(length, jnp.ones((2, 3), bool), valid)
    assert found.tolist() == [[0.5, -0.5, 0], [0, 0, 0]]


def test_cosine_length_reward_by_hand():
    # cos at 0, 1/3 and 1/2 of the way: 1, 1/2, 0, so shares 1, 3/4, 1/2 of the short end
    length = jnp.array([0, 40, 60, 0, 40, 60, 120, 500])
    correct = jnp.array([True, True, True, False, False, False, True, False])
    found = cosine_length_reward(length, correct, max_length=120)
    expected = [2, 1.75, 1.5, -10, -7.5, -5, -10, -10]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_truncated_rollouts_are_not_trained():
    mask = jnp.array([[True, False, True], [True, True, True]])
    truncated = jnp.array([True, False])
    kept = truncated_mask(mask, truncated)
    assert kept.tolist() == [[False] * 3, [True] * 3]
    ids = jnp.array([[1, 1, 2], [1, 2, 2]])
    by_token = jnp.array([[True, True, False], [False, True, True]])
    packed = truncated_mask(mask, by_token, segment_ids=ids)
    assert packed.tolist() == [[False, False, True], [True, False, False]]
    with pytest.raises(
        ValueError, match=r"truncated: rows with segment_ids .* need shape \[B, T\]"
    ):
        truncated_mask(mask, truncated, segment_ids=ids)


def test_small_changes_of_the_reward_by_hand():
    reward, yes = jnp.array([[1.0, 1.0, -2.0]]), jnp.array([[True, False, True]])
    assert stop_properly_penalty(reward, yes).tolist() == [[0, 1, 0]]
    assert stop_properly_penalty(reward, yes, scale=0.25).tolist() == [[0.25, 1, -0.5]]
    assert format_gate(reward, yes).tolist() == [[1, 0, -2]]
    assert format_gate(reward, yes, otherwise=-0.5).tolist() == [[1, -0.5, -2]]
    share = jnp.array([[1.0, 0.5, 0.0]])
    assert language_consistency(reward, share).tolist() == [[2, 1.5, -2]]
    assert language_consistency(reward, share, coef=0.5).tolist() == [[1.5, 1.25, -2]]


def test_shapes_of_rollouts_must_agree():
    with pytest.raises(ValueError, match=r"truncated: expected shape \[P, G\], got \[2\]"):
        stop_properly_penalty(jnp.ones((2, 2)), jnp.ones(2, bool))
    with pytest.raises(ValueError, match=r"share: expected shape \[B\] with B = 2"):
        language_consistency(jnp.ones(2), jnp.ones(3))

"""Token weights: the normaliser of the whole step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import reference_advantages
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.losses import (
    constant_length,
    prompt_mean,
    sequence_mean,
    sequence_sum,
    token_mean,
)

WEIGHTS = {
    "token_mean": (token_mean, reference.token_mean),
    "sequence_mean": (sequence_mean, reference.sequence_mean),
    "sequence_sum": (sequence_sum, reference_advantages.sequence_sum),
    "constant_length": (
        functools.partial(constant_length, max_length=12),
        functools.partial(reference.constant_length, max_length=12),
    ),
}
each = pytest.mark.parametrize("ours, oracle", WEIGHTS.values(), ids=WEIGHTS.keys())
# One shape, compiled once.
lengths = st.lists(st.integers(0, 5000), min_size=5, max_size=5)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("token_mean", [1 / 10] * 4),  # 2 + 5 + 0 + 3 tokens
        ("sequence_mean", [1 / 6, 1 / 15, 1 / 3, 1 / 9]),  # 3 rollouts train: 1 / (3 x 2), ...
        ("sequence_sum", [1 / 3] * 4),
        ("constant_length", [1 / 36] * 4),  # 1 / (3 x 12)
    ],
)
def test_by_hand(name, expected):
    np.testing.assert_allclose(WEIGHTS[name][0](jnp.array([2, 5, 0, 3])), expected, rtol=1e-6)


@each
@given(lengths)
def test_equals_the_loop(ours, oracle, length):
    weight = ours(jnp.array(length))
    assert weight.dtype == jnp.float32
    np.testing.assert_allclose(weight, oracle(length), rtol=1e-6)


@each
@given(lengths, st.randoms(use_true_random=False))
def test_order_of_rollouts_does_not_matter(ours, oracle, length, random):
    order = list(range(len(length)))
    random.shuffle(order)
    weight = np.asarray(ours(jnp.array(length)))
    np.testing.assert_array_equal(ours(jnp.array(length)[jnp.array(order)]), weight[order])


@each
def test_rollouts_without_trained_tokens_change_no_other(ours, oracle):
    np.testing.assert_array_equal(
        ours(jnp.array([2, 0, 5, 0, 0]))[jnp.array([0, 2])], ours(jnp.array([2, 5]))
    )


@pytest.mark.parametrize("ours", [token_mean, sequence_mean])
@given(lengths)
def test_a_loss_of_one_everywhere_has_mean_one(ours, length):
    if sum(length) == 0:
        return
    total = np.sum(np.asarray(ours(jnp.array(length)), np.float64) * length)
    assert total == pytest.approx(1, rel=1e-5)


@each
def test_no_trained_token_gives_finite_weights(ours, oracle):
    assert np.isfinite(ours(jnp.zeros(3, jnp.int32))).all()


@each
def test_jit_and_vmap(ours, oracle):
    length = jnp.array([[2, 5, 0, 3], [1, 1, 1, 1]])
    each_step = jnp.stack([ours(length[0]), ours(length[1])])
    np.testing.assert_allclose(jax.jit(ours)(length[0]), ours(length[0]), rtol=1e-7)
    np.testing.assert_allclose(jax.jit(jax.vmap(ours))(length), each_step, rtol=1e-7)


@each
def test_dtype_of_lengths(ours, oracle):
    for dtype in (jnp.int32, jnp.uint16, jnp.float32):
        np.testing.assert_array_equal(ours(jnp.array([2, 5, 3], dtype)), ours(jnp.array([2, 5, 3])))


@each
def test_wrong_rank(ours, oracle):
    with pytest.raises(ValueError, match=r"length: expected shape \[B\], got \[2, 3\]"):
        ours(jnp.ones((2, 3)))


def test_prompt_mean_by_hand():
    # prompts 4 (2 + 5 tokens), 1 (0, not counted) and 9 (3): 1 / (2 x 7), 1 / (2 x 3)
    weight = prompt_mean(jnp.array([2, 3, 0, 5]), jnp.array([4, 9, 1, 4]))
    np.testing.assert_allclose(weight[jnp.array([0, 1, 3])], [1 / 14, 1 / 6, 1 / 14], rtol=1e-6)


@given(lengths, st.lists(st.integers(-9, 9), min_size=5, max_size=5))
def test_prompt_mean_equals_the_loop_and_prompts_weigh_alike(length, group):
    weight = np.asarray(PROMPT_MEAN(np.array(length), np.array(group)), np.float64)
    np.testing.assert_allclose(weight, reference_advantages.prompt_mean(length, group), rtol=1e-6)
    train = {g for n, g in zip(length, group, strict=True) if n}
    for g in train:
        own = sum(w * n for w, n, h in zip(weight, length, group, strict=True) if h == g)
        assert own == pytest.approx(1 / len(train), rel=1e-5)


PROMPT_MEAN = jax.jit(prompt_mean)


@jax.jit
def all_means(length):
    lengths = jnp.broadcast_to(length, 5)
    return (
        token_mean(lengths),
        sequence_mean(lengths),
        prompt_mean(lengths, jnp.arange(5)),
        constant_length(lengths, max_length=length),
    )


@given(st.integers(1, 5000))
def test_equal_lengths_weigh_alike_under_all_means(length):
    for weight in all_means(length):
        np.testing.assert_allclose(weight, [1 / (5 * length)] * 5, rtol=1e-6)


def test_two_wrong_answers_of_different_lengths():
    # Advantage -1, 2 rollouts of 100 and 1000 tokens: 2 x -1 / (2 x 100), 2 x -1 / (2 x 1000), so
    # a token of the long one is blamed a tenth as much; token weights blame all alike.
    length, adv = jnp.array([100, 1000]), -1.0
    np.testing.assert_allclose(2 * adv * sequence_mean(length), [-0.01, -0.001], rtol=1e-6)
    np.testing.assert_allclose(2 * adv * token_mean(length), [-2 / 1100] * 2, rtol=1e-6)
    np.testing.assert_allclose(2 * adv * sequence_sum(length), [-1, -1])

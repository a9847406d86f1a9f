"""Token weights: the normaliser of the whole step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.losses import constant_length, sequence_mean, token_mean

WEIGHTS = {
    "token_mean": (token_mean, reference.token_mean),
    "sequence_mean": (sequence_mean, reference.sequence_mean),
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

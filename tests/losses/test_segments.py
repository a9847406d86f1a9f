"""Sums over the sequences of packed rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.losses.segments import next_in_segment, segment_mean, segment_total

SUM, MEAN = jax.jit(segment_total), jax.jit(segment_mean)
X = np.array([[1.0, 2.0, 4.0, 8.0], [1.0, 1.0, 3.0, 5.0]], np.float32)
IDS = np.array([[1, 1, 2, 0], [1, 2, 2, 2]], np.int32)
MASK = np.array([[True, True, True, False], [False, True, True, False]])


def loop(x, mask, ids):
    total, mean = np.zeros(x.shape), np.zeros(x.shape)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            mine = [
                float(x[b, s]) for s in range(x.shape[1]) if mask[b, s] and ids[b, s] == ids[b, t]
            ]
            total[b, t] = sum(mine)
            mean[b, t] = sum(mine) / len(mine) if mine else 0.0
    return total, mean


def test_by_hand():
    # row 0: 1 + 2, then 4 alone, padding has nothing; row 1: nothing, then 1 + 3
    np.testing.assert_array_equal(SUM(X, MASK, IDS), [[3, 3, 4, 0], [0, 4, 4, 4]])
    np.testing.assert_array_equal(MEAN(X, MASK, IDS), [[1.5, 1.5, 4, 0], [0, 2, 2, 2]])


def test_without_ids_a_row_is_one_sequence():
    np.testing.assert_array_equal(SUM(X, MASK), [[7] * 4, [4] * 4])
    np.testing.assert_allclose(MEAN(X, MASK), [[7 / 3] * 4, [2] * 4], rtol=1e-6)


@given(
    st.lists(st.floats(-8, 8, width=16), min_size=12, max_size=12),
    st.lists(st.booleans(), min_size=12, max_size=12),
    st.lists(st.integers(0, 6), min_size=12, max_size=12),
)
def test_equals_the_loop(x, mask, ids):
    x, mask, ids = (np.array(a).reshape(2, 6) for a in (x, mask, ids))
    x = x.astype(np.float32)
    total, mean = loop(x, mask, ids)
    np.testing.assert_allclose(SUM(x, mask, ids), total, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(MEAN(x, mask, ids), mean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("poison", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize("function", [SUM, MEAN], ids=["sum", "mean"])
def test_what_is_masked_out_does_not_matter(function, poison):
    grad = jax.jit(jax.grad(lambda x: jnp.sum(function(x, MASK, IDS) ** 2)))
    dirty = np.where(MASK, X, np.float32(poison))
    np.testing.assert_array_equal(function(dirty, MASK, IDS), function(X, MASK, IDS))
    np.testing.assert_array_equal(grad(dirty), grad(X))


def test_float64_stays():
    with jax.enable_x64(True):
        total = segment_total(jnp.asarray(X, jnp.float64) / 3, MASK, IDS)
        assert total.dtype == jnp.float64
        np.testing.assert_allclose(total[0, 0], 1.0, rtol=1e-15)


def test_wrong_shape():
    with pytest.raises(ValueError, match=r"mask: expected shape \[B, T\] with B = 2"):
        segment_total(X, MASK[:1])


def test_next_token_by_hand():
    # row 0: token 1 follows 0, and 2 is another sequence; row 1: 0 is masked, so after 1 comes 2
    index, has_next = next_in_segment(MASK, IDS)
    np.testing.assert_array_equal(
        has_next, [[True, False, False, False], [False, True, False, False]]
    )
    np.testing.assert_array_equal(np.asarray(index)[np.asarray(has_next)], [1, 2])
    # without ids a token follows whatever stands between
    index, has_next = next_in_segment(np.array([[True, False, True, False]]))
    np.testing.assert_array_equal(has_next, [[True, True, False, False]])
    np.testing.assert_array_equal(np.asarray(index)[0, :2], [2, 2])

"""Attention against loops in float64, and the masks of packed rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_vr.models.attention import attention, segment_mask


def attention_by_loops(q, k, v, mask):
    """What attention means, one query at a time; a query that sees nothing is left at NaN."""
    B, T, H, Q = q.shape
    repeats = H // k.shape[1]
    out = np.full((B, T, H, Q), np.nan)
    for b in range(B):
        for t in range(T):
            seen = np.flatnonzero(mask[b, t])
            for h in range(H if len(seen) else 0):
                scores = np.array([q[b, t, h] @ k[b, h // repeats, c] for c in seen]) / Q**0.5
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                out[b, t, h] = sum(
                    w * v[b, h // repeats, c] for w, c in zip(weights, seen, strict=True)
                )
    return out


def inputs(heads, kv_heads, T=5, C=7, seed=0):
    rng = np.random.default_rng(seed)
    q = 2 * rng.normal(size=(2, T, heads, 4))
    k = 2 * rng.normal(size=(2, kv_heads, C, 4))
    v = rng.normal(size=(2, kv_heads, C, 4))
    mask = rng.random((2, T, C)) < 0.6
    mask[..., 0] = True
    return q, k, v, mask


def f32(*arrays):
    return [jnp.asarray(a, jnp.float32) for a in arrays]


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (4, 2), (6, 2), (3, 1)])
def test_equals_loops(heads, kv_heads):
    q, k, v, mask = inputs(heads, kv_heads)
    got = attention(*f32(q, k, v), jnp.asarray(mask))
    np.testing.assert_allclose(got, attention_by_loops(q, k, v, mask), atol=2e-6)


def test_by_hand():
    # Scores (ln 3) / sqrt(1) and 0 give weights 3/4 and 1/4; the third key is hidden.
    q = jnp.full((1, 1, 1, 1), np.log(3.0), jnp.float32)
    k = jnp.asarray([1.0, 0.0, 50.0]).reshape(1, 1, 3, 1)
    v = jnp.asarray([4.0, 8.0, 1e6]).reshape(1, 1, 3, 1)
    got = attention(q, k, v, jnp.asarray([[[True, True, False]]]))
    np.testing.assert_allclose(got.item(), 0.75 * 4 + 0.25 * 8, rtol=1e-6)


def test_hidden_keys_have_no_influence_and_no_gradient():
    q, k, v, mask = inputs(4, 2)
    mask[:, :, 5:] = False
    q, k, v = f32(q, k, v)
    mask = jnp.asarray(mask)
    other = attention(q, k.at[:, :, 5:].set(1e4), v.at[:, :, 5:].set(-1e4), mask)
    np.testing.assert_array_equal(other, attention(q, k, v, mask))
    gradient = jax.grad(lambda k, v: attention(q, k, v, mask).sum(), argnums=(0, 1))(k, v)
    assert np.abs(gradient[0][:, :, 5:]).max() == np.abs(gradient[1][:, :, 5:]).max() == 0.0


def test_a_query_that_sees_nothing_stays_finite_also_backwards():
    q, k, v, mask = inputs(4, 2)
    mask[0, 2] = False
    q, k, v = f32(q, k, v)
    got, backward = jax.vjp(lambda q, k, v: attention(q, k, v, jnp.asarray(mask)), q, k, v)
    assert all(np.isfinite(g).all() for g in backward(jnp.ones_like(got)))
    # Equal weights: the mean of all values, heads 0 and 1 of the first kv head.
    np.testing.assert_allclose(got[0, 2, 1], v[0, 0].mean(axis=0), atol=1e-6)


def test_bfloat16_is_close_and_stays_bfloat16():
    q, k, v, mask = inputs(4, 2)
    got = attention(*(x.astype(jnp.bfloat16) for x in f32(q, k, v)), jnp.asarray(mask))
    assert got.dtype == jnp.bfloat16
    rounded = [np.asarray(x.astype(jnp.bfloat16), np.float64) for x in f32(q, k, v)]
    expected = attention_by_loops(*rounded, mask)
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, atol=0.03)


@pytest.mark.parametrize(
    "name, shape", [("k", (2, 2, 7, 3)), ("v", (2, 2, 6, 4)), ("mask", (2, 5, 1))]
)
def test_shapes_that_would_broadcast_are_refused(name, shape):
    q, k, v, mask = inputs(4, 2)
    arrays = dict(zip(("q", "k", "v"), f32(q, k, v), strict=True), mask=jnp.asarray(mask))
    arrays[name] = jnp.zeros(shape, arrays[name].dtype)
    with pytest.raises(ValueError, match=name if name == "mask" else "expected shape"):
        attention(**arrays)


def test_segment_mask_by_hand():
    mask = segment_mask(jnp.asarray([[1, 1, 2, 2, 0]]))
    expected = [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 0, 0, 1],
    ]
    np.testing.assert_array_equal(mask[0], np.asarray(expected, bool))

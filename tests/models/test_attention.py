"""Attention against loops in float64: values, gradients, memory, devices, and the TPU's kernels."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_vr.models.attention import attention
from jaxrl_vr.models.blockwise import blockwise_attention, causal_with_sums
from jaxrl_vr.models.splash import splash_chunk
from jaxrl_vr.sharding import MeshConfig, make_mesh

HEADS = pytest.mark.parametrize("heads, kv_heads", [(4, 4), (4, 2), (6, 2), (3, 1)])


def attention_by_loops(q, k, v, segments):
    """What attention means, one query at a time."""
    B, T, H, Q = q.shape
    repeats = H // k.shape[2]
    out = np.zeros((B, T, H, Q))
    for b in range(B):
        for t in range(T):
            seen = [c for c in range(t + 1) if segments[b, c] == segments[b, t]]
            for h in range(H):
                scores = np.array([q[b, t, h] @ k[b, c, h // repeats] for c in seen]) / Q**0.5
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                out[b, t, h] = weights @ v[b, seen, h // repeats]
    return out


def inputs(heads=4, kv_heads=2, T=11, B=2, Q=4, seed=0):
    """q, k, v and segments of random lengths, the last of each row padding."""
    rng = np.random.default_rng(seed)
    q = 2 * rng.normal(size=(B, T, heads, Q))
    k = 2 * rng.normal(size=(B, T, kv_heads, Q))
    v = rng.normal(size=(B, T, kv_heads, Q))
    segments = np.sort(rng.integers(1, 4, size=(B, T)), axis=1)
    segments[:, T - T // 8 :] = 0
    return q, k, v, segments.astype(np.int32)


def f32(*arrays):
    return [jnp.asarray(a, jnp.float32) for a in arrays]


def with_gradients(attend, q, k, v, seed=1):
    """The result and the gradients of a random weighting of it."""
    out, backward = jax.vjp(attend, *f32(q, k, v))
    weights = np.random.default_rng(seed).normal(size=out.shape)
    return out, *backward(jnp.asarray(weights, out.dtype))


def assert_all_close(got, expected, atol):
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=atol, rtol=0)


def by_blocks(q, k, v, segments, block):
    """`attention` with blocks of another size."""
    B, T, H, Q = q.shape
    grouped = q.reshape(B, T, k.shape[2], -1, Q).transpose(0, 2, 3, 1, 4)
    keys, values = k.swapaxes(1, 2), v.swapaxes(1, 2)
    out = blockwise_attention(grouped, keys, values, segments, segments, block=block)
    return out.transpose(0, 3, 1, 2, 4).reshape(q.shape)


@HEADS
def test_equals_loops(heads, kv_heads):
    q, k, v, segments = inputs(heads, kv_heads)
    expected = attention_by_loops(q, k, v, segments)
    np.testing.assert_allclose(attention(*f32(q, k, v), segments), expected, atol=2e-6)
    for block in (4, 8):
        got = by_blocks(*f32(q, k, v), segments, block)
        np.testing.assert_allclose(got, expected, atol=2e-6)


@HEADS
def test_gradients_are_those_of_the_loops(heads, kv_heads):
    q, k, v, segments = inputs(heads, kv_heads, T=6, B=1)
    weights = np.random.default_rng(1).normal(size=q.shape)
    got = {
        block: with_gradients(lambda q, k, v, b=block: by_blocks(q, k, v, segments, b), q, k, v)
        for block in (4, 512)
    }
    for place, array in enumerate((q, k, v)):
        of_array = np.zeros(array.shape)
        for index in np.ndindex(array.shape):
            sums = []
            for step in (1e-4, -1e-4):
                moved = [a.copy() for a in (q, k, v)]
                moved[place][index] += step
                sums.append((weights * attention_by_loops(*moved, segments)).sum())
            of_array[index] = (sums[0] - sums[1]) / 2e-4
        for _, *gradients in got.values():
            np.testing.assert_allclose(gradients[place], of_array, atol=2e-5)


def test_by_hand():
    # Scores (ln 3) / sqrt(1) and 0 give weights 3/4 and 1/4; what comes later is hidden.
    q = jnp.full((1, 3, 1, 1), np.log(3.0), jnp.float32)
    k = jnp.asarray([1.0, 0.0, 50.0]).reshape(1, 3, 1, 1)
    v = jnp.asarray([4.0, 8.0, 1e6]).reshape(1, 3, 1, 1)
    got = attention(q, k, v, jnp.ones((1, 3), jnp.int32))[0, :, 0, 0]
    np.testing.assert_allclose(got[:2], [4.0, 0.75 * 4 + 0.25 * 8], rtol=1e-6)


def test_hidden_keys_have_no_influence_and_no_gradient():
    q, k, v, _ = inputs()
    segments = jnp.asarray([[1] * 5 + [2] * 6] * 2, jnp.int32)
    q, k, v = f32(q, k, v)
    first = attention(q, k, v, segments)[:, :5]
    other = attention(q, k.at[:, 5:].set(1e4), v.at[:, 5:].set(-1e4), segments)
    np.testing.assert_array_equal(other[:, :5], first)
    loss = lambda k, v: attention(q, k, v, segments)[:, :5].sum()  # noqa: E731
    for gradient in jax.grad(loss, argnums=(0, 1))(k, v):
        assert np.abs(gradient[:, 5:]).max() == 0.0


def test_bfloat16_is_close_and_stays_bfloat16():
    q, k, v, segments = inputs()
    rounded = [x.astype(jnp.bfloat16) for x in f32(q, k, v)]
    got = attention(*rounded, segments)
    assert got.dtype == jnp.bfloat16
    expected = attention_by_loops(*(np.asarray(x, np.float64) for x in rounded), segments)
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, atol=0.03)


@pytest.mark.parametrize(
    "name, shape", [("k", (2, 11, 2, 3)), ("v", (2, 10, 2, 4)), ("segment_ids", (2, 1))]
)
def test_shapes_that_would_broadcast_are_refused(name, shape):
    q, k, v, segments = inputs()
    arrays = dict(zip(("q", "k", "v"), f32(q, k, v), strict=True), segment_ids=segments)
    arrays[name] = jnp.zeros(shape, arrays[name].dtype)
    with pytest.raises(ValueError, match=name):
        attention(**arrays)


def test_no_array_has_as_many_elements_as_the_pairs_of_tokens():
    """Of one row with one head, forward and backward."""
    T = 4096
    shapes = [jax.ShapeDtypeStruct((1, T, 1, 8), jnp.float32)] * 3
    segments = jax.ShapeDtypeStruct((1, T), jnp.int32)

    def loss(q, k, v, segments):
        return attention(q, k, v, segments).sum()

    text = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*shapes, segments).compile().as_text()
    found = re.findall(r"(?:f32|pred|s32)\[([\d,]+)\]", text)
    largest = max(math.prod(map(int, shape.split(","))) for shape in found)
    assert largest <= 256 * 256 + 1
    # The measure is one: scores of a block are there.
    assert largest == 256 * 256


# Several devices


@pytest.mark.parametrize(
    "axes",
    [{"data": 2}, {"tensor": 2}, {"tensor": 4}, {"context": 4}, {"data": 2, "context": 2}],
    ids=lambda axes: " ".join(axes) + f" {max(axes.values())}",
)
@pytest.mark.parametrize("backend, T", [("xla", 24), ("splash_interpreted", 512)])
def test_devices_do_not_matter(backend, T, axes):
    q, k, v, segments = inputs(T=T, Q=8)
    mesh = make_mesh(MeshConfig(**axes), jax.devices()[: math.prod(axes.values())])

    def split(q, k, v):
        return jax.jit(functools.partial(attention, backend=backend))(q, k, v, segments)

    expected = with_gradients(lambda q, k, v: attention(q, k, v, segments), q, k, v)
    with jax.set_mesh(mesh):
        assert_all_close(with_gradients(split, q, k, v), expected, atol=2e-5)


@pytest.mark.parametrize("heads, kv_heads", [(4, 2), (12, 6), (12, 2)])
def test_heads_are_split_where_devices_divide_neither_kv_heads_nor_the_queries_of_each(
    heads, kv_heads
):
    q, k, v, segments = arrays = inputs(heads, kv_heads, T=64, Q=16)
    expected = with_gradients(lambda q, k, v: attention(q, k, v, segments), q, k, v)

    def flops(mesh):
        with jax.set_mesh(mesh):
            return jax.jit(attention).lower(*arrays).compile().cost_analysis()["flops"]

    one, four = (make_mesh(MeshConfig(tensor=n), jax.devices()[:n]) for n in (1, 4))
    with jax.set_mesh(four):
        found = with_gradients(lambda q, k, v: jax.jit(attention)(q, k, v, segments), q, k, v)
    assert_all_close(found, expected, atol=2e-5)
    assert 4 * flops(four) < 1.1 * flops(one)


def test_the_kernels_are_left_where_rows_are_no_multiple_of_their_blocks():
    q, k, v, segments = inputs(T=100)
    got = attention(*f32(q, k, v), segments, backend="splash_interpreted")
    np.testing.assert_array_equal(got, attention(*f32(q, k, v), segments))


@pytest.mark.parametrize("T", [20, 128, 640])
def test_a_chunk_has_the_sums_that_merge_it(T):
    """By plain XLA and, where its rows are whole blocks, by the kernels."""
    rng = np.random.default_rng(T)
    q = f32(2 * rng.normal(size=(2, 2, 3, T, 8)))[0]
    k, v = f32(*(rng.normal(size=(2, 2, 2, T, 8))))
    scores = np.einsum("bkrtq,bkcq->bkrtc", q, k, dtype=np.float64) * 8**-0.5
    scores = np.where(np.tri(T, dtype=bool), scores, -np.inf)
    sums = np.logaddexp.reduce(scores, axis=-1)
    expected = np.einsum("bkrtc,bkcq->bkrtq", np.exp(scores - sums[..., None]), v)
    for attend in (causal_with_sums, splash_chunk, functools.partial(causal_with_sums, block=16)):
        assert_all_close(attend(q, k, v), (expected, sums), atol=1e-5)

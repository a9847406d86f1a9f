"""Distinct tokens into rows and back: values and gradients beside plain indexing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.distinct import Distinct, in_rows, of_tokens
from jaxrl_vr.models.params import init
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.rollout.distinct import distinct_tokens
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh

RNG = np.random.default_rng(0)
T = 12


def rows(parts):
    """Tokens, segments and positions of rows with common prefixes and padding; the first row of a
    part is padding, so that its place 0 stands for padding too."""
    tokens = RNG.integers(0, 30, (1, 8, T)).astype(np.int32)
    tokens[:, :, :7] = tokens[:, :1, :7]
    segments = np.ones((1, 8, T), np.int32)
    segments[:, 1::3, 10:] = 0
    segments[:, :: 8 // parts] = 0
    tokens[segments == 0] = 0
    positions = np.where(segments > 0, np.arange(T), 0).astype(np.int32)
    place, token = distinct_tokens(tokens, segments, parts)
    distinct = Distinct(place=jnp.asarray(place[0]), token=jnp.asarray(token[0]))
    return distinct, tokens[0], segments[0], positions[0]


PARTS = pytest.mark.parametrize("parts", [1, 2])


def drawn(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def flat_index(distinct):
    """Of every place, the index of its token among those of all parts."""
    R, U = distinct.place.shape
    token = np.asarray(distinct.token).reshape(R, -1)
    return (token + U * np.arange(R)[:, None]).reshape(-1)


@PARTS
def test_into_rows_adds_up_the_gradients_of_all_places(parts):
    distinct, *_ = rows(parts)
    R, U = distinct.place.shape
    a = drawn(R, U, 3)
    weight = drawn(8, T, 3)
    out, backward = jax.vjp(lambda a: in_rows(a, distinct), a)
    index = flat_index(distinct)
    np.testing.assert_array_equal(out, a.reshape(R * U, 3)[index].reshape(8, T, 3))
    expected = np.zeros((R * U, 3))
    np.add.at(expected, index, weight.reshape(-1, 3))
    np.testing.assert_allclose(backward(weight)[0].reshape(R * U, 3), expected, atol=1e-5)


@PARTS
def test_into_rows_has_the_gradient_of_one_place_on_demand(parts):
    distinct, *_ = rows(parts)
    R, U = distinct.place.shape
    a = drawn(R, U, 3)
    weight = drawn(8, T, 3)
    out, backward = jax.vjp(lambda a: in_rows(a, distinct, only_place=True), a)
    np.testing.assert_array_equal(out, in_rows(a, distinct))
    found = backward(weight)[0]
    token = np.asarray(distinct.token).reshape(R, -1)
    for r in range(R):
        used = token[r].max() + 1
        assert used < U or parts == 1  # sizes are those of the largest part, rounded up
        for u in range(used):
            place = distinct.place[r, u]
            np.testing.assert_array_equal(found[r, u], weight.reshape(R, -1, 3)[r, place])
        # What fills it up has no gradient, though its place has.
        assert not np.any(found[r, used:])


@PARTS
def test_out_of_rows_leaves_other_places_without_gradient(parts):
    distinct, *_ = rows(parts)
    R, U = distinct.place.shape
    a = drawn(8, T, 3)
    weight = drawn(R, U, 3)
    out, backward = jax.vjp(lambda a: of_tokens(a, distinct), a)
    in_parts = a.reshape(R, -1, 3)
    np.testing.assert_array_equal(out, [in_parts[r, distinct.place[r]] for r in range(R)])
    expected = np.zeros_like(in_parts)
    token = np.asarray(distinct.token).reshape(R, -1)
    for r in range(R):
        for u in range(token[r].max() + 1):
            expected[r, distinct.place[r, u]] = weight[r, u]
    np.testing.assert_array_equal(backward(weight)[0].reshape(R, -1, 3), expected)


@PARTS
@pytest.mark.parametrize("remat", ["none", "minimal", "block"])
@pytest.mark.parametrize("dtype, bound", [("float32", 5e-6), ("bfloat16", 0.05)])
def test_a_model_has_the_same_states_and_gradients(parts, remat, dtype, bound):
    arch = Architecture(
        vocab_size=30, width=16, layers=2, heads=4, kv_heads=2, head_dim=4, ffn=24, max_length=64
    )
    model = Transformer(arch, dtype, remat)
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    params = init(model.declare(), jax.random.key(0), TRAIN_RULES, mesh)
    distinct, tokens, segments, positions = rows(parts)
    weight = drawn(8, T, 16)
    weight = jnp.where(segments[:, :, None] > 0, weight, 0.0)

    def total(params, distinct):
        hidden = model.hidden(params, tokens, positions, segments, distinct)
        return jnp.sum(hidden.astype(jnp.float32) * weight), hidden

    compute = jax.jit(jax.grad(total, has_aux=True))
    (ours, states), (plain, expected) = compute(params, distinct), compute(params, None)
    seen = np.asarray(segments > 0)[:, :, None]
    gap = np.where(seen, np.asarray(states - expected, np.float32), 0)
    assert np.abs(gap).max() < bound * 4
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        assert np.linalg.norm(b) > 0
        assert np.linalg.norm(a - b) < bound * np.linalg.norm(b)

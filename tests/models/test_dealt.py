"""Rows dealt over the devices of `context`: where tokens lie, that nothing else changes, and that
each device has as much to do."""

import collections
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_vr.models import attention as attention_module
from jaxrl_vr.models import blockwise
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.attention import attention, kernels, takes_dealt
from jaxrl_vr.models.dealt import can_deal, collect, deal
from jaxrl_vr.models.params import init
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh, sharding_of


def mesh_of(**axes):
    return make_mesh(MeshConfig(**axes), jax.devices()[: math.prod(axes.values())])


def test_each_device_has_an_early_and_a_late_chunk():
    x = jnp.arange(2 * 16).reshape(2, 16)
    mesh = mesh_of(data=2, context=4)
    with jax.set_mesh(mesh):
        dealt = jax.jit(deal)(x)
        back = jax.jit(collect)(dealt)
    of_device = [0, 1, 14, 15], [2, 3, 12, 13], [4, 5, 10, 11], [6, 7, 8, 9]
    np.testing.assert_array_equal(dealt[0], sum(of_device, []))
    np.testing.assert_array_equal(dealt[1], 16 + np.asarray(sum(of_device, [])))
    shards = {tuple(s.data.flatten().tolist()) for s in dealt.addressable_shards}
    assert shards == {tuple(16 * row + t for t in part) for row in range(2) for part in of_device}
    np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize("parts", [2, 8])
def test_what_is_dealt_is_collected(parts):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4 * parts, 5)))
    with jax.set_mesh(mesh_of(data=1, context=parts)):
        dealt = jax.jit(deal)(x)
        np.testing.assert_array_equal(jax.jit(collect)(dealt), x)
    assert not np.array_equal(dealt, x)


def test_rows_are_dealt_where_their_chunks_are_whole():
    assert not can_deal(16)
    with jax.set_mesh(mesh_of(data=2, context=4)):
        assert can_deal(16) and can_deal(24)
        assert not can_deal(12)  # split, into chunks of a token and a half
        assert not can_deal(18)  # not split
        # Chunks of 64 tokens are none of the kernels, and those of 100 are left to plain XLA.
        found = [takes_dealt(n, "splash") for n in (1024, 512, 800)]
        assert found == [True, False, True]
        assert takes_dealt(512, "xla")
    with jax.set_mesh(mesh_of(data=2)):
        assert not can_deal(16) and not takes_dealt(16, "xla")


# Attention, and its gradients in float64


def inputs(T, heads=4, kv_heads=2, B=2, Q=8):
    rng = np.random.default_rng(0)
    q = 2 * rng.normal(size=(B, T, heads, Q))
    k = 2 * rng.normal(size=(B, T, kv_heads, Q))
    v = rng.normal(size=(B, T, kv_heads, Q))
    weights = rng.normal(size=q.shape)
    segments = np.sort(rng.integers(1, 4, size=(B, T)), axis=1)
    segments[:, T - T // 8 :] = 0
    return q, k, v, segments.astype(np.int32), weights


def by_loops(q, k, v, segments, weights):
    """Attention, and the gradients of its sum with weights, one head of a row at a time."""
    out, of_q, of_k, of_v = (np.zeros(a.shape) for a in (q, q, k, v))
    repeats = q.shape[2] // k.shape[2]
    for b, h in np.ndindex(q.shape[0], q.shape[2]):
        g = h // repeats
        seen = np.tri(q.shape[1], dtype=bool) & (segments[b][:, None] == segments[b][None])
        scores = np.where(seen, q[b, :, h] @ k[b, :, g].T / q.shape[3] ** 0.5, -np.inf)
        share = np.exp(scores - scores.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        out[b, :, h] = share @ v[b, :, g]
        of_share = weights[b, :, h] @ v[b, :, g].T
        of_scores = share * (of_share - (share * of_share).sum(axis=1, keepdims=True))
        of_q[b, :, h] = of_scores @ k[b, :, g] / q.shape[3] ** 0.5
        of_k[b, :, g] += of_scores.T @ q[b, :, h] / q.shape[3] ** 0.5
        of_v[b, :, g] += share.T @ weights[b, :, h]
    return out, of_q, of_k, of_v


@pytest.mark.parametrize(
    "axes",
    [{"context": 2}, {"context": 4}, {"data": 2, "context": 2}, {"context": 2, "tensor": 2}],
    ids=str,
)
@pytest.mark.parametrize("backend, chunk", [("xla", 6), ("splash_interpreted", 128)])
def test_equals_loops_forward_and_backward(backend, chunk, axes):
    *arrays, segments, weights = inputs(2 * chunk * axes["context"])
    expected = by_loops(*arrays, segments, weights)

    @jax.jit
    def run(q, k, v, segments, weights):
        assert takes_dealt(q.shape[1], backend)

        def attend(q, k, v):
            dealt = map(deal, (q, k, v, segments))
            return collect(attention(*dealt, backend, is_dealt=True))

        out, backward = jax.vjp(attend, q, k, v)
        return out, *backward(weights)

    with jax.set_mesh(mesh_of(**{"data": 1} | axes)):
        got = run(*(jnp.asarray(a, jnp.float32) for a in arrays), segments, jnp.float32(weights))
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 if b is expected[0] else 1e-4)


@pytest.mark.parametrize("remat", ["none", "block"])
def test_a_model_does_not_show_that_its_rows_are_dealt(remat):
    model = Transformer(
        Architecture(
            vocab_size=32,
            width=16,
            layers=2,
            heads=4,
            kv_heads=2,
            head_dim=4,
            ffn=24,
            family="qwen3",
        ),
        remat=remat,
    )
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 32, (2, 32))
    segments = np.sort(rng.integers(1, 4, (2, 32)), axis=1)
    starts = [[np.flatnonzero(row == s)[0] for s in row] for row in segments]
    rows = [jnp.asarray(a, jnp.int32) for a in (tokens, np.arange(32) - starts, segments)]

    def loss(params, rows):
        hidden = model.hidden(params, *rows)
        return jnp.sum(jnp.sin(hidden + jnp.arange(32.0)[None, :, None])), hidden

    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    one, split = mesh_of(data=1), mesh_of(data=2, context=4)
    params = {
        mesh: init(model.declare(), jax.random.key(0), TRAIN_RULES, mesh) for mesh in (one, split)
    }
    (_, expected), of_expected = run(params[one], rows)
    with jax.set_mesh(split):
        assert takes_dealt(32, "xla")
        placed = jax.device_put(rows, sharding_of(("batch", "length"), TRAIN_RULES, split))
        (_, got), of_got = run(params[split], placed)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    for a, b in zip(jax.tree.leaves(of_got), jax.tree.leaves(of_expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * max(1.0, float(np.abs(b).max())))


# Work


@pytest.mark.parametrize(
    "is_dealt, expected", [(True, [34, 34, 34, 34]), (False, [10, 26, 42, 58])]
)
def test_blocks_that_plain_xla_visits(monkeypatch, is_dealt, expected):
    """16 blocks of 4 tokens over 4 devices: chunk c has two, which see 2c + 1 and 2c + 2 blocks, so
    c and 7 - c see 34 together. In order, device d has the chunks 2d and 2d + 1."""
    visited = collections.Counter()
    seen = blockwise._seen

    def counted(*args):
        jax.debug.callback(lambda d: visited.update([int(d)]), jax.lax.axis_index("context"))
        return seen(*args)

    monkeypatch.setattr(blockwise, "_seen", counted)
    small = functools.partial(blockwise.blockwise_attention, block=4)
    monkeypatch.setattr(attention_module, "blockwise_attention", small)
    q, k, v = (jnp.ones((1, 64, 1, 2)) for _ in range(3))
    segments = jnp.ones((1, 64), jnp.int32)

    def loss(q, k, v):
        return jnp.sum(attention(q, k, v, segments, is_dealt=is_dealt))

    with jax.set_mesh(mesh_of(data=1, context=4)):
        jax.block_until_ready(jax.jit(loss)(q, k, v))
        jax.effects_barrier()
        assert [visited[d] for d in range(4)] == expected
        visited.clear()
        jax.block_until_ready(jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(q, k, v))
        jax.effects_barrier()
    # Once forward and once more backward.
    assert [visited[d] for d in range(4)] == [2 * n for n in expected]


@pytest.mark.parametrize("is_dealt, expected", [(True, [9, 9, 9, 9]), (False, [3, 7, 11, 15])])
def test_blocks_that_the_kernels_visit(is_dealt, expected):
    """8 blocks of 512 tokens over 4 devices, one a chunk: chunk c sees c + 1 of them."""
    found = kernels("splash_interpreted", 1, 4096, 4, is_dealt)
    for name in ("fwd_mask_info", "dq_mask_info", "dkv_mask_info"):
        visited = np.zeros(4, int)
        for kernel in found:
            mask = np.asarray(getattr(kernel, name).block_mask)
            of_device = mask.reshape(4, -1)  # 1, blocks of queries of all devices, blocks of keys
            visited += np.count_nonzero(of_device, axis=1)
        assert visited.tolist() == expected, name

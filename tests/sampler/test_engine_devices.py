"""The engine on several devices, and with the kernels of the TPU."""

import dataclasses

import jax
import numpy as np
import pytest
from engines import assert_equals_slow, engine_of, on_mesh, prompt


@pytest.fixture(scope="module")
def thin_slow(thin, make_request):
    """More requests than slots, each with its slow completion."""
    requests = [
        make_request(i, prompt(i % 8, 9), limit=18, stop_ids=(), temperature=float(i % 2))
        for i in range(11)
    ]
    return [(request, thin.slow(request)) for request in requests]


@pytest.mark.parametrize(
    "axes",
    [{"data": 1}, {"data": 8}, {"fsdp": 2, "context": 2, "tensor": 2}, {"data": 2, "tensor": 4}],
    ids=["one device", "data", "fsdp, context and tensor", "fewer kv heads than tensor"],
)
def test_sharded_equals_one_device_and_outlives_the_learners_buffers(thin, thin_slow, drain, axes):
    mesh, params = on_mesh(thin, **axes)
    sharded = engine_of(thin, mesh, slots=8, steps=5, params=params)
    assert sharded._sizes.parts == mesh.size // axes.get("tensor", 1)
    sharded.set_params(params, 1)
    # What an update does to the parameters that it replaces.
    jax.jit(lambda p: jax.tree.map(lambda w: 0 * w, p), donate_argnums=0)(params)
    assert all(w.is_deleted() for w in jax.tree.leaves(params))
    done = drain(sharded, [request for request, _ in thin_slow])
    for request, slow in thin_slow:
        assert_equals_slow(done[request.id], slow)


@pytest.mark.parametrize(
    "axes",
    [{"data": 1}, {"data": 2, "tensor": 2}, {"tensor": 4}],
    ids=["one device", "four devices", "fewer kv heads than tensor"],
)
def test_the_kernels_sample_what_the_slow_sampler_does(thin, thin_slow, drain, axes):
    mesh, params = on_mesh(thin, **axes)
    # Pages that several items hold, with the last one in part.
    rest = {"attention": "pallas", "page_tokens": 2}
    engine = engine_of(thin, mesh, slots=4, steps=5, params=params, **rest)
    assert engine._sizes.item_pages == 8 and not engine._sizes.keys_across
    done = drain(engine, [request for request, _ in thin_slow])
    for request, slow in thin_slow:
        assert_equals_slow(done[request.id], slow)


@pytest.mark.parametrize(
    "axes", [{"data": 1}, {"data": 2, "tensor": 2}], ids=["one device", "four devices"]
)
def test_the_kernels_normalise_heads_as_the_slow_sampler_does(
    make_small, make_request, drain, axes
):
    small = make_small(layers=1, family="qwen3")
    layers, rng = dict(small.params["layers"]), np.random.default_rng(0)
    for name in ("q_norm", "k_norm"):
        # Of each number of a head another, and of queries others than of keys.
        layers[name] = layers[name] * rng.uniform(0.3, 3, layers[name].shape).astype(np.float32)
    small = dataclasses.replace(small, params={**small.params, "layers": layers})
    requests = [
        make_request(i, prompt(i % 3, 9), limit=12, stop_ids=(), top_k=5 * (i % 2), top_p=0.9)
        for i in range(7)
    ]
    mesh, params = on_mesh(small, **axes)
    engine = engine_of(small, mesh, slots=4, steps=5, params=params, attention="pallas")
    done = drain(engine, requests)
    for request in requests:
        assert_equals_slow(done[request.id], small.slow(request))

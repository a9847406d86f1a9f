"""The GPU's attention against plain XLA: what cuDNN is called with, and its answers put together.

No GPU is needed. `cudnn_on_cpu` gives jax's two primitives of cuDNN a meaning on CPU, by what cuDNN
documents of its operands: element offsets of packed sequences, their lengths, garbage elsewhere.
"""

import functools
import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as fused
from jax._src.interpreters import mlir
from pages_by_hand import ByHand

from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.attention import attention
from jaxrl_vr.models.blockwise import causal_with_sums
from jaxrl_vr.models.cudnn import MOST_SEGMENTS, cudnn_chunk, why_not
from jaxrl_vr.models.params import abstract, init
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.sharding import SAMPLE_RULES, TRAIN_RULES, MeshConfig, make_mesh

# bfloat16 holds 8 bits of each of some products
ATOL = 0.03


def owners(offsets, lengths, head_elements, num_tokens):
    """The sequence of each token of all rows, and its place in it; -1 where there is none."""
    first = offsets.reshape(-1)[: lengths.size] // head_elements
    token = jnp.arange(num_tokens)[:, None]
    inside = (token >= first) & (token < first + lengths.reshape(-1))
    owner = jnp.where(inside.any(axis=1), jnp.argmax(inside, axis=1), -1)
    return owner, token[:, 0] - first[owner]


@jax.numpy_rank_promotion("allow")
def emulated(q, k, v, q_seqlen, kv_seqlen, q_offsets, kv_offsets, scale, mask_type):
    """Output and log-sum-exp of cuDNN's forward call."""
    B, T, N, H = q.shape
    K = k.shape[2]
    tokens = q.reshape(B * T, N, H), *(a.reshape(B * T, K, H) for a in (k, v))
    q, k, v = (a.astype(jnp.float32) for a in tokens)
    k, v = (jnp.repeat(a, N // K, axis=1) for a in (k, v))
    if q_offsets.ndim == 2:
        assert mask_type == fused.MaskType.PADDING_CAUSAL
        of_q = owners(q_offsets, q_seqlen, N * H, B * T)
        of_k = owners(kv_offsets, kv_seqlen, K * H, B * T)
    else:
        assert mask_type == fused.MaskType.CAUSAL
        of_q = of_k = jnp.divmod(jnp.arange(B * T), T)
    seen = (of_q[0][:, None] == of_k[0]) & (of_q[1][:, None] >= of_k[1]) & (of_q[0] >= 0)[:, None]
    scores = jnp.where(seen, jnp.einsum("tnh,snh->nts", q, k) * scale, -jnp.inf)
    sums = jax.nn.logsumexp(scores, axis=-1)
    weight = jnp.where(seen, jnp.exp(scores - sums[..., None]), 0)
    out = jnp.einsum("nts,snh->tnh", weight, v)
    out = jnp.where((of_q[0] >= 0)[:, None, None], out, jnp.nan)
    return out.reshape(B, T, N, H), sums.reshape(N, B, T).swapaxes(0, 1)


def forward(q, k, v, bias, *rest, scale, mask_type, is_training, **_):
    del bias
    out, sums = emulated(q, k, v, *rest[:4], scale, mask_type)
    if not is_training:
        return [out.astype(q.dtype)]
    parts = fused.get_max_seg_per_batch(rest[2])
    return [out.astype(q.dtype), jnp.repeat(sums, parts, axis=0)]


def backward(q, k, v, bias, *rest, scale, mask_type, **_):
    del bias
    gradient = rest[-1]

    def of(q, k, v):
        return emulated(q, k, v, *rest[:4], scale, mask_type)[0]

    _, pull = jax.vjp(of, *(a.astype(jnp.float32) for a in (q, k, v)))
    return [a.astype(q.dtype) for a in pull(gradient.astype(jnp.float32))]


@pytest.fixture
def cudnn_on_cpu(monkeypatch):
    for primitive, meaning in (
        (fused._dot_product_attention_fwd_p, forward),
        (fused._dot_product_attention_bwd_p, backward),
    ):
        lowered = mlir.lower_fun(meaning, multiple_results=True)
        on_cpu = mlir._platform_specific_lowerings["cpu"]
        monkeypatch.setitem(on_cpu, primitive, None)  # undone behind the test
        mlir.register_lowering(primitive, lowered, platform="cpu")
    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(fused, "check_compute_capability", lambda _: True)
    monkeypatch.setattr(fused, "is_cuda_compute_capability_equal", lambda _: False)


def inputs(heads, kv_heads, T=24, B=3, Q=8, seed=0):
    rng = np.random.default_rng(seed)
    q, k, v = (
        jnp.asarray(rng.normal(size=(B, T, n, Q)), jnp.bfloat16)
        for n in (heads, kv_heads, kv_heads)
    )
    segments = np.sort(rng.integers(1, 5, size=(B, T)), axis=1)
    segments[0, T - 5 :] = 0
    segments[1] = 1
    return q, k, v, jnp.asarray(segments, jnp.int32)


def with_gradients(attend, q, k, v, seed=1):
    out, pull = jax.vjp(attend, q, k, v)
    weights = np.random.default_rng(seed).normal(size=out.shape)
    return out, *pull(jnp.asarray(weights, out.dtype))


def assert_all_close(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == jnp.bfloat16
        np.testing.assert_allclose(
            np.asarray(a, np.float32), np.asarray(b, np.float32), atol=ATOL, rtol=ATOL
        )


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (4, 2), (6, 2), (3, 1)])
def test_packed_rows_as_plain_xla_attends_them(heads, kv_heads, cudnn_on_cpu):
    *qkv, segments = inputs(heads, kv_heads)
    got = with_gradients(lambda q, k, v: attention(q, k, v, segments, "cudnn"), *qkv)
    exact = [a.astype(jnp.float32) for a in qkv]
    expected = with_gradients(lambda q, k, v: attention(q, k, v, segments), *exact)
    assert_all_close(got, expected)


@pytest.mark.parametrize("axes", [{"data": 2}, {"tensor": 2}, {"tensor": 4}, {"context": 2}])
def test_devices_do_not_matter(axes, cudnn_on_cpu):
    """Of rows that are split, too, which plain XLA attends."""
    *qkv, segments = inputs(4, 2, B=4)
    mesh = make_mesh(MeshConfig(**axes), jax.devices()[: max(axes.values())])

    def split(q, k, v):
        return jax.jit(functools.partial(attention, backend="cudnn"))(q, k, v, segments)

    expected = with_gradients(lambda q, k, v: attention(q, k, v, segments, "cudnn"), *qkv)
    with jax.set_mesh(mesh):
        assert_all_close(with_gradients(split, *qkv), expected)


def test_as_many_segments_as_there_is_room_for_and_one_more(cudnn_on_cpu):
    """With padding they are one more than sequences."""
    T = MOST_SEGMENTS + 6
    q, k, v, _ = inputs(2, 2, T=T, B=4)
    numbers = 1 + np.arange(T)
    rows = [np.minimum(numbers, most) for most in (MOST_SEGMENTS, MOST_SEGMENTS + 1)]
    rows = [*rows, np.where(rows[0] == MOST_SEGMENTS, 0, rows[0])]
    rows.append(np.minimum(numbers, MOST_SEGMENTS + 2))
    segments = jnp.asarray(np.stack(rows), jnp.int32)
    got = np.asarray(attention(q, k, v, segments, "cudnn"), np.float32)
    expected = np.asarray(attention(q, k, v, segments), np.float32)
    np.testing.assert_allclose(got[:3], expected[:3], atol=ATOL)
    assert np.isnan(got[3]).all(), "not a wrong value in silence"


@pytest.mark.parametrize("remat, calls", [("none", 1), ("minimal", 1), ("block", 2)])
def test_attention_is_kept_where_products_are(remat, calls, cudnn_on_cpu):
    arch = Architecture(
        vocab_size=16, width=16, layers=1, heads=2, kv_heads=1, head_dim=8, ffn=24, max_length=32
    )
    model = Transformer(arch, "bfloat16", remat, "cudnn")
    weights = abstract(model.declare(), TRAIN_RULES, make_mesh(MeshConfig(), jax.devices()[:1]))
    row = jnp.ones((1, 16), jnp.int32)

    def loss(weights):
        return model.hidden(weights, row, row, row).astype(jnp.float32).sum()

    assert str(jax.make_jaxpr(jax.grad(loss))(weights)).count("attention_fwd_wrapper[") == calls


def test_a_chunk_has_the_sums_that_merge_it(cudnn_on_cpu):
    rng = np.random.default_rng(0)
    q = jnp.asarray(2 * rng.normal(size=(2, 2, 3, 20, 8)), jnp.bfloat16)
    k, v = (jnp.asarray(rng.normal(size=(2, 2, 20, 8)), jnp.bfloat16) for _ in range(2))
    out, sums = cudnn_chunk(q, k, v)
    expected, expected_sums = causal_with_sums(*(a.astype(jnp.float32) for a in (q, k, v)))
    assert (out.dtype, sums.dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_allclose(np.asarray(out, np.float32), expected, atol=ATOL)
    # Not rounded to 16 bits: what is merged by them would be off by a hundredth.
    np.testing.assert_allclose(sums, expected_sums, atol=1e-5)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_model_is_prefilled_by_it_in_chunks(devices, cudnn_on_cpu):
    """And decodes on, as a pass over the whole sequence has it."""
    arch = Architecture(
        vocab_size=64, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=48, max_length=64
    )
    mesh = make_mesh(MeshConfig(tensor=devices), jax.devices()[:devices])
    model = Transformer(arch, "bfloat16")
    with jax.set_mesh(mesh):
        weights = init(model.declare(), jax.random.key(0), SAMPLE_RULES, mesh)
        by_hand = ByHand(model, model.sampler_view(weights), 2, chunk_attention="cudnn")
        rng = np.random.default_rng(0)
        sequences = rng.integers(0, 64, (2, 9))
        behind = by_hand.prefill(sequences[:, :8], width=4)
        last = by_hand.decode(sequences[:, 8], np.asarray([8, 8]))
        for i, sequence in enumerate(sequences):
            row = jnp.asarray(sequence[None], jnp.int32)
            whole = model.hidden(weights, row, jnp.arange(9)[None], jnp.ones_like(row))[0]
            for got, at in ((behind, 7), (last, 8)):
                np.testing.assert_allclose(
                    np.asarray(got[i], np.float32), np.asarray(whole[at], np.float32), atol=0.1
                )


def test_the_program_for_a_gpu_calls_cudnn_and_holds_no_square(cudnn_on_cpu):
    B, T = 2, 1024

    def loss(q, k, v, segments):
        return attention(q, k, v, segments, "cudnn").astype(jnp.float32).sum()

    traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(
        jax.ShapeDtypeStruct((B, T, 4, 64), jnp.bfloat16),
        *[jax.ShapeDtypeStruct((B, T, 2, 64), jnp.bfloat16)] * 2,
        jax.ShapeDtypeStruct((B, T), jnp.int32),
    )
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    for target in ("__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"):
        assert text.count(f"@{target}(") == 1
    assert f"\\22max_seg_per_batch\\22: {MOST_SEGMENTS + 1}" in text
    assert "PADDING_CAUSAL" in text
    assert f"{T}x{T}x" not in text


H100 = types.SimpleNamespace(platform="gpu", compute_capability="9.0", device_kind="NVIDIA H100")


@pytest.mark.parametrize(
    "dtype, head_dim, device, why",
    [
        ("bfloat16", 128, {}, None),
        ("float16", 256, {}, None),
        ("float16", 128, {"compute_capability": "10.0"}, None),
        ("float16", 136, {"compute_capability": "10.0"}, "up to 128, and these are 136"),
        ("float32", 128, {}, "16 bits, and the model computes in float32"),
        ("bfloat16", 60, {}, "multiple of 8 up to 256, and these are 60"),
        ("bfloat16", 264, {}, "multiple of 8 up to 256, and these are 264"),
        ("bfloat16", 128, {"compute_capability": "8.0", "device_kind": "NVIDIA A100"}, "A100"),
        ("bfloat16", 128, {"compute_capability": "gfx942", "device_kind": "MI300X"}, "MI300X"),
        ("bfloat16", 128, {"platform": "cpu", "device_kind": "cpu"}, "this is cpu"),
        ("bfloat16", 128, {"platform": "tpu", "device_kind": "TPU v5e"}, "this is TPU v5e"),
    ],
)
def test_where_the_kernels_run(dtype, head_dim, device, why):
    found = why_not(dtype, head_dim, types.SimpleNamespace(**vars(H100) | device))
    assert (found is None) == (why is None)
    assert why is None or why in found


_COMPILE = """
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from benchmarks.update_gpu import described_gpus
from jaxrl_vr.models.attention import attention
from jaxrl_vr.models.cudnn import cudnn_chunk
from jaxrl_vr.sharding import MeshConfig, make_mesh

def loss(q, k, v, segments):
    return attention(q, k, v, segments, "cudnn").astype(jnp.float32).sum()

with described_gpus(8) as gpus:
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), gpus)
    def array(*shape, dtype=jnp.bfloat16):
        sharding = NamedSharding(mesh, PartitionSpec())
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
    with jax.set_mesh(mesh):
        traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(
            array(8, 512, 8, 64), array(8, 512, 4, 64), array(8, 512, 4, 64),
            array(8, 512, dtype=jnp.int32),
        )
        print(traced.lower().compile().as_text())
        rows = array(8, 4, 2, 512, 64), array(8, 4, 512, 64), array(8, 4, 512, 64)
        print("chunk", jax.jit(cudnn_chunk).trace(*rows).lower().compile().as_text())
"""


@pytest.mark.skipif(
    not any(importlib.util.find_spec(f"jax_cuda{major}_plugin") for major in (12, 13)),
    reason='needs XLA for GPUs (pip install -e ".[cuda]"); a GPU is not needed',
)
def test_it_compiles_for_eight_h100():
    env = os.environ | {"XLA_FLAGS": ""}
    env.pop("JAX_PLATFORMS", None)
    found = subprocess.run(
        [sys.executable, "-c", _COMPILE],
        cwd=Path(__file__).parents[2],
        env=env,
        check=True,
        capture_output=True,
        text=True,
    )
    update, chunk = found.stdout.split("\nchunk ")
    assert "(bf16[2,4,512,64]" in update, "two rows and half of the heads a device"
    for target in ("__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"):
        assert f'custom_call_target="{target}"' in update
    assert 'custom_call_target="__cudnn$fmhaSoftmax"' in chunk
    assert "512,512]" not in found.stdout

"""Hugging Face folders in: parity of logits, what is read, what is refused."""

import shutil
from pathlib import Path

import huggingface_hub.constants
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_folders import FIXTURES, read, same
from safetensors.numpy import load_file, save_file

from jaxrl_vr.models import hf
from jaxrl_vr.models.params import declare
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.sharding import SAMPLE_RULES, TRAIN_RULES, MeshConfig, make_mesh

# Parity with transformers


def logits_of(arch, params, prompts):
    """Prompts of lengths n -> their logits, [n, V] each."""
    model = Transformer(arch)
    T = max(map(len, prompts))
    tokens = np.stack([np.pad(p, (0, T - len(p))) for p in prompts])
    segments = np.stack([np.arange(T) < len(p) for p in prompts]).astype(np.int32)
    positions = np.broadcast_to(np.arange(T), tokens.shape)

    @jax.jit
    def run(params, *rows):
        return jnp.einsum("BTD,VD->BTV", model.hidden(params, *rows), model.head(params))

    logits = np.asarray(run(params, tokens, positions, segments))
    return [row[: len(p)] for row, p in zip(logits, prompts, strict=True)]


def test_logits_equal_transformers(folder, one_device):
    arch, params = read(folder, one_device)
    with np.load(folder / "logits.npz") as saved:
        prompts, expected = ([saved[f"{k}_{i}"] for i in range(3)] for k in ("tokens", "logits"))
    assert [len(p) for p in prompts] == [36, 5, 1]
    for got, wanted in zip(logits_of(arch, params, prompts), expected, strict=True):
        assert np.abs(wanted).max() > 1.0  # else the tolerance would say little
        assert np.abs(got - wanted).max() <= 1e-4


def test_fixtures_cover_what_families_differ_in(one_device):
    archs = {p.name: hf.architecture_from_config(hf.read_config(p)) for p in FIXTURES}
    assert {a.family for a in archs.values()} == {"llama", "qwen2", "qwen3"}
    assert {a.tied for a in archs.values()} == {True, False}
    assert {a.heads // a.kv_heads for a in archs.values()} == {1, 2, 4}
    assert archs["qwen3-head-dim"].head_dim * archs["qwen3-head-dim"].heads == 48
    assert archs["qwen3-head-dim"].width == 32
    scaled = archs["llama3-scaled"]
    assert scaled.rope_scaling is not None and scaled.rope_scaling.original_length == 16
    assert scaled.rope_theta == 500.0
    yarn = archs["qwen2-yarn"].rope_scaling
    assert yarn is not None and yarn.original_length == 16 and yarn.magnitude > 1.1
    for name in ("llama3-scaled", "qwen2-yarn"):
        with np.load(FIXTURES[0].parent / name / "logits.npz") as saved:
            assert len(saved["tokens_0"]) == 36
    bias = read(FIXTURES[0].parent / "qwen2-bias", one_device)[1]["layers"]["q_bias"]
    assert np.abs(bias).min() > 0


# Reading


def test_layout_is_that_of_the_declaration(folder, one_device):
    arch, params = read(folder, one_device)
    files = {}
    for path in folder.glob("*.safetensors"):
        files |= {k: np.asarray(v, np.float32) for k, v in load_file(path).items()}
    D, H, Q = arch.width, arch.heads, arch.head_dim
    name = "model.layers.1.self_attn.{}_proj.weight"
    # y = W x in the file, so W[h * Q + c, d] is our q[d, h, c], and W[d, h * Q + c] our o[h, c, d].
    np.testing.assert_array_equal(
        params["layers"]["q"][1], files[name.format("q")].T.reshape(D, H, Q)
    )
    np.testing.assert_array_equal(
        params["layers"]["o"][1], files[name.format("o")].T.reshape(H, Q, D)
    )
    np.testing.assert_array_equal(params["embed"], files["model.embed_tokens.weight"])
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(params))


def test_file_shape_merges_heads(tiny):
    layers = declare(tiny.arch)["layers"]
    D, H, K, Q = tiny.arch.width, tiny.arch.heads, tiny.arch.kv_heads, tiny.arch.head_dim
    assert hf.file_shape(layers["q"]) == (H * Q, D)
    assert hf.file_shape(layers["v"]) == (K * Q, D)
    assert hf.file_shape(layers["o"]) == (D, H * Q)
    assert hf.file_shape(layers["up"]) == (tiny.arch.ffn, D)
    if tiny.arch.has_qkv_bias:
        assert hf.file_shape(layers["k_bias"]) == (K * Q,)
    if tiny.arch.has_qk_norm:
        assert hf.file_shape(layers["q_norm"]) == (Q,)


MESHES = {
    "data": MeshConfig(data=8),
    "tensor-fsdp": MeshConfig(tensor=2, fsdp=4),
    "tensor-data": MeshConfig(tensor=4, data=2),
}


@pytest.mark.parametrize("config", MESHES.values(), ids=list(MESHES))
@pytest.mark.parametrize("rules", [TRAIN_RULES, SAMPLE_RULES], ids=["train", "sample"])
def test_sharded_read_equals_whole_read(folder, rules, config, one_device):
    _, whole = read(folder, one_device)
    mesh = make_mesh(config)
    arch, split = hf.load(folder, rules=rules, mesh=mesh)
    assert same(whole, split)
    q = split["layers"]["q"]
    assert q.sharding.mesh == mesh
    embed_parts = config.fsdp if rules is TRAIN_RULES else 1
    assert q.addressable_shards[0].data.shape[1] == arch.width // embed_parts
    assert q.addressable_shards[0].data.shape[2] == arch.heads // config.tensor


def test_rules_may_split_layers_and_head_dim(folder, one_device):
    _, whole = read(folder, one_device)
    rules = {**TRAIN_RULES, "layers": "data", "head_dim": "tensor", "heads": None}
    mesh = make_mesh(MeshConfig(data=2, tensor=2, fsdp=2))
    arch, split = hf.load(folder, rules=rules, mesh=mesh)
    assert same(whole, split)
    shape = split["layers"]["o"].addressable_shards[0].data.shape
    assert shape == (1, arch.heads, arch.head_dim // 2, arch.width // 2)


def test_devices_do_not_write_into_each_others_copy(copied):
    _, params = read(copied, make_mesh(MeshConfig(data=8)))
    expected = jax.tree.map(lambda x: np.asarray(x) + 1, params)
    added = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)(params)
    for x, y in zip(jax.tree.leaves(added), jax.tree.leaves(expected), strict=True):
        assert len(x.addressable_shards) == 8
        for shard in x.addressable_shards:
            np.testing.assert_array_equal(shard.data, y)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_reads_half_precision_files_exactly(copied, dtype, one_device):
    path = copied / "model.safetensors"
    halves = {k: v.astype(jnp.dtype(dtype)) for k, v in load_file(path).items()}
    save_file(halves, path, metadata={"format": "pt"})
    _, params = read(copied, one_device)
    up = halves["model.layers.0.mlp.up_proj.weight"].astype(np.float32)
    np.testing.assert_array_equal(params["layers"]["up"][0], up.T)
    _, held = read(copied, one_device, dtype=dtype)
    assert held["layers"]["up"].dtype == jnp.dtype(dtype)
    np.testing.assert_array_equal(np.asarray(held["layers"]["up"][0], np.float32), up.T)


def test_tied_head_and_rotary_buffers_are_ignored(copied, one_device):
    _, before = read(copied, one_device)
    path = copied / "model.safetensors"
    tensors = load_file(path)
    tensors["lm_head.weight"] = np.full_like(tensors["model.embed_tokens.weight"], 7.0)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    save_file(tensors, path)
    assert same(read(copied, one_device)[1], before)


# Weights that do not fit


def damaged(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_missing_tensor_is_named(copied, one_device):
    damaged(copied, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(ValueError, match=r"'model.layers.1.mlp.up_proj.weight' \[40, 32\] is miss"):
        read(copied, one_device)


def test_tensor_of_another_shape_is_named(copied, one_device):
    name = "model.layers.0.self_attn.k_proj.weight"
    damaged(copied, lambda t: t.update({name: t[name][:8].copy()}))
    with pytest.raises(ValueError, match=rf"'{name}': expected shape \[16, 32\], got \[8, 32\]"):
        read(copied, one_device)


def test_unexpected_tensor_is_named(copied, one_device):
    damaged(copied, lambda t: t.update({"model.layers.0.adapter.weight": np.ones((2, 3))}))
    with pytest.raises(ValueError, match=r"'model.layers.0.adapter.weight' \[2, 3\] is not exp"):
        read(copied, one_device)


def test_integer_tensor_is_refused(copied, one_device):
    name = "model.norm.weight"
    damaged(copied, lambda t: t.update({name: np.ones(32, np.int8)}))
    with pytest.raises(ValueError, match=r"'model.norm.weight': dtype I8"):
        read(copied, one_device)


def test_many_problems_are_counted(copied, one_device):
    damaged(copied, lambda t: [t.pop(name) for name in list(t) if "layers.1" in name])
    with pytest.raises(ValueError, match=r"is missing; and 4 more$"):
        read(copied, one_device)


def test_truncated_file_is_named(copied, one_device):
    path = copied / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model.safetensors is not a whole safetensors file"):
        read(copied, one_device)


def test_absent_shard_is_named(tmp_path, one_device):
    source = FIXTURES[0].parent / "llama-mha-untied-sharded"
    folder = Path(shutil.copytree(source, tmp_path / "model"))
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ValueError, match=r"names model-00002-of-00003.safetensors, not in the"):
        read(folder, one_device)


@pytest.mark.parametrize("content", ["{}", "[]", "not json", '{"weight_map": 3}'])
def test_index_without_weight_map_is_named(copied, content, one_device):
    (copied / "model.safetensors").unlink()
    (copied / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ValueError, match=r"index.json holds no weight_map"):
        read(copied, one_device)


def test_other_weight_formats_are_named(copied, one_device):
    (copied / "model.safetensors").rename(copied / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"neither .* only pytorch_model.bin; convert"):
        read(copied, one_device)


# Finding a folder


def test_locate_takes_a_local_folder(copied):
    assert hf.locate(copied) == copied
    assert hf.locate(str(copied)) == copied


def test_locate_refuses_what_is_no_model_folder(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=r"no config.json \(it holds notes.txt\)"):
        hf.locate(tmp_path)
    with pytest.raises(ValueError, match=r"no config.json \(it is a file\)"):
        hf.locate(tmp_path / "notes.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no config.json \(it is empty\)"):
        hf.locate(tmp_path / "empty")
    with pytest.raises(ValueError, match=r"absent': no such folder, and it is not a hub id"):
        hf.locate(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"model 'smollm': no such folder"):
        hf.locate("smollm")


def test_locate_refuses_a_revision_of_a_local_folder(copied):
    with pytest.raises(ValueError, match=r"revision = 'main' belongs to a hub id"):
        hf.locate(copied, revision="main")


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """The hub's client as with HF_HUB_OFFLINE=1 and an empty cache, which this returns."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_locate_names_a_hub_id_it_cannot_get(offline):
    with pytest.raises(ValueError, match=r"'some-org/some-model': no such local folder, .* cannot"):
        hf.locate("some-org/some-model")
    with pytest.raises(ValueError, match=r"'some-org/some--model': .* failed: HFValidationError"):
        hf.locate("some-org/some--model")


def test_locate_takes_a_hub_id_from_the_cache(offline, copied):
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = offline / "models--some-org--some-model"
    shutil.copytree(copied, cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    assert hf.locate("some-org/some-model") == cached / "snapshots" / commit

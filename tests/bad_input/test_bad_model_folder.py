"""Damaged model folders and parts that do not fit: a message that names what and how to go on."""

import json
import os
import shutil

import jax
import numpy as np
import pytest
from inprocess import call, config, evaluation, lines, sft
from safetensors.numpy import load_file, save_file

from jaxrl_vr.data.tokenizer import CharTokenizer
from jaxrl_vr.models import hf_export, params
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.params import declare
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh

ALPHABET = "0123456789+=>,"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A small model's folder with its tokenizer, both without fault."""
    folder = tmp_path_factory.mktemp("models") / "whole"
    arch = Architecture(
        vocab_size=16,
        width=16,
        layers=2,
        heads=2,
        kv_heads=1,
        head_dim=8,
        ffn=24,
        max_length=16,
    )
    mesh = make_mesh(MeshConfig())
    weights = params.init(declare(arch), jax.random.key(0), TRAIN_RULES, mesh)
    tokenizer = CharTokenizer(ALPHABET)
    hf_export.export(folder, arch, weights, eos_ids=(1,), save_tokenizer=tokenizer.save)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    """A copy of it, free to be damaged."""
    return shutil.copytree(whole, tmp_path / "model")


def pretrained(folder, *tables, tokenizer='type = "hf"'):
    """A config that starts from a model folder."""
    model = f"""
[model]
type = "pretrained"
path = "{folder}"
[tokenizer]
{tokenizer}
[engine]
slots = 16
steps_per_call = 4
"""
    return config(folder.parent, *tables, model=model)


def edit(path, **values):
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def edit_tensor(folder, name, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    changed = change(tensors.pop(name))
    if changed is not None:
        tensors[name] = changed
    save_file(tensors, path, metadata={"format": "pt"})


Q = "model.layers.1.self_attn.q_proj.weight"
DAMAGES = {
    "no-folder": (
        lambda f: shutil.rmtree(f),
        ["no such folder", "not a hub id", "correct the path"],
    ),
    "no-config": (
        lambda f: (f / "config.json").unlink(),
        ["is not a model folder: it has no config.json", "it holds", "model.safetensors"],
    ),
    "config-cut": (
        lambda f: (f / "config.json").write_text('{"model_type"'),
        ["config.json is not JSON"],
    ),
    "architecture": (
        lambda f: edit(f / "config.json", model_type="mamba"),
        ["model_type = 'mamba' is not supported", "llama (Llama, SmolLM2), qwen2", "qwen3"],
    ),
    "feature": (
        lambda f: edit(f / "config.json", hidden_act="gelu"),
        ["hidden_act = 'gelu' is not supported", "only hidden_act = 'silu' is"],
    ),
    "config-field": (
        lambda f: edit(f / "config.json", intermediate_size=None),
        ["config.json of a llama model lacks intermediate_size"],
    ),
    "no-weights": (
        lambda f: (f / "model.safetensors").unlink(),
        ["has neither model.safetensors nor model.safetensors.index.json"],
    ),
    "weights-cut": (
        lambda f: os.truncate(f / "model.safetensors", 2000),
        ["is not a whole safetensors file", "download or copy it again"],
    ),
    "tensor-missing": (
        lambda f: edit_tensor(f, Q, lambda _: None),
        [f"tensor '{Q}' [16, 16] is missing"],
    ),
    "tensor-shape": (
        lambda f: edit_tensor(f, Q, lambda x: x[:8].copy()),
        [f"tensor '{Q}': expected shape [16, 16], got [8, 16]"],
    ),
    "nan": (
        lambda f: edit_tensor(f, Q, lambda x: np.full_like(x, np.nan)),
        ["the weights of layers/q hold NaN or inf", "download the model again"],
    ),
    "tokenizer": (
        lambda f: [p.unlink() for p in f.glob("tokenizer*")],
        ["tokenizer.path: the folder", "holds none of tokenizer.json"],
    ),
}


@pytest.mark.parametrize("damage, parts", DAMAGES.values(), ids=DAMAGES)
def test_damaged_model_folder(folder, capsys, damage, parts):
    damage(folder)
    said = call(capsys, "train", pretrained(folder, sft("cold")), code=2)
    missing = [part for part in parts if part not in said]
    assert not missing, said


def test_tokenizer_that_does_not_fit(folder, capsys):
    path = pretrained(folder, sft("cold"), tokenizer=f'type = "char"\nalphabet = "{ALPHABET}abc"')
    said = call(capsys, "train", path, code=2)
    assert "the tokenizer has 19 ids, the model only 16 rows" in said and "do not fit" in said


def test_context_longer_than_the_models(folder, capsys):
    said = call(capsys, "train", pretrained(folder, sft("cold")), "model.max_length=64", code=2)
    assert "model.max_length = 64 exceeds the model's own context of 16; lower it" in said


def test_init_from_a_folder_of_another_model(folder, tmp_path, capsys):
    (tmp_path / "other").mkdir()
    path = config(tmp_path / "other", sft("cold", more=f'init = "{folder}"'))
    said = call(capsys, "train", path, code=2)
    assert "holds another model" in said and "kv_heads = 1, and [model] has 2" in said


def test_folder_without_fault_trains(folder, capsys):
    call(capsys, "train", pretrained(folder, sft("cold"), evaluation("after")))
    assert lines(folder.parent / "run" / "stages" / "after" / "output.jsonl")

"""Small models of every family, with parameters that let no term hide; folders of such models."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from hf_folders import FIXTURES

from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.params import declare, is_param, shardings
from jaxrl_vr.models.rope_scaling import Llama3Scaling, YarnScaling
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh, place

SIZES = dict(vocab_size=48, width=24, layers=2, heads=4, head_dim=6, ffn=40, max_length=64)
ARCHS = {
    "llama-gqa": Architecture(**SIZES, kv_heads=2),
    "llama-mha-untied": Architecture(**SIZES, kv_heads=4, tied=False),
    "llama3-scaled": Architecture(
        **SIZES,
        kv_heads=1,
        rope_theta=500.0,
        rope_scaling=Llama3Scaling(original_length=16),
    ),
    "yarn-qwen2": Architecture(
        **{**SIZES, "head_dim": 8},
        kv_heads=2,
        family="qwen2",
        rope_theta=100.0,
        rope_scaling=YarnScaling(factor=8.0, original_length=8, beta_fast=1.0, beta_slow=0.1),
    ),
    "qwen2": Architecture(**SIZES, kv_heads=2, family="qwen2", norm_eps=1e-6),
    "qwen3": Architecture(
        **{**SIZES, "head_dim": 10}, kv_heads=2, family="qwen3", norm_eps=1e-6, tied=False
    ),
}


@dataclasses.dataclass(frozen=True)
class Tiny:
    """An architecture with its model, its parameters, and its forward pass, compiled once."""

    arch: Architecture
    model: Transformer
    params: dict
    hidden: Callable


@pytest.fixture(scope="session")
def one_device():
    """A mesh of one device."""
    return make_mesh(MeshConfig(), jax.devices()[:1])


def random_params(arch, mesh, rules=TRAIN_RULES, seed=0):
    """Parameters large enough for every term to show: no norm is 1, no bias 0."""
    rng = np.random.default_rng(seed)
    declared = declare(arch)

    def one(p):
        noise = rng.normal(size=p.shape)
        if p.scale is None:
            return (1 + 0.3 * noise).astype(np.float32)
        return ((0.5 if p.hf_name.endswith(("bias", "tokens.weight")) else p.scale) * noise).astype(
            np.float32
        )

    values = jax.tree.map(one, declared, is_leaf=is_param)
    return place(values, shardings(declared, rules, mesh))


@pytest.fixture(scope="session", params=list(ARCHS))
def tiny(request, one_device):
    """Each family in turn."""
    arch = ARCHS[request.param]
    model = Transformer(arch)
    return Tiny(arch, model, random_params(arch, one_device), jax.jit(model.hidden))


@pytest.fixture(params=FIXTURES, ids=lambda p: p.name)
def folder(request):
    """Each folder of the fixtures in turn."""
    return request.param


@pytest.fixture
def copied(tmp_path):
    """A tied llama in one file, free to be damaged."""
    return Path(shutil.copytree(FIXTURES[0].parent / "llama-gqa-tied", tmp_path / "model"))

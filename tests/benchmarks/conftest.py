"""What the tests of benchmarks share."""

import importlib
from pathlib import Path

import jax
import pytest

from jaxrl_vr.data.tokenizer import DEFAULT_ALPHABET, CharTokenizer
from jaxrl_vr.models import hf_export
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.params import declare, init
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh

SIZES = dict(width=16, layers=2, heads=4, kv_heads=2, head_dim=6, ffn=24, max_length=512)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random model with a character tokenizer, as a Hugging Face folder."""
    tokenizer = CharTokenizer(DEFAULT_ALPHABET)
    arch = Architecture(vocab_size=tokenizer.vocab_size, **SIZES)
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    params = init(declare(arch), jax.random.key(0), TRAIN_RULES, mesh)
    out = tmp_path_factory.mktemp("model") / "tiny"
    hf_export.export(out, arch, params, eos_ids=tokenizer.eos_ids, save_tokenizer=tokenizer.save)
    return out


@pytest.fixture
def module(monkeypatch):
    """A module by its name; the benchmarks are run from the project's root, and not installed."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    return lambda name: importlib.import_module(f"benchmarks.{name}")

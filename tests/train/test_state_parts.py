"""The train state is never whole on one device: not while it is made, loaded or restored."""

import math
import re

import jax
import numpy as np
import pytest

from jaxrl_vr.checkpoint import Checkpoints, load_arrays, save_arrays
from jaxrl_vr.models import hf_export, params
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh
from jaxrl_vr.train.models import load_folder
from jaxrl_vr.train.optimizer import AdamW
from jaxrl_vr.train.state import abstract_state, create

# Each matrix has 16,384 entries, of which one device in eight holds 2,048.
ARCH = Architecture(
    vocab_size=256,
    width=64,
    layers=2,
    heads=8,
    kv_heads=8,
    head_dim=16,
    ffn=128,
    family="qwen2",
    tied=False,
)
DECLARED = Transformer(ARCH).declare()
TRANSFORM = AdamW(learning_rate=1e-3).transform(DECLARED)
WHOLE = 256 * 64


def mesh_of(devices=8):
    return make_mesh(MeshConfig(data=1, fsdp=devices), jax.devices()[:devices])


def new_params(mesh):
    params._maker.cache_clear()  # so that the program is made here
    return params.init(DECLARED, jax.random.key(0), TRAIN_RULES, mesh)


@pytest.fixture(scope="module")
def state():
    """A state on eight devices."""
    return create(new_params(mesh_of()), {}, TRANSFORM)


class Sizes:
    """Entries of the largest array that a device has held, of programs and of transfers."""

    def __init__(self):
        self.of_programs, self.of_transfers = [], []

    @property
    def largest(self):
        return max(self.of_programs + self.of_transfers)

    def program(self, text):
        shapes = re.findall(r"\b[a-z]+\d+\[([\d,]+)\]", text)
        self.of_programs.append(max(math.prod(map(int, s.split(","))) for s in shapes))

    def transfer(self, tree):
        for x in jax.tree.leaves(tree):
            if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer):
                self.of_transfers.append(math.prod(x.sharding.shard_shape(x.shape)))


@pytest.fixture
def sizes(monkeypatch):
    """Of all that is compiled, and put on devices, from here on."""
    found = Sizes()
    jit = jax.jit

    def reading(function, **how):
        def run(*args):
            compiled = jit(function, **how).lower(*args).compile()
            found.program(compiled.as_text())
            return compiled(*args)

        return run

    monkeypatch.setattr(jax, "jit", reading)
    for name in ("device_put", "make_array_from_callback", "make_array_from_single_device_arrays"):
        put = getattr(jax, name)

        def watched(*args, put=put, **how):
            out = put(*args, **how)
            found.transfer((args, out))
            return out

        monkeypatch.setattr(jax, name, watched)
    return found


def assert_parts(tree):
    """No matrix of the tree lies whole on a device."""
    split = [x for x in jax.tree.leaves(tree) if x.size >= WHOLE]
    assert len(split) >= 9
    for x in split:
        assert {s.data.size for s in x.addressable_shards} == {x.size // 8}


def test_new_parameters_are_made_in_parts(sizes):
    made = new_params(mesh_of())
    assert_parts(made)
    assert len(sizes.of_programs) == 1
    assert sizes.largest < WHOLE / 2
    # The measure is one: on one device they are whole.
    new_params(mesh_of(1))
    assert sizes.largest >= WHOLE


def test_the_optimizers_state_is_made_in_parts(state, sizes):
    made = create(state.trainable, {}, TRANSFORM)
    assert_parts(made.optimizer)
    assert len(sizes.of_programs) == 1
    assert sizes.largest <= max(x.size // 8 for x in jax.tree.leaves(made.trainable))


def test_a_checkpoint_is_restored_in_parts(state, sizes, tmp_path):
    with Checkpoints(tmp_path / "checkpoints", keep=1, asynchronous=False) as checkpoints:
        checkpoints.save(1, state, {})
        target = abstract_state(state.trainable, {}, TRANSFORM)
        restored = checkpoints.restore(1, target)
    assert_parts(restored)
    jax.tree.map(np.testing.assert_array_equal, restored, state)
    assert len(sizes.of_transfers) >= 2 * 9 * 8
    assert sizes.largest <= max(x.size // 8 for x in jax.tree.leaves(state.trainable))


def test_parameters_of_a_stage_are_loaded_in_parts(state, sizes, tmp_path):
    save_arrays(tmp_path / "final", state.trainable)
    target = params.abstract(DECLARED, TRAIN_RULES, mesh_of())
    loaded = load_arrays(tmp_path / "final", target)
    assert_parts(loaded)
    jax.tree.map(np.testing.assert_array_equal, loaded, state.trainable)
    assert sizes.largest <= max(x.size // 8 for x in jax.tree.leaves(state.trainable))


def test_a_model_folder_is_loaded_in_parts(state, sizes, tmp_path, monkeypatch):
    hf_export.export(tmp_path / "model", ARCH, state.trainable)
    sizes.of_programs.clear()
    sizes.of_transfers.clear()
    _, loaded = load_folder(tmp_path / "model", mesh_of())
    assert_parts(loaded)
    jax.tree.map(np.testing.assert_array_equal, loaded, state.trainable)
    assert len(sizes.of_programs) == 1 and sizes.of_transfers
    assert sizes.largest <= max(x.size // 8 for x in jax.tree.leaves(state.trainable))

"""Parameters: counts known from elsewhere, initial values, streams, shardings."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.params import _maker, abstract, declare, init, is_param, shardings
from jaxrl_vr.models.rope_scaling import Llama3Scaling
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh


def wide(**changes):
    """Wide enough for statistics."""
    sizes = dict(vocab_size=96, width=64, layers=3, heads=4, kv_heads=2, head_dim=16, ffn=128)
    return Architecture(**{**sizes, **changes})


def leaves(tree):
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): x
        for path, x in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_param)
    }


def count(arch):
    return sum(math.prod(p.shape) for p in leaves(declare(arch)).values())


def test_counts_of_public_models():
    smollm2 = Architecture(
        vocab_size=49152, width=576, layers=30, heads=9, kv_heads=3, head_dim=64, ffn=1536
    )
    assert count(smollm2) == 134_515_008
    qwen25 = Architecture(
        family="qwen2",
        vocab_size=151936,
        width=896,
        layers=24,
        heads=14,
        kv_heads=2,
        head_dim=64,
        ffn=4864,
    )
    assert count(qwen25) == 494_032_768
    qwen3 = Architecture(
        family="qwen3",
        vocab_size=151936,
        width=1024,
        layers=28,
        heads=16,
        kv_heads=8,
        head_dim=128,
        ffn=3072,
    )
    assert count(qwen3) == 596_049_920


def test_families_differ_in_these_parameters():
    plain = set(leaves(declare(wide())))
    assert set(leaves(declare(wide(tied=False)))) - plain == {"head"}
    qwen2, qwen3 = (set(leaves(declare(wide(family=f)))) for f in ("qwen2", "qwen3"))
    assert qwen2 - plain == {"layers.q_bias", "layers.k_bias", "layers.v_bias"}
    assert qwen3 - plain == {"layers.q_norm", "layers.k_norm"}
    assert not plain - qwen2 and not plain - qwen3


def test_file_names_are_distinct(tiny):
    names = [p.hf_name for p in leaves(tiny.model.declare()).values()]
    assert len(set(names)) == len(names)
    stacked = {p.hf_name for p in leaves(tiny.model.declare()).values() if p.is_stacked}
    assert stacked == {name for name in names if "{layer}" in name}


QWEN2 = wide(family="qwen2", tied=False)


@pytest.fixture(scope="module")
def made(one_device):
    """A Qwen2's initial parameters."""
    return init(declare(QWEN2), jax.random.key(0), TRAIN_RULES, one_device)


def test_initial_values(made):
    declared = leaves(declare(QWEN2))
    for name, array in leaves(made).items():
        p, x = declared[name], np.asarray(array, np.float64)
        assert x.shape == p.shape
        if "norm" in name:
            assert (x == 1).all()
        elif "bias" in name:
            assert (x == 0).all()
        else:
            # Five standard errors of a mean and of a standard deviation.
            assert abs(x.mean()) < 5 * p.scale / x.size**0.5
            assert abs(x.std() / p.scale - 1) < 5 / (2 * x.size) ** 0.5
    assert declared["embed"].scale == declared["layers.q"].scale == 64**-0.5
    assert declared["layers.o"].scale == pytest.approx((2 * 3) ** -0.5 * (4 * 16) ** -0.5)
    assert declared["layers.down"].scale == pytest.approx((2 * 3) ** -0.5 * 128**-0.5)


def test_qwen3_normalises_heads_by_one_at_first(one_device):
    layers = declare(wide(family="qwen3"))["layers"]
    norms = {name: layers[name] for name in ("q_norm", "k_norm")}
    made = init(norms, jax.random.key(0), TRAIN_RULES, one_device)
    np.testing.assert_array_equal(made["q_norm"], np.ones((3, 16)))
    np.testing.assert_array_equal(made["k_norm"], np.ones((3, 16)))


def some(declared):
    """Three parameters of a declaration: a compilation in a third of the time."""
    layers = {name: declared["layers"][name] for name in ("o", "up")}
    return {"embed": declared["embed"], "layers": layers}


def test_each_parameter_has_its_own_stream(made, one_device):
    fewer = init(some(declare(wide())), jax.random.key(0), TRAIN_RULES, one_device)
    for name, x in leaves(fewer).items():
        np.testing.assert_array_equal(x, leaves(made)[name])
    gate, up = np.ravel(made["layers"]["gate"]), np.ravel(made["layers"]["up"])
    assert abs(np.corrcoef(gate, up)[0, 1]) < 5 * up.size**-0.5
    assert not np.array_equal(made["layers"]["up"][0], made["layers"]["up"][1])


def test_key_decides(made, one_device):
    other = init(some(declare(QWEN2)), jax.random.key(1), TRAIN_RULES, one_device)
    for name, x in leaves(other).items():
        assert not np.array_equal(x, leaves(made)[name])


def test_the_second_initialisation_of_a_model_compiles_nothing(one_device):
    def made(key, **changes):
        declared = declare(wide(**changes))
        return init(declared, jax.random.key(key), TRAIN_RULES, one_device)["embed"]

    first = made(0)
    before = _maker.cache_info().misses
    np.testing.assert_array_equal(made(0), first)
    assert not np.array_equal(made(1), first)
    assert _maker.cache_info().misses == before
    made(0, ffn=120)
    assert _maker.cache_info().misses == before + 1


def test_sharded_initialisation_equals_that_of_one_device(made):
    declared = some(declare(QWEN2))
    mesh = make_mesh(MeshConfig(tensor=2, fsdp=4))
    split = init(declared, jax.random.key(0), TRAIN_RULES, mesh)
    for name, x in leaves(split).items():
        np.testing.assert_array_equal(x, leaves(made)[name])
    assert split["layers"]["up"].addressable_shards[0].data.shape == (3, 64 // 4, 128 // 2)
    assert jax.tree.all(
        jax.tree.map(lambda x, s: x.sharding == s, split, shardings(declared, TRAIN_RULES, mesh))
    )
    targets = jax.tree.leaves(abstract(declared, TRAIN_RULES, mesh))
    for target, x in zip(targets, jax.tree.leaves(split), strict=True):
        assert (target.shape, target.dtype, target.sharding) == (x.shape, jnp.float32, x.sharding)


def test_architecture_refuses_what_cannot_be():
    with pytest.raises(ValueError, match=r"kv_heads = 3 does not divide heads = 4"):
        wide(kv_heads=3)
    with pytest.raises(ValueError, match=r"head_dim = 15 is odd"):
        wide(head_dim=15)
    with pytest.raises(ValueError, match=r"low_freq_factor = 4.0 .* high_freq_factor = 4.0"):
        Llama3Scaling(low_freq_factor=4.0)

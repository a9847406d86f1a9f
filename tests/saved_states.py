"""States to save, and whether what comes back is the same."""

import jax
import ml_dtypes
import numpy as np

from jaxrl_vr.sharding import MeshConfig, make_mesh, to_host


def mesh_of(num_devices=8, **sizes):
    return make_mesh(MeshConfig(**sizes), jax.devices()[:num_devices])


def state(seed=0, width=16):
    """Every dtype a run has, with values whose bits a cast would not keep."""
    bits = np.random.default_rng(seed)
    return {
        "trainable": {
            "q": bits.normal(size=(width, 8, 4)).astype(np.float32),
            "layers": [bits.normal(size=(8, width)).astype(ml_dtypes.bfloat16) for _ in range(2)],
        },
        "step": np.int32(2**31 - 1),
        "key": bits.integers(0, 2**32, 2, dtype=np.uint32),
        "nans": np.array([np.nan, np.inf, -0.0, 1e-45], np.float32),
    }


def target_of(tree, sharding):
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), to_host(tree)
    )


def assert_same_bits(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(
        jax.tree.leaves(to_host(got)), jax.tree.leaves(to_host(want)), strict=True
    ):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()

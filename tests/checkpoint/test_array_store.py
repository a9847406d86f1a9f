"""Single array stores, and the hash of parameters."""

import hashlib

import numpy as np
import pytest
from saved_states import assert_same_bits, mesh_of, state, target_of

from jaxrl_vr.checkpoint import Damaged, load_arrays, parameter_hash, save_arrays
from jaxrl_vr.sharding import TRAIN_RULES, place, replicated, sharding_of


def test_saved_arrays_load(tmp_path, one):
    tree = state()
    save_arrays(tmp_path / "a" / "final", place(tree, one))
    assert_same_bits(load_arrays(tmp_path / "a" / "final", target_of(tree, one)), tree)
    save_arrays(tmp_path / "a" / "final", place(state(1), one))
    assert_same_bits(load_arrays(tmp_path / "a" / "final", target_of(tree, one)), state(1))
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["final"]
    with pytest.raises(ValueError, match="no array store at"):
        load_arrays(tmp_path, target_of(tree, one))
    (tmp_path / "a" / "final" / "arrays" / "_METADATA").rename(tmp_path / "aside")
    with pytest.raises(Damaged, match="a/final is damaged"):
        load_arrays(tmp_path / "a" / "final", target_of(tree, one))
    (tmp_path / "aside").rename(tmp_path / "a" / "final" / "arrays" / "_METADATA")
    with pytest.raises(ValueError, match="exists and is no array store"):
        save_arrays(tmp_path, place(tree, one))
    with pytest.raises(ValueError, match="key: the checkpoint has"):
        load_arrays(tmp_path / "a" / "final", target_of({**tree, "key": np.int8(1)}, one))


def test_parameter_hash_of_known_bytes():
    tree = {"b": {"w": np.float32([1, 2])}, "a": np.int32(7)}
    # int32 7 is 07000000; float32 1 and 2 are 0000803f and 00000040, little-endian.
    written = b"a () int32\n" + bytes.fromhex("07000000")
    written += b"b/w (2,) float32\n" + bytes.fromhex("0000803f00000040")
    assert parameter_hash(tree) == hashlib.sha256(written).hexdigest()


def test_parameter_hash_sees_values_and_not_sharding():
    tree = state()
    expected = parameter_hash(tree)
    mesh = mesh_of(fsdp=4)
    assert parameter_hash(place(tree, replicated(mesh))) == expected
    split = {**tree, "key": place(tree["key"], sharding_of(("embed",), TRAIN_RULES, mesh, (2,)))}
    assert parameter_hash(split) == expected
    assert parameter_hash(dict(reversed(tree.items()))) == expected
    assert parameter_hash({**tree, "nans": np.array([np.nan, np.inf, 0.0, 1e-45], np.float32)}) != (
        expected
    )
    assert parameter_hash({**tree, "key": tree["key"].view(np.int32)}) != expected
    assert parameter_hash({**tree, "key": tree["key"][None]}) != expected
    assert parameter_hash({**tree, "kez": tree["key"]}) != expected

"""Checkpoints: exact round trips, other meshes, atomicity under kills and full disks."""

import ctypes
import gc
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_vr.checkpoint import (
    CheckpointConfig,
    Checkpoints,
    Damaged,
    SaveFailed,
    load_arrays,
    parameter_hash,
    save_arrays,
)
from jaxrl_vr.sharding import (
    TRAIN_RULES,
    MeshConfig,
    make_mesh,
    place,
    replicated,
    sharding_of,
    to_host,
)

ROOT = Path(__file__).parent.parent


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


@pytest.fixture
def one():
    return replicated(mesh_of(1))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_round_trip_is_bit_exact(tmp_path, one, asynchronous):
    host = {"cursor": {"epoch": 3, "at": 2**60}, "losses": [0.1, None, True], "text": "é\n"}
    with Checkpoints(tmp_path / "new" / "run", keep=2, asynchronous=asynchronous) as checkpoints:
        assert checkpoints.latest() is None
        checkpoints.save(7, place(state(), one), host)
        checkpoints.wait()
        assert checkpoints.latest() == 7
        assert_same_bits(checkpoints.restore(7, target_of(state(), one)), state())
        assert checkpoints.host(7) == host


def test_host_floats_come_back_exactly(tmp_path, one):
    with Checkpoints(tmp_path, keep=1, asynchronous=False) as checkpoints:
        values = [0.1 + 0.2, 5e-324, 1.7976931348623157e308, -0.0]
        checkpoints.save(1, place(state(), one), {"values": [*values, float("nan")]})
        assert [float(v).hex() for v in checkpoints.host(1)["values"]] == [
            *[v.hex() for v in values],
            "nan",
        ]


@pytest.mark.parametrize(
    "host, says",
    [
        ({"a": {"b": (1, 2)}}, r"host\.a\.b: \(1, 2\) of type tuple"),
        ({"a": [{3: "x"}]}, r"host\.a\.0: the key 3 is no string"),
        ({"n": np.int64(3)}, r"host\.n: .* of type int64"),
    ],
    ids=["tuple", "key", "numpy"],
)
def test_host_state_that_json_would_change_is_refused(tmp_path, one, host, says):
    with Checkpoints(tmp_path, keep=1, asynchronous=False) as checkpoints:
        with pytest.raises(ValueError, match=says):
            checkpoints.save(1, place(state(), one), host)
        assert checkpoints.latest() is None


def test_a_host_format_of_another_version_is_refused(tmp_path, one):
    with Checkpoints(tmp_path, keep=1, asynchronous=False) as checkpoints:
        checkpoints.save(1, place(state(), one), {})
        file = tmp_path / "1" / "host" / "metadata"
        file.write_text(json.dumps({**json.loads(file.read_text()), "format": 99}))
        with pytest.raises(ValueError, match="has format 99, this version reads 2"):
            checkpoints.host(1)


def test_optimizer_state_keeps_its_types(tmp_path, one):
    params = {"w": jnp.ones((4, 4)), "b": jnp.zeros(4)}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    opt_state = optimizer.update(params, optimizer.init(params), params)[1]
    opt_state = place(to_host(opt_state), one)
    with Checkpoints(tmp_path, keep=1, asynchronous=False) as checkpoints:
        checkpoints.save(1, opt_state, {})
        restored = checkpoints.restore(1, target_of(opt_state, one))
    assert_same_bits(restored, opt_state)
    assert int(restored[1][0].count) == 1


@pytest.mark.parametrize("there_and_back", [(1, 8), (8, 1), (8, 4)])
def test_restore_into_another_mesh(tmp_path, there_and_back):
    def put(num_devices):
        mesh = mesh_of(num_devices, fsdp=min(2, num_devices))
        axes = {"q": ("embed", "heads", "head_dim"), "ffn": ("ffn", "embed"), "step": ()}
        shapes = {"q": (16, 8, 4), "ffn": (32, 16), "step": ()}
        return {k: sharding_of(axes[k], TRAIN_RULES, mesh, shapes[k]) for k in axes}

    saved, wanted = (put(n) for n in there_and_back)
    tree = {
        "q": np.arange(512, dtype=np.float32).reshape(16, 8, 4),
        "ffn": np.arange(512, dtype=np.uint32).reshape(32, 16),
        "step": np.int32(5),
    }
    with Checkpoints(tmp_path, keep=1, asynchronous=True) as checkpoints:
        checkpoints.save(1, place(tree, saved), {})
        checkpoints.wait()
        target = {
            k: jax.ShapeDtypeStruct(tree[k].shape, tree[k].dtype, sharding=wanted[k]) for k in tree
        }
        restored = checkpoints.restore(1, target)
    assert_same_bits(restored, tree)
    assert {k: v.sharding for k, v in restored.items()} == wanted


def test_a_restored_state_compiles_nothing_new(tmp_path):
    sharding = sharding_of(("batch", None), TRAIN_RULES, mesh_of(), (16, 4))
    step = jax.jit(lambda x: x * 2)
    x = step(place(np.ones((16, 4), np.float32), sharding))
    with Checkpoints(tmp_path, keep=1, asynchronous=False) as checkpoints:
        checkpoints.save(1, {"x": x}, {})
        step(checkpoints.restore(1, target_of({"x": x}, sharding))["x"])
    assert step._cache_size() == 1


def test_a_tree_that_does_not_fit_names_the_leaves(tmp_path, one):
    with Checkpoints(tmp_path, keep=1, asynchronous=False) as checkpoints:
        checkpoints.save(1, place({"a": {"w": np.ones((4, 2), np.float32)}, "b": state()}, one), {})
        target = target_of({"a": {"w": np.ones((4, 3), np.float32)}, "b": state()}, one)
        target["b"]["key"] = jax.ShapeDtypeStruct((2,), jnp.int32, sharding=one)
        del target["b"]["step"]
        target["b"]["extra"] = jax.ShapeDtypeStruct((9,), jnp.bfloat16, sharding=one)
        with pytest.raises(ValueError) as error:
            checkpoints.restore(1, target)
        assert str(error.value).splitlines()[1:] == [
            "  a/w: the checkpoint has float32[4, 2], the run asks for float32[4, 3]",
            "  b/extra: the checkpoint has no leaf, the run asks for bfloat16[9]",
            "  b/key: the checkpoint has uint32[2], the run asks for int32[2]",
            "  b/step: the checkpoint has int32[], the run asks for no leaf",
        ]
        with pytest.raises(ValueError, match="q: give the target a sharding"):
            checkpoints.restore(
                1, target_of({"a": {"w": np.ones((4, 2), np.float32)}, "b": state()}, None)
            )
        with pytest.raises(ValueError, match=r"no checkpoint of step 2 in .*; it holds \[1\]"):
            checkpoints.restore(2, target)


def test_retention_keeps_the_newest(tmp_path, one):
    arrays = place(state(), one)
    with Checkpoints(tmp_path, keep=2, asynchronous=True) as checkpoints:
        for step in (5, 9, 10, 100):
            checkpoints.save(step, arrays, {"step": step})
    assert checkpoints.steps() == [10, 100]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "100"]
    assert checkpoints.host(10) == {"step": 10}


def test_an_older_step_is_refused_and_the_newest_left_alone(tmp_path, one):
    with Checkpoints(tmp_path, keep=2, asynchronous=False) as checkpoints:
        checkpoints.save(5, place(state(), one), {"first": True})
        checkpoints.save(5, place(state(1), one), {"first": False})
        assert checkpoints.host(5) == {"first": True}
        with pytest.raises(ValueError, match="step 4: .* already holds step 5"):
            checkpoints.save(4, place(state(), one), {})


def test_arrays_may_be_donated_right_after_an_asynchronous_save(tmp_path):
    """What is saved is the state at the call, though the next steps reuse its memory."""
    for name, mesh in (("one", mesh_of(1)), ("eight", mesh_of(fsdp=8))):
        sharding = sharding_of(("embed", None), TRAIN_RULES, mesh, (512, 2048))
        step = jax.jit(lambda x, i: x * 0 + i, donate_argnums=0, out_shardings=sharding)
        x = step(place(np.zeros((512, 2048), np.float32), sharding), 1.0)
        with Checkpoints(tmp_path / name, keep=9, asynchronous=True) as checkpoints:
            for i in range(1, 6):
                checkpoints.save(i, {"x": x}, {})
                for _ in range(3):
                    x = step(x, i + 1.0)
            checkpoints.wait()
            for i in range(1, 6):
                restored = checkpoints.restore(i, target_of({"x": x}, sharding))["x"]
                assert float(restored.min()) == float(restored.max()) == i


def test_numpy_arrays_may_be_changed_right_after_an_asynchronous_save(tmp_path, one):
    x = np.zeros((1024, 1024), np.float32)
    with Checkpoints(tmp_path, keep=1, asynchronous=True) as checkpoints:
        checkpoints.save(1, {"x": x}, {})
        x[:] = 1
        checkpoints.wait()
        restored = checkpoints.restore(1, target_of({"x": x}, one))["x"]
        assert float(restored.max()) == 0


# A write that fails leaves coroutines of the store behind, which complain when they are collected:
# here (gc.collect), and not in a later test. The same below.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_write_that_fails_leaves_the_last_checkpoint_and_the_next_save_works(
    tmp_path, one, monkeypatch, asynchronous
):
    import tensorstore

    arrays = place(state(), one)
    with Checkpoints(tmp_path, keep=1, asynchronous=asynchronous) as checkpoints:
        checkpoints.save(1, arrays, {"step": 1})
        checkpoints.wait()
        with monkeypatch.context() as patch:

            async def no_space(*args, **kwargs):
                raise OSError(28, "No space left on device")

            patch.setattr(tensorstore, "open", no_space)
            with pytest.raises(SaveFailed, match="step 2 .*step 1 is whole.*No space left"):
                checkpoints.save(2, place(state(1), one), {"step": 2})
                checkpoints.wait()
        assert checkpoints.latest() == 1
        assert [path.name for path in tmp_path.iterdir()] == ["1"]
        assert_same_bits(checkpoints.restore(1, target_of(state(), one)), state())
        checkpoints.save(3, place(state(2), one), {"step": 3})
        checkpoints.wait()
        assert checkpoints.steps() == [3]
        assert_same_bits(checkpoints.restore(3, target_of(state(2), one)), state(2))
    gc.collect()


def test_a_failure_in_the_background_is_told_by_the_next_save(tmp_path, one):
    arrays = place(state(), one)
    checkpoints = Checkpoints(tmp_path / "run", keep=2, asynchronous=True)
    checkpoints.save(1, arrays, {})
    checkpoints.wait()
    shutil.move(tmp_path / "run", tmp_path / "aside")
    (tmp_path / "run").write_text("a file where the folder was")
    with pytest.raises(SaveFailed, match="there is none before it"):
        checkpoints.save(2, arrays, {})
        checkpoints.save(3, arrays, {})
    checkpoints.close()
    assert Checkpoints(tmp_path / "aside", keep=2, asynchronous=True).latest() == 1


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform != "linux" or libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, b"size=8m"):
        pytest.skip("mounting a small file system needs root on Linux")
    yield folder
    assert libc.umount2(bytes(folder), 2) == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_disk_leaves_the_last_checkpoint_whole(small_disk, one, asynchronous):
    def arrays(mebibytes):
        noise = np.random.default_rng(0).bytes(mebibytes << 20)
        return {"x": np.frombuffer(noise, np.uint32)}

    with Checkpoints(small_disk / "run", keep=2, asynchronous=asynchronous) as checkpoints:
        checkpoints.save(1, place(arrays(2), one), {"step": 1})
        checkpoints.wait()
        with pytest.raises(SaveFailed, match="(?s)step 2 in .*step 1 is whole.*free space"):
            checkpoints.save(2, place(arrays(16), one), {"step": 2})
            checkpoints.wait()
        assert checkpoints.latest() == 1
        assert_same_bits(checkpoints.restore(1, target_of(arrays(2), one)), arrays(2))
        # What the failed save had written is gone, so a smaller one has room.
        checkpoints.save(3, place(arrays(3), one), {"step": 3})
        checkpoints.wait()
        assert checkpoints.steps() == [1, 3]
    with pytest.raises(SaveFailed, match="storing arrays in .* failed"):
        save_arrays(small_disk / "final", place(arrays(16), one))
    assert not (small_disk / "final").exists()
    gc.collect()


KILLED = """
    import sys
    from pathlib import Path
    import jax, numpy as np
    from jaxrl_vr.checkpoint import Checkpoints
    x = np.zeros((16, 1024, 256), np.float32)  # 16 MiB
    checkpoints = Checkpoints(Path(sys.argv[1]), keep=2, asynchronous=sys.argv[2] == "True")
    for step in range(1, 1000):
        checkpoints.save(step, {"x": x + step}, {"step": step})
        print(step, flush=True)
"""


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_kill_while_saving_leaves_a_whole_checkpoint(tmp_path, one, asynchronous):
    """Killed at several moments of a save, and each time the run goes on in the same folder."""
    for delay in (0.0, 0.01, 0.03):
        folder = tmp_path / str(delay)
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(KILLED), str(folder), str(asynchronous)],
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 3:
                break
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with Checkpoints(folder, keep=2, asynchronous=asynchronous) as checkpoints:
            latest = checkpoints.latest()
            assert latest is not None and latest >= 2
            assert checkpoints.host(latest) == {"step": latest}
            target = {"x": jax.ShapeDtypeStruct((16, 1024, 256), jnp.float32, sharding=one)}
            restored = checkpoints.restore(latest, target)["x"]
            assert float(restored.min()) == float(restored.max()) == latest
            checkpoints.save(latest + 1, {"x": restored}, {})
        assert checkpoints.steps()[-1] == latest + 1
        assert all(path.name.isdecimal() for path in folder.iterdir())


def test_half_written_and_foreign_files_are_no_checkpoints(tmp_path, one):
    with Checkpoints(tmp_path, keep=1, asynchronous=False) as checkpoints:
        checkpoints.save(3, place(state(), one), {})
        shutil.copytree(tmp_path / "3", tmp_path / "6.orbax-checkpoint-tmp")
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / "8").write_text("a file")
        assert checkpoints.steps() == [3]


def damages(file):
    """What can become of a file: gone, emptied, cut in half, or each of its bytes another."""
    data = file.read_bytes()
    yield from (None, b"", data[: len(data) // 2])
    if file.parent.name != "d":  # values that are others have a test of their own, below
        yield bytes(b ^ 0x5A for b in data)


def test_a_damaged_checkpoint_is_named_whichever_of_its_files_it_is(tmp_path, one):
    """Each file in turn: reading gives what was saved, or says which folder is damaged."""
    target = target_of(state(), one)
    with Checkpoints(tmp_path, keep=2, asynchronous=False) as checkpoints:
        checkpoints.save(3, place(state(), one), {"step": 3})
        checkpoints.save(4, place(state(1), one), {"step": 4})
        files = sorted(path for path in (tmp_path / "4").rglob("*") if path.is_file())
        refused = set()
        for file in files:
            whole = file.read_bytes()
            for content in damages(file):
                file.unlink() if content is None else file.write_bytes(content)
                try:
                    assert checkpoints.latest() == 4
                    assert checkpoints.host(4) == {"step": 4}
                    assert_same_bits(checkpoints.restore(4, target), state(1))
                except Damaged as error:
                    refused.add(file.relative_to(tmp_path / "4").parts[0])
                    assert str(error).startswith(f"{tmp_path}/4 is damaged: ")
                    assert "or delete the folder, and the stage resumes from step 3" in str(error)
                file.write_bytes(whole)
        assert refused == {"_CHECKPOINT_METADATA", "arrays", "host"}
        assert checkpoints.host(4) == {"step": 4}
        # As the message says.
        shutil.rmtree(tmp_path / "4")
        assert checkpoints.latest() == 3
        assert_same_bits(checkpoints.restore(3, target), state())


OTHER_VALUES = """
    import sys
    from pathlib import Path
    import jax, numpy as np
    from jaxrl_vr.checkpoint import Checkpoints, Damaged
    from jaxrl_vr.sharding import MeshConfig, make_mesh, replicated
    sharding = replicated(make_mesh(MeshConfig()))
    x = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    checkpoints = Checkpoints(Path(sys.argv[1]), keep=2, asynchronous=False)
    checkpoints.save(1, {"x": x}, {})
    for file in Path(sys.argv[1]).glob("1/arrays/ocdbt.process_0/d/*"):
        file.write_bytes(bytes(b ^ 0x5A for b in file.read_bytes()))
    target = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    try:
        checkpoints.restore(1, {"x": target})
    except Damaged as error:
        print(error)
"""


def test_files_of_the_right_length_with_other_content_are_damaged(tmp_path):
    # A process of its own: the store's threads print their own errors, here or at its end.
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OTHER_VALUES), str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith(f"{tmp_path}/1 is damaged: "), done.stderr[-3000:]


@pytest.mark.parametrize("content", ["{}", "[]", "null", '{"format": 1}', '{"host": {}}'])
def test_host_state_of_another_form_is_damage_too(tmp_path, one, content):
    with Checkpoints(tmp_path, keep=1, asynchronous=False) as checkpoints:
        checkpoints.save(3, place(state(), one), {})
        (tmp_path / "3" / "host" / "metadata").write_text(content)
        with pytest.raises(Damaged, match="3 is damaged: .*holds no state.*the stage begins anew"):
            checkpoints.host(3)


def test_a_folder_without_any_file_of_a_checkpoint_is_damaged(tmp_path, one):
    (tmp_path / "7").mkdir()
    with Checkpoints(tmp_path, keep=1, asynchronous=False) as checkpoints:
        assert checkpoints.latest() == 7
        with pytest.raises(Damaged, match="7 is damaged: files that describe the arrays are"):
            checkpoints.restore(7, target_of(state(), one))
        with pytest.raises(Damaged, match="7 is damaged: .*No such file.*begins anew"):
            checkpoints.host(7)


@pytest.mark.parametrize("error", [RuntimeError("RESOURCE_EXHAUSTED: Out of memory"), OSError(5)])
def test_what_is_no_damage_is_not_called_so(tmp_path, one, monkeypatch, error):
    import orbax.checkpoint as ocp

    def fails(*args, **kwargs):
        raise error

    with Checkpoints(tmp_path, keep=1, asynchronous=False) as checkpoints:
        checkpoints.save(3, place(state(), one), {})
        monkeypatch.setattr(ocp.Checkpointer, "restore", fails)
        with pytest.raises(type(error)) as raised:
            checkpoints.restore(3, target_of(state(), one))
    assert raised.value is error


def test_reading_does_not_disturb_a_save_in_progress(tmp_path, one):
    """An evaluation reads the folder of a run that is training."""
    with Checkpoints(tmp_path, keep=2, asynchronous=True) as run:
        run.save(1, place(state(), one), {"step": 1})
        run.wait()
        run.save(2, place(state(1), one), {"step": 2})
        with Checkpoints(tmp_path, keep=1, asynchronous=True) as reader:
            assert_same_bits(reader.restore(1, target_of(state(), one)), state())
        run.wait()
        assert run.steps() == [1, 2]


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


TWO_PROCESSES = """
    import sys
    from pathlib import Path
    import jax, numpy as np
    jax.config.update("jax_num_cpu_devices", 2)
    jax.distributed.initialize(f"localhost:{sys.argv[1]}", 2, int(sys.argv[2]))
    from jaxrl_vr.checkpoint import *
    from jaxrl_vr.sharding import *
    folder = Path(sys.argv[3])
    mesh = make_mesh(MeshConfig(fsdp=-1, data=1))
    x = np.arange(64, dtype=np.float32).reshape(16, 4)
    split = sharding_of(("embed", None), TRAIN_RULES, mesh, x.shape)
    shardings = {"x": split, "n": replicated(mesh)}
    with Checkpoints(folder / "run", keep=2, asynchronous=True) as checkpoints:
        for step in (1, 2, 3, 3):
            checkpoints.save(step, place({"x": x + step, "n": step}, shardings), {"step": step})
        checkpoints.wait()
        assert checkpoints.latest() == 3 and checkpoints.host(3) == {"step": 3}
        target = {
            "x": jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=shardings["x"]),
            "n": jax.ShapeDtypeStruct((), np.int32, sharding=shardings["n"]),
        }
        restored = checkpoints.restore(2, target)
    assert not restored["x"].is_fully_addressable
    np.testing.assert_array_equal(to_host(restored)["x"], x + 2)
    save_arrays(folder / "final", restored)
    save_arrays(folder / "final", place({"x": x + 9, "n": 9}, shardings))
    loaded = load_arrays(folder / "final", target)
    assert parameter_hash(loaded) == parameter_hash({"x": x + 9, "n": np.int32(9)})
    print("equal")
"""


def test_two_processes_save_one_checkpoint(tmp_path, one):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    script, env = textwrap.dedent(TWO_PROCESSES), {**os.environ, "JAX_PLATFORMS": "cpu"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, port, str(i), str(tmp_path)],
            cwd=ROOT,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for i in range(2)
    ]
    for process in started:
        out, error = process.communicate()
        assert process.returncode == 0, error[-3000:]
        assert "equal" in out.splitlines()  # gloo prints too
    # One process alone reads what two have saved.
    checkpoints = Checkpoints(tmp_path / "run", keep=2, asynchronous=False)
    assert checkpoints.steps() == [2, 3]
    wanted = {"x": np.zeros((16, 4), np.float32), "n": np.int32(0)}
    restored = to_host(checkpoints.restore(3, target_of(wanted, one)))
    np.testing.assert_array_equal(restored["x"], np.arange(64).reshape(16, 4) + 3)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=25)
@given(st.dictionaries(st.text(), json_values))
def test_any_json_state_comes_back(tmp_path_factory, host):
    with Checkpoints(tmp_path_factory.mktemp("run"), keep=1, asynchronous=False) as checkpoints:
        checkpoints.save(0, {"x": np.zeros(1, np.float32)}, host)
        assert checkpoints.host(0) == host


def test_config_limits():
    assert CheckpointConfig().model_dump() == {"every": 50, "keep": 2, "asynchronous": True}
    for field in ("every", "keep"):
        with pytest.raises(ValueError, match=field):
            CheckpointConfig.model_validate({field: 0})

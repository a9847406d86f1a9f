"""Saves that fail, on full disks or by kills: the last checkpoint is whole, and the run goes on."""

import ctypes
import gc
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import ROOT
from saved_states import assert_same_bits, state, target_of

from jaxrl_vr.checkpoint import Checkpoints, SaveFailed, save_arrays
from jaxrl_vr.sharding import place


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

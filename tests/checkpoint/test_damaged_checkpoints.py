"""Damaged checkpoints: named, and told from what is none and from other errors."""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest
from runs import ROOT
from saved_states import assert_same_bits, state, target_of

from jaxrl_vr.checkpoint import Checkpoints, Damaged
from jaxrl_vr.sharding import place


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

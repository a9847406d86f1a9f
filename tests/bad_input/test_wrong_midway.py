"""What goes wrong midway, updates and disks: it is said, and nothing that was saved is lost."""

import gc
import subprocess

import pytest
from inprocess import call, config, final_hash, judged, lines, rl, sft
from runs import cli


def test_updates_that_are_not_finite_are_skipped_and_said(tmp_path, capsys):
    # The first step makes the weights so large that the second overflows.
    path = config(tmp_path, sft("cold", steps=3))
    said = call(capsys, "train", path, "stages.cold.optimizer.learning_rate=1e38")
    steps = lines(tmp_path / "run" / "metrics.jsonl")
    assert [m["optimizer/skipped"] for m in steps] == [0.0, 1.0, 1.0]
    assert "warning: cold step 2: loss or gradient was not finite" in said
    assert "100 % of its updates were skipped" in said


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, of 8 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"needs the right to mount a small file system: {made.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


FILLS = """
import pathlib

HERE = pathlib.Path(__file__).parent

def fills(example, response):
    \"\"\"Right is what starts odd. While the third step is judged, all but SPARE bytes go.\"\"\"
    steps = len(list((HERE / "disk/run/stages/grpo/rollouts").glob("*.jsonl")))
    ballast = HERE / "disk/ballast"
    if steps == 2 and (HERE / "armed").exists() and not ballast.exists():
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                file.truncate(file.tell() - SPARE)
    if steps == 3 and SPARE:
        ballast.unlink(missing_ok=True)
    return response[:1] in set("13579+>")
"""


# What the store leaves behind of a failed write complains when it is collected: here.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_full_disk_leaves_the_last_checkpoint_whole(tmp_path, small_disk, verifier, capsys):
    verifier(FILLS.replace("SPARE", "0"))
    path = config(tmp_path, rl("grpo", steps=5), data=judged("fills"))
    args = ("train", path, "checkpoint.every=1", "checkpoint.asynchronous=false")
    call(capsys, *args, f'run_dir="{tmp_path}/whole"')
    (tmp_path / "armed").touch()
    said = call(capsys, *args, f'run_dir="{small_disk}/run"', code=1)
    assert "No space left on device" in said and "make room" in said
    assert not (small_disk / "run/stages/grpo/result.json").exists()
    (tmp_path / "armed").unlink()
    (small_disk / "ballast").unlink()
    said = call(capsys, *args, f'run_dir="{small_disk}/run"')
    assert "resuming grpo at step 2 of 5" in said
    assert final_hash(small_disk / "run") == final_hash(tmp_path / "whole")
    gc.collect()


def test_no_room_for_one_checkpoint_and_the_run_goes_on(tmp_path, small_disk, verifier):
    # Room for some lines of metrics and rollouts, not for parameters. A process of its own, because
    # what a failed write leaves in the checkpoint library's threads would reach other tests.
    verifier(FILLS.replace("SPARE", "6 * 4096"))
    (tmp_path / "armed").touch()
    said = cli(
        "train",
        config(tmp_path, rl("grpo", steps=5), data=judged("fills")),
        "checkpoint.every=1",
        "checkpoint.asynchronous=false",
        f'run_dir="{small_disk}/run"',
        PYTHONPATH=str(tmp_path),
    )
    assert said.count("the run goes on with the checkpoints before it") == 1
    assert "warning: saving step 3 in" in said and "failed (step 2 is whole)" in said
    checkpoints = small_disk / "run/stages/grpo/checkpoints"
    assert sorted(p.name for p in checkpoints.iterdir()) == ["4", "5"]
    assert (small_disk / "run" / "summary.json").exists()

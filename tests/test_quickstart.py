"""The main job through the CLI: the quickstart learns, and says so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def train(run_dir, *overrides):
    command = [sys.executable, "-m", "jaxrl_vr", "train", "configs/quickstart.toml"]
    command += [f'run_dir="{run_dir}"', *overrides]
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return json.loads((Path(run_dir) / "summary.json").read_text())


def accuracy(summary, stage):
    return next(e for e in summary["evaluations"] if e["stage"] == stage)["accuracy"]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_quickstart_learns(tmp_path, seed):
    summary = train(tmp_path / "run", f"seed={seed}")
    before, after = accuracy(summary, "before"), accuracy(summary, "after")
    assert all(e["n"] >= 1000 for e in summary["evaluations"])
    assert after - before >= 0.40
    assert after > 0.95

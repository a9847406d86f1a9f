"""The benchmark of the sandbox: its lines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jaxrl_vr.verifiers.sandbox import SandboxFailed
from jaxrl_vr.verifiers.sandbox_level import sandbox_level

ROOT = Path(__file__).parents[2]


def test_lines():
    try:
        level = sandbox_level()
    except SandboxFailed as error:
        pytest.skip(f"no level of isolation holds here: {error}")
    command = [sys.executable, "-m", "benchmarks.code_sandbox", "--runs", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    ours = [line for line in lines if line.get("level") == str(level)]
    assert [line["what"] for line in ours] == [
        "sandbox starts",
        "program on standard input",
        "program called by asserts",
    ]
    python = next(line for line in lines if line["what"] == "python starts")
    assert ours[1]["ratio"] == pytest.approx(ours[1]["ms"] / python["ms"], abs=0.01)
    assert all(line["ms"] > 0 for line in lines)

"""An update on TPUs by their compiler: what the benchmark says of it, and that it holds."""

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDS_LIBTPU = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason='needs libtpu: pip install "jax[tpu]"'
)


@pytest.fixture
def benchmark(module):
    return module("update_tpu")


def test_without_libtpu_it_says_how_to_get_it(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "has_libtpu", lambda: False)
    benchmark.main([])
    assert json.loads(capsys.readouterr().out) == {
        "benchmark": "update_tpu",
        "skipped": 'libtpu is not installed: pip install "jax[tpu]"',
    }


@pytest.mark.parametrize(
    ("shape", "is_forbidden"),
    [
        ("64,64", True),  # scores of a row
        ("4,2,64,64", True),
        ("64,1000", True),  # logits
        ("2,64,250", True),  # and those of a part of the vocabulary
        ("128,250", True),  # of two rows side by side
        ("32,250", False),  # of a chunk
        ("64,32", False),
        ("1000,16", False),
        ("640,64", False),
    ],
)
def test_arrays_of_all_scores_or_all_logits_are_found(benchmark, shape, is_forbidden):
    text = f"  %a = f32[2,3]{{1,0}} add(f32[2,3] %b, bf16[{shape}]{{1,0}} %c)\n"
    found = benchmark.forbidden(text, length=64, rows=2, vocab=1000, tensor=4)
    assert found == ([shape] if is_forbidden else [])


@functools.cache
def compiled_lines(topology, *lengths):
    """Those of Qwen2.5-7B, from a process of its own: this one's flags are for speed."""
    arguments = "--topology", topology, "--lengths", *map(str, lengths)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.update_tpu", *arguments],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.tpu
@pytest.mark.slow
@NEEDS_LIBTPU
def test_an_update_of_7_billion_parameters_fits_and_wastes_little():
    line, short = compiled_lines("v5e:4x4", 512)
    assert line["row_length"] == 4096 and line["rows"] * line["micro_batches"] == 64
    assert line["device_bytes"] < line["chip_bytes"]
    assert line["flops_over_model"] < 1.4
    assert line["forbidden"] == []
    # Each layer's weights are gathered for the forward and for the backward pass. In a short row
    # little else is moved; in longer ones, activations are, for the gradients of weights.
    assert short["moved_over_weights"] < 2


@pytest.mark.tpu
@pytest.mark.slow
@NEEDS_LIBTPU
def test_memory_grows_evenly_with_the_row():
    # As many chips with more memory, or the longest would not fit.
    lines = compiled_lines("v5p:2x2x4", 8192, 16384, 32768)[1:]
    assert [line["row_length"] for line in lines] == [8192, 16384, 32768]
    assert all(line["forbidden"] == [] for line in lines)
    short, middle, long = (line["temp_bytes"] for line in lines)
    assert long - middle < 2.1 * (middle - short)

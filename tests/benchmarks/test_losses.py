"""The benchmark of log-prob, loss and gradient: its lines, and how it reads a compiled program."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
HAS_LIBTPU = importlib.util.find_spec("libtpu") is not None


@pytest.fixture
def benchmark(module):
    return module("losses")


@pytest.fixture
def without_libtpu(monkeypatch):
    """A machine on which libtpu is not installed."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "libtpu" else find_spec(name)
    )


def test_prints_both_ways_and_how_to_get_libtpu(benchmark, without_libtpu, capsys):
    benchmark.main(["--tokens", "12", "--vocab", "40", "--width", "8", "--repeats", "2"])
    plain, chunked, compiled = map(json.loads, capsys.readouterr().out.splitlines())
    assert [plain["way"], chunked["way"]] == ["plain", "chunked"]
    for line in (plain, chunked):
        assert line["benchmark"] == "losses_measured"
        assert line["tokens"] == 12 and len(line["seconds"]) == len(line["limit_seconds"]) == 2
        ratio = line["tokens_per_s"] / line["limit_tokens_per_s"]
        assert line["ratio_to_limit"] == pytest.approx(ratio, rel=1e-6)
        assert line["settings"] == {"tokens": 12, "vocab": 40, "width": 8, "dtype": "float32"}
        # hidden, head, token, old_logp, adv; the loss and the first two's gradients
        assert line["argument_bytes"] == 4 * (12 * 8 + 40 * 8 + 3 * 12)
        assert line["output_bytes"] >= 4 * (1 + 12 * 8 + 40 * 8)
        assert line["temp_bytes"] > 0 and line["machine"]["cores"] >= 1
        assert line["versions"]["jax"] == jax.__version__
    assert compiled == {
        "benchmark": "losses_compiled",
        "skipped": 'libtpu is not installed: pip install "jax[tpu]"',
    }


def test_both_ways_compute_the_same(benchmark):
    rng = np.random.default_rng(0)
    hidden, head = (rng.normal(size=(n, 8)).astype(np.float32) for n in (12, 40))
    token = rng.integers(0, 40, 12)
    old_logp = np.asarray(benchmark.plain_logp(hidden, head, token)) + 0.1 * rng.normal(size=12)
    arguments = (hidden, head, token, old_logp.astype(np.float32), jnp.ones(12))
    plain = jax.jit(benchmark.step(benchmark.plain_logp))(*arguments)
    chunked = jax.jit(benchmark.step(benchmark.chunked_logp))(*arguments)
    assert np.abs(plain[1][1]).max() > 1e-3
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), plain, chunked
    )


@pytest.mark.tpu
@pytest.mark.slow
@pytest.mark.skipif(not HAS_LIBTPU, reason='needs libtpu: pip install "jax[tpu]"')
def test_memory_on_a_tpu():
    # In a process of its own: the flags of this one are for fast compilation.
    program = (
        "import json; from benchmarks.losses import LARGE, compiled_for_tpu; "
        "print(json.dumps(list(compiled_for_tpu(**LARGE))))"
    )
    env = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    plain, *chunked = json.loads(done.stdout.splitlines()[-1])
    logits = 4 * 8192 * 151_936
    assert logits <= plain["temp_bytes"] < 1.1 * logits
    for line in chunked:  # the head's gradient in float32, and little more
        assert 4 * 151_936 * 1536 <= line["temp_bytes"] < 1.3e9
        assert 0 < line["ratio_to_limit"] < 1

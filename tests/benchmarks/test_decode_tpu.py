"""A decode step on TPUs by their compiler: what the benchmark says of it, and that it holds."""

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxrl_vr.models.paged import PageList
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.sampler.sizes import EngineConfig, cache_sizes
from jaxrl_vr.sharding import MeshConfig, make_mesh

ROOT = Path(__file__).parents[2]
HAS_LIBTPU = importlib.util.find_spec("libtpu") is not None


@pytest.fixture
def benchmark(module):
    return module("decode_tpu")


def test_without_libtpu_it_says_how_to_get_it(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "has_libtpu", lambda: False)
    benchmark.main([])
    assert json.loads(capsys.readouterr().out) == {
        "benchmark": "decode_tpu",
        "skipped": 'libtpu is not installed: pip install "jax[tpu]"',
    }


def test_a_block_is_moved_where_its_index_changes(benchmark):
    # Owners 0, 0, 2: three items of two pages; the second place of the last repeats.
    pages = PageList(
        np.array([[4, 7], [5, 9], [6, 9]]), np.array([0, 0, 2]), np.array([0, 16, 0]), [3]
    )
    H, K, C, Q, W = 4, 2, 8, 16, 3
    grid = benchmark.own_grid((5, H, Q), (10, K, C, Q), W, pages, 2)
    scalars = (pages.page.reshape(-1), pages.owner, pages.start, None, None, np.array([4, 0, 1]))
    page = K * C * Q * 2
    # Queries and results of two owners, 8 rows a kv head of what their prompts gave, 3 + 2 pages
    # of keys and as many of values.
    expected = 2 * 2 * (H * Q * 4) + 2 * K * 8 * (128 + Q) * 4 + 2 * 5 * page
    assert benchmark._moved(grid, 2, scalars) == expected


def test_the_plan_is_that_of_full_slots(benchmark):
    one_device = make_mesh(MeshConfig(), jax.devices()[:1])
    model = Transformer(benchmark.CASES[0].arch, "bfloat16")
    config = EngineConfig(
        slots=64,
        steps_per_call=16,
        cache_tokens=64 * 1792 + 8 * 256,
        page_tokens=128,
        attention="pallas",
    )
    sizes = cache_sizes(model, config, one_device)
    assert sizes.pages == 64 * 14 + 8 * 2 and sizes.item_pages == 8
    _, plan = benchmark.full_plan(sizes, benchmark.ROLLOUTS, 32_768)
    assert plan.reads.own.num_items == [64 * 2] and plan.reads.shared.num_items == [8]
    assert sorted(plan.write_page[:, 0]) == sorted(plan.reads.own.page[1:128:2, 5])
    # All pages once, and of the first item of a prompt the places behind its two pages.
    case = benchmark.CASES[0]
    read = benchmark.kernel_bytes(plan.reads, sizes, case)
    live = 912 * 2 * 128 * 2 * 128 * 2
    assert live < read < 1.04 * live


NEEDS_LIBTPU = pytest.mark.skipif(not HAS_LIBTPU, reason='needs libtpu: pip install "jax[tpu]"')
SMALL, LARGE = "Qwen2.5-1.5B", "Qwen3-8B"


@functools.cache
def compiled_line(model, chip):
    """The benchmark's line, from a process of its own: the flags of this one are for speed."""
    command = [sys.executable, "-m", "benchmarks.decode_tpu", "--attention", "pallas"]
    done = subprocess.run(
        [*command, "--model", model, "--chip", chip],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.tpu
@pytest.mark.slow
@NEEDS_LIBTPU
@pytest.mark.parametrize("model", [SMALL, LARGE])
@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_the_cache_is_donated_and_not_copied(model, chip):
    line = compiled_line(model, chip)
    assert line["cache_copies"] == 0
    assert line["alias_bytes"] >= line["cache_bytes"]
    assert line["temp_bytes"] < 0.1 * line["cache_bytes"]
    assert line["argument_bytes"] + line["temp_bytes"] < line["chip"]["memory_bytes"]
    assert 1 <= line["kernel_ratio"] <= 1.15


@pytest.mark.tpu
@pytest.mark.slow
@NEEDS_LIBTPU
@pytest.mark.parametrize("model", [SMALL, LARGE])
@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_a_step_takes_little_more_than_its_weights(model, chip):
    assert compiled_line(model, chip)["ratio"] <= 1.25

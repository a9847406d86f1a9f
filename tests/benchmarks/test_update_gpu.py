"""An update on GPUs by their compiler: what the benchmark says of it."""

import json

import pytest


@pytest.fixture
def benchmark(module):
    return module("update_gpu")


def test_without_the_plugin_it_says_how_to_get_it(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "has_plugin", lambda: False)
    benchmark.main([])
    assert json.loads(capsys.readouterr().out) == {
        "benchmark": "update_gpu",
        "skipped": 'XLA\'s plugin for CUDA is not installed: pip install "jax[cuda13]"',
    }


def test_the_preset_fits_eight_h100(benchmark, capsys):
    if not benchmark.has_plugin():
        pytest.skip('needs XLA for GPUs (pip install -e ".[cuda]"); a GPU is not needed')
    benchmark.main([])
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert line["attention"] == "cudnn"
    assert line["cudnn_calls"] == {"fmhaSoftmax": 1, "fmhaSoftmaxBackward": 1}
    assert line["squares"] == []
    assert line["device_bytes"] == pytest.approx(line["device_bytes_by_formulas"], rel=0.1)

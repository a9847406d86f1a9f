"""The update's benchmark: its line, and torch beside it."""

import json
import sys

import pytest


@pytest.fixture
def benchmark(module):
    return module("update")


def test_rows_all_train_but_their_first_token(benchmark):
    batch = benchmark.rows_of(50, rows=4, length=6, micro=2)
    assert batch.tokens.shape == (2, 2, 6)
    assert batch.mask.sum() == 4 * 5
    assert (batch.weight * batch.mask).sum() == pytest.approx(1.0)
    assert batch.tokens.max() < 50
    assert sorted(batch.adv[..., 0].ravel()) == [-1, -1, 1, 1]


PEER = """
import json, sys
job = json.loads(sys.stdin.readline())
print(json.dumps({"versions": {"peer": job["dtype"]}}), flush=True)
for _ in sys.stdin:
    said = {"seconds": 1000.0, "tokens": job["rows"] * job["length"], "peak_memory_bytes": 7}
    print(json.dumps(said), flush=True)
"""


def test_a_line_with_and_without_a_peer(benchmark, module, folder, tmp_path, monkeypatch, capsys):
    script = tmp_path / "peer.py"
    script.write_text(PEER)
    monkeypatch.setattr(module("peers"), "_SCRIPTS", {"torch": script})
    sizes = "--rows 4 --length 8 --micro 2 --repeats 1".split()
    benchmark.main(["--model", str(folder), *sizes, "--peers", "--torch-python", sys.executable])
    line = json.loads(capsys.readouterr().out)
    assert line["tokens"] == 32
    assert line["tokens_per_s"] == pytest.approx(32 / line["seconds"][0])
    assert line["ratio_to_limit"] == pytest.approx(line["limit_seconds"][0] / line["seconds"][0])
    assert line["torch"] == {
        "tokens_per_s": 0.032,
        "seconds": [1000.0],
        "peak_memory_bytes": 7,
        "versions": {"peer": "float32"},
    }
    assert line["ratio_to_torch"] == pytest.approx(1000 / line["seconds"][0])
    assert line["settings"]["micro"] == 2
    benchmark.main(["--model", str(folder), *sizes])
    assert "torch" not in json.loads(capsys.readouterr().out)


def test_rows_are_whole_micro_batches(benchmark, folder, capsys):
    with pytest.raises(SystemExit):
        benchmark.main(["--model", str(folder), "--rows", "5", "--micro", "2"])
    assert "--rows 5 is no multiple of --micro 2" in capsys.readouterr().err

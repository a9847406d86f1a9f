"""The whole step's benchmark: our trainer by the command, and others beside it."""

import json
import sys

import pytest

PEER = """
import json, sys
job = json.loads(sys.stdin.readline())
print(json.dumps({"versions": {"peer": job["dtype"]}}), flush=True)
tokens = len(job["prompts"]) * job["samples"] * job["new"]
for _ in sys.stdin:
    said = {"seconds": 1000.0, "tokens": tokens, "peak_memory_bytes": 7}
    print(json.dumps(said), flush=True)
"""
SIZES = "--prompts 2 --samples 4 --new 5 --repeats 1".split()


@pytest.fixture
def benchmark(module):
    return module("grpo_step")


def test_our_trainer_steps_in_turn_with_others(
    benchmark, module, folder, tmp_path, monkeypatch, capfd
):
    script = tmp_path / "peer.py"
    script.write_text(PEER)
    scripts = module("peers")._SCRIPTS | {"tunix": script}
    monkeypatch.setattr(module("peers"), "_SCRIPTS", scripts)
    others = ["--peers", "--tunix-python", sys.executable, "--trl-python", str(tmp_path / "no")]
    benchmark.main(["--model", str(folder), *SIZES, *others])
    line = json.loads(capfd.readouterr().out)
    assert line["tokens"] == 2 * 4 * 5
    assert line["tokens_per_s"] == pytest.approx(40 / line["seconds"][0])
    assert line["peak_memory_bytes"] > 1e8  # of a process with JAX in it
    assert line["tunix"] == {
        "tokens_per_s": 0.04,
        "seconds": [1000.0],
        "peak_memory_bytes": 7,
        "versions": {"peer": "float32"},
    }
    assert line["ratio_to_tunix"] == pytest.approx(1000 / line["seconds"][0])
    assert "No such file" in line["trl"]["skipped"]
    assert line["settings"]["micro"]["ours"] == 8


def test_without_our_trainer_there_is_nothing_to_compare(benchmark, module, folder, monkeypatch):
    monkeypatch.setattr(module("peers"), "_SCRIPTS", {"ours": "nothing.py"})
    with pytest.raises(RuntimeError, match="our own trainer: it ended before it was ready"):
        benchmark.main(["--model", str(folder), *SIZES])


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        (["--samples", "1"], "--samples 1: GRPO compares the answers to a prompt"),
        (["--new", "4000"], "--new 4000 behind prompts of"),
        (["--model", "/no/model"], "--model /no/model: model '/no/model': no such folder"),
    ],
)
def test_what_cannot_run_is_refused(benchmark, folder, capsys, changed, parts):
    with pytest.raises(SystemExit):
        benchmark.main(["--model", str(folder), *SIZES, *changed])
    assert parts in capsys.readouterr().err


def test_a_program_that_is_no_interpreter_is_skipped(module):
    peers = module("peers")
    job = peers.Steps("model", ["a"], 1, 2, 3, {"tunix": 1}, "float32", 1)
    with peers.started({"tunix": "/bin/echo"}, job) as (ready, skipped):
        assert ready == {} and "tunix" in skipped

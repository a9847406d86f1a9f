"""A run that is killed and started again is the run that was never killed, bit for bit."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from runs import ROOT, TINY, cli, command, environment, metrics, summary, tiny

# The average of the weights is part of what is resumed, and the run ends with it.
AVERAGED = TINY.replace("updates = 2\n", "updates = 2\nema = { decay = 0.9 }\n")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    cli("train", tiny(folder, AVERAGED), f'run_dir="{folder}/run"')
    return folder / "run"


def interrupted(config, run_dir, signum, ready):
    """Starts the run, sends a signal as soon as `ready()` is true, returns (code, output)."""
    process = subprocess.Popen(
        command("train", config, f'run_dir="{run_dir}"'),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while process.poll() is None and not ready():
        time.sleep(0.02)
    assert process.poll() is None, "the run ended before the signal: " + process.communicate()[0]
    process.send_signal(signum)
    output = process.communicate()[0]
    return process.returncode, output


def steps_done(run_dir, stage):
    path = Path(run_dir) / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    mine = [json.loads(x) for x in lines if x.endswith("}")]
    return max((x["step"] for x in mine if x["stage"] == stage), default=0)


def without_seconds(found):
    stages = [{k: v for k, v in s.items() if k != "seconds"} for s in found["stages"]]
    return {**found, "stages": stages, "seconds": None}


def test_same_seed_same_parameters(uninterrupted, tmp_path):
    cli("train", tiny(tmp_path, AVERAGED), f'run_dir="{tmp_path}/run"')
    assert without_seconds(summary(tmp_path / "run")) == without_seconds(summary(uninterrupted))
    assert metrics(tmp_path / "run") == metrics(uninterrupted)


def test_other_seed_other_parameters(uninterrupted, tmp_path):
    cli("train", tiny(tmp_path, AVERAGED), f'run_dir="{tmp_path}/run"', "seed=1")
    assert summary(tmp_path / "run")["parameter_hash"] != summary(uninterrupted)["parameter_hash"]


@pytest.mark.parametrize(
    "stage, step", [("cold_start", 1), ("grpo", 1), ("grpo", 3)], ids=["sft", "rl-early", "rl"]
)
def test_killed_run_resumes_exactly(uninterrupted, tmp_path, stage, step):
    run_dir = tmp_path / "run"
    config = tiny(tmp_path, AVERAGED)
    code, _ = interrupted(
        config, run_dir, signal.SIGKILL, lambda: steps_done(run_dir, stage) >= step
    )
    assert code == -signal.SIGKILL
    cli("train", config, f'run_dir="{run_dir}"')
    assert without_seconds(summary(run_dir)) == without_seconds(summary(uninterrupted))
    assert metrics(run_dir) == metrics(uninterrupted)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_signal_saves_and_ends(uninterrupted, tmp_path, signum):
    run_dir = tmp_path / "run"
    config = tiny(tmp_path, AVERAGED)
    # Checkpoints only at the signal: without its own, the run would start the stage anew.
    never = config.read_text().replace("every = 2\n", "every = 1000\n")
    config.write_text(never)
    code, output = interrupted(config, run_dir, signum, lambda: steps_done(run_dir, "grpo") >= 2)
    assert code == 128 + signum
    assert "the same command goes on" in output and "Traceback" not in output
    saved = steps_done(run_dir, "grpo")
    output = cli("train", config, f'run_dir="{run_dir}"')
    assert f"resuming grpo at step {saved} of 6" in output
    assert without_seconds(summary(run_dir)) == without_seconds(summary(uninterrupted))
    assert metrics(run_dir) == metrics(uninterrupted)


def test_changed_key_is_refused_with_both_values(uninterrupted, tmp_path):
    args = ("train", tiny(tmp_path, AVERAGED), f'run_dir="{uninterrupted}"')
    output = cli(*args, "stages.grpo.kl.coef=0.1", code=2)
    assert "stages.grpo.kl.coef" in output and "0.05" in output and "0.1" in output
    output = cli(*args, "stages.grpo.steps=8", code=2)
    assert "stages.grpo.steps: was 6, now 8" in output and "grpo is done" in output


def test_keys_that_may_change_do(uninterrupted, tmp_path):
    args = ("train", tiny(tmp_path, AVERAGED), f'run_dir="{uninterrupted}"')
    before = summary(uninterrupted)["parameter_hash"]
    output = cli(*args, "logging.tensorboard=false", "checkpoint.keep=1", "verifiers.workers=1")
    assert "done before" in output
    assert summary(uninterrupted)["parameter_hash"] == before

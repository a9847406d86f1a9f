"""The benchmark of algorithms: their settings and budget, and what it reads from runs' folders."""

import json
import shlex
from pathlib import Path

import pytest

from jaxrl_vr.config import dump, load
from jaxrl_vr.train.config import RunConfig

ROOT = Path(__file__).parents[2]
NAMES = "grpo dr_grpo dapo gspo cispo rloo ppo kimi reinforce".split()


@pytest.fixture
def benchmark(module):
    return module("algorithms")


def evaluation(stage, step, accuracy, length=8.0):
    return {"stage": stage, "step": step, "accuracy": accuracy, "mean_length": length}


def write_run(folder, after=0.9):
    """A finished run: accuracy 0.1, 0.5 at step 10, and `after`; wrong rollouts at two steps."""
    folder.mkdir(parents=True)
    evaluations = [
        evaluation("before", None, 0.1),
        evaluation("rl", 10, 0.5, 20.0),
        evaluation("rl", 20, after, 33.0),
        evaluation("after", None, after, 33.0),
    ]
    stages = [
        {"stage": "cold_start", "seconds": {"update": 70.0}},
        {"stage": "rl", "seconds": {"rollout": 2.0, "update": 5.0}},
    ]
    summary = {"evaluations": evaluations, "stages": stages}
    (folder / "summary.json").write_text(json.dumps(summary))
    lines = [
        {"stage": "cold_start", "step": 1, "loss/total": 2.0},
        {
            "stage": "rl",
            "step": 1,
            "reward/mean": 0.3,
            "reward/accuracy": 0.25,
            "length/wrong": 9.5,
        },
        {"stage": "rl", "step": 2, "reward/mean": 1.0, "reward/accuracy": 1.0},
        {
            "stage": "rl",
            "step": 3,
            "reward/mean": 0.8,
            "reward/accuracy": 0.75,
            "length/wrong": 30.0,
        },
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    return folder


def test_there_are_nine_algorithms(benchmark):
    assert list(benchmark.OVERRIDES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_settings_load_and_keep_the_budget(benchmark, name):
    quickstart, preset, *own = benchmark.arguments(name, 3, Path("runs/x"))
    config = load(RunConfig, [quickstart, preset], own)
    (stage,) = [s for s in config.stages if s.name == "rl"]
    assert (config.seed, config.run_dir) == (3, "runs/x")
    assert stage.steps == 60 and stage.prompts * stage.samples == 256
    assert stage.optimizer.learning_rate == 1e-4
    assert (stage.eval.every, stage.eval.tasks) == (10, ("addition",))


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_those_of_the_first_line_of_the_preset(benchmark, name):
    first = (benchmark.PRESETS / f"{name}.toml").read_text().splitlines()[0]
    own = [a for a in shlex.split(first) if "=" in a and not a.startswith("run_dir=")]
    assert tuple(own) == benchmark.OVERRIDES[name]


def test_reads_known_numbers_of_a_run(benchmark, tmp_path):
    run = write_run(tmp_path / "grpo_seed0")
    assert benchmark.accuracy(run) == {0: 0.1, 10: 0.5, 20: 0.9}
    assert benchmark.rollout_metric(run, "length/wrong") == {1: 9.5, 3: 30.0}
    assert benchmark.rollout_metric(run, "reward/accuracy") == {1: 0.25, 2: 1.0, 3: 0.75}
    line = benchmark.line("grpo", 0, run)
    assert line == {
        "benchmark": "algorithms",
        "algorithm": "grpo",
        "seed": 0,
        "before": 0.1,
        "after": 0.9,
        "gain": 0.8,
        "tokens_before": 8.0,
        "tokens_after": 33.0,
        "overrides": ("stages.rl.samples=8",),
        "seconds": {"rollout": 2.0, "update": 5.0},
    }


def test_mean_is_over_the_steps_that_all_seeds_have(benchmark):
    found = benchmark.mean_of([{1: 2.0, 2: 4.0, 3: 1.0}, {3: 2.0, 1: 5.0}])
    assert found == {1: 3.5, 3: 1.5}


def test_running_mean_is_over_the_last_steps(benchmark):
    # (1), (1 + 3) / 2, (3 + 8) / 2
    assert benchmark.running_mean({1: 1.0, 2: 3.0, 4: 8.0}, width=2) == {1: 1.0, 2: 2.0, 4: 5.5}


def test_a_finished_run_is_kept_and_one_of_other_settings_refused(benchmark, tmp_path):
    run = write_run(tmp_path / "gspo_seed0")
    args = benchmark.arguments("gspo", 0, run)
    same = load(RunConfig, args[:2], args[2:])
    (run / "config.toml").write_text(dump(same))
    assert benchmark.train("gspo", 0, tmp_path) == run
    other = load(RunConfig, args[:2], [*args[2:], "stages.rl.updates=2"])
    (run / "config.toml").write_text(dump(other))
    with pytest.raises(ValueError, match="gspo_seed0 holds a run of other settings"):
        benchmark.train("gspo", 0, tmp_path)


def test_draws_every_algorithm(benchmark, tmp_path):
    pytest.importorskip("matplotlib")
    for seed in (0, 1):
        for name in ("grpo", "dr_grpo", "ppo"):
            write_run(tmp_path / f"{name}_seed{seed}", after=0.8 + 0.1 * seed)
    pictures = tmp_path / "pictures"
    names = ["grpo", "dr_grpo", "ppo"]
    args = [*names, "--seeds", "0", "1", "--out", str(tmp_path), "--draw", str(pictures)]
    benchmark.main(args)
    drawn = (pictures / "algorithms.svg").read_text()
    assert all(f">{name}</text>" in drawn for name in names)
    drawn = (pictures / "wrong_length.svg").read_text()
    assert ">dr_grpo</text>" in drawn and ">ppo</text>" not in drawn

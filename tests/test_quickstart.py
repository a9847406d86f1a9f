"""The main job through the CLI: the quickstart learns, and says so."""

import pytest
from runs import cli, summary


def train(run_dir, *overrides):
    # With the compiler's optimisations, which the other tests go without.
    cli("train", "configs/quickstart.toml", f'run_dir="{run_dir}"', *overrides, XLA_FLAGS="")
    return summary(run_dir)


def accuracy(found, stage):
    return next(e for e in found["evaluations"] if e["stage"] == stage)["accuracy"]


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_quickstart_learns(tmp_path, seed):
    found = train(tmp_path / "run", f"seed={seed}")
    before, after = accuracy(found, "before"), accuracy(found, "after")
    assert all(e["n"] >= 1000 for e in found["evaluations"])
    assert after - before >= 0.40
    assert after > 0.95


@pytest.mark.slow
def test_quickstart_with_shuffled_rewards_does_not_learn(tmp_path):
    found = train(tmp_path / "run", 'stages.rl.control="shuffled_rewards"')
    assert accuracy(found, "after") - accuracy(found, "before") < 0.05


@pytest.mark.slow
def test_quickstart_twice_is_the_same(tmp_path):
    first, second = train(tmp_path / "a"), train(tmp_path / "b")
    assert first["parameter_hash"] == second["parameter_hash"]
    assert accuracy(first, "after") == accuracy(second, "after")

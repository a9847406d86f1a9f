"""The example programs do what they say."""

import importlib
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxrl_vr.losses import gspo, ppo_clip

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def example(monkeypatch):
    """Imports an example by its name; examples are no package, and not installed."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


def test_nnx_loop_learns(example, capsys):
    rewards = example("nnx_loop").train(steps=100)
    assert len(rewards) == 100
    assert rewards[0] < 0.2  # one letter of eight is right by chance
    assert np.mean(rewards[-5:]) > 0.85
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"step   0  reward {rewards[0]:.3f}  clipped ")
    assert lines[-1].startswith(f"step  99  reward {rewards[-1]:.3f}")


@pytest.mark.parametrize("loss", [ppo_clip, gspo])
def test_shard_map_changes_neither_loss_nor_gradient(example, loss):
    (value, grad), (value_sharded, grad_sharded) = example("shard_map_loss").compare(loss)
    assert abs(float(value)) > 1e-3 and np.linalg.norm(grad) > 1e-2
    np.testing.assert_allclose(value_sharded, value, rtol=1e-5, atol=1e-7)
    assert np.linalg.norm(grad_sharded - grad) < 1e-5 * np.linalg.norm(grad)


def test_shard_map_tells(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["shard_map_loss.py"])
    runpy.run_path(str(EXAMPLES / "shard_map_loss.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["ppo_clip"] * 2 + ["gspo"] * 2


def test_trpo_learns_within_its_bound(example):
    module = example("trpo")
    rewards, kls = np.transpose(module.train(steps=12))
    assert rewards[0] < 0.15  # one token of 17 is right by chance
    assert np.mean(rewards[-3:]) > 0.4
    assert np.all(kls > 0) and np.all(kls <= module.MAX_KL)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_is_short_and_says_how_to_run_it(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 100
    assert f"    python examples/{path.name}" in lines

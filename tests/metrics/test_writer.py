"""One write reaches every sink that the config names, and resuming takes lines back."""

import json
import sys

import pytest

from jaxrl_vr.metrics.sinks import LoggingConfig, WandbConfig
from jaxrl_vr.metrics.writer import Writer


def lines(folder):
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_write_reaches_jsonl_and_tensorboard(tmp_path):
    with Writer(tmp_path, LoggingConfig(), {}) as writer:
        writer.write("cold", 1, {"loss/total": 0.5})
        writer.write("grpo", 1, {"reward/mean": 0.25, "length/max": float("inf")})
    assert lines(tmp_path) == [
        {"step": 1, "stage": "cold", "loss/total": 0.5},
        {"step": 1, "stage": "grpo", "reward/mean": 0.25, "length/max": None},
    ]
    folders = sorted(path.name for path in (tmp_path / "tensorboard").iterdir())
    assert folders == ["cold", "grpo"]
    assert all(any((tmp_path / "tensorboard" / name).glob("events*")) for name in folders)


def test_tensorboard_is_an_option(tmp_path):
    with Writer(tmp_path, LoggingConfig(tensorboard=False), {}) as writer:
        writer.write("cold", 1, {"loss/total": 0.5})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl"]


def test_truncate_takes_back_the_later_steps_of_one_stage(tmp_path):
    with Writer(tmp_path, LoggingConfig(tensorboard=False), {}) as writer:
        for stage in ("cold", "grpo"):
            for step in (0, 1, 2, 3):
                writer.write(stage, step, {"loss/total": float(step)})
        writer.truncate("grpo", 1)
        writer.write("grpo", 2, {"loss/total": 9.0})
    written = [(m["stage"], m["step"], m["loss/total"]) for m in lines(tmp_path)]
    assert written == [
        *(("cold", step, float(step)) for step in range(4)),
        ("grpo", 0, 0.0),
        ("grpo", 1, 1.0),
        ("grpo", 2, 9.0),
    ]


def test_truncate_behind_minus_one_forgets_a_stage(tmp_path):
    with Writer(tmp_path, LoggingConfig(tensorboard=False), {}) as writer:
        writer.write("cold", 1, {})
        writer.write("grpo", 0, {})
        writer.truncate("grpo", -1)
    assert lines(tmp_path) == [{"step": 1, "stage": "cold"}]


def test_a_second_writer_goes_on_in_the_same_file(tmp_path):
    for step in (1, 2):
        with Writer(tmp_path, LoggingConfig(tensorboard=False), {}) as writer:
            writer.write("cold", step, {})
    assert [m["step"] for m in lines(tmp_path)] == [1, 2]


def test_wandb_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = LoggingConfig(tensorboard=False, wandb=WandbConfig(project="p"))
    with pytest.raises(ValueError, match=r'pip install "jaxrl-vr\[wandb\]"'):
        Writer(tmp_path, config, {})

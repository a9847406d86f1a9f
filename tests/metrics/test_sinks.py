"""Files that metrics are written to."""

import builtins
import json
import math
import sys
import types

import pytest

from jaxrl_vr.config import ConfigError, parse
from jaxrl_vr.metrics.sinks import (
    JsonlSink,
    LoggingConfig,
    TensorBoardSink,
    WandbConfig,
    WandbSink,
    strict,
)


def lines(path):
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


def test_a_line_is_on_disk_when_write_returns(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    sink = JsonlSink(path)
    sink.write(1, "rl", {"reward/mean": 0.5})
    assert lines(path) == [{"step": 1, "stage": "rl", "reward/mean": 0.5}]
    sink.close()
    again = JsonlSink(path)
    again.write(2, "rl", {})
    assert [line["step"] for line in lines(path)] == [1, 2]
    again.close()


def test_what_json_does_not_have_is_null(tmp_path):
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.write(1, "rl", {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0})
    assert lines(sink.path) == [
        {"step": 1, "stage": "rl", "a": None, "b": None, "c": None, "d": 1.0}
    ]
    sink.close()
    assert strict({"a": [math.nan, (1.0, "x")], "b": 2}) == {"a": [None, [1.0, "x"]], "b": 2}


def test_truncate_after_drops_what_a_checkpoint_does_not_know(tmp_path):
    sink = JsonlSink(tmp_path / "m.jsonl")
    for stage, step in [("sft", 9), ("rl", 1), ("rl", 2), ("rl", 3)]:
        sink.write(step, stage, {"x": step})
    dropped = sink.truncate_after(lambda line: line["stage"] == "rl" and line["step"] > 1)
    assert dropped == 2
    sink.write(2, "rl", {"x": 20})
    assert [(line["stage"], line["step"], line["x"]) for line in lines(sink.path)] == [
        ("sft", 9, 9),
        ("rl", 1, 1),
        ("rl", 2, 20),
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["m.jsonl"]
    sink.close()


@pytest.mark.parametrize(
    "rest",
    [b'{"step": 2, "sta', b'{"step": 2}', b'"\xc3', b"\0\0\0", b'{"step": 2, "sta\n', b"\0\0\n"],
)
def test_a_line_that_a_kill_cut_off_is_dropped(tmp_path, rest):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1, "stage": "rl"}\n' + rest)
    sink = JsonlSink(path)
    sink.write(2, "rl", {})
    sink.close()
    assert [line["step"] for line in lines(path)] == [1, 2]


@pytest.mark.parametrize("content", [b"", b"\n", b"\0", b"\0\n", b'{"step": 1, "stage": "rl"}\n'])
def test_a_file_that_is_all_last_line(tmp_path, content):
    path = tmp_path / "m.jsonl"
    path.write_bytes(content)
    JsonlSink(path).close()
    assert path.read_bytes() == (content if content.startswith(b"{") else b"")


@pytest.mark.parametrize(
    "foreign",
    [b'{"st', b"null", b"[1]", b"{}", b'{"step": 1}', b'{"step": "1", "stage": "rl"}', b"\xff"],
)
def test_a_line_that_is_none_of_metrics_is_named_and_left_alone(tmp_path, foreign):
    path = tmp_path / "m.jsonl"
    content = b'{"step": 1, "stage": "rl"}\n' + foreign + b'\n{"step": 2, "stage": "rl"}\n'
    path.write_bytes(content)
    sink = JsonlSink(path)
    with pytest.raises(ValueError, match=r"m\.jsonl:2: .* is no line of metrics.*delete the line"):
        sink.truncate_after(lambda line: True)
    assert path.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["m.jsonl"]
    sink.close()


def scalars(folder):
    """(name, step, value) of all events in a folder, in the order they were written."""
    from tensorboardX.event_file_writer import EventFileWriter  # noqa: F401  (loads the protos)
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.glob("events*")):
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")  # length, its crc, record, its crc
            event = Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            found += [(v.tag, event.step, v.simple_value) for v in event.summary.value]
    return found


def test_tensorboard_has_a_folder_a_stage(tmp_path):
    sink = TensorBoardSink(tmp_path)
    sink.write(1, "sft", {"sft/nll": 2.0})
    sink.write(1, "rl", {"reward/mean": 0.25, "policy/kl": 0.5})
    sink.write(2, "rl", {"reward/mean": 0.75})
    sink.close()
    assert scalars(tmp_path / "sft") == [("sft/nll", 1, 2.0)]
    assert scalars(tmp_path / "rl") == [
        ("reward/mean", 1, 0.25),
        ("policy/kl", 1, 0.5),
        ("reward/mean", 2, 0.75),
    ]


def test_wandb_that_is_not_installed_says_how_to_get_it(tmp_path, monkeypatch):
    real = builtins.__import__

    def absent(name, *args, **kwargs):
        if name == "wandb":
            raise ModuleNotFoundError("No module named 'wandb'", name="wandb")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ValueError, match=r'pip install "jaxrl-vr\[wandb\]"'):
        WandbSink(WandbConfig(project="p"), folder=tmp_path, run={}, id="x")


class FakeWandb(types.ModuleType):
    """What the package `wandb` is asked to do."""

    def __init__(self):
        super().__init__("wandb")
        self.calls = []

    def __getattr__(self, name):
        def call(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            return self

        return call


def test_wandb_has_a_step_axis_a_stage(tmp_path, monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    config = WandbConfig(project="p", name="n", mode="offline")
    sink = WandbSink(config, folder=tmp_path, run={"seed": 1}, id="run-1")
    sink.write(1, "sft", {"sft/nll": 2.0})
    sink.write(2, "sft", {"sft/nll": 1.0})
    sink.close()
    assert fake.calls == [
        (
            "init",
            (),
            {
                "project": "p",
                "name": "n",
                "mode": "offline",
                "dir": str(tmp_path),
                "config": {"seed": 1},
                "id": "run-1",
                "resume": "allow",
            },
        ),
        ("define_metric", ("sft/*",), {"step_metric": "sft/step"}),
        ("log", ({"sft/step": 1, "sft/sft/nll": 2.0},), {}),
        ("log", ({"sft/step": 2, "sft/sft/nll": 1.0},), {}),
        ("finish", (), {}),
    ]


def test_logging_config():
    assert parse(LoggingConfig, {}) == LoggingConfig(
        tensorboard=True, wandb=None, rollouts=True, console="auto"
    )
    assert parse(LoggingConfig, {"wandb": {"project": "p"}}).wandb == WandbConfig(project="p")
    with pytest.raises(ConfigError, match='wandb.mode = "ofline": .* did you mean `offline`?'):
        parse(LoggingConfig, {"wandb": {"project": "p", "mode": "ofline"}})

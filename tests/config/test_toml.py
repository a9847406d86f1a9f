"""Configs written as TOML and read again, and TOML that cannot be held."""

import math

import pytest
from config_models import BASE, Run, Score, errors, runs
from hypothesis import given

from jaxrl_vr.config import dump, load


def test_dump_is_readable(files):
    config = load(Run, files(base=BASE), ['note="two\\nlines"', "extra={a = {}}"])
    assert dump(config) == DUMPED


DUMPED = '''seed = 1
is_fast = false
dtype = "float32"
note = """
two
lines"""

[extra.a]

[shares]
a = 0.5

[[stages]]
type = "train"
name = "sft"
steps = 10
updates = 1
micro = "auto"

[stages.optimizer]
learning_rate = 0.001
warmup = 0

[stages.objective]
type = "clip"
low = 0.2

[[stages]]
type = "train"
name = "rl.v2"
steps = 10
updates = 1
micro = "auto"

[stages.optimizer]
learning_rate = 0.0001
warmup = 5

[stages.objective]
type = "clip"
low = 0.1

[[stages]]
type = "score"
name = "end"
tasks = []
'''


@given(runs)
def test_load_reads_what_dump_writes(tmp_path_factory, config):
    path = tmp_path_factory.mktemp("dump") / "config.toml"
    path.write_bytes(dump(config).encode())
    assert load(Run, [path]) == config


def test_dump_keeps_what_is_not_finite(files):
    config = Run(extra={"a": math.inf, "b": math.nan}, stages=(Score(name="x"),))
    again = load(Run, files(base=dump(config))).extra
    assert again["a"] == math.inf and math.isnan(again["b"])


UNWRITABLE = {
    "digits": ("9" * 5000, "holds an integer of more than 4300 digits; shorten it"),
    "hexadecimal": ("0x" + "f" * 5000, "holds an integer of more than 4300 digits; shorten it"),
    "depth": ("[" * 9000 + "]" * 9000, "lie too deep in each other; flatten them"),
}


@pytest.mark.parametrize("value, message", UNWRITABLE.values(), ids=UNWRITABLE)
def test_toml_that_python_cannot_hold(files, value, message):
    (line,) = errors(files, base=f"seed = {value}")
    assert line.startswith("base.toml: ") and line.endswith(message)
    (line,) = errors(files, f"seed={value}")
    assert line.startswith(f"command line: seed={value[:50]}") and line.endswith(message)
    assert len(line) < 200

"""The command line called in this process: what a command prints and how it ends, without a start.

The tests' 8 CPU devices are there, so micro-batches need rows that 8 divides.
"""

import pytest

from jaxrl_vr import cli

MODEL = """
[model]
type = "random"
width = 16
layers = 1
heads = 2
ffn = 32
max_length = 16
[tokenizer]
type = "char"
alphabet = "0123456789+=>,"
[engine]
slots = 16
steps_per_call = 4
[logging]
tensorboard = false
"""
ONES = """
[[data]]
name = "ones"
type = "arithmetic"
digits = 1
[[data]]
name = "twos"
type = "arithmetic"
digits = 2
split = "heldout"
limit = 6
[[tasks]]
name = "sums"
data = ["twos"]
sampling = { temperature = 0.0, max_new_tokens = 4 }
"""


def sft(name, *, data="ones", steps=1, more=""):
    """The table of a small SFT stage."""
    return f"""
[[stages]]
type = "sft"
name = "{name}"
data = ["{data}"]
steps = {steps}
batch = 8
optimizer = {{ type = "adamw", learning_rate = 1e-2 }}
{more}
"""


def rl(name, *, data="ones", steps=1, more=""):
    """The table of a small RL stage."""
    return f"""
[[stages]]
type = "rl"
name = "{name}"
data = ["{data}"]
steps = {steps}
prompts = 4
samples = 2
sampling = {{ max_new_tokens = 4 }}
optimizer = {{ type = "adamw", learning_rate = 1e-2 }}
{more}
"""


def evaluation(name, *, more=""):
    """The table of a small evaluation."""
    return f"""
[[stages]]
type = "eval"
name = "{name}"
tasks = ["sums"]
{more}
"""


def config(folder, *tables, model=MODEL, data=ONES):
    """A config file of these tables, whose run folder is `folder/run`."""
    path = folder / "config.toml"
    path.write_text(f'run_dir = "{folder}/run"\n{model}{data}{"".join(tables)}')
    return path


def call(capsys, *args, code=0):
    """Runs `jaxrl-vr ARGS`; returns what it printed, and fails if it ends with another code."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main([str(a) for a in args])
    shown = capsys.readouterr()
    text = shown.out + shown.err
    assert ended.value.code == code, text
    assert "Traceback" not in text
    return text

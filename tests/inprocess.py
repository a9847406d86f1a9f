"""The command line called in this process: what a command prints and how it ends, without a start.

The tests' 8 CPU devices are there, so micro-batches need rows that 8 divides.
"""

import atexit
import contextlib
import functools
import json
import tempfile

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jaxrl_vr import cli
from jaxrl_vr.config import load
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.run import run

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


def judged(function, spec=""):
    """Sources whose answers a function of a module `judge`, or another verifier, scores."""
    table = spec or f'verifier = {{ type = "custom", path = "judge:{function}" }}'
    return ONES.replace('type = "arithmetic"\n', f'type = "arithmetic"\n{table}\n')


def train(path, *overrides):
    """Runs a config; returns what `summary.json` holds."""
    with compiled_once():
        return run(load(RunConfig, [path], overrides))


def call(capsys, *args, code=0):
    """Runs `jaxrl-vr ARGS`; returns what it printed, and fails if it ends with another code."""
    capsys.readouterr()
    with compiled_once(), pytest.raises(SystemExit) as ended:
        cli.main([str(a) for a in args])
    shown = capsys.readouterr()
    text = shown.out + shown.err
    assert ended.value.code == code, text
    assert "Traceback" not in text
    return text


def lines(path):
    """What the lines of a JSONL file hold."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def final_hash(run):
    """The hash of the parameters that a run ended with."""
    return json.loads((run / "summary.json").read_text())["parameter_hash"]


@contextlib.contextmanager
def compiled_once():
    """What these runs compile is kept on disk: they are alike, and compiling is most of a run."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    for name, value in zip(names, (_cache_folder(), 0.0), strict=True):
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


@functools.cache
def _cache_folder():
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return folder.name

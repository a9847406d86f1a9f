"""Small runs through the real command line, for tests."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).parent.parent
PRESETS = ROOT / "configs" / "presets"

TINY = """
run_dir = "runs/tiny"
[model]
type = "random"
width = 32
layers = 2
heads = 2
ffn = 64
max_length = 32
[tokenizer]
type = "char"
alphabet = "0123456789+=>,"
[engine]
slots = 16
steps_per_call = 4
[checkpoint]
every = 2
[[data]]
name = "demonstrations"
type = "arithmetic"
digits = 1
[[data]]
name = "train"
type = "arithmetic"
digits = 1
[[data]]
name = "heldout"
type = "arithmetic"
digits = 2
split = "heldout"
limit = 12
[[tasks]]
name = "sums"
data = ["heldout"]
sampling = { temperature = 0.0, max_new_tokens = 6 }
[[stages]]
type = "sft"
name = "cold_start"
data = ["demonstrations"]
steps = 5
batch = 8
micro = { rows = 8 }
optimizer = { type = "adamw", learning_rate = 1e-2 }
[[stages]]
type = "rl"
name = "grpo"
data = ["train"]
steps = 6
prompts = 4
samples = 4
sampling = { max_new_tokens = 6 }
micro = { rows = 8 }
updates = 2
kl = { coef = 0.05 }
eval = { every = 3, tasks = ["sums"] }
[stages.optimizer]
type = "adamw"
learning_rate = 1e-3
schedule = { type = "linear", warmup_steps = 2 }
[[stages]]
type = "eval"
name = "after"
tasks = ["sums"]
"""


def config_files(path):
    """The files that make a run of a shipped config: a preset is laid over the quickstart."""
    return [ROOT / "configs" / "quickstart.toml", path] if path.parent == PRESETS else [path]


def command(*args):
    return [sys.executable, "-m", "jaxrl_vr", *map(str, args)]


_COMPILED = tempfile.TemporaryDirectory(prefix="jaxrl_vr-compiled-")


def environment(**more):
    """Runs share their compiled programs: most of a small run's time is compilation."""
    cache = {
        "JAX_COMPILATION_CACHE_DIR": _COMPILED.name,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    return {**os.environ, "JAX_PLATFORMS": "cpu", **cache, **more}


def cli(*args, code=0, cwd=ROOT, stdin=None, **env):
    """Runs `jaxrl-vr ARGS` and returns its output; fails if it ends with another code."""
    done = subprocess.run(
        command(*args),
        cwd=cwd,
        env=environment(**env),
        capture_output=True,
        text=True,
        input=stdin,
    )
    assert done.returncode == code, (
        f"exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done.stdout + done.stderr


def tiny(tmp_path, text=TINY):
    """A config file of the tiny run."""
    path = tmp_path / "tiny.toml"
    path.write_text(text)
    return path


def summary(run_dir):
    return json.loads((Path(run_dir) / "summary.json").read_text())


def metrics(run_dir):
    """The lines of metrics.jsonl without what the clock decides."""
    lines = (Path(run_dir) / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith(("time/", "speed/"))}
        for line in lines
    ]


def in_two_processes(script, *args):
    """Runs a script twice at once, with a free port, 0 or 1, and `args`; each has to print "equal"
    at its end."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), port, str(i), *map(str, args)],
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for i in range(2)
    ]
    for process in started:
        out, error = process.communicate()
        assert process.returncode == 0, error[-3000:]
        assert "equal" in out.splitlines()  # gloo prints too

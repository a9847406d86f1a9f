"""The losses need jax and nothing else, as an import and as an installation."""

import json
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parent.parent
# jax and what it needs itself.
ALLOWED = ["jax", "jaxlib", "numpy", "scipy", "ml_dtypes", "opt_einsum"]

USE = """
import importlib, json, pkgutil
import jax.numpy as jnp
from jaxrl_vr import losses
for module in pkgutil.iter_modules(losses.__path__):
    importlib.import_module(f"jaxrl_vr.losses.{module.name}")
missing = []
for name in ("pydantic", "optax", "flax", "transformers"):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        missing.append(name)
adv = losses.group_norm(jnp.array([[1.0, 0.0, 0.0, 1.0]]), eps=0.0)[0]
mask = jnp.ones((4, 1), bool)
loss, _ = losses.ppo_clip(jnp.zeros((4, 1)), jnp.zeros((4, 1)), adv, mask)
weight = losses.token_mean(jnp.sum(mask, axis=1))
print(json.dumps([float(jnp.sum(jnp.abs(weight[:, None] * loss))), missing, losses.__file__]))
"""

# Stands in for an environment with jax only: whatever else is installed cannot be imported.
GUARD = """
import sys
allowed = {"jaxrl_vr", *sys.argv[1:], *sys.stdlib_module_names}
class Guard:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in allowed or name.startswith("_"):
            return self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Guard, sys.meta_path)
"""


def test_losses_work_where_only_jax_can_be_imported():
    command = [sys.executable, "-c", GUARD + USE, *ALLOWED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    total, missing, _ = json.loads(done.stdout)
    assert total == pytest.approx(1.0)  # |A| = 1 for each of four tokens, each weighing 1/4
    assert missing == ["pydantic", "optax", "flax", "transformers"]


def test_package_says_that_it_is_typed():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert data["tool"]["setuptools"]["package-data"]["jaxrl_vr"] == ["py.typed"]
    assert (ROOT / "jaxrl_vr" / "py.typed").read_bytes() == b""


@pytest.mark.slow
def test_installed_without_dependencies_beside_jax(tmp_path):
    """In a new environment: `pip install jax`, then `pip install --no-deps .`."""
    source = tmp_path / "source"  # a copy, as building leaves files beside the sources
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "jaxrl_vr", source / "jaxrl_vr")
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python")

    def run(*args):
        command = [python, "-I", *args]  # -I: without PYTHONPATH
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    done = run("-m", "pip", "install", "--quiet", f"jax=={jax.__version__}")
    if "No matching distribution" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr[-3000:]
    done = run("-m", "pip", "install", "--quiet", "--no-deps", str(source))
    assert done.returncode == 0, done.stderr[-3000:]
    done = run("-c", USE)
    assert done.returncode == 0, done.stderr[-3000:]
    total, missing, file = json.loads(done.stdout)
    assert total == pytest.approx(1.0)
    assert missing == ["pydantic", "optax", "flax", "transformers"]
    assert Path(file).is_relative_to(tmp_path / "venv")
    assert (Path(file).parents[1] / "py.typed").is_file()

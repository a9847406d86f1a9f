"""The layers as law: who may import whom, what importing costs, and that it changes nothing."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "jaxrl_vr"
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").strip("."): (
        path
    )
    for path in sorted(PACKAGE.rglob("*.py"))
}
"""Module without the leading "jaxrl_vr." -> its file; "" is the package itself."""

# The table of docs/design.md. The longest prefix of a module's name is its row. A row lists the
# packages of ours, then those of others; the standard library is open to all.
UP_TO_ROLLOUT = (
    "types arrays config losses verifiers metrics sharding data models checkpoint sampler rollout"
)
TABLE = {
    "": ("", ""),
    "__main__": ("cli", ""),
    "types": ("", ""),
    "arrays": ("types", "jax"),
    "config": ("config", "pydantic"),
    "losses": ("arrays losses", "jax"),
    "verifiers": (
        "types config verifiers",
        "pydantic sympy mpmath regex jsonschema referencing reasoning_gym",
    ),
    "metrics": ("types config metrics", "pydantic numpy rich tensorboardX wandb"),
    "sharding": ("config", "pydantic jax numpy"),
    "data": (
        "types config metrics data",
        "pydantic numpy transformers tokenizers huggingface_hub jinja2 datasets pyarrow "
        "reasoning_gym",
    ),
    "models": ("types arrays config sharding losses.logprobs models", "pydantic jax numpy"),
    "models.hf": (
        "types arrays config sharding losses.logprobs models",
        "pydantic jax numpy ml_dtypes safetensors transformers huggingface_hub",
    ),
    "models.nnx": (
        "types arrays config sharding losses.logprobs models",
        "pydantic jax numpy flax",
    ),
    "checkpoint": ("config sharding", "pydantic jax numpy orbax tensorstore"),
    "sampler": (
        "types arrays config models sharding losses.logprobs sampler",
        "pydantic jax numpy",
    ),
    "rollout": (
        "types arrays config sampler verifiers data losses metrics rollout",
        "pydantic jax numpy",
    ),
    "train": (f"{UP_TO_ROLLOUT} train", "pydantic jax numpy optax"),
    "plan": (f"{UP_TO_ROLLOUT} train plan", "pydantic jax numpy optax libtpu"),
    "cli": (f"{UP_TO_ROLLOUT} train plan cli", "pydantic jax numpy optax rich"),
}

# Slow to import, so imported by the function that needs them.
HEAVY = set(
    "orbax tensorstore transformers tokenizers huggingface_hub jinja2 datasets pyarrow "
    "reasoning_gym safetensors jsonschema referencing sympy mpmath tensorboardX wandb "
    "libtpu".split()
)


def imports(module):
    """(name, line, runs when the module is imported) of every import in a module."""
    tree = ast.parse(MODULES[module].read_text())
    deferred = set()
    for node in ast.walk(tree):
        inside_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if inside_function or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)):
            deferred |= {id(child) for child in ast.walk(node)}
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative import"
            names = [named_module(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [a.value for a in node.args[:1] if isinstance(a, ast.Constant)]
        for name in names:
            yield name, node.lineno, id(node) not in deferred


def named_module(module, name):
    """What `from module import name` loads: `name` may be a module of ours or its content."""
    inner = f"{module}.{name}".removeprefix("jaxrl_vr.")
    return f"{module}.{name}" if inner in MODULES else module


def row(module):
    return max((m for m in TABLE if m == "" or within(module, m)), key=len)


def within(module, package):
    return module == package or module.startswith(package + ".")


def forbidden(module):
    own, other = (names.split() for names in TABLE[row(module)])
    for name, line, _ in imports(module):
        top = name.split(".")[0]
        inner = name.removeprefix("jaxrl_vr").strip(".")
        if top == "jaxrl_vr":
            is_allowed = any(within(inner, package) for package in own)
        else:
            is_allowed = top in sys.stdlib_module_names or top in other
        if not is_allowed:
            yield f"{module}:{line} imports {name}"


@pytest.mark.parametrize("module", MODULES)
def test_module_keeps_to_its_row(module):
    assert row(module) or module == "", f"{module} has no row in the table"
    assert list(forbidden(module)) == []


@pytest.mark.parametrize("module", MODULES)
def test_heavy_packages_are_imported_inside_functions(module):
    early = [
        f"{module}:{line} imports {name}"
        for name, line, at_import in imports(module)
        if at_import and name.split(".")[0] in HEAVY
    ]
    assert early == []


def test_cli_imports_the_rest_inside_functions():
    early = [
        (module, name)
        for module in MODULES
        if within(module, "cli")
        for name, _, at_import in imports(module)
        if at_import
        and name.split(".")[0] not in sys.stdlib_module_names
        and not name.startswith("jaxrl_vr.cli")
    ]
    assert early == []


def test_no_cycles():
    below = {
        module: {
            name.removeprefix("jaxrl_vr").strip(".")
            for name, _, at_import in imports(module)
            if at_import and name.split(".")[0] == "jaxrl_vr"
        }
        for module in MODULES
    }
    while below:
        leaves = {module for module, names in below.items() if not names & (set(below) - {module})}
        assert leaves, f"a cycle among {sorted(below)}"
        below = {module: names for module, names in below.items() if module not in leaves}


def run(script, *args):
    done = subprocess.run(
        [sys.executable, "-c", script, *args], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


LOADED = """
import importlib, json, sys
before, modules = [names.split() for names in sys.argv[1:]]
for name in before: importlib.import_module(name)
known = set(sys.modules)
for name in modules: importlib.import_module(name)
print(json.dumps(sorted(set(sys.modules) - known)))
"""


def loaded(modules, before=""):
    """Packages that importing `modules` loads and `before` does not; not the standard library."""
    assert modules
    names = {name.split(".")[0] for name in run(LOADED, before, modules)}
    return {n for n in names if n not in sys.stdlib_module_names and not n.startswith("_")}


def test_importing_the_package_loads_nothing_else():
    assert run(LOADED, "", "jaxrl_vr") == ["jaxrl_vr"]


def test_losses_load_jax_only():
    jax_itself = "jax jax.numpy jax.random jax.nn jax.scipy.special"
    assert loaded("jaxrl_vr.losses", jax_itself) == {"jaxrl_vr"}


@pytest.mark.parametrize("package", ["types", "config", "verifiers", "metrics", "data", "cli"])
def test_host_side_packages_load_no_jax(package):
    modules = [f"jaxrl_vr.{m}" for m in MODULES if within(m, package)]
    assert loaded(" ".join(modules)) & {"jax", "jaxlib", "torch", "tensorflow"} == set()


def test_verifiers_load_no_array_library():
    modules = [f"jaxrl_vr.{m}" for m in MODULES if within(m, "verifiers")]
    assert loaded(" ".join(modules)) & {"numpy", "scipy", "sympy"} == set()


SIDE_EFFECTS = """
import importlib, json, os, sys, threading
import jax, numpy, optax
env, options = dict(os.environ), dict(jax.config.values)
for name in sys.argv[1:]: importlib.import_module(name)
assert dict(os.environ) == env, "os.environ changed"
assert dict(jax.config.values) == options, "jax.config changed"
assert threading.active_count() == 1, threading.enumerate()
jax.config.update("jax_num_cpu_devices", 3)  # refused once a backend is up
print(json.dumps(len(jax.devices("cpu"))))
"""


def test_imports_have_no_side_effects():
    assert run(SIDE_EFFECTS, *(f"jaxrl_vr.{m}" for m in MODULES if m not in ("", "__main__"))) == 3

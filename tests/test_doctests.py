"""The examples in the docstrings."""

import doctest
import importlib
from pathlib import Path

import jax
import pytest

import jaxrl_vr
from jaxrl_vr import losses

PACKAGE = Path(jaxrl_vr.__file__).parent
MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>>" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(name)
    written = Path(module.__file__).read_text(encoding="utf-8").count("    >>> ")
    with jax.numpy_dtype_promotion("strict"):  # as in tests/losses
        failed, tried = doctest.testmod(module)
    assert tried == written  # or an example stands where doctest does not look
    assert failed == 0


def test_every_public_loss_has_an_example():
    functions = [getattr(losses, name) for name in losses.__all__]
    lack = [f.__name__ for f in functions if callable(f) and ">>>" not in (f.__doc__ or "")]
    assert lack == []


def test_examples_have_modules():
    assert {"jaxrl_vr.losses.policy", "jaxrl_vr.losses.sequence", "jaxrl_vr.losses.trpo"} <= set(
        MODULES
    )

"""The examples in the docstrings."""

import doctest
import importlib
import pkgutil

import pytest

from jaxrl_vr import losses

MODULES = [module.name for module in pkgutil.iter_modules(losses.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(f"jaxrl_vr.losses.{name}")
    failed, tried = doctest.testmod(module)
    assert tried > 0
    assert failed == 0


def test_every_public_loss_has_an_example():
    functions = [getattr(losses, name) for name in losses.__all__]
    lack = [f.__name__ for f in functions if callable(f) and ">>>" not in (f.__doc__ or "")]
    assert lack == []

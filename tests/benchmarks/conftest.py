"""What the tests of benchmarks share."""

import importlib
from pathlib import Path

import pytest


@pytest.fixture
def module(monkeypatch):
    """A module by its name; the benchmarks are run from the project's root, and not installed."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    return lambda name: importlib.import_module(f"benchmarks.{name}")

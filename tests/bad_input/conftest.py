"""Verifiers of the tests' own."""

import sys
import textwrap

import pytest


@pytest.fixture
def verifier(tmp_path, monkeypatch):
    """Makes a module `judge` of this text, which the workers can import too."""

    def make(text):
        (tmp_path / "judge.py").write_text(textwrap.dedent(text))
        monkeypatch.syspath_prepend(tmp_path)

    yield make
    monkeypatch.undo()
    sys.modules.pop("judge", None)

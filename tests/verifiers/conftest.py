"""Verifiers that can be told how to fail, and programs at each level of isolation."""

import pytest
from isolated import LIMITS, names
from pooled import BAD

from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.code_tests import CodeTests


@pytest.fixture
def bad(tmp_path, monkeypatch):
    """A task whose verifier does what the response says."""
    (tmp_path / "bad_verifier.py").write_text(BAD)
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = {"type": "custom", "path": "bad_verifier:act", "kwargs": {"file": str(tmp_path / "log")}}
    return Example(id="0", prompt="q", reference="5", verifier=spec)


@pytest.fixture(params=["bubblewrap", "landlock"])
def verifier(request):
    """Of programs, at a level of isolation that holds here."""
    if request.param not in names():
        pytest.skip(f"{request.param} does not hold on this machine")
    return CodeTests(extract="whole", limits=LIMITS, levels=(request.param,))

"""Config files of the tests."""

import pytest


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Makes files in the working directory: `files(base=..., more=...)` -> their names."""
    monkeypatch.chdir(tmp_path)

    def make(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
        return [f"{name}.toml" for name in texts]

    return make

"""The small run that is planned, as a file."""

import pytest
from planned import CONFIG


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "planned.toml"
    path.write_text(CONFIG)
    return path

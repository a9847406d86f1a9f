"""A real pretrained model, where one lies."""

import os
from pathlib import Path

import pytest


def smollm2():
    """Where SmolLM2-135M-Instruct lies, or why the test is skipped."""
    tool = Path(__file__).parents[1] / ".." / "shared" / "tools" / "get_smollm2.py"
    if not tool.is_file():
        pytest.skip("no ../shared/tools/get_smollm2.py beside the project")
    folder = os.environ.get("JAXRL_VR_SMOLLM2")
    if not folder:
        pytest.skip("set JAXRL_VR_SMOLLM2 to the folder that get_smollm2.py made")
    return Path(folder)

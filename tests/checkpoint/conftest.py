"""Where the tests of checkpoints keep their arrays."""

import pytest
from saved_states import mesh_of

from jaxrl_vr.sharding import replicated


@pytest.fixture
def one():
    """Whole, on one device."""
    return replicated(mesh_of(1))

"""Losses are called from other people's programs: they may mix no dtypes by accident."""

import jax
import pytest


@pytest.fixture(autouse=True)
def strict_dtypes():
    """No implicit promotion of dtypes."""
    with jax.numpy_dtype_promotion("strict"):
        yield

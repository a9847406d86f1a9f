"""The Hugging Face folders of the tests, reading them, and comparing what was read."""

from pathlib import Path

import jax
import numpy as np

from jaxrl_vr.models import hf
from jaxrl_vr.sharding import TRAIN_RULES

FIXTURES = sorted(p for p in (Path(__file__).parent / "models" / "fixtures").iterdir())


def read(folder, mesh, **kwargs):
    """Architecture and parameters of a folder, under the learner's rules."""
    return hf.load(folder, rules=TRAIN_RULES, mesh=mesh, **kwargs)


def same(a, b):
    """Equal trees, bit for bit."""
    return jax.tree.all(
        jax.tree.map(lambda x, y: np.array_equal(x, y) and x.dtype == y.dtype, a, b)
    )

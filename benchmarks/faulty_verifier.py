"""The math verifier, but for responses that hang or crash it on purpose."""

from __future__ import annotations

import os

from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.math_answer import math_answer

HANG, CRASH = "hang", "crash"


def score(example: Example, response: str) -> Score:
    """Hangs or ends its process where the response says so."""
    if response == HANG:
        while True:
            pass
    if response == CRASH:
        os._exit(3)
    return math_answer(example, response)

"""A moving average of the weights that train: what a config says of it, and one step of it.

What keeps it is in state.py, what moves it in update.py, what reads it in loop.py.
"""

from __future__ import annotations

from typing import Any

import jax
from pydantic import Field, model_validator

from jaxrl_vr.config import Config


class Ema(Config):
    """Exponential moving average of a stage's weights over its optimizer steps (an average as in
    Polyak and Juditsky 1992, https://doi.org/10.1137/0330046, that forgets). It costs one more
    float32 copy of them. It begins as the weights that the stage starts from, so nothing has to be
    corrected for its start; a skipped update leaves it as it is."""

    decay: float = Field(gt=0, le=0.999999)  # 1 - decay is taken in float32
    """Share of the average that an optimizer step keeps: it looks back over about 1 / (1 - decay)
    optimizer steps, so choose it by the length of the stage: 0.99 for some hundreds, 0.999 for
    thousands."""
    evaluate: bool = True
    """Evaluations along the way are of the average; false: of the weights that train. Rollouts are
    always sampled from those that train."""
    final: bool = True
    """The stage ends with the average: later stages, evaluations and exports take it. False: with
    the weights that trained."""

    @model_validator(mode="after")
    def _check(self) -> Ema:
        if not (self.evaluate or self.final):
            raise ValueError(
                "evaluate = false and final = false: nobody would read the average; set one of "
                "them to true, or leave ema out"
            )
        return self


def moved(average: Any, weights: Any, decay: float | jax.Array) -> Any:
    """decay x average + (1 - decay) x weights, leaf by leaf; trees of the same shapes, float32."""
    # As a difference: where both are equal the average stays, whatever the rounding of 1 - decay.
    return jax.tree.map(lambda a, w: a + (1 - decay) * (w - a), average, weights)

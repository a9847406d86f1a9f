"""What every data source has: a name, its share of the mixture, template, verifier, limit."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from jaxrl_vr.config import Config
from jaxrl_vr.data.template import PlainTemplate, Template


class SourceBase(Config):
    """Fields common to all sources."""

    name: str = Field(min_length=1)
    """Name in metrics, cursors and messages; each source of a stage has its own."""
    weight: float = Field(default=1.0, gt=0, le=1e9)
    """Share of the draws, relative to the other sources' weights."""
    template: Template = PlainTemplate()
    """How a question becomes the text that the model continues."""
    verifier: dict[str, Any] | None = None
    """Verifier of this source as a table with a `type`; unset is the task's own, if it has one."""
    limit: int | None = Field(default=None, ge=1)
    """Use only the first so many examples; makes a procedural task finite, as evaluation needs."""


HELDOUT = 0.1  # share of all problems; a constant, so that no two configs can disagree on the split


class ProceduralBase(SourceBase):
    """Fields common to the sources that make their problems."""

    split: Literal["train", "heldout"] = "train"
    """`train` or `heldout`: the problems of one are never among those of the other."""
    seed: int | None = None
    """Which problems come in which order; unset is the run's seed for `train` and 0 for `heldout`,
    so that all runs are scored on the same problems."""

    def order_seed(self, run_seed: int) -> int:
        """The seed of the order of problems."""
        if self.seed is not None:
            return self.seed
        return run_seed if self.split == "train" else 0

"""Partial rollouts: a step's sampling is cut at a budget, and what is unfinished goes on later.

Kimi k1.5 (arXiv:2501.12599, section 2.6.2): long completions are sampled over several steps, so
that none of them holds up a step. What waits lies in the data cursor and is saved with it.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, PositiveInt, TypeAdapter, model_validator

from jaxrl_vr.config import Config
from jaxrl_vr.rollout.collect import Started

_KEY = "started"
_STARTED = TypeAdapter(list[Started])


class PartialRollouts(Config):
    """When a step's sampling is cut. What is unfinished keeps its tokens and their log-probs, and
    goes on under the next step's weights."""

    tokens: PositiveInt | None = None
    """Tokens sampled in a step at most, over all completions; None: any number."""
    seconds: float | None = Field(default=None, gt=0)
    """Seconds of a step's sampling at most; runs with it do not repeat exactly. None: no end."""

    @model_validator(mode="after")
    def _check(self) -> PartialRollouts:
        if self.tokens is None and self.seconds is None:
            raise ValueError("partial without a budget never cuts; give it tokens or seconds")
        return self

    def is_spent(self, tokens: int, seconds: float) -> bool:
        """Whether a step that sampled so much, for so long, is to be cut."""
        return (self.tokens is not None and tokens >= self.tokens) or (
            self.seconds is not None and seconds >= self.seconds
        )


def read_started(cursor: dict[str, Any]) -> list[Started]:
    """What the step before left unfinished."""
    return _STARTED.validate_python(cursor.get(_KEY, []))


def with_started(cursor: dict[str, Any], started: list[Started]) -> dict[str, Any]:
    """The cursor with it, as values for JSON."""
    return {**cursor, _KEY: _STARTED.dump_python(started, mode="json")}

"""What every config model is, and the kinds of values that many of them hold."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


class Config(BaseModel):
    """A frozen model; unknown keys are errors, and so are numbers that are inf or nan."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _local(path: str) -> str:
    if "\0" in path:
        raise ValueError("holds a NUL character, which no path may; take it out")
    expanded = os.path.expanduser(path)
    if expanded.startswith("~"):
        fix = f"write the whole path, or ./{path} for a name that begins with ~"
        raise ValueError(f"there is no home folder of {path.split('/')[0]!r}; {fix}")
    return expanded


LocalPath = Annotated[str, AfterValidator(_local)]
"""A path in a config; a `~` at its start is the user's home folder."""

"""From TOML files and overrides, or a part of them, to models."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from jaxrl_vr.config.annotations import with_types
from jaxrl_vr.config.errors import error_of
from jaxrl_vr.config.explain import line_of, origin_of, problems_of
from jaxrl_vr.config.files import merge, read
from jaxrl_vr.config.overrides import override
from jaxrl_vr.config.retyped import with_retyped

M = TypeVar("M", bound=BaseModel)


def load(model: type[M], files: Sequence[str | Path], overrides: Sequence[str] = ()) -> M:
    """The config that TOML files and overrides describe.

    Files merge from left to right: tables merge, and so do lists of tables that have names, item
    by item of the same name; a new name stands before the next one of its file that is known, or
    behind all. Everything else replaces. Then each override
    `a.b=value` sets one key. Its value is TOML, or a plain word where that is not TOML. A list's
    item is named by index or by its `name`: `stages.rl.steps=3`. Assigning a table or a list
    replaces it. A table that gets another `type` starts anew, with nothing but its `name` kept; one
    without a `type` has that of the field's default. Values are checked strictly: "3" is no number.

    Raises:
      ConfigError: what is wrong with the files and the overrides, all of it.
    """
    data: dict[str, Any] = {}
    sources: list[tuple[str, Any]] = []  # (file, its content)
    for file in files:
        content = read(Path(file))
        sources.append((str(file), content))
        data = merge(data, copy.deepcopy(content))
    placed = override(data, overrides)
    data = with_types(model, data)
    try:
        return model.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        problems = with_retyped(model, data, problems_of(model, data, error), sources)
    raise error_of(
        f"{origin_of(problem, sources, placed, data)}: {line_of(problem, data)}"
        for problem in problems
    )


def parse(kind: Any, data: Any, *, at: str = "") -> Any:
    """`data`, as it comes from TOML or JSON, as the config type `kind` (a model or a union).

    Raises:
      ConfigError: what is wrong, with keys that start at `at`.
    """
    try:
        return TypeAdapter(kind).validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        problems = problems_of(kind, data, error)
    dot = "." if at else ""
    raise error_of(f"{at}{dot}{line_of(problem, data)}" for problem in problems)

"""A verifier written elsewhere, named by its import path."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field, PrivateAttr, model_validator

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Score


class Custom(Config):
    """Calls `function(example, response, **kwargs)`, which returns a Score, a float or a bool.

    A bool is right or wrong; a number is the value, and right from 1 on. What the function raises
    makes the response unscorable.
    """

    type: Literal["custom"] = "custom"
    path: str
    """Import path of the function: `package.module:function`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further keyword arguments of the function."""
    _function: Callable[..., Any] = PrivateAttr()

    @model_validator(mode="after")
    def _resolve(self) -> Custom:
        self._function = _load(self.path)
        try:
            inspect.signature(self._function).bind("example", "response", **self.kwargs)
        except TypeError as error:
            raise ValueError(
                f"kwargs {sorted(self.kwargs)} do not fit {self.path!r}: {error}; it is called as "
                "function(example, response, **kwargs)"
            ) from error
        return self

    def answer(self, example: Example, response: str) -> None:
        """A custom verifier does not tell what it took for the answer."""

    def __call__(self, example: Example, response: str) -> Score:
        """The function's judgement as a Score."""
        result = self._function(example, response, **self.kwargs)
        if isinstance(result, Score):
            return result
        if not isinstance(result, bool | int | float):
            raise TypeError(
                f"{self.path} returned {type(result).__name__}; return a Score, a float or a bool"
            )
        value = float(result)
        if not math.isfinite(value):
            raise ValueError(f"{self.path} returned {value}; return a finite number")
        return Score(value, "right" if value >= 1 else "wrong")


def _load(path: str) -> Callable[..., Any]:
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ValueError(f"path {path!r}: write it as 'package.module:function'")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(
            f"path {path!r}: cannot import {module_name!r} ({error}); install it, or start the run "
            "where it can be imported"
        ) from error
    function = getattr(module, name, None)
    if function is None:
        raise ValueError(f"path {path!r}: module {module_name!r} has no {name!r}")
    if not callable(function):
        raise ValueError(f"path {path!r}: {name!r} is a {type(function).__name__}, not a function")
    return function

"""A verifier written elsewhere, named by its import path.

A config is built without importing anything: the module may do whatever it likes, hang included,
and the place for that is a worker of the pool. `load` imports it.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import keyword
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.judgement import BadScore, checked, number
from jaxrl_vr.verifiers.text import one_line


class Custom(Config):
    """Calls `function(example, response, **kwargs)`, which returns a Score, a float or a bool.

    A bool is right or wrong; a number is the value, and right from 1 on. What the function raises
    makes the response unscorable, as does a number that is not finite or beyond a million.
    """

    needs_reference: ClassVar[bool] = False
    type: Literal["custom"] = "custom"
    path: str
    """Import path of the function: `package.module:function`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further keyword arguments of the function."""

    @field_validator("path")
    @classmethod
    def _is_path(cls, path: str) -> str:
        module, _, function = path.partition(":")
        names = [*module.split("."), function]
        if not all(name.isidentifier() and not keyword.iskeyword(name) for name in names):
            raise ValueError("write it as 'package.module:function'")
        return path

    def load(self) -> Callable[..., Any]:
        """The function, imported.

        Raises:
          ValueError: it cannot be imported, is no function, or does not take `kwargs`.
        """
        function = _load(self.path)
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            return function  # compiled code may have none; a call will tell
        try:
            signature.bind("example", "response", **self.kwargs)
        except TypeError as error:
            given = f" with kwargs {sorted(self.kwargs)}" if self.kwargs else ""
            raise ValueError(
                f"path {self.path!r}: the function cannot be called as "
                f"function(example, response, **kwargs){given}: {error}"
            ) from error
        return function

    def answer(self, example: Example, response: str) -> None:
        """A custom verifier does not tell what it took for the answer."""

    def __call__(self, example: Example, response: str) -> Score:
        """The function's judgement as a Score."""
        result = self.load()(example, response, **self.kwargs)
        if isinstance(result, Score):
            return checked(result, self.path)
        if not isinstance(result, bool | int | float):
            got = type(result).__name__
            raise BadScore(f"{self.path} returned {got}; return a Score, a float or a bool")
        value = number(result, self.path, "value")
        return Score(value, "right" if value >= 1 else "wrong")


@functools.lru_cache(maxsize=256)
def _load(path: str) -> Callable[..., Any]:
    module_name, _, name = path.partition(":")
    # The boundary where whatever a module raises becomes a message.
    try:
        module = importlib.import_module(module_name)
        function = getattr(module, name, None)
        names = dir(module)
    except ImportError as error:
        raise ValueError(
            f"path {path!r}: cannot import {module_name!r} ({one_line(str(error))}); install it, "
            "or start the run where it can be imported"
        ) from error
    except MemoryError:
        raise
    except BaseException as error:
        cause = one_line(f"{type(error).__name__}: {error}")
        raise ValueError(
            f"path {path!r}: importing {module_name!r} raised {cause}; mend the module"
        ) from error
    if function is None:
        near = difflib.get_close_matches(name, names, 1)
        fix = f"did you mean {near[0]!r}?" if near else "name a function of it"
        raise ValueError(f"path {path!r}: module {module_name!r} has no {name!r}; {fix}")
    if not callable(function):
        got = type(function).__name__
        raise ValueError(f"path {path!r}: {name!r} is a {got}, not a function")
    return function

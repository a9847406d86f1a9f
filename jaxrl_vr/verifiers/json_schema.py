"""JSON: the response is one JSON value, and of the form that a JSON Schema describes.

Needs the extra `schema`. References in a schema stay within it: nothing is fetched.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.extract import after_thinking
from jaxrl_vr.verifiers.text import one_line


class JsonSchema(Config):
    """The text behind the thinking is valid JSON, also in a code fence, and fits the schema.

    Numbers that JSON does not have (NaN, infinite ones) are not valid. The schema of an example may
    stand in its reference.
    """

    type: Literal["json_schema"] = "json_schema"
    definition: dict[str, Any] = Field(default_factory=dict)
    """The schema, by default of draft 2020-12; empty: the reference of each example is one."""
    where: Literal["whole", "last_fence"] = "whole"
    """The `whole` text is the JSON, or the last block between code fences, with text around it."""

    @field_validator("definition")
    @classmethod
    def _is_schema(cls, definition: dict[str, Any]) -> dict[str, Any]:
        if definition:
            _checked(definition)
        return definition

    @property
    def needs_reference(self) -> bool:
        """Whether the schema stands in the reference."""
        return not self.definition

    def load(self) -> None:
        """Imports the package.

        Raises:
          ValueError: it is missing.
        """
        _package()

    def answer(self, example: Example, response: str) -> None:
        """A form is no answer."""

    def __call__(self, example: Example, response: str) -> Score:
        """Scores 1 if the JSON fits the schema, 0 otherwise."""
        try:
            schema = self.definition or _checked(_loads(example.reference))
        except (ValueError, RecursionError) as error:
            return Score(0.0, "unscorable", reason=f"the reference: {one_line(str(error))}")
        text = after_thinking(example.prompt, response)
        if text is None:
            return Score(0.0, "no_answer", reason="the thinking is not closed")
        text = _unfenced(text) if self.where == "whole" else _last_fence(text)
        if not text:
            return Score(0.0, "no_answer", reason="no text, or no block between code fences")
        try:
            value = _loads(text)
            fault = _fault(value, schema)
        except RecursionError:
            return Score(0.0, "wrong", reason="nested too deep")
        except ArithmeticError as error:  # of numbers beyond what floats hold
            return Score(0.0, "wrong", reason=f"a number is too large: {error}")
        except _Unresolvable as error:
            return Score(0.0, "unscorable", reason=f"the schema: {error}")
        except ValueError as error:
            return Score(0.0, "wrong", reason=f"not JSON: {one_line(str(error), 200)}")
        return Score(0.0, "wrong", reason=fault) if fault else Score(1.0, "right")


class _Unresolvable(Exception):
    """The schema refers to what is not in it."""


def _package() -> Any:
    try:
        import jsonschema
    except ImportError as error:
        raise ValueError(
            "verifier json_schema needs the extra `schema`: pip install 'jaxrl-vr[schema]'"
        ) from error
    return jsonschema


def _checked(schema: Any) -> dict[str, Any]:
    """`schema`, if it is one.

    Raises:
      ValueError: what is wrong with it.
    """
    jsonschema = _package()
    if not isinstance(schema, dict):
        raise ValueError("is no JSON Schema: write an object")
    try:
        jsonschema.validators.validator_for(schema).check_schema(schema)
    except jsonschema.SchemaError as error:
        said = f"{error.json_path}: {one_line(error.message, 200)}"
        raise ValueError(f"is no JSON Schema ({said}); mend it there") from None
    return schema


def _fault(value: Any, schema: Mapping[str, Any]) -> str:
    """Where and by which rule `value` does not fit, or nothing."""
    jsonschema = _package()
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        error = next(kind(schema, registry=Registry()).iter_errors(value), None)
    except Unresolvable as missing:
        raise _Unresolvable(one_line(str(missing), 200)) from None
    # Not the package's own message, which quotes the value however large it is.
    return "" if error is None else f"{error.json_path[:200]} does not fit {error.validator!r}"


def _loads(text: str) -> Any:
    """The JSON value that a text is.

    Raises:
      ValueError: it is none, or holds a number that JSON or Python does not have.
      RecursionError: it is nested too deep.
    """
    return json.loads(text, parse_float=_finite, parse_constant=_refuse)


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _refuse(text: str) -> float:
    raise ValueError(f"{text[:40]} is no number of JSON")


def _unfenced(text: str) -> str:
    """The text without a code fence around all of it."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text[text.index("\n") + 1 : -3].strip()
    return text


def _last_fence(text: str) -> str:
    """What stands in the last block between code fences, or nothing."""
    parts = text.split("```")
    last = (len(parts) - 1) // 2 * 2 - 1
    return parts[last].partition("\n")[2].strip() if last > 0 else ""

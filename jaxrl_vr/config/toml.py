"""TOML: what a text holds, and a config as one."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from jaxrl_vr.config.errors import ConfigError


def toml_content(text: str) -> dict[str, Any]:
    """What the TOML text holds, if it can be written again.

    Raises:
      TOMLDecodeError: it is not TOML.
      ConfigError: it holds what Python does not write or read.
    """
    try:
        content = tomllib.loads(text)
        json.dumps(content, default=str)
    except RecursionError:
        raise ConfigError("lists or tables lie too deep in each other; flatten them") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # the one left: Python converts no integer of more digits
        raise ConfigError("holds an integer of more than 4300 digits; shorten it") from error
    return content


def dump(config: BaseModel) -> str:
    """The resolved config as TOML, which `load` reads back. What is None is left out."""
    return "\n".join(_toml_table(plain(config), "")).strip("\n") + "\n"


def plain(value: Any) -> Any:
    """A config as the dicts, lists and scalars of TOML; what is None is left out."""
    # Not pydantic's JSON: that has no inf.
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def _toml_table(table: Mapping[str, Any], path: str) -> Iterator[str]:
    """Lines of a table: its plain values, then the tables in it."""
    inner = {key: value for key, value in table.items() if _is_header(value)}
    for key, value in table.items():
        if key not in inner:
            yield f"{_toml_key(key)} = {toml_value(value, is_long=True)}"
    for key, value in inner.items():
        at = f"{path}.{_toml_key(key)}" if path else _toml_key(key)
        if isinstance(value, Mapping):
            if not value or any(not _is_header(v) for v in value.values()):
                yield f"\n[{at}]"
            yield from _toml_table(value, at)
        else:
            for item in value:
                yield f"\n[[{at}]]"
                yield from _toml_table(item, at)


def _is_header(value: Any) -> bool:
    """Whether a value is written under a header of its own."""
    is_tables = isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value)
    return isinstance(value, Mapping) or bool(is_tables)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)


def toml_value(value: Any, *, is_long: bool = False) -> str:
    """A value in TOML, on one line unless it is text with line breaks and `is_long`."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case Mapping():
            items = ", ".join(f"{_toml_key(str(k))} = {toml_value(v)}" for k, v in value.items())
            return f"{{ {items} }}" if items else "{}"
        case list() | tuple():
            return f"[{', '.join(toml_value(v) for v in value)}]"
        case str() if is_long and "\n" in value:
            # JSON's escapes are TOML's, but for one character.
            lines = [toml_value(line)[1:-1] for line in value.split("\n")]
            return '"""\n' + "\n".join(lines) + '"""'
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case None:
            raise ConfigError("TOML has no word for None inside a list; leave the item out")
    return str(value)

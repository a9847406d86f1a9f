"""Overrides `a.b=value`: what they say, and setting the key that they name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_vr.config.errors import ConfigError, error_of, nearest, short
from jaxrl_vr.config.files import only_name
from jaxrl_vr.config.keys import MISSING, Key, is_within, names_of, spell, value_at
from jaxrl_vr.config.toml import toml_content, toml_value


def override(data: dict[str, Any], overrides: Sequence[str]) -> list[Key]:
    """Sets each override in `data`; returns where they are."""
    placed: list[Key] = []
    wrong = []
    for text in overrides:
        try:
            placed.append(_set(data, *_split(text), dict(zip(placed, overrides, strict=False))))
        except ConfigError as error:
            wrong.append(f"command line: {short(text)}: {error}")
            placed.append(())
    if wrong:
        raise error_of(wrong)
    return placed


def _split(text: str) -> tuple[list[str], Any]:
    key, is_assignment, value = text.partition("=")
    key, value = key.strip(), value.strip()
    parts = key.split(".")
    if re.search("[\ud800-\udfff]", text):  # how the shell's other bytes arrive
        raise ConfigError("is not UTF-8 text; write it as such")
    if not is_assignment or not all(parts):
        raise ConfigError("is not an override; write key=value, as in stages.rl.steps=3")
    if key.startswith("-"):
        raise ConfigError(f"overrides have no dashes; write {key.lstrip('-')}={value}")
    try:
        content = toml_content(f"v = {value}")
    except tomllib.TOMLDecodeError as error:
        if value[:1] in tuple("[{\"'"):
            raise ConfigError(f"the value is not TOML: {error}; mind the shell's quotes") from error
        return parts, value
    return parts, content["v"] if len(content) == 1 else value


def _set(data: dict[str, Any], parts: list[str], value: Any, earlier: Mapping[Key, str]) -> Key:
    """Sets one key in `data`, making tables on the way; returns where it is."""
    node: Any = data
    path: list[str | int] = []
    while True:
        _refuse_brackets(data, node, parts, path)
        step, used = _item(node, parts, path) if isinstance(node, list) else (parts[0], 1)
        if not isinstance(node, list | dict):
            raise ConfigError(
                f"{spell(data, path)} is {short(toml_value(node))}, which has no keys"
            )
        path.append(step)
        parts = parts[used:]
        if not parts:
            break
        inner = value_at(node, step)
        if inner is MISSING:
            _put(node, step, inner := {})
        node = inner
    if isinstance(node, dict) and step == "type" and node.get("type", value) != value:
        _start_anew(node, tuple(path[:-1]), earlier)
    _put(node, step, value)
    return tuple(path)


def _put(node: Any, step: str | int, value: Any) -> None:
    node[step] = value


def _start_anew(table: dict[str, Any], path: Key, earlier: Mapping[Key, str]) -> None:
    for key, text in earlier.items():
        if is_within(key, path) and key[len(path)] not in ("name", "type"):
            raise ConfigError(
                f"another type drops {text}, which stands before it; put the type first"
            )
    kept = only_name(table)
    table.clear()
    table.update(kept)


def _refuse_brackets(data: Any, node: Any, parts: Sequence[str], path: Sequence[str | int]) -> None:
    """Raises ConfigError where the next of `parts` is an item of a list as Python writes it."""
    meant = re.fullmatch(r"([^.\[]+)\[['\"]?([^\]]*?)['\"]?\]\.?(.*)", ".".join(parts))
    if not meant:
        return
    items = value_at(node, meant[1])
    if isinstance(node, list) and meant[1] in names_of(node):
        behind = ".".join(filter(None, meant.groups()))
        raise ConfigError(f"a key is named behind a dot; write {spell(data, path)}.{behind}")
    if not isinstance(items, list):
        return
    where, names = [*path, meant[1]], names_of(items)
    index = names.index(meant[2]) if meant[2] in names else meant[2]
    if isinstance(index, int) or (index.isdecimal() and int(index) < len(items)):
        shown, known = spell(data, [*where, int(index)]), ""
    else:
        shown = f"{spell(data, where)}.NAME"
        known = f"; there are {', '.join(_known(names)) or 'none'}"
    rest = f".{meant[3]}" if meant[3] else ""
    raise ConfigError(f"an item of a list is named behind a dot; write {shown}{rest}{known}")


def _known(names: Sequence[str]) -> list[str]:
    return [name or str(index) for index, name in enumerate(names)]


def _item(items: list[Any], parts: list[str], path: Sequence[str | int]) -> tuple[int, int]:
    """Index of the item that the first of `parts` name, and how many parts that takes."""
    names = names_of(items)
    for used in range(len(parts), 0, -1):  # a name may hold dots
        if names.count(".".join(parts[:used])) == 1:
            return names.index(".".join(parts[:used])), used
    if parts[0].isdecimal() and int(parts[0]) < len(items):
        return int(parts[0]), 1
    where = ".".join(map(str, path))
    known = _known(names)
    near = nearest(parts[0], known, listed=False)
    fix = near or nearest(parts[0], known)
    is_of_item = len(parts) == 1 and any(isinstance(item, dict) for item in items)
    if is_of_item and not near:
        fix += f", each with keys of its own, as in {where}.{known[0]}.{parts[0]}"
    raise ConfigError(f"{where} has no item {parts[0]!r}; {fix}")

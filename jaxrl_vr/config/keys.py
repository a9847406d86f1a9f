"""Keys: where a value is in what a config's files hold, and how that is written.

An item of a list goes by its index or, where it is a table with a name of its own, by that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Key = tuple[str | int, ...]  # where a value is: names of tables, indices of lists
MISSING: Any = object()


def value_at(node: Any, step: str | int) -> Any:
    """What a table or a list has under a name or an index, or MISSING."""
    if isinstance(node, Mapping):
        return node.get(step, MISSING)
    if isinstance(node, list) and isinstance(step, int) and step < len(node):
        return node[step]
    return MISSING


def names_of(items: Any) -> list[str]:
    """The `name` of each item of a list, "" where it has none."""
    names = [item.get("name") if isinstance(item, Mapping) else None for item in items]
    return [name if isinstance(name, str) else "" for name in names]


def are_named(items: list[Any]) -> bool:
    """Whether all are tables, each with a name of its own."""
    names = names_of(items)
    return "" not in names and len(set(names)) == len(names)


def is_within(loc: Sequence[str | int], outer: Sequence[str | int]) -> bool:
    """Whether a key lies inside of what is at another."""
    return len(loc) > len(outer) and loc[: len(outer)] == outer


def spell(node: Any, key: Sequence[str | int]) -> str:
    """The key with dots, a list's items by name where they have one of their own."""
    parts = []
    for step in key:
        names = names_of(node) if isinstance(node, list) else []
        name = names[step] if isinstance(step, int) and step < len(names) else ""
        parts.append(name if name and names.count(name) == 1 else str(step))
        node = value_at(node, step)
    return ".".join(parts)


def with_names(node: Any, key: Key) -> Key:
    """The key with the names of items in the place of their indices, where all have their own."""
    steps: list[str | int] = []
    for step in key:
        names = names_of(node) if isinstance(node, list) and are_named(node) else []
        steps.append(names[step] if isinstance(step, int) and step < len(names) else step)
        node = value_at(node, step)
    return tuple(steps)


def found(content: Any, key: Key) -> Any:
    """What a file's content has at the key, whose items go by name, or MISSING."""
    for step in key:
        if isinstance(content, list) and isinstance(step, str):
            names = names_of(content)
            step = names.index(step) if step in names else len(names)
        content = value_at(content, step)
    return content

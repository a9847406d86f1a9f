"""What differs between two configs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from jaxrl_vr.config.errors import short
from jaxrl_vr.config.keys import names_of
from jaxrl_vr.config.toml import plain, toml_value


def difference(
    old: BaseModel | Mapping[str, Any],
    new: BaseModel | Mapping[str, Any],
    *,
    may_change: Sequence[str],
) -> list[str]:
    """What differs between two configs though it may not: lines "key: was X, now Y".

    Args:
      old: a config, or its content as `tomllib` reads a dump.
      new: the config to compare.
      may_change: dotted keys that may differ with all they hold; `*` is any one key, and a list's
        item counts by its `name`: "eval", "stages.*.steps".
    """
    allowed = [tuple(pattern.split(".")) for pattern in may_change]
    return list(_changes(plain(old), plain(new), (), allowed))


def _changes(old: Any, new: Any, key: tuple[str, ...], may: list[tuple[str, ...]]) -> Iterator[str]:
    if _is_allowed(key, may):
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        types_differ = old.get("type") != new.get("type") and not _is_allowed((*key, "type"), may)
        # What else differs follows from the type, so it is not worth a line.
        for name in ["type"] if types_differ else dict.fromkeys([*old, *new]):
            yield from _changes(old.get(name), new.get(name), (*key, name), may)
    elif _is_named(old) and _is_named(new):
        yield from _changes(_by_name(old), _by_name(new), key, may)
        common = [[n for n in names_of(a) if n in names_of(b)] for a, b in ((old, new), (new, old))]
        if common[0] != common[1]:
            was, now = map(toml_value, common)
            yield f"{'.'.join(key)}: was in the order {was}, now {now}"
    elif old != new and repr(old) != repr(new):  # nan is equal to nan here
        was, now = ("not set" if v is None else short(toml_value(v)) for v in (old, new))
        yield f"{'.'.join(key)}: was {was}, now {now}"


def _is_allowed(key: tuple[str, ...], may: list[tuple[str, ...]]) -> bool:
    return any(
        len(pattern) <= len(key) and all(p in ("*", k) for p, k in zip(pattern, key, strict=False))
        for pattern in may
    )


def _is_named(value: Any) -> bool:
    """Whether this is a list of tables, each with a name of its own."""
    names = names_of(value) if isinstance(value, list | tuple) else []
    return bool(names) and all(names) and len(set(names)) == len(names)


def _by_name(items: Any) -> dict[str, Any]:
    return {item["name"]: item for item in items}

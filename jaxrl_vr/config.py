"""Config models and the way from TOML files and `a.b=value` to them and back.

`load` merges files and overrides and checks them against a model; `dump` writes a resolved config;
`difference` compares two. Not here: any option. Those are models beside the code that reads them.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import difflib
import json
import os
import re
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

M = TypeVar("M", bound=BaseModel)
Key = tuple[str | int, ...]  # where a value is: names of tables, indices of lists
WIDTH = 60  # characters of a value that a message quotes
MISSING: Any = object()


class Config(BaseModel):
    """A frozen model; unknown keys are errors, and so are numbers that are inf or nan."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ConfigError(ValueError):
    """A config that cannot be used; the message names file, key, value and fix, one a line."""


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


@dataclasses.dataclass(frozen=True)
class _Problem:
    key: Key
    text: str  # reads on behind "key = value: "
    is_in_table: bool = False  # about something that is not there, so `key` is not in any file


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
        content = _read(Path(file))
        sources.append((str(file), content))
        data = _merge(data, copy.deepcopy(content))
    placed = _override(data, overrides)
    data = _with_types(model, data)
    try:
        return model.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        problems = _problems(model, data, error)
    raise _error(
        f"{_origin(problem, sources, placed, data)}: {_line(problem, data)}" for problem in problems
    )


def parse(kind: Any, data: Any, *, at: str = "") -> Any:
    """`data`, as it comes from TOML or JSON, as the config type `kind` (a model or a union).

    Raises:
      ConfigError: what is wrong, with keys that start at `at`.
    """
    try:
        return TypeAdapter(kind).validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        problems = _problems(kind, data, error)
    dot = "." if at else ""
    raise _error(f"{at}{dot}{_line(problem, data)}" for problem in problems)


def dump(config: BaseModel) -> str:
    """The resolved config as TOML, which `load` reads back. What is None is left out."""
    return "\n".join(_toml_table(_plain(config), "")).strip("\n") + "\n"


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
    return list(_changes(_plain(old), _plain(new), (), allowed))


# Files and overrides


def _read(file: Path) -> dict[str, Any]:
    text = ""
    try:
        text = file.read_bytes().decode("utf-8-sig")  # editors on Windows put a mark in front
        return _toml_content(text)
    except FileNotFoundError:
        folder = file.parent
        others = [p.name for p in folder.iterdir() if p.is_file()] if folder.is_dir() else []
        near = difflib.get_close_matches(file.name, others, 1)
        fix = f"did you mean {folder / near[0]}?" if near else "check the path"
        raise ConfigError(f"{file}: there is no such file; {fix}") from None
    except OSError as error:
        fix = "give a TOML file"
        raise ConfigError(f"{file}: cannot be read ({error.strerror}); {fix}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8 text ({error.reason}); save it as such") from error
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        lines = text.splitlines()
        at = int(found[1]) if found else len(lines)
        line = lines[at - 1].strip() if 0 < at <= len(lines) else ""
        shown = f": {_short(line)}" if line else ""
        raise ConfigError(f"{file}: is not TOML: {error}{shown}") from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def _toml_content(text: str) -> dict[str, Any]:
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


def _merge(low: Any, high: Any) -> Any:
    if isinstance(low, list) and isinstance(high, list) and _are_named(low) and _are_named(high):
        return _merge_named(low, high)
    if not (isinstance(low, dict) and isinstance(high, dict)):
        return high
    if "type" in low and "type" in high and low["type"] != high["type"]:
        return _only_name(low) | high
    return low | {key: _merge(low.get(key), value) for key, value in high.items()}


def _merge_named(low: list[Any], high: list[Any]) -> list[Any]:
    of_high = {item["name"]: item for item in high}
    known = {item["name"] for item in low}
    before: dict[str, list[Any]] = collections.defaultdict(list)
    new: list[Any] = []
    for item in high:
        if item["name"] in known:
            before[item["name"]], new = new, []
        else:
            new.append(_merge(None, item))
    merged = []
    for item in low:
        name = item["name"]
        merged += before[name]
        merged.append(_merge(item, of_high[name]) if name in of_high else item)
    return merged + new


def _are_named(items: list[Any]) -> bool:
    """Whether all are tables, each with a name of its own."""
    names = _names(items)
    return "" not in names and len(set(names)) == len(names)


def _only_name(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key == "name"}


def _override(data: dict[str, Any], overrides: Sequence[str]) -> list[Key]:
    """Sets each override in `data`; returns where they are."""
    placed: list[Key] = []
    wrong = []
    for text in overrides:
        try:
            placed.append(_set(data, *_split(text), dict(zip(placed, overrides, strict=False))))
        except ConfigError as error:
            wrong.append(f"command line: {_short(text)}: {error}")
            placed.append(())
    if wrong:
        raise _error(wrong)
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
        content = _toml_content(f"v = {value}")
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
        step, used = _item(node, parts, path) if isinstance(node, list) else (parts[0], 1)
        if not isinstance(node, list | dict):
            raise ConfigError(f"{_spell(data, path)} is {_short(_toml(node))}, which has no keys")
        path.append(step)
        parts = parts[used:]
        if not parts:
            break
        inner = _at(node, step)
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
        if _is_inside(key, path) and key[len(path)] not in ("name", "type"):
            raise ConfigError(
                f"another type drops {text}, which stands before it; put the type first"
            )
    kept = _only_name(table)
    table.clear()
    table.update(kept)


def _item(items: list[Any], parts: list[str], path: Sequence[str | int]) -> tuple[int, int]:
    """Index of the item that the first of `parts` name, and how many parts that takes."""
    names = _names(items)
    for used in range(len(parts), 0, -1):  # a name may hold dots
        if names.count(".".join(parts[:used])) == 1:
            return names.index(".".join(parts[:used])), used
    if parts[0].isdecimal() and int(parts[0]) < len(items):
        return int(parts[0]), 1
    where = ".".join(map(str, path))
    known = [name or str(index) for index, name in enumerate(names)]
    raise ConfigError(f"{where} has no item {parts[0]!r}; {_nearest(parts[0], known)}")


def _names(items: Any) -> list[str]:
    """The `name` of each item of a list, "" where it has none."""
    names = [item.get("name") if isinstance(item, Mapping) else None for item in items]
    return [name if isinstance(name, str) else "" for name in names]


# Types: the parts of an annotation that matter here


def _bare(annotation: Any) -> Any:
    """The annotation without Annotated and without None."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) in (Union, types.UnionType):
            members = [a for a in get_args(annotation) if a is not type(None)]
            if len(members) == len(get_args(annotation)):
                return annotation
            annotation = members[0] if len(members) == 1 else Union[tuple(members)]  # noqa: UP007
        else:
            return annotation


def _members(annotation: Any) -> list[Any]:
    """The members of a union; any other type is its own single member."""
    annotation = _bare(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        return [member for a in get_args(annotation) for member in _members(a)]
    return [annotation]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _kind(annotation: Any) -> Literal["table", "list", "scalar"]:
    """What a value of this type is in TOML."""
    origin = get_origin(annotation) or annotation
    if not isinstance(origin, type) or issubclass(origin, str | bytes):
        return "scalar"
    if issubclass(origin, BaseModel | Mapping):
        return "table"
    return "list" if issubclass(origin, Sequence | set | frozenset) else "scalar"


def _tags(model: Any) -> tuple[str, ...]:
    """Values of `type` that select the model."""
    field = model.model_fields.get("type") if _is_model(model) else None
    return get_args(field.annotation) if field and get_origin(field.annotation) is Literal else ()


def _selected(annotation: Any, value: Any) -> list[Any]:
    """The members of a union that `value` can be meant for, all of them where none fits."""
    members = _members(annotation)
    kind = (
        "table" if isinstance(value, Mapping) else "list" if isinstance(value, list) else "scalar"
    )
    fitting = [member for member in members if _kind(member) == kind]
    tag = value.get("type") if isinstance(value, Mapping) else None
    return [m for m in fitting if tag in _tags(m)] or fitting or members


def _inner(annotation: Any, step: str | int) -> Any:
    """The type of what is at `step` inside a value of this type."""
    if _is_model(annotation):
        field = annotation.model_fields.get(step)
        return field.annotation if field else Any
    arguments = get_args(annotation)
    if not arguments:
        return Any
    if _kind(annotation) == "table":
        return arguments[-1]
    is_pair = get_origin(annotation) is tuple and arguments[-1] is not ...
    return arguments[step] if is_pair and isinstance(step, int) else arguments[0]


def _with_types(annotation: Any, data: Any, default: Any = None) -> Any:
    """`data` with the `type` that a table leaves out where its field has a default."""
    members = _members(annotation)
    if isinstance(data, dict):
        tag = getattr(default, "type", None)
        if "type" not in data and len(members) > 1 and any(tag in _tags(m) for m in members):
            data = {"type": tag} | data
    selected = _selected(annotation, data)
    if len(selected) != 1:
        return data
    if isinstance(data, dict):
        fields = selected[0].model_fields if _is_model(selected[0]) else {}
        return {
            key: _with_types(
                _inner(selected[0], key), value, fields[key].default if key in fields else None
            )
            for key, value in data.items()
        }
    if isinstance(data, list) and _kind(selected[0]) == "list":
        return [_with_types(_inner(selected[0], index), v) for index, v in enumerate(data)]
    return data


# Errors


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where an error of pydantic is."""

    key: Key
    value: Any  # what is there, or MISSING
    annotation: Any  # its type; Any for an unknown key
    holder: Any  # type of the table or list that it is in
    holders: list[Any]  # that, and the other members of its union


def _problems(kind: Any, data: Any, error: ValidationError) -> list[_Problem]:
    """The errors, those of one key together, without those of union members not meant."""
    found: dict[tuple[Key, bool], list[tuple[str, str]]] = collections.defaultdict(list)
    entries = error.errors(include_url=False)
    for entry in entries:
        if entry["type"] == "too_short" and any(
            _is_inside(e["loc"], entry["loc"]) for e in entries
        ):
            continue  # pydantic does not count the faulty items
        place = _place(kind, data, entry["loc"])
        if place is not None:
            key, is_in_table, text, fix = _explain(place, cast(dict[str, Any], entry))
            found[key, is_in_table].append((text, fix))
    if not found:
        found[(), False].append((str(error), ""))
    return [
        _Problem(key, _joined([t for t, _ in found_here], [f for _, f in found_here]), is_in_table)
        for (key, is_in_table), found_here in found.items()
    ]


def _is_inside(loc: Sequence[str | int], outer: Sequence[str | int]) -> bool:
    return len(loc) > len(outer) and loc[: len(outer)] == outer


def _joined(texts: Sequence[str], fixes: Sequence[str]) -> str:
    unique = list(dict.fromkeys(texts))
    text = " or ".join([unique[0], *(t.removeprefix("must be ") for t in unique[1:])])
    return "; ".join([text, *[fix for fix in fixes if fix][:1]])


def _place(kind: Any, data: Any, loc: Sequence[str | int]) -> _Place | None:
    """Follows pydantic's location, which names union members too; None in one that is not meant."""
    annotation, value = _bare(kind), data
    key: list[str | int] = []
    holder, holders = annotation, [annotation]
    for step in loc:
        members = _members(annotation)
        if len(members) > 1:
            labelled = next((m for m in members if _is_label(str(step), m)), Any)
            if labelled is not Any and labelled not in _selected(annotation, value):
                return None
            holder, holders, annotation = labelled, members, labelled
            continue
        if holder is not annotation:
            holder, holders = annotation, members
        annotation = _bare(_inner(annotation, step))
        key.append(step)
        value = _at(value, step)
    return _Place(tuple(key), value, annotation, holder, holders)


def _is_label(label: str, member: Any) -> bool:
    """Whether pydantic's name of a union member is that of `member`."""
    if _is_model(member):
        return label in _tags(member) or re.search(rf"\b{member.__name__}\b", label) is not None
    name = getattr(get_origin(member) or member, "__name__", "literal").lower()
    return label.split("[")[0].endswith(name)


def _at(node: Any, step: str | int) -> Any:
    if isinstance(node, Mapping):
        return node.get(step, MISSING)
    if isinstance(node, list) and isinstance(step, int) and step < len(node):
        return node[step]
    return MISSING


def _explain(place: _Place, entry: Mapping[str, Any]) -> tuple[Key, bool, str, str]:
    """Key, whether it is missing, what is wrong with it, and the fix."""
    match entry["type"]:
        case "extra_forbidden":
            return place.key, False, "unknown key", _unknown(place)
        case "missing":
            return place.key, True, f"missing; it must be {_expected(place.annotation)}", ""
        case "union_tag_not_found" | "union_tag_invalid":
            tags = [tag for member in _members(place.annotation) for tag in _tags(member)]
            key, given = (*place.key, "type"), _at(place.value, "type")
            if given is MISSING:
                return key, True, f"missing; it must be {_choices(tags)}", ""
            return key, False, f"must be {_choices(tags)}", _nearest(given, tags, listed=False)
        case "literal_error":
            literals = [m for m in _members(place.annotation) if get_origin(m) is Literal]
            known = [value for member in literals for value in get_args(member)]
            fix = _nearest(place.value, known, listed=False) or _correction(
                place.value, place.annotation
            )
            return place.key, False, f"must be {_choices(known)}", fix
        case "finite_number":
            return place.key, False, "must be a finite number", _default(place)
        case "value_error" | "assertion_error":
            return place.key, False, str(entry["ctx"]["error"]), ""
        case kind if kind.endswith(("_type", "_parsing")) or kind == "int_from_float":
            fix = _correction(place.value, place.annotation)
            return place.key, False, f"must be {_expected(place.annotation)}", fix
    message = re.sub(r"^\w+ should", "must", entry["msg"]).replace(" after validation", "")
    return place.key, False, message, ""


def _default(place: _Place) -> str:
    """The way back to a field's default, where it has one."""
    fields = place.holder.model_fields if _is_model(place.holder) else {}
    default = getattr(fields.get(place.key[-1]), "default", None)
    if not isinstance(default, int | float):
        return ""
    return f"leave it out for the default, {_toml(default)}"


def _unknown(place: _Place) -> str:
    """What may be meant by an unknown key."""
    word = str(place.key[-1])
    if not _is_model(place.holder):
        return ""
    fields = place.holder.model_fields
    for other in place.holders:
        if _is_model(other) and word in other.model_fields and _tags(other):
            here = _choices(_tags(place.holder))
            return f"it belongs to type {_choices(_tags(other))}, and this is {here}"
    for name, field in fields.items():
        if any(_is_model(m) and word in m.model_fields for m in _members(field.annotation)):
            return f"did you mean `{name}.{word}`?"
    return _nearest(word, list(fields))


def _nearest(word: Any, known: Sequence[Any], *, listed: bool = True) -> str:
    near = difflib.get_close_matches(str(word), [str(k) for k in known], 1)
    if near:
        return f"did you mean `{near[0]}`?"
    return f"there are {', '.join(map(str, known)) or 'none'}" if listed else ""


def _choices(values: Sequence[Any]) -> str:
    texts = [_toml(value) for value in values]
    return " or ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _expected(annotation: Any) -> str:
    """What a value of this type is, in words."""
    words = []
    for member in _members(annotation):
        kind = _kind(member)
        if get_origin(member) is Literal:
            words.append(_choices(get_args(member)))
        elif kind != "scalar":
            words.append(f"a {kind}")
        else:
            name = getattr(member, "__name__", "")
            words.append(NAMES.get(name, "text in quotes"))
    return " or ".join(dict.fromkeys(words))


NAMES = {"int": "an integer", "float": "a number", "bool": "true or false"}


def _correction(value: Any, annotation: Any) -> str:
    """How the value would be written right, where that is plain to see."""
    members = _members(annotation)
    if isinstance(value, str):
        try:
            meant = tomllib.loads(f"v = {value.lower()}")["v"]
        except tomllib.TOMLDecodeError:
            meant = None
        if type(meant) in members or (type(meant) is int and float in members):
            return f"write {_toml(meant)}, without quotes"
    if isinstance(value, float) and int in members and value.is_integer():
        return f"write {int(value)}"
    if isinstance(value, bool | int | float) and str in members:
        return f"write {_toml(json.dumps(value))}"
    is_list = any(_kind(member) == "list" for member in members)
    return f"write [{_short(_toml(value))}]" if is_list and value is not MISSING else ""


def _line(problem: _Problem, data: Any) -> str:
    value = data
    for step in problem.key:
        value = _at(value, step)
    key = _spell(data, problem.key)
    # A validator of a whole table names the keys it means itself.
    is_shown = problem.key and value is not MISSING and not isinstance(value, dict)
    shown = f"{key} = {_short(_toml(value))}" if is_shown else key
    return f"{shown}: {problem.text}" if shown else problem.text


def _spell(node: Any, key: Sequence[str | int]) -> str:
    """The key with dots, a list's items by name where they have one of their own."""
    parts = []
    for step in key:
        names = _names(node) if isinstance(node, list) else []
        name = names[step] if isinstance(step, int) and step < len(names) else ""
        parts.append(name if name and names.count(name) == 1 else str(step))
        node = _at(node, step)
    return ".".join(parts)


def _origin(
    problem: _Problem, sources: Sequence[tuple[str, Any]], placed: Sequence[Key], data: Any
) -> str:
    """The file that a wrong value comes from, or the command line."""
    key = problem.key[:-1] if problem.is_in_table else problem.key
    if any(key[: len(path)] == path for path in placed):
        return "command line"
    # What a validator has against a table may lie in an override of something in it.
    is_inside = not problem.is_in_table and any(path[: len(key)] == key for path in placed)
    also = ["command line"] if is_inside else []
    for length in range(len(key), 0, -1):
        part = key[:length]
        # Items of a list are looked up by name: their index may differ from file to file.
        named = _with_names(data, part)
        having = [name for name, content in sources if _has(content, named)]
        if having:
            # Tables merge, so several files may have made this one; the rest is the last file's.
            is_merged = all(isinstance(step, str) for step in named) and length < len(problem.key)
            return ", ".join([*(having if is_merged else having[-1:]), *also])
        if any(path[:length] == part for path in placed):
            return "command line"
    return ", ".join([*(name for name, _ in sources), *also]) or "command line"


def _with_names(node: Any, key: Key) -> Key:
    """The key with the names of items in the place of their indices, where all have their own."""
    steps: list[str | int] = []
    for step in key:
        names = _names(node) if isinstance(node, list) and _are_named(node) else []
        steps.append(names[step] if isinstance(step, int) and step < len(names) else step)
        node = _at(node, step)
    return tuple(steps)


def _has(content: Any, key: Key) -> bool:
    for step in key:
        if isinstance(content, list) and isinstance(step, str):
            names = _names(content)
            step = names.index(step) if step in names else len(names)
        content = _at(content, step)
    return content is not MISSING


def _error(lines: Iterator[str] | Sequence[str]) -> ConfigError:
    lines = list(lines)
    if len(lines) == 1:
        return ConfigError(lines[0])
    text = "\n".join("  " + line.replace("\n", "\n    ") for line in lines)
    return ConfigError(f"{len(lines)} errors in the config:\n{text}")


def _short(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


# TOML out


def _plain(value: Any) -> Any:
    """A config as the dicts, lists and scalars of TOML; what is None is left out."""
    # Not pydantic's JSON: that has no inf.
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def _toml_table(table: Mapping[str, Any], path: str) -> Iterator[str]:
    """Lines of a table: its plain values, then the tables in it."""
    inner = {key: value for key, value in table.items() if _is_header(value)}
    for key, value in table.items():
        if key not in inner:
            yield f"{_toml_key(key)} = {_toml(value, is_long=True)}"
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
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)


def _toml(value: Any, *, is_long: bool = False) -> str:
    """A value in TOML, on one line unless it is text with line breaks and `is_long`."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case Mapping():
            items = ", ".join(f"{_toml_key(str(k))} = {_toml(v)}" for k, v in value.items())
            return f"{{ {items} }}" if items else "{}"
        case list() | tuple():
            return f"[{', '.join(_toml(v) for v in value)}]"
        case str() if is_long and "\n" in value:
            # JSON's escapes are TOML's, but for one character.
            lines = [_toml(line)[1:-1] for line in value.split("\n")]
            return '"""\n' + "\n".join(lines) + '"""'
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case None:
            raise ConfigError("TOML has no word for None inside a list; leave the item out")
    return str(value)


# Comparison


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
        common = [[n for n in _names(a) if n in _names(b)] for a, b in ((old, new), (new, old))]
        if common[0] != common[1]:
            yield f"{'.'.join(key)}: was in the order {_toml(common[0])}, now {_toml(common[1])}"
    elif old != new and repr(old) != repr(new):  # nan is equal to nan here
        was, now = ("not set" if v is None else _short(_toml(v)) for v in (old, new))
        yield f"{'.'.join(key)}: was {was}, now {now}"


def _is_allowed(key: tuple[str, ...], may: list[tuple[str, ...]]) -> bool:
    return any(
        len(pattern) <= len(key) and all(p in ("*", k) for p, k in zip(pattern, key, strict=False))
        for pattern in may
    )


def _is_named(value: Any) -> bool:
    """Whether this is a list of tables, each with a name of its own."""
    names = _names(value) if isinstance(value, list | tuple) else []
    return bool(names) and all(names) and len(set(names)) == len(names)


def _by_name(items: Any) -> dict[str, Any]:
    return {item["name"]: item for item in items}

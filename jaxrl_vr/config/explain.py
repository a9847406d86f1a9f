"""What is wrong with a config: pydantic's errors as lines with the key, the value and the fix."""

from __future__ import annotations

import collections
import dataclasses
import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast, get_args, get_origin

from pydantic import ValidationError

from jaxrl_vr.config.annotations import (
    bare,
    is_model,
    kind_of,
    members_of,
    selected_members,
    tags_of,
    type_at,
)
from jaxrl_vr.config.errors import nearest, short
from jaxrl_vr.config.keys import (
    MISSING,
    Key,
    found,
    is_within,
    names_of,
    spell,
    value_at,
    with_names,
)
from jaxrl_vr.config.toml import toml_value

NAMES = {"int": "an integer", "float": "a number", "bool": "true or false"}
_NONE = ("none", "null", "nil")
_TRUTH: dict[str, bool] = {
    **dict.fromkeys(("1", "yes", "on", "true"), True),
    **dict.fromkeys(("0", "no", "off", "false"), False),
}
_DEPTH = 3
"""Tables in each other through which a key is looked for: some hold tables of their own kind."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is wrong at a key."""

    key: Key
    text: str  # reads on behind "key = value: "
    is_in_table: bool = False  # about something that is not there, so `key` is not in any file


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where an error of pydantic is."""

    key: Key
    value: Any  # what is there, or MISSING
    annotation: Any  # its type; Any for an unknown key
    holder: Any  # type of the table or list that it is in
    holders: list[Any]  # that, and the other members of its union
    within: Any  # the table or list itself


def problems_of(kind: Any, data: Any, error: ValidationError) -> list[Problem]:
    """The errors, those of one key together, without those of union members not meant."""
    found: dict[tuple[Key, bool], list[tuple[str, str]]] = collections.defaultdict(list)
    entries = error.errors(include_url=False)
    for entry in entries:
        if entry["type"] == "too_short" and any(is_within(e["loc"], entry["loc"]) for e in entries):
            continue  # pydantic does not count the faulty items
        place = _place(kind, data, entry["loc"])
        if place is not None:
            key, is_in_table, text, fix = _explain(place, cast(dict[str, Any], entry))
            found[key, is_in_table].append((text, fix))
    if not found:
        found[(), False].append((str(error), ""))
    return [
        Problem(key, _joined([t for t, _ in found_here], [f for _, f in found_here]), is_in_table)
        for (key, is_in_table), found_here in found.items()
    ]


def _joined(texts: Sequence[str], fixes: Sequence[str]) -> str:
    unique = list(dict.fromkeys(texts))
    text = " or ".join([unique[0], *(t.removeprefix("must be ") for t in unique[1:])])
    return "; ".join([text, *[fix for fix in fixes if fix][:1]])


def _place(kind: Any, data: Any, loc: Sequence[str | int]) -> _Place | None:
    """Follows pydantic's location, which names union members too; None in one that is not meant."""
    annotation, value, within = bare(kind), data, data
    key: list[str | int] = []
    holder, holders = annotation, [annotation]
    for step in loc:
        members = members_of(annotation)
        if len(members) > 1:
            labelled = next((m for m in members if _is_label(str(step), m)), Any)
            if labelled is not Any and labelled not in selected_members(annotation, value):
                return None
            holder, holders, annotation = labelled, members, labelled
            continue
        if holder is not annotation:
            holder, holders = annotation, members
        annotation = bare(type_at(annotation, step))
        key.append(step)
        within, value = value, value_at(value, step)
    return _Place(tuple(key), value, annotation, holder, holders, within)


def _is_label(label: str, member: Any) -> bool:
    """Whether pydantic's name of a union member is that of `member`."""
    if is_model(member):
        return label in tags_of(member) or re.search(rf"\b{member.__name__}\b", label) is not None
    name = getattr(get_origin(member) or member, "__name__", "literal").lower()
    return label.split("[")[0].endswith(name)


def _explain(place: _Place, entry: Mapping[str, Any]) -> tuple[Key, bool, str, str]:
    """Key, whether it is missing, what is wrong with it, and the fix."""
    match entry["type"]:
        case "extra_forbidden":
            return place.key, False, "unknown key", _unknown(place)
        case "missing":
            return place.key, True, f"missing; it must be {expected(place.annotation)}", ""
        case "union_tag_not_found" | "union_tag_invalid":
            tags = [tag for member in members_of(place.annotation) for tag in tags_of(member)]
            key, given = (*place.key, "type"), value_at(place.value, "type")
            if given is MISSING:
                return key, True, f"missing; it must be {_choices(tags)}", ""
            return key, False, f"must be {_choices(tags)}", nearest(given, tags, listed=False)
        case "literal_error":
            literals = [m for m in members_of(place.annotation) if get_origin(m) is Literal]
            known = [value for member in literals for value in get_args(member)]
            fix = nearest(place.value, known, listed=False) or _correction(place)
            return place.key, False, f"must be {_choices(known)}", fix
        case "finite_number":
            return place.key, False, "must be a finite number", _default(place)
        case "value_error" | "assertion_error":
            return place.key, False, str(entry["ctx"]["error"]), ""
        case kind if kind.endswith(("_type", "_parsing")) or kind == "int_from_float":
            return place.key, False, f"must be {expected(place.annotation)}", _correction(place)
    message = re.sub(r"^\w+ should", "must", entry["msg"]).replace(" after validation", "")
    return place.key, False, message, ""


def _default_of(place: _Place) -> Any:
    """The default of the field that is there, or MISSING."""
    fields = place.holder.model_fields if is_model(place.holder) and place.key else {}
    return getattr(fields.get(place.key[-1] if fields else ""), "default", MISSING)


def _default(place: _Place) -> str:
    """The way back to a field's default, where it has one."""
    default = _default_of(place)
    if not isinstance(default, int | float):
        return ""
    return f"leave it out for the default, {toml_value(default)}"


def _unknown(place: _Place) -> str:
    """What may be meant by an unknown key."""
    word = str(place.key[-1])
    if not is_model(place.holder):
        return ""
    fields = place.holder.model_fields
    for other in place.holders:
        if is_model(other) and word in other.model_fields and tags_of(other):
            here = _choices(tags_of(place.holder))
            return f"it belongs to type {_choices(tags_of(other))}, and this is {here}"
    for name, items in place.within.items():
        if isinstance(items, list) and names_of(items).count(word) == 1:
            return f"did you mean `{name}.{word}`?"
    inner = "" if _like(word, fields) else _inner(place.holder, word)
    return f"did you mean `{inner}`?" if inner else nearest(word, list(fields))


def _like(word: str, names: Iterable[str]) -> list[str]:
    """The name that is the word but for a letter, if there is one."""
    return difflib.get_close_matches(word, list(names), 1, 0.8)


def _inner(model: Any, word: str) -> str:
    """Where further inside, of what a model's tables and named items hold, is a key, or one like
    it; or ""."""
    level = [(model, "")]
    for _ in range(_DEPTH):
        below = []
        for holder, path in level:
            for name, field in holder.model_fields.items():
                for member in members_of(field.annotation):
                    if is_model(member):
                        below.append((member, f"{path}{name}."))
                    elif _has_named(member):
                        items = members_of(type_at(member, 0))
                        below += [(item, f"{path}{name}.NAME.") for item in items]
        for holder, path in below:
            if word in holder.model_fields:
                return path + word
        for holder, path in below:
            if near := _like(word, holder.model_fields):
                return path + near[0]
        level = below
    return ""


def _has_named(annotation: Any) -> bool:
    """Whether it is a list of tables that have names."""
    items = members_of(type_at(annotation, 0)) if kind_of(annotation) == "list" else []
    return bool(items) and all(is_model(item) and "name" in item.model_fields for item in items)


def _choices(values: Sequence[Any]) -> str:
    texts = [toml_value(value) for value in values]
    return " or ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def expected(annotation: Any) -> str:
    """What a value of this type is, in words."""
    words = []
    for member in members_of(annotation):
        kind = kind_of(member)
        if get_origin(member) is Literal:
            words.append(_choices(get_args(member)))
        elif kind != "scalar":
            words.append(f"a {kind}")
        else:
            name = getattr(member, "__name__", "")
            words.append(NAMES.get(name, "text in quotes"))
    return " or ".join(dict.fromkeys(words))


def _correction(place: _Place) -> str:
    """How the value would be written right, where that is plain to see."""
    value, members = place.value, members_of(place.annotation)
    if isinstance(value, str):
        if value.lower() in _NONE and _default_of(place) is None:
            return f"TOML has no word for {value}, which is the default; leave it out"
        try:
            meant = tomllib.loads(f"v = {value.lower()}")["v"]
        except tomllib.TOMLDecodeError:
            meant = None
        if bool in members:
            meant = _TRUTH.get(value.lower(), meant)
        if type(meant) in members or (type(meant) is int and float in members):
            return f"write {toml_value(meant)}, without quotes"
    if isinstance(value, int) and bool in members and str(value) in _TRUTH:
        return f"write {toml_value(_TRUTH[str(value)])}"
    if isinstance(value, float) and int in members and value.is_integer():
        return f"write {int(value)}"
    if isinstance(value, bool | int | float) and str in members:
        return f"write {toml_value(json.dumps(value))}"
    lists = [member for member in members if kind_of(member) == "list"]
    if lists and value is not MISSING:
        return _as_items(place, lists[0])
    tables = [member for member in members if is_model(member)]
    return _as_table(value, tables) if tables and not isinstance(value, Mapping) else ""


def _as_items(place: _Place, annotation: Any) -> str:
    """How a list would be written that has the value in it."""
    value, items = place.value, members_of(type_at(annotation, 0))
    if _has_named(annotation) and len(place.key) == 1:
        name = place.key[0]
        return (
            f"its items are tables, [[{name}]] in a file; to change one of them, write "
            f"{name}.NAME.key=value"
        )
    if str in items and isinstance(value, bool | int | float):
        value = json.dumps(value)
    if type(value) in items or (type(value) is int and float in items) or Any in items:
        return f"write [{short(toml_value(value))}]"
    if all(is_model(item) for item in items):
        return _as_tables(value, items)
    return ""


def _as_tables(value: Any, models: Sequence[Any]) -> str:
    """How a list of tables would be written that has the one that is meant."""
    if isinstance(value, Mapping):
        return f"write [{short(toml_value(value))}]"
    example, tags = _meant(value, models)
    if not example and len(models) == 1:
        example = _example(models[0])
    if example:
        return f"its items are tables, write [{example}]"
    return f"its items are tables, whose type is {_choices(tags)}"


def _as_table(value: Any, models: Sequence[Any]) -> str:
    """How a table would be written that is of the type, or has the keys, that are meant."""
    example, tags = _meant(value, models)
    if example:
        return f"write {example}"
    if len(models) == 1:
        return f"its keys are {', '.join(models[0].model_fields)}"
    return f"its type is {_choices(tags)}"


def _meant(value: Any, models: Sequence[Any]) -> tuple[str, list[Any]]:
    """A table of the type that the value is like, or ""; and all types."""
    tags = {tag: model for model in models for tag in tags_of(model)}
    near = difflib.get_close_matches(str(value), tags, 1)
    return _example(tags[near[0]], near[0]) if near else "", list(tags)


def _example(model: Any, tag: str | None = None) -> str:
    """A table of this model with what it must have."""
    keys = [name for name, field in model.model_fields.items() if field.is_required()]
    shown = [] if tag is None else [f"type = {toml_value(tag)}"]
    return f"{{ {', '.join([*shown, *(f'{key} = …' for key in keys if key != 'type')])} }}"


def line_of(problem: Problem, data: Any) -> str:
    """The problem in one line: key, value, what is wrong and the fix."""
    value, key = found(data, problem.key), spell(data, problem.key)
    # A validator of a whole table names the keys it means itself.
    is_shown = problem.key and value is not MISSING and not isinstance(value, dict)
    shown = f"{key} = {short(toml_value(value))}" if is_shown else key
    return f"{shown}: {problem.text}" if shown else problem.text


def origin_of(
    problem: Problem, sources: Sequence[tuple[str, Any]], placed: Sequence[Key], data: Any
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
        named = with_names(data, part)
        having = [name for name, content in sources if found(content, named) is not MISSING]
        if having:
            # Tables merge, so several files may have made this one; the rest is the last file's.
            is_merged = all(isinstance(step, str) for step in named) and length < len(problem.key)
            return ", ".join([*(having if is_merged else having[-1:]), *also])
        if any(path[:length] == part for path in placed):
            return "command line"
    return ", ".join([*(name for name, _ in sources), *also]) or "command line"

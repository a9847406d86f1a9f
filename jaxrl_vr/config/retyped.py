"""Tables that get another type, by an override or a later file: what is said of what they lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_vr.config.annotations import bare, selected_members, type_at
from jaxrl_vr.config.errors import short
from jaxrl_vr.config.explain import Problem, expected
from jaxrl_vr.config.keys import MISSING, Key, found, spell, value_at, with_names
from jaxrl_vr.config.toml import toml_value


def with_retyped(
    kind: Any, data: Any, problems: Sequence[Problem], sources: Sequence[tuple[str, Any]]
) -> list[Problem]:
    """The problems, with all that a table of another type lacks as one, which names its type.

    Args:
      kind: the config's type.
      data: what it was made of.
      problems: of `data`.
      sources: each file and its content, of which `data` is made.
    """
    lacking: dict[Key, list[Problem]] = {}
    for problem in problems:
        if problem.is_in_table:
            lacking.setdefault(problem.key[:-1], []).append(problem)
    told = []
    for problem in problems:
        here = lacking.get(problem.key[:-1], []) if problem.is_in_table else []
        before = _before(sources, data, problem.key[:-1]) if here else {}
        if not before:
            told.append(problem)
        elif problem is here[0]:
            told.append(_of_table(kind, data, problem.key[:-1], here, before))
    return told


def _before(sources: Sequence[tuple[str, Any]], data: Any, key: Key) -> dict[str, Any]:
    """What the table had in the files when it was of another type; empty: it never was."""
    tag = value_at(found(data, key), "type")
    before: dict[str, Any] = {}
    is_other = True
    for _, content in sources:
        table = found(content, with_names(data, key))
        given = value_at(table, "type")
        if given is not MISSING:
            is_other = given != tag
            before = before if given in (tag, before.get("type")) else {}
        if is_other and isinstance(table, Mapping):
            before |= table
    return before if "type" in before else {}


def _of_table(
    kind: Any, data: Any, key: Key, lacking: Sequence[Problem], before: Mapping[str, Any]
) -> Problem:
    annotation, table = kind, data
    for step in key:
        annotation = type_at(selected_members(annotation, table)[0], step)
        table = value_at(table, step)
    fields = selected_members(annotation, table)[0].model_fields
    where, tag = spell(data, key), toml_value(table["type"])
    needs = []
    for problem in lacking:
        name = str(problem.key[-1])
        hint = expected(bare(fields[name].annotation))
        if name in before:
            hint = f"was {short(toml_value(before[name]))}"
        needs.append(f"{where}.{name} ({hint})")
    dropped = "all keys but the name" if "name" in table else "all other keys"
    text = f"another type drops {dropped}, so these are missing and to be set: {', '.join(needs)}"
    names = {str(problem.key[-1]) for problem in lacking}
    rest = [name for name in before if name not in names and name not in table]
    also = [name for name in rest if name in fields]
    if also:
        text += f"; dropped too: {', '.join(also)}"
    foreign = [name for name in rest if name not in fields]
    if foreign:
        verb = "does not belong" if len(foreign) == 1 else "do not belong"
        text += f"; {', '.join(foreign)} {verb} to type {tag}"
    return Problem((*key, "type"), text)

"""Types of fields: the parts of an annotation that matter here."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel


def bare(annotation: Any) -> Any:
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


def members_of(annotation: Any) -> list[Any]:
    """The members of a union; any other type is its own single member."""
    annotation = bare(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        return [member for a in get_args(annotation) for member in members_of(a)]
    return [annotation]


def is_model(annotation: Any) -> bool:
    """Whether it is the class of a table."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def kind_of(annotation: Any) -> Literal["table", "list", "scalar"]:
    """What a value of this type is in TOML."""
    origin = get_origin(annotation) or annotation
    if not isinstance(origin, type) or issubclass(origin, str | bytes):
        return "scalar"
    if issubclass(origin, BaseModel | Mapping):
        return "table"
    return "list" if issubclass(origin, Sequence | set | frozenset) else "scalar"


def tags_of(model: Any) -> tuple[str, ...]:
    """Values of `type` that select the model."""
    field = model.model_fields.get("type") if is_model(model) else None
    return get_args(field.annotation) if field and get_origin(field.annotation) is Literal else ()


def selected_members(annotation: Any, value: Any) -> list[Any]:
    """The members of a union that `value` can be meant for, all of them where none fits."""
    members = members_of(annotation)
    kind = (
        "table" if isinstance(value, Mapping) else "list" if isinstance(value, list) else "scalar"
    )
    fitting = [member for member in members if kind_of(member) == kind]
    tag = value.get("type") if isinstance(value, Mapping) else None
    return [m for m in fitting if tag in tags_of(m)] or fitting or members


def type_at(annotation: Any, step: str | int) -> Any:
    """The type of what is at `step` inside a value of this type."""
    if is_model(annotation):
        field = annotation.model_fields.get(step)
        return field.annotation if field else Any
    arguments = get_args(annotation)
    if not arguments:
        return Any
    if kind_of(annotation) == "table":
        return arguments[-1]
    is_pair = get_origin(annotation) is tuple and arguments[-1] is not ...
    return arguments[step] if is_pair and isinstance(step, int) else arguments[0]


def with_types(annotation: Any, data: Any, default: Any = None) -> Any:
    """`data` with the `type` that a table leaves out where its field has a default."""
    members = members_of(annotation)
    if isinstance(data, dict):
        tag = getattr(default, "type", None)
        if "type" not in data and len(members) > 1 and any(tag in tags_of(m) for m in members):
            data = {"type": tag} | data
    selected = selected_members(annotation, data)
    if len(selected) != 1:
        return data
    if isinstance(data, dict):
        fields = selected[0].model_fields if is_model(selected[0]) else {}
        return {
            key: with_types(
                type_at(selected[0], key), value, fields[key].default if key in fields else None
            )
            for key, value in data.items()
        }
    if isinstance(data, list) and kind_of(selected[0]) == "list":
        return [with_types(type_at(selected[0], index), v) for index, v in enumerate(data)]
    return data

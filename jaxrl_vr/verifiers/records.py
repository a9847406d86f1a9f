"""Lines of a file to verify: which field is the reference, which the response, which the label.

Three forms are known by their fields: an answer `{reference | gold | answer, response}`, a program
`{program, tests, mode}` and a constraint `{constraint, kwargs, response}`. What is no text becomes
JSON: the reference of a program is `{"tests": ..., "mode": ...}`, that of a constraint is
`{"constraint": ..., "kwargs": ...}`. Other names are said by `Fields`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.spec import build, compares

_REFERENCES = ("reference", "gold", "answer")
_LABELS = ("equal", "expect", "ok")
_TRUE = {"pass", "right", "true", "correct"}
_FALSE = {"fail", "wrong", "false", "incorrect"}


class Fields(Config):
    """Names of a line's fields."""

    id: str = "id"
    """What names the line in the output; its number where there is none."""
    prompt: str = "prompt"
    """The prompt, if the line has one: one that ends with `<think>` has opened the thinking."""
    reference: str = ""
    """The reference; empty: by the form of the line."""
    response: str = ""
    """The response; empty: by the form of the line."""
    constraint: str = "constraint"
    """The instructions that the response is held to, an id or a list; they need no reference."""
    kwargs: str = "kwargs"
    """Arguments of the instructions, an object or a list of them."""
    label: str = ""
    """Whether the response is right, if that is known; empty: `equal`, `expect` or `ok`."""
    source: str = "source"
    """The data source, by which a verifier `first` chooses; empty where a line has none."""
    kind: str = "kind"
    """What the table groups lines by, if a line has it."""
    contested: str = "contested"
    """If true in a line, its label is not counted."""


@dataclasses.dataclass(frozen=True)
class Record:
    """A line as verifiers take it."""

    id: str
    example: Example
    response: str
    kind: str = ""
    label: bool | None = None
    is_contested: bool = False
    fault: str = ""  # why the line cannot be verified


def records(
    path: Path, fields: Fields, verifier: Mapping[str, Any], *, needs_reference: bool
) -> Iterator[Record]:
    """The records of a JSON Lines file, in order; empty lines are none.

    A line that does not fit is a record with a fault, so that the others are verified.

    Raises:
      ValueError: there is no such file or nothing in it, or the first line does not fit, so that
        the fault is likely in the names.
    """
    if not path.exists() or path.is_dir():
        what = "is a folder" if path.is_dir() else "there is no such file"
        raise ValueError(f"{path}: {what}; name a file of JSON Lines")
    is_first = True
    with path.open(
        encoding="utf-8-sig", errors="replace"
    ) as lines:  # with a byte order mark or not
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = _record(line, number, fields, verifier, needs_reference)
            except ValueError as error:
                if is_first:
                    raise ValueError(f"{path}: {error}") from error
                record = Record(str(number), Example(str(number), ""), "", fault=str(error))
            is_first = False
            yield record
    if is_first:
        raise ValueError(f"{path}: it is empty; write one JSON object a line, for each response")


def _record(
    line: str, number: int, fields: Fields, verifier: Mapping[str, Any], needs_reference: bool
) -> Record:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number}: not JSON ({error}); each line is one object") from error
    if not isinstance(data, dict):
        raise ValueError(f"line {number}: a {type(data).__name__}; each line is one object")
    source = _text(data.get(fields.source, ""))
    if verifier.get("type") == "first":  # not every case may compare
        needs_reference = compares(build(verifier), source)
    reference, response = _pair(data, number, fields, needs_reference)
    if verifier.get("type") == "code_tests" and _is_program(data, fields):
        verifier = {
            **verifier,
            "extract": "whole",
        }  # the line has a program and no answer around it
    id = str(data.get(fields.id, number))
    example = Example(
        id=id,
        prompt=_text(data.get(fields.prompt, "")),
        reference=reference,
        verifier=verifier,
        source=source,
    )
    return Record(
        id=id,
        example=example,
        response=response,
        kind=_text(data.get(fields.kind, "")),
        label=_label(data, number, fields),
        is_contested=data.get(fields.contested) is True,
    )


def _pair(
    data: Mapping[str, Any], number: int, fields: Fields, needs_reference: bool
) -> tuple[str, str]:
    if _is_program(data, fields):
        return _packed(data, tests="tests", mode="mode"), _text(data["program"])
    response = fields.response or "response"
    if not fields.reference and fields.constraint in data and response in data:
        packed = _packed(data, constraint=fields.constraint, kwargs=fields.kwargs)
        return packed, _text(data[response])
    names = (fields.reference,) if fields.reference else _REFERENCES
    name = next((name for name in names if name in data), None)
    if name is None and needs_reference:
        raise ValueError(
            f"line {number}: no field {' or '.join(map(repr, names))} among {sorted(data)}; say "
            "which holds the reference by fields.reference=NAME"
        )
    if response not in data:
        raise ValueError(
            f"line {number}: no field {response!r} among {sorted(data)}; say which holds the "
            "response by fields.response=NAME"
        )
    return _text(data[name]) if name is not None else "", _text(data[response])


def _is_program(data: Mapping[str, Any], fields: Fields) -> bool:
    return not (fields.reference or fields.response) and "program" in data and "tests" in data


def _packed(data: Mapping[str, Any], **fields: str) -> str:
    return json.dumps({name: data[field] for name, field in fields.items() if field in data})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _label(data: Mapping[str, Any], number: int, fields: Fields) -> bool | None:
    names = (fields.label,) if fields.label else _LABELS
    value = next((data[name] for name in names if name in data), None)
    if value is None or isinstance(value, bool) or value in (0, 1):
        return None if value is None else bool(value)
    word = value.strip().lower() if isinstance(value, str) else ""
    if word not in _TRUE | _FALSE:
        raise ValueError(
            f"line {number}: the label {str(value)[:40]!r} is neither true nor false; write one of "
            f"them, or say which field is the label by fields.label=NAME"
        )
    return word in _TRUE

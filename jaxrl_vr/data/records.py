"""Records of files and data sets, and how their fields become an `Example`."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import model_validator

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Message

Record = tuple[str, Mapping[str, Any]]  # where it stands, for messages; its fields


@dataclasses.dataclass(frozen=True)
class Unreadable:
    """Stands where a file holds a value that Python cannot; only using it is an error."""

    reason: str


class Fields(Config):
    """Which field of a record holds what. A field that is named must be in every record."""

    prompt: str | None = None
    """Field with the question as text; unset is `prompt` unless `messages` or `text` is set."""
    messages: str | None = None
    """Field with a chat, a list of {role, content}; a last assistant turn is the completion."""
    text: str | None = None
    """Field with plain text to train on as a whole, without a prompt (`loss_on = "all"`)."""
    reference: str | None = None
    """Field with what the verifier compares with."""
    completion: str | None = None
    """Field with a demonstration, for supervised training: text, or a chat that ends with it."""
    rejected: str | None = None
    """Field with a worse completion than `completion`, for a dpo stage; in the same forms."""
    id: str | None = None
    """Field with an identifier, unique within the source; unset counts the records."""
    difficulty: str | None = None
    """Field with a number, or a text with one in it such as "Level 3"."""

    @model_validator(mode="before")
    @classmethod
    def _prompt_unless_another(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and not data.keys() & {"prompt", "messages", "text"}:
            return {**data, "prompt": "prompt"}
        return data

    @model_validator(mode="after")
    def _one_question(self) -> Fields:
        named = [name for name in ("prompt", "messages", "text") if getattr(self, name) is not None]
        if len(named) != 1:
            raise ValueError(f"fields: {named} are set: set exactly one of prompt, messages, text")
        if self.text is not None and self.completion is not None:
            raise ValueError(
                "fields.completion: fields.text is the completion already: set one of the two"
            )
        if self.rejected is not None and self.rejected == self.completion:
            raise ValueError(
                f"fields.rejected and fields.completion are both {self.completion!r}: name the "
                "field with the worse answer as fields.rejected"
            )
        return self


def jsonl(path: str) -> Iterator[Record]:
    """Records of a JSON Lines file; blank lines are skipped."""
    file = _existing(path)
    if not file.is_file():
        raise ValueError(f"path: {path} is a folder: name a .jsonl file")
    try:
        with file.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{path}:{number}", _json_object(line, f"{path}:{number}")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error.reason}): save it as UTF-8") from error


def _json_object(line: str, where: str) -> Mapping[str, Any]:
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(
            f"{where}: not JSON ({error}): a .jsonl file holds one object a line"
        ) from error
    except ValueError as error:  # the one left: Python converts no integer of more digits
        raise ValueError(
            f"{where}: holds an integer of more than 4300 digits: put it in quotes, as text"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(
            f"{where}: a {type(value).__name__}, not an object: write {{...}} with named fields"
        )
    return value


def parquet(path: str) -> Iterator[Record]:
    """Records of a Parquet file, or of a folder of them."""
    import pyarrow
    import pyarrow.parquet

    _existing(path)
    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}: not readable as Parquet ({error})") from error
    number = 0
    for batch in table.to_batches():
        columns = [_column(column) for column in batch.columns]
        for values in zip(*columns, strict=True):
            number += 1
            yield f"{path}, row {number}", dict(zip(batch.schema.names, values, strict=True))


def _column(column: Any) -> list[Any]:
    """The values of an Arrow array."""
    import pyarrow

    faults = (ValueError, OverflowError, pyarrow.ArrowException)

    def value(scalar: Any) -> Any:
        try:
            return scalar.as_py()
        except faults as error:
            return Unreadable(f"{scalar.type}: {error}")

    try:
        return column.to_pylist()
    except faults:
        return [value(scalar) for scalar in column]


def hub(name: str, config: str | None, split: str, revision: str | None) -> Iterator[Record]:
    """Records of a Hugging Face data set."""
    try:
        import datasets  # pyright: ignore[reportMissingImports]  # an extra, often absent
        import datasets.exceptions  # pyright: ignore[reportMissingImports]  # the same
    except ImportError as error:
        raise ValueError(
            'type = "hf" needs the datasets package: pip install "jaxrl-vr[hf]", or save the data '
            'as JSON Lines and use type = "jsonl"'
        ) from error
    try:
        rows = datasets.load_dataset(name, config, split=split, revision=revision)
    except (datasets.exceptions.DatasetsError, OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"data set {name!r} (config {config!r}, split {split!r}, revision {revision!r}) cannot "
            f"be loaded: {reason}"
        ) from error
    for number, row in enumerate(rows, 1):
        yield f"{name}, row {number}", dict(row)


def _existing(path: str) -> Path:
    if not Path(path).exists():
        raise ValueError(f"path: there is no file {path} (looked from {Path.cwd()}): correct it")
    return Path(path)


def example(record: Record, number: int, fields: Fields) -> Example:
    """The example in a record.

    Args:
      record: where it stands, and its fields.
      number: its number within the source, for the id.
      fields: which field holds what.
    """
    where, values = record
    prompt: str | tuple[Message, ...] = ""
    completion = None
    if fields.text is not None:
        completion = _text(values, fields.text, where)
    elif fields.messages is not None:
        prompt, completion = _chat(_value(values, fields.messages, where), where, fields.messages)
    else:
        prompt = _text(values, str(fields.prompt), where)
    if fields.completion is not None:
        completion = _answer(values, fields.completion, where)
    rejected = None
    if fields.rejected is not None:
        rejected = _answer(values, fields.rejected, where)
    reference, id_, difficulty = "", str(number), None
    if fields.reference is not None:
        reference = _as_text(values, fields.reference, where)
    if fields.id is not None:
        id_ = _as_text(values, fields.id, where)
    if fields.difficulty is not None:
        difficulty = _number(_value(values, fields.difficulty, where), where, fields.difficulty)
    return Example(
        id_,
        prompt,
        reference,
        difficulty=difficulty,
        completion=completion,
        rejected=rejected,
    )


def _answer(values: Mapping[str, Any], field: str, where: str) -> str:
    """A completion: text, or the last turn of a chat."""
    value = _value(values, field, where)
    if not isinstance(value, list):
        return _text(values, field, where)
    _, answer = _chat(value, where, field, needs_question=False)
    if answer is None:
        raise ValueError(
            f"{where}: field {field!r} is a chat that does not end with the assistant: end it with "
            "the answer, or name another field"
        )
    return answer


def _value(values: Mapping[str, Any], field: str, where: str) -> Any:
    if values.get(field) is None:
        state = "is null" if field in values else "is not there"
        raise ValueError(
            f"{where}: field {field!r} {state}; the record has {sorted(values)}: name the right "
            "one in `fields`, or complete the record"
        )
    value = values[field]
    if isinstance(value, Unreadable):
        raise ValueError(f"{where}: field {field!r} cannot be read ({value.reason}): correct it")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}: field {field!r} is {value}: complete or delete the record")
    return value


def _text(values: Mapping[str, Any], field: str, where: str) -> str:
    value = _value(values, field, where)
    if not isinstance(value, str):
        hint = ": name it as fields.messages" if isinstance(value, list) else ""
        raise ValueError(f"{where}: field {field!r} is a {type(value).__name__}, not text{hint}")
    if not value.strip():
        raise ValueError(f"{where}: field {field!r} is empty: complete or delete the record")
    return _unicode(value, where, field)


def _unicode(text: str, where: str, field: str) -> str:
    # half of a surrogate pair: JSON can spell it, but no tokenizer or file takes it
    found = re.search("[\ud800-\udfff]", text)
    if found:
        raise ValueError(
            f"{where}: field {field!r} holds {found[0]!r}, half a character, at character "
            f"{found.start() + 1}: correct or delete the record"
        )
    return text


def _as_text(values: Mapping[str, Any], field: str, where: str) -> str:
    value = _value(values, field, where)

    def plain(inner: Any) -> str:
        text = _scalar_text(inner)
        if text is None:
            raise ValueError(
                f"{where}: field {field!r} holds a {type(inner).__name__}, which has no one text: "
                "save it as text or numbers"
            )
        return text

    text = value if isinstance(value, str) else _scalar_text(value)
    if text is None:
        text = json.dumps(value, ensure_ascii=False, default=plain)
    return _unicode(text, where, field)


def _scalar_text(value: Any) -> str | None:
    """Text of what JSON has no form for, where there is only one."""
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    is_moment = isinstance(value, datetime.date | datetime.time)  # a datetime is a date
    return str(value) if is_moment else None


def _chat(
    value: Any, where: str, field: str, *, needs_question: bool = True
) -> tuple[tuple[Message, ...], str | None]:
    shape = "a list of {role, content} with texts"
    if not isinstance(value, list) or not value:
        raise ValueError(f"{where}: field {field!r} is not {shape}: got {str(value)[:60]!r}")
    turns = []
    for turn in value:
        role, content = (
            (turn.get("role"), turn.get("content")) if isinstance(turn, dict) else (0, 0)
        )
        if not isinstance(role, str) or not isinstance(content, str) or not content.strip():
            raise ValueError(f"{where}: field {field!r} is not {shape}: turn {str(turn)[:60]!r}")
        turns.append(Message(*(_unicode(text, where, field) for text in (role, content))))
    if turns[-1].role != "assistant":
        return tuple(turns), None
    if len(turns) == 1 and needs_question:
        raise ValueError(f"{where}: field {field!r} has an answer and no question: add a user turn")
    return tuple(turns[:-1]), turns[-1].content


def _number(value: Any, where: str, field: str) -> float:
    found = re.search(r"-?\d+(\.\d+)?", value) if isinstance(value, str) else None
    if found is not None:
        value = decimal.Decimal(found.group())
    if isinstance(value, bool) or not isinstance(value, int | float | decimal.Decimal):
        raise ValueError(f"{where}: field {field!r} holds no number: {str(value)[:60]!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(
            f"{where}: field {field!r} holds {str(value)[:20]}..., too large for a float: correct "
            "it, or leave fields.difficulty out"
        )
    return number

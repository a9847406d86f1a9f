"""Data sources: the union that a config may name, and `load`, which makes a stream of one."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from jaxrl_vr.config import LocalPath
from jaxrl_vr.data import records
from jaxrl_vr.data.countdown import CountdownSource
from jaxrl_vr.data.gym import ReasoningGymSource
from jaxrl_vr.data.procedural import ArithmeticSource, CompareSource
from jaxrl_vr.data.records import Fields
from jaxrl_vr.data.source_base import SourceBase
from jaxrl_vr.data.streams import Endless, Stream, Table, content, digest
from jaxrl_vr.types import Example

PATIENCE = 50  # draws in a row without a new problem before a procedural task counts as exhausted


class JsonlSource(SourceBase):
    """A JSON Lines file."""

    type: Literal["jsonl"] = "jsonl"
    """Which source this is."""
    path: LocalPath
    """The file; a relative path starts at the working directory. In a run, "stage:NAME/FILE" is
    what an earlier stage wrote: an evaluation's output.jsonl (all answers), right.jsonl (the
    distinct right ones of each problem) and pairs.jsonl (a right and a wrong one of a problem)."""
    fields: Fields = Fields()
    """Which field of a record holds what."""

    def rows(self) -> Iterator[records.Record]:
        return records.jsonl(self.path)


class ParquetSource(SourceBase):
    """A Parquet file, or a folder of them."""

    type: Literal["parquet"] = "parquet"
    """Which source this is."""
    path: LocalPath
    """The file or folder; a relative path starts at the working directory."""
    fields: Fields = Fields()
    """Which field of a record holds what."""

    def rows(self) -> Iterator[records.Record]:
        return records.parquet(self.path)


class HFSource(SourceBase):
    """A Hugging Face data set by its name; needs the extra `hf`."""

    type: Literal["hf"] = "hf"
    """Which source this is."""
    path: LocalPath
    """Name on the hub, such as "openai/gsm8k", or a local data set folder."""
    config: str | None = None
    """Configuration of the data set, such as "main", where it has several."""
    split: str = "train"
    """Split to use."""
    revision: str | None = None
    """Commit or tag on the hub; set it so that the data cannot change under a run."""
    fields: Fields = Fields()
    """Which field of a record holds what."""

    def rows(self) -> Iterator[records.Record]:
        return records.hub(self.path, self.config, self.split, self.revision)


FileSource = JsonlSource | ParquetSource | HFSource
ProceduralSource = ArithmeticSource | CompareSource | CountdownSource | ReasoningGymSource
Source = Annotated[
    JsonlSource
    | ParquetSource
    | HFSource
    | ArithmeticSource
    | CompareSource
    | CountdownSource
    | ReasoningGymSource,
    Field(discriminator="type"),
]


def load(source: Source, *, seed: int) -> Stream[Example]:
    """The source's examples.

    Args:
      source: its config.
      seed: of the run; only procedural tasks depend on it.

    Raises:
      ValueError: a file is missing, a record is faulty (file and line are named), or there is none.
    """
    if isinstance(source, FileSource):
        return _table(source, _read(source))
    if source.limit is not None:
        return _table(source, _distinct(source, seed))
    settings = source.model_dump_json(exclude={"name", "weight", "template"})
    fingerprint = digest("procedural", settings, str(source.order_seed(seed)))
    return Endless(
        source.name,
        source.weight,
        lambda index: _finished(source.example(index, seed), source),
        fingerprint,
    )


def _table(source: Source, examples: list[Example]) -> Table[Example]:
    whole = tuple(_finished(example, source) for example in examples)
    return Table(source.name, source.weight, whole, content(whole))


def _finished(example: Example, source: Source) -> Example:
    verifier = example.verifier if source.verifier is None else source.verifier
    return dataclasses.replace(example, source=source.name, verifier=verifier)


def _read(source: FileSource) -> list[Example]:
    rows = itertools.islice(source.rows(), source.limit)
    examples, first = [], {}
    for number, record in enumerate(rows):
        example = records.example(record, number, source.fields)
        where = first.setdefault(example.id, record[0])
        if where != record[0]:
            raise ValueError(
                f"{record[0]}: id {example.id!r} is that of {where} too: make ids unique, or unset "
                "fields.id to count the records"
            )
        examples.append(example)
    if not examples:
        raise ValueError(f"source {source.name!r}: {source.path} has no records: it needs some")
    return examples


def _distinct(source: ProceduralSource, seed: int) -> list[Example]:
    found: dict[str, Example] = {}
    last = 0
    for index in itertools.count():
        example = source.example(index, seed)
        if example.id not in found:
            found[example.id], last = example, index
        if len(found) == source.limit:
            return list(found.values())
        if index - last > PATIENCE + len(found):
            raise ValueError(
                f"source {source.name!r}: limit = {source.limit}, but its {source.split} split has "
                f"only about {len(found)} distinct problems: lower limit, or make the task harder"
            )
    raise AssertionError("itertools.count has no end")

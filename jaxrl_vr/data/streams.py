"""Streams: what a mixture draws from. A finite `Table`, or an `Endless` one that makes its items.

`converted` turns a stream of examples into one of prompts or demonstrations and leaves out what
does not fit, at load for a table, at the draw for an endless stream.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from jaxrl_vr.types import Example

A = TypeVar("A")
B = TypeVar("B")

REDRAWS = 1000  # of an endless stream before it gives up: below 1 in 1000 fit, and it would crawl


@dataclasses.dataclass(frozen=True)
class Table(Generic[A]):
    """A finite stream."""

    name: str
    weight: float
    items: tuple[A, ...]
    fingerprint: str  # hash of the content
    dropped: int = 0  # items left out because they did not fit

    @property
    def size(self) -> int | None:
        return len(self.items)

    def get(self, index: int) -> A:
        return self.items[index]


@dataclasses.dataclass
class Endless(Generic[A]):
    """A stream without end; `make` is a pure function of the index."""

    name: str
    weight: float
    make: Callable[[int], A]
    fingerprint: str  # hash of what `make` depends on
    dropped: int = 0  # items left out so far because they did not fit

    @property
    def size(self) -> int | None:
        return None

    def get(self, index: int) -> A:
        return self.make(index)


Stream = Table[A] | Endless[A]


def digest(*parts: str) -> str:
    """Fingerprint of texts, as 16 hexadecimal digits."""
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        state.update(len(data).to_bytes(8, "big") + data)
    return state.hexdigest()


def content(examples: Sequence[Example]) -> str:
    """Fingerprint of examples: any change of a field, of the number or of the order changes it."""
    return digest(*(repr(dataclasses.astuple(example)) for example in examples))


def converted(
    stream: Stream[A],
    convert: Callable[[A], B],
    *,
    length: Callable[[B], int],
    limit: int,
    limit_name: str,
    convert_key: str,
) -> Stream[B]:
    """The stream of `convert(item)`, without those longer than `limit`.

    Args:
      stream: the items.
      convert: a pure function.
      length: tokens of a converted item.
      limit: most tokens that fit.
      limit_name: config key of `limit`, for messages.
      convert_key: what `convert` depends on, for the fingerprint.

    Raises:
      ValueError: not one item fits.
    """
    fingerprint = digest(stream.fingerprint, convert_key, str(limit))
    if isinstance(stream, Table):
        whole = [convert(item) for item in stream.items]
        kept = tuple(item for item in whole if length(item) <= limit)
        if not kept:
            raise ValueError(
                f"source {stream.name!r}: all {len(whole)} items are longer than {limit_name} = "
                f"{limit} tokens (the shortest has {min(map(length, whole))}): raise {limit_name}, "
                "or use a shorter template"
            )
        dropped = stream.dropped + len(whole) - len(kept)
        return Table(stream.name, stream.weight, kept, fingerprint, dropped)
    result: Endless[B]

    def make(index: int) -> B:
        lengths = []
        for attempt in range(REDRAWS):
            # far beyond any index a run reaches, so redraws do not repeat what others draw
            item = convert(stream.get(index + (attempt << 48)))
            if length(item) <= limit:
                return item
            lengths.append(length(item))
            result.dropped += 1
        raise ValueError(
            f"source {stream.name!r}: {REDRAWS} draws in a row are longer than {limit_name} = "
            f"{limit} tokens (the shortest has {min(lengths)}): raise {limit_name}, use a shorter "
            "template or an easier task"
        )

    result = Endless(stream.name, stream.weight, make, fingerprint)
    return result

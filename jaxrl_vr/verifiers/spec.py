"""The verifiers a spec can name, how a spec becomes one, and what it says without being called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field

from jaxrl_vr.config import parse
from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.code_tests import CodeTests
from jaxrl_vr.verifiers.command import Command
from jaxrl_vr.verifiers.compose import First, Gate, Product, Single, Singles, Weighted, named
from jaxrl_vr.verifiers.custom import Custom
from jaxrl_vr.verifiers.json_schema import JsonSchema
from jaxrl_vr.verifiers.reasoning_gym import ReasoningGym
from jaxrl_vr.verifiers.remote import Http, Judge
from jaxrl_vr.verifiers.sql import Sql

Verifier = Annotated[Singles | Weighted | Gate | Product | First, Field(discriminator="type")]
"""A verifier's config model, which is the verifier: `verifier(example, response) -> Score`, and
`verifier.answer(example, response) -> str | None`, the answer in a form in which equal answers are
(as far as is cheap to say) equal strings, for majority votes."""

_COMPOSITIONS = (Weighted, Gate, Product, First)


def build(spec: Mapping[str, Any]) -> Verifier:
    """The verifier that `spec` (`{"type": ...}`) describes. Imports nothing of the user's.

    Raises:
      ValueError: an unknown type or key, a value that does not fit.
    """
    return parse(Verifier, dict(spec))


def parts(verifier: Verifier) -> list[Single]:
    """The verifiers that a composition is made of; any other is its own part."""
    return verifier.singles if isinstance(verifier, _COMPOSITIONS) else [verifier]


Loading = Custom | CodeTests | Command | Http | Judge | JsonSchema | ReasoningGym
"""Verifiers that have something to load, which may fail and takes time."""

_OPEN = Custom | Command | Http
"""Verifiers whose scores hold what somebody else's code puts there."""

Patient = CodeTests | Sql | Command | Http | Judge
"""Verifiers that keep limits on time themselves."""


def loads(verifier: Verifier) -> list[Loading]:
    """The parts that have something to load."""
    return [part for part in parts(verifier) if isinstance(part, Loading)]


def patience(verifier: Verifier) -> float:
    """Seconds that a response may take because the verifier keeps longer limits itself, or 0."""
    return sum(part.patience for part in parts(verifier) if isinstance(part, Patient))


def has_component(verifier: Verifier, component: str, source: str) -> bool:
    """Whether its scores of examples of a data source may have a component of this name.

    A custom verifier, a command and a service may give any; else components are parts.
    """
    if not isinstance(verifier, _COMPOSITIONS):
        return isinstance(verifier, _OPEN)
    return any(
        component == part or (isinstance(single, _OPEN) and component.startswith(f"{part}/"))
        for part, single in named(verifier, source).items()
    )


def name(verifier: Verifier) -> str:
    """What messages call it: its type, of a custom one the import path, of a composition both."""
    named = [part.path if isinstance(part, Custom) else part.type for part in parts(verifier)]
    is_composed = isinstance(verifier, _COMPOSITIONS)
    return f"{verifier.type}({', '.join(named)})" if is_composed else named[0]


def needs_reference(spec: Mapping[str, Any]) -> bool:
    """Whether it compares with a reference, so that no answer can be scored without one.

    False where that is not known: a custom verifier may use the reference or not.
    """
    return any(part.needs_reference for part in parts(build(spec)))


def check_references(examples: Iterable[Example]) -> None:
    """Checks that every example has the reference that its verifier compares with.

    Raises:
      ValueError: the first that has none, with its source and id.
    """
    for example in examples:
        if not example.reference.strip() and compares(build(example.verifier), example.source):
            raise ValueError(
                f"source {example.source!r}, example {example.id!r}: it has no reference, and its "
                f"verifier {name(build(example.verifier))!r} compares with one: name the field "
                "that holds it as fields.reference, or complete or delete the record"
            )


def compares(verifier: Verifier, source: str) -> bool:
    """Whether it compares examples of a data source with their reference."""
    if isinstance(verifier, First):
        case = verifier.case(source)
        return case is not None and case.verifier.needs_reference
    return any(part.needs_reference for part in parts(verifier))

"""What a verifier does with one response, stage by stage, for a person to read."""

from __future__ import annotations

from collections.abc import Iterator

from jaxrl_vr.types import Example
from jaxrl_vr.verifiers import realset
from jaxrl_vr.verifiers.equality import MAX_LENGTH, Comparison, canonical, readable, stage
from jaxrl_vr.verifiers.extract import after_thinking, find, gold
from jaxrl_vr.verifiers.latex import clean, key
from jaxrl_vr.verifiers.math_answer import MathAnswer
from jaxrl_vr.verifiers.spec import Verifier, name, parts
from jaxrl_vr.verifiers.structure import Leaf, read
from jaxrl_vr.verifiers.text import one_line
from jaxrl_vr.verifiers.units import split_unit


def explain(verifier: Verifier, example: Example, response: str) -> Iterator[str]:
    """Lines that say what each stage found, the verdict last."""
    yield f"verifier    {name(verifier)}"
    for part in parts(verifier):
        if isinstance(part, MathAnswer):
            yield from _of_math(part, example, response)
    score = verifier(example, response)
    for component, value in score.components.items():
        yield f"component   {component} = {value:g}"
    yield f"verdict     {score.verdict}, value {score.value:g}"
    yield f"reason      {score.reason or '-'}"


def _of_math(verifier: MathAnswer, example: Example, response: str) -> Iterator[str]:
    expected = gold(example.reference)
    yield f"reference   {one_line(expected)!r}" + ("" if readable(expected) else ", unreadable")
    rest = after_thinking(example.prompt, response)
    if rest is None:
        yield "thinking    not closed: there is no answer"
        return
    if len(rest) < len(response):
        yield f"thinking    {len(response) - len(rest)} of {len(response)} characters, left out"
    for method in verifier.methods:
        found = find(rest, (method,))
        if found is None:
            yield f"extraction  {method}: nothing"
            continue
        yield f"extraction  {method}: {one_line(found.answer)!r}"
        if found.answer:
            yield from _of_equality(verifier, expected, found.answer)
        return


def _of_equality(verifier: MathAnswer, expected: str, got: str) -> Iterator[str]:
    if max(len(expected), len(got)) > MAX_LENGTH:
        yield f"comparison  longer than {MAX_LENGTH} characters: only as the same string"
        return
    cleaned = clean(expected), clean(got)
    yield f"cleaned     {cleaned[0]!r} | {cleaned[1]!r}"
    yield f"text        {_said(key(cleaned[0]) == key(cleaned[1]))}"
    nodes = read(cleaned[0]), read(cleaned[1])
    yield f"structure   {nodes[0]} | {nodes[1]}"
    if all(isinstance(node, Leaf) for node in nodes):
        units = split_unit(cleaned[0]), split_unit(cleaned[1])
        yield f"units       {units[0][1] or '-'} | {units[1][1] or '-'}"
    yield f"numbers     {one_line(canonical(expected))} | {one_line(canonical(got))}"
    if any(map(realset.is_surely_set, cleaned)):
        yield f"real sets   {realset.solution(cleaned[0])} | {realset.solution(cleaned[1])}"
    comparison = Comparison(verifier.rules)
    same = stage(expected, got, verifier.rules)
    comparison.answers(*cleaned)
    tried = ", ".join(dict.fromkeys(comparison.stages)) or "none"
    yield f"stages      tried {tried}: {_said(bool(same))}" + (f" by {same}" if same else "")


def _said(same: bool) -> str:
    return "the same" if same else "not the same"

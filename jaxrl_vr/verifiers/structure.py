r"""The outer structure of an answer: lists, brackets, unions, matrices, relations.

Lists are split at commas, "and" and "or"; `\pm` stands for two items; `x = 5` and `x \in [1, 2]`
are named values, an inequality in one variable is its interval. Whatever is inside is a Leaf. Sets
of real numbers, however they are written, compare in `realset`.
"""

from __future__ import annotations

import dataclasses
import re

from jaxrl_vr.verifiers.expression import GREEK
from jaxrl_vr.verifiers.latex import SET_OPEN, key
from jaxrl_vr.verifiers.matrices import determinant_or_rows
from jaxrl_vr.verifiers.split import (
    CLOSE,
    OPEN,
    RELATION,
    encloses,
    outside_brackets,
    split,
    split_at,
)

_MAX_ITEMS = 60
_MAX_DEPTH = 12


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A number, an expression or text."""

    text: str


@dataclasses.dataclass(frozen=True)
class Group:
    """Several items; `kind` is the brackets: "" for a bare list, "{}" for a set."""

    kind: str
    items: tuple[Node, ...]


@dataclasses.dataclass(frozen=True)
class Union:
    """A union of intervals or sets."""

    parts: tuple[Node, ...]


@dataclasses.dataclass(frozen=True)
class Matrix:
    """Rows of a matrix or vector."""

    rows: tuple[tuple[Node, ...], ...]


@dataclasses.dataclass(frozen=True)
class Named:
    """`name = value`, or `name` in an interval; `sides` of the equation if it is one."""

    name: str
    value: Node
    sides: tuple[str, str] | None


@dataclasses.dataclass(frozen=True)
class Equation:
    """Any other relation: its sides and the signs between them."""

    text: str
    sides: tuple[str, ...]
    signs: tuple[str, ...]


Node = Leaf | Group | Union | Matrix | Named | Equation

CONJUNCTION = re.compile(
    r"\s*,?\s*(?:(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])|\\(?:land|lor|wedge|vee)(?![a-zA-Z]))\s*"
)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_SPACED_THOUSANDS = re.compile(r"(?<![\d.,] )(?<![\d.,])\d{1,3}(?: \d{3})+(?=(?:\.\d+)?\D*$)")
_APPROXIMATELY = re.compile(r"\\(?:approx|doteq|simeq)(?![a-zA-Z])")
_NAME = re.compile(
    r"(?:[a-zA-Z]|\\(?:"
    + "|".join(sorted(GREEK))
    + r"))'*(?:_(?:\w|\{\w+\}))?'*(?:\([a-zA-Z](?:,[a-zA-Z])*\))?"
)
_TUPLE_NAME = re.compile(r"\([a-zA-Z](?:_\w|_\{\w+\})?(?:,[a-zA-Z](?:_\w|_\{\w+\})?)+\)")
_OBJECT = r"(?:\\(?:angle|triangle|overline|vec|hat)\s*)?\{?[A-Z]+\}?(?:_(?:\w|\{\w+\}))?"
_QUANTITY = re.compile(
    rf"\|{_OBJECT}\||{_OBJECT}:{_OBJECT}|\\frac\{{{_OBJECT}\}}\{{{_OBJECT}\}}|{_OBJECT}/{_OBJECT}|"
    rf"\\angle\s*[A-Z]{{1,3}}|[A-Z]{{2,4}}|(?:[PENSV]|Pr)\([A-Z]\w?(?:\||\\mid )?[A-Z]?\)|"
    r"[a-zA-Z]\(-?\d+\)|[a-zA-Z]{4,}"
)
"""What geometry and probability call a number: |AB|, S_1:S_2, AB/CD, P(A), Area."""
_NO_NAME = {"\\pi", "e", "i", "\\infty"}
_FLIP = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}


def read(text: str, depth: int = 0, inside: bool = False) -> Node:
    """The structure of a cleaned answer; `inside` brackets, a comma always separates."""
    text = text.strip()
    if depth > _MAX_DEPTH:
        return Leaf(text)
    if r"\begin" in text:
        return _matrix(text, depth)
    if not inside:
        text = _SPACED_THOUSANDS.sub(lambda match: match[0].replace(" ", ""), text)
        text = outside_brackets(text, _THOUSANDS, lambda match: match[0].replace(",", ""))
    text = outside_brackets(text, CONJUNCTION, lambda match: ",")
    rows = [row for row in split(text, ";") if row.strip(" ,")]
    if 1 < len(rows) <= _MAX_ITEMS:
        return Group("", _rows(rows, depth))
    items = [item for item in split(text, ",") if item.strip()]
    if len(items) > _MAX_ITEMS:
        return Leaf(text)
    if len(items) > 1:
        return Group("", _items(items, depth))
    return _relation(items[0].strip() if items else text, depth)


def _rows(texts: list[str], depth: int) -> tuple[Node, ...]:
    """Of `p=5, q=2; p=7, q=2`: what stands between semicolons belongs together."""
    nodes = [read(text, depth + 1, inside=True) for text in texts]
    return tuple(
        Group("()", node.items) if isinstance(node, Group) and node.kind == "" else node
        for node in nodes
    )


def _items(texts: list[str], depth: int) -> tuple[Node, ...]:
    """The items, those that are lists themselves (a plus-minus) spliced in."""
    items: list[Node] = []
    for text in texts:
        node = read(text, depth + 1, inside=True)
        items += node.items if isinstance(node, Group) and node.kind == "" else [node]
    return tuple(items)


def _matrix(text: str, depth: int) -> Node:
    """A matrix, a sum of matrices, or `x = ` one; a determinant is its value."""
    before, equals, value = text.partition("=")
    name = key(before.strip())
    if equals and is_name(name):
        return Named(name, _matrix(value.strip(), depth), None)
    found = determinant_or_rows(text)
    if isinstance(found, str):
        return Leaf(found)
    if found is None or len(found) * max(map(len, found)) > _MAX_ITEMS:
        return Leaf(text)
    return Matrix(tuple(_items(row, depth) for row in found))


def _relation(text: str, depth: int) -> Node:
    parts = split_at(text, RELATION)
    sides, signs = [part.strip() for part in parts[::2]], parts[1::2]
    if about := [i for i, sign in enumerate(signs) if _APPROXIMATELY.fullmatch(sign)]:
        # Only what is before the first "about" is exact.
        sides, signs = sides[: about[0] + 1], signs[: about[0]]
        if not sides[-1]:
            return read(_APPROXIMATELY.split(text)[-1], depth + 1)
        text = "".join(a + b for a, b in zip(sides, [*signs, ""], strict=True))
    if not signs:
        return _union(text, depth)
    whole = Equation(key(text), tuple(sides), tuple(signs))
    if not all(sides):
        return whole
    if signs == ["="] and is_name(key(sides[1])) and not is_name(key(sides[0])):
        sides.reverse()
    name = key(sides[0])
    if signs in (["="], [r"\in"]) and is_name(name):
        name = name.partition("(")[0] or name
        equation = (sides[0], sides[1]) if signs == ["="] else None
        return Named(name, read(sides[1], depth + 1), equation)
    if all(sign in _FLIP for sign in signs):
        return _interval(sides, signs, depth) or whole
    return whole


def is_name(text: str) -> bool:
    """Whether a side of an equation only names the other."""
    if text in _NO_NAME:
        return False
    return any(form.fullmatch(text) for form in (_NAME, _TUPLE_NAME, _QUANTITY))


def _interval(sides: list[str], signs: list[str], depth: int) -> Named | None:
    """x < 3, 3 > x and 1 < x <= 2 as a named interval."""
    if len(sides) == 2 and is_name(key(sides[1])):
        sides, signs = sides[::-1], [_FLIP[signs[0]]]
    if len(sides) == 2 and signs[0] in (">", r"\ge"):
        low, high, name = (signs[0], sides[1]), None, sides[0]
    elif len(sides) == 2:
        low, high, name = None, (signs[0], sides[1]), sides[0]
    elif len(sides) == 3 and all(sign in ("<", r"\le") for sign in signs):
        low, high, name = (signs[0], sides[0]), (signs[1], sides[2]), sides[1]
    elif len(sides) == 3 and all(sign in (">", r"\ge") for sign in signs):
        low, high, name = (signs[1], sides[2]), (signs[0], sides[0]), sides[1]
    else:
        return None
    if not is_name(key(name)):
        return None
    left = "[" if low and low[0] in (r"\le", r"\ge") else "("
    right = "]" if high and high[0] in (r"\le", r"\ge") else ")"
    ends = (low[1] if low else r"-\infty", high[1] if high else r"\infty")
    return Named(key(name), Group(left + right, _items(list(ends), depth)), None)


def _union(text: str, depth: int) -> Node:
    parts = split(re.sub(r"\\cup(?![a-zA-Z])", "\N{UNION}", text), "\N{UNION}")
    if len(parts) > _MAX_ITEMS:
        return Leaf(text)
    if len(parts) > 1:
        return Union(tuple(read(part, depth + 1) for part in parts))
    return _brackets(text, depth)


def _brackets(text: str, depth: int) -> Node:
    if len(text) > 2 and text[0] in OPEN and text[-1] in CLOSE and encloses(text):
        is_set = text[0] in ("{", SET_OPEN)
        separators = ",;" if ";" not in text or "," not in text else ","
        items = [item for item in split(text[1:-1], separators) if item.strip()]
        if is_set and (len(items) > 1 or text[0] == SET_OPEN) and len(items) <= _MAX_ITEMS:
            return Group("{}", _items(items, depth))
        if not is_set and 1 < len(items) <= _MAX_ITEMS:
            return Group(text[0] + text[-1], _items(items, depth))
        if len(items) == 1 and text[0] in "({" and text[-1] in ")}":
            return read(text[1:-1], depth + 1, inside=True)
        return Leaf(text)
    if text.count(r"\pm") + text.count(r"\mp") == 1:
        plus = text.replace(r"\pm", "+").replace(r"\mp", "-")
        minus = text.replace(r"\pm", "-").replace(r"\mp", "+")
        return Group("", (Leaf(plus.strip()), Leaf(minus.strip())))
    return Leaf(text)

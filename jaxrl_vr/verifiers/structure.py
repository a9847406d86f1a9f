r"""The outer structure of an answer: lists, brackets, unions, matrices, relations.

Lists are split at commas, "and" and "or"; `\pm` stands for two items; `x = 5` and `x \in [1, 2]`
are named values, an inequality in one variable is its interval. Whatever is inside is a Leaf.
"""

from __future__ import annotations

import dataclasses
import re

from jaxrl_vr.verifiers.expression import GREEK
from jaxrl_vr.verifiers.latex import SET_CLOSE, SET_OPEN, key

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
    """Any other relation; `sides` if it is one equation."""

    text: str
    sides: tuple[str, str] | None


Node = Leaf | Group | Union | Matrix | Named | Equation

_MATRIX = re.compile(r"\\begin\s*\{([pb]matrix|matrix)\}(.*)\\end\s*\{\1\}", re.DOTALL)
_CONJUNCTION = re.compile(r"\s*,?\s*(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])\s*")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_SPACED_THOUSANDS = re.compile(r"-?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_RELATION = re.compile(r"(=|<|>|\\(?:le|ge|ne|in|approx|equiv|sim)(?![a-zA-Z]))")
_NAME = re.compile(
    r"(?:[a-zA-Z]|\\(?:"
    + "|".join(sorted(GREEK))
    + r"))(?:_(?:\w|\{\w+\}))?(?:\([a-zA-Z](?:,[a-zA-Z])*\))?"
)
_TUPLE_NAME = re.compile(r"\([a-zA-Z](?:_\w)?(?:,[a-zA-Z](?:_\w)?)+\)")
_NO_NAME = {"\\pi", "e", "i", "\\infty"}
_OPEN, _CLOSE = "([{" + SET_OPEN, ")]}" + SET_CLOSE
_FLIP = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}


def read(text: str, depth: int = 0, inside: bool = False) -> Node:
    """The structure of a cleaned answer; `inside` brackets, a comma always separates."""
    text = text.strip()
    if depth > _MAX_DEPTH:
        return Leaf(text)
    if match := _MATRIX.fullmatch(text):
        rows = [row for row in match[2].split("\\\\") if row.strip()]
        if (
            len(rows) <= _MAX_ITEMS
            and match[2].count("&") <= _MAX_ITEMS
            and "begin" not in match[2]
        ):
            return Matrix(tuple(_items(row.split("&"), depth) for row in rows))
        return Leaf(text)
    if not inside:
        if _SPACED_THOUSANDS.fullmatch(text):
            return Leaf(text.replace(" ", ""))
        text = _outside_brackets(text, _THOUSANDS, lambda match: match[0].replace(",", ""))
    text = _outside_brackets(text, _CONJUNCTION, lambda match: ",")
    items = [item for item in _split(text, ",") if item.strip()]
    if len(items) > _MAX_ITEMS:
        return Leaf(text)
    if len(items) > 1:
        return Group("", _items(items, depth))
    return _relation(items[0].strip() if items else text, depth)


def _items(texts: list[str], depth: int) -> tuple[Node, ...]:
    """The items, those that are lists themselves (a plus-minus) spliced in."""
    items: list[Node] = []
    for text in texts:
        node = read(text, depth + 1, inside=True)
        items += node.items if isinstance(node, Group) and node.kind == "" else [node]
    return tuple(items)


def _relation(text: str, depth: int) -> Node:
    parts = _split_relation(text)
    sides, signs = [part.strip() for part in parts[::2]], parts[1::2]
    if not signs:
        return _union(text, depth)
    if not all(sides):
        return Equation(key(text), None)
    equation = (sides[0], sides[1]) if signs == ["="] else None
    name = key(sides[0])
    if signs in (["="], [r"\in"]) and _is_name(name):
        name = name.partition("(")[0] or name
        return Named(name, read(sides[1], depth + 1), equation)
    if all(sign in _FLIP for sign in signs):
        return _interval(sides, signs, depth) or Equation(key(text), None)
    return Equation(key(text), equation)


def _is_name(text: str) -> bool:
    return bool(_NAME.fullmatch(text) or _TUPLE_NAME.fullmatch(text)) and text not in _NO_NAME


def _interval(sides: list[str], signs: list[str], depth: int) -> Named | None:
    """x < 3, 3 > x and 1 < x <= 2 as a named interval."""
    if len(sides) == 2 and _is_name(key(sides[1])):
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
    if not _is_name(key(name)):
        return None
    left = "[" if low and low[0] in (r"\le", r"\ge") else "("
    right = "]" if high and high[0] in (r"\le", r"\ge") else ")"
    ends = (low[1] if low else r"-\infty", high[1] if high else r"\infty")
    return Named(key(name), Group(left + right, _items(list(ends), depth)), None)


def _union(text: str, depth: int) -> Node:
    parts = _split(text.replace(r"\cup", "\N{UNION}"), "\N{UNION}")
    if len(parts) > _MAX_ITEMS:
        return Leaf(text)
    if len(parts) > 1:
        return Union(tuple(read(part, depth + 1) for part in parts))
    return _brackets(text, depth)


def _brackets(text: str, depth: int) -> Node:
    if len(text) > 2 and text[0] in _OPEN and text[-1] in _CLOSE and _encloses(text):
        is_set = text[0] in ("{", SET_OPEN)
        items = [item for item in _split(text[1:-1], ",") if item.strip()]
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


def _depths(text: str) -> list[int]:
    """The bracket depth at each character, a bracket itself counted as inside."""
    depths, depth = [], 0
    for character in text:
        depth += character in _OPEN
        depths.append(depth)
        depth -= character in _CLOSE
    return depths


def _encloses(text: str) -> bool:
    """Whether the first bracket is closed by the last character, and not before."""
    depths = _depths(text)
    return not any(depths[i] == 1 and c in _CLOSE for i, c in enumerate(text[:-1]))


def _split(text: str, separator: str) -> list[str]:
    depths = _depths(text)
    cuts = [i for i, c in enumerate(text) if c == separator and depths[i] == 0]
    return [text[a + 1 : b] for a, b in zip([-1, *cuts], [*cuts, len(text)], strict=True)]


def _split_relation(text: str) -> list[str]:
    """Sides and signs in turn, split outside brackets."""
    depths = _depths(text)
    parts, end = [], 0
    for match in _RELATION.finditer(text):
        if depths[match.start()] == 0:
            parts += [text[end : match.start()], match[0]]
            end = match.end()
    return [*parts, text[end:]]


def _outside_brackets(text: str, pattern: re.Pattern[str], new) -> str:
    depths = _depths(text)
    return pattern.sub(lambda m: new(m) if depths[m.start()] == 0 else m[0], text)

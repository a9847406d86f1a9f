r"""Sets of real numbers, however they are written, as unions of intervals.

Reads `x < 1 or x >= 3`, `(-\infty,1) \cup [3,\infty)`, `x \ne 0`, `\mathbb{R} \setminus \{0\}`,
`|x - 1| < 2`, `2x > 6`, `\{x \mid x > 3\}`. Intervals with ends that are no numbers stay structure.
"""

from __future__ import annotations

import dataclasses
import math
import re
from fractions import Fraction

from jaxrl_vr.verifiers import symbolic
from jaxrl_vr.verifiers.expression import TooLarge, Tree, Unreadable, parse
from jaxrl_vr.verifiers.latex import SET_CLOSE, SET_OPEN, key
from jaxrl_vr.verifiers.rational import exact, substituted
from jaxrl_vr.verifiers.split import RELATION, encloses, split, split_at

Number = Fraction | float

_MAX_PARTS = 60
_MAX_DEPTH = 8
_OPERATION = re.compile(r"\\(?:cup|cap|setminus)(?![a-zA-Z])|\N{UNION}")
_OR = re.compile(r"\s*,?\s*(?:\bor\b|\\(?:lor|vee)(?![a-zA-Z]))\s*")
_AND = re.compile(r"\s*,?\s*(?:\band\b|\\(?:land|wedge)(?![a-zA-Z]))\s*")
_SUCH_THAT = re.compile(r"\\mid(?![a-zA-Z])|\||:")
_ALL = re.compile(r"\\mathbb\s*\{\s*R\s*\}|\\mathbb\s*R|all real numbers|all reals", re.IGNORECASE)
_VARIABLE = re.compile(r"(?:[a-zA-Z]|\\[a-zA-Z]+)(?:_(?:\w|\{\w+\}))?")
_SURE = re.compile(
    r"\\(?:cup|cap|setminus|infty|le|ge|ne|lor|mathbb)(?![a-zA-Z])|[<>|]|^[(\[][^()\[\]]*\]$|^\["
)
_CLOSENESS = 1e-12


@dataclasses.dataclass(frozen=True)
class Interval:
    """From `low` to `high`; an end that is infinite is open."""

    low: Number
    high: Number
    has_low: bool
    has_high: bool


@dataclasses.dataclass(frozen=True)
class Solution:
    """Intervals apart from each other in order, and the variable they are of, if it was named."""

    name: str
    intervals: tuple[Interval, ...]


def is_surely_set(text: str) -> bool:
    """Whether a cleaned answer is a set of numbers by its form; (1,2) may as well be a point."""
    return bool(_SURE.search(text))


def same(a: Solution, b: Solution) -> bool:
    """Whether both are the same set, and of the same variable where both name one."""
    if a.name and b.name and a.name != b.name:
        return False
    return len(a.intervals) == len(b.intervals) and all(
        _near(x.low, y.low)
        and _near(x.high, y.high)
        and (x.has_low, x.has_high) == (y.has_low, y.has_high)
        for x, y in zip(a.intervals, b.intervals, strict=True)
    )


def solution(text: str) -> Solution | None:
    """The set that a cleaned answer stands for, or None if it surely is none."""
    try:
        return _read(text.strip(), 0)
    except (Unreadable, TooLarge, RecursionError, OverflowError):
        return None


def _read(text: str, depth: int) -> Solution:
    if depth > _MAX_DEPTH:
        raise Unreadable("nested too deep")
    parts = split_at(text, _OR)[::2]
    if len(parts) > 1:
        return _joined([_read(part.strip(), depth + 1) for part in parts[:_MAX_PARTS]], any)
    parts = [part for part in split_at(text, _AND)[::2] if part.strip()]
    if len(parts) == 1:
        parts = [part for part in split(text, ",") if part.strip()]
    if len(parts) > 1:
        if not all(RELATION.search(part) for part in parts[1:]):
            raise Unreadable("a list")
        read = [_read(part.strip(), depth + 1) for part in parts[:_MAX_PARTS]]
        both = _joined(read, all)
        # "x < 1 and x > 3" lists the two parts of a solution.
        return both if both.intervals else _joined(read, any)
    sides = split_at(text, RELATION)
    if len(sides) > 1:
        return _of_relation(
            [x.strip() for x in sides[::2]], [x.strip() for x in sides[1::2]], depth
        )
    return Solution("", _set(text, depth))


def _joined(parts: list[Solution], rule) -> Solution:
    names = {part.name for part in parts if part.name}
    if len(names) > 1:
        raise Unreadable("several variables")
    return Solution("".join(names), _combined([part.intervals for part in parts], rule))


def _of_relation(sides: list[str], signs: list[str], depth: int) -> Solution:
    if signs == [r"\in"]:
        if not _VARIABLE.fullmatch(key(sides[0])):
            raise Unreadable("not a variable")
        return Solution(key(sides[0]), _set(sides[1], depth))
    found: list[Solution] = []
    for left, sign, right in zip(sides, signs, sides[1:], strict=False):
        found.append(_of_comparison(parse(left), sign, parse(right)))
    return _joined(found, all)


def _of_comparison(left: Tree, sign: str, right: Tree) -> Solution:
    """A comparison that is linear in one variable, or of one absolute value with a number."""
    if sign not in ("<", ">", r"\le", r"\ge", r"\ne"):
        raise Unreadable("not a comparison")
    if right[0] == "abs":
        left, right = right, left
        sign = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}.get(sign, sign)
    names = _symbols(left) | _symbols(right)
    if len(names) != 1:
        raise Unreadable("not of one variable")
    (name,) = names
    if left[0] == "abs":
        return Solution(name, _within(_line(left[1], name), sign, _value(right)))
    slope, shift = _line(("add", left, ("neg", right)), name)
    end = -shift / slope
    closed = sign in (r"\le", r"\ge")
    below, above = (
        Interval(-math.inf, end, False, closed),
        Interval(end, math.inf, closed, False),
    )
    if sign == r"\ne":
        return Solution(name, (below, above))
    return Solution(name, (below,) if (sign in ("<", r"\le")) == (slope > 0) else (above,))


def _within(line: tuple[Number, Number], sign: str, bound: Number) -> tuple[Interval, ...]:
    """Where the size of slope * x + shift is below the bound, or above it."""
    slope, shift = line
    if bound < 0 or sign == r"\ne":
        raise Unreadable("an absolute value below zero, or different from a number")
    low, high = sorted(((-bound - shift) / slope, (bound - shift) / slope))
    closed = sign in (r"\le", r"\ge")
    if sign in ("<", r"\le"):
        return _combined([(Interval(low, high, closed, closed),)], any)
    outer = (Interval(-math.inf, low, False, closed), Interval(high, math.inf, closed, False))
    return _combined([outer], any)


def _symbols(tree: Tree) -> set[str]:
    if tree[0] == "sym":
        return set() if tree[1] in ("pi", "e") else {tree[1]}
    return set().union(*(_symbols(part) for part in tree[1:] if isinstance(part, tuple)))


def _line(tree: Tree, name: str) -> tuple[Number, Number]:
    """Slope and shift of what is linear in a symbol, by its values at four points."""
    points = [_value(substituted(tree, name, ("num", Fraction(x)))) for x in (0, 1, 2, 5)]
    slope, shift = points[1] - points[0], points[0]
    if not all(_near(points[i], shift + slope * x) for i, x in ((2, 2), (3, 5))) or slope == 0:
        raise Unreadable("not linear")
    if not _is_linear(tree, name):
        raise Unreadable("not linear")
    return slope, shift


def _is_linear(tree: Tree, name: str) -> bool:
    """Whether a symbol stands only in sums, multiples and quotients by numbers."""
    kind, *parts = tree
    if name not in _symbols(tree):
        return True
    if kind == "sym":
        return True
    holders = [name in _symbols(part) for part in parts if isinstance(part, tuple)]
    if (
        kind in ("add", "neg")
        or (kind == "mul" and sum(holders) == 1)
        or (kind == "div" and not holders[1])
    ):
        return all(_is_linear(part, name) for part in parts)
    return False


def _value(tree: Tree) -> Number:
    value = exact(tree)
    if value is None:
        value = symbolic.value(tree)
    if value is None:
        raise Unreadable("not a number")
    return value


def _set(text: str, depth: int) -> tuple[Interval, ...]:
    text = text.strip()
    if depth > _MAX_DEPTH or not text:
        raise Unreadable("nested too deep, or empty")
    parts = split_at(text, _OPERATION)
    if len(parts) > 2 * _MAX_PARTS:
        raise Unreadable("too many parts")
    found = _atom(parts[0].strip(), depth)
    for sign, part in zip(parts[1::2], parts[2::2], strict=True):
        other = _atom(part.strip(), depth)
        if sign == r"\setminus":
            found = _combined([found, other], lambda inside: inside[0] and not inside[1])
        else:
            found = _combined([found, other], all if sign == r"\cap" else any)
    return found


def _atom(text: str, depth: int) -> tuple[Interval, ...]:
    if _ALL.fullmatch(text):
        return (Interval(-math.inf, math.inf, False, False),)
    if text == r"\emptyset":
        return ()
    if len(text) < 3 or not encloses(text):
        raise Unreadable("not a set")
    inner = text[1:-1]
    if text[0] == SET_OPEN and text[-1] == SET_CLOSE:
        if len(parts := _SUCH_THAT.split(inner, maxsplit=1)) == 2 and RELATION.search(parts[1]):
            return _read(
                re.sub(r"\\in\s*\\mathbb\s*\{\s*R\s*\}\s*,?", "", parts[1]), depth + 1
            ).intervals
        numbers = sorted(_value(parse(item)) for item in split(inner, ",") if item.strip())
        return tuple(Interval(x, x, True, True) for x in numbers)
    items = split(inner, ",")
    if len(items) == 2 and text[0] in "([" and text[-1] in ")]":
        low, high = (_end(item) for item in items)
        if not low < high and not (low == high and text[0] + text[-1] == "[]"):
            raise Unreadable("an empty interval")
        has_low = text[0] == "[" and low != -math.inf
        return (Interval(low, high, has_low, text[-1] == "]" and high != math.inf),)
    if len(items) == 1 and text[0] == "(":
        return _set(inner, depth + 1)
    raise Unreadable("not a set")


def _end(text: str) -> Number:
    tight = key(text.strip())
    if tight.lstrip("+-") == r"\infty":
        return -math.inf if tight.startswith("-") else math.inf
    return _value(parse(text))


def _near(a: Number, b: Number) -> bool:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    a, b = float(a), float(b)
    return a == b or abs(a - b) <= _CLOSENESS * min(max(abs(a), abs(b)), 1e300)


def _combined(sets: list[tuple[Interval, ...]], rule) -> tuple[Interval, ...]:
    """The numbers whose membership in each of the sets fulfils the rule.

    Membership is constant at each end of an interval and between two neighbouring ends.
    """
    ends: list[Number] = []
    for end in sorted({x for one in sets for i in one for x in (i.low, i.high)}):
        if not ends or not _near(ends[-1], end):
            ends.append(end)
    if -math.inf not in ends:
        ends.insert(0, -math.inf)
    if math.inf not in ends:
        ends.append(math.inf)
    pieces: list[Interval] = []
    for i, end in enumerate(ends):
        if abs(end) != math.inf and rule([_holds(one, end) for one in sets]):
            pieces.append(Interval(end, end, True, True))
        if i + 1 < len(ends):
            inside = rule([_spans(one, end, ends[i + 1]) for one in sets])
            if inside:
                pieces.append(Interval(end, ends[i + 1], False, False))
    merged: list[Interval] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if last and _near(last.high, piece.low) and (last.has_high or piece.has_low):
            merged[-1] = Interval(last.low, piece.high, last.has_low, piece.has_high)
        else:
            merged.append(piece)
    return tuple(merged)


def _holds(one: tuple[Interval, ...], x: Number) -> bool:
    return any(
        (i.low < x < i.high and not _near(i.low, x) and not _near(i.high, x))
        or (_near(i.low, x) and i.has_low)
        or (_near(i.high, x) and i.has_high)
        for i in one
    )


def _spans(one: tuple[Interval, ...], low: Number, high: Number) -> bool:
    return any(
        (i.low <= low or _near(i.low, low)) and (i.high >= high or _near(i.high, high)) for i in one
    )

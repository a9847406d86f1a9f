"""Whether two answers are the same, in stages from cheap and sure to costly.

The same string; the same exact number, unit and all; the same structure (list, tuple, interval,
set, union, matrix, named value) part by part; the same expression, proven. Text is compared as
text. Symmetric and total: what is not understood is different unless it is the same string.
"""

from __future__ import annotations

import re
from fractions import Fraction

from jaxrl_vr.verifiers import symbolic
from jaxrl_vr.verifiers.expression import TooLarge, Tree, Unreadable, exact, numeral, parse
from jaxrl_vr.verifiers.latex import clean, key
from jaxrl_vr.verifiers.structure import Equation, Group, Leaf, Matrix, Named, Node, Union, read
from jaxrl_vr.verifiers.units import split_unit

MAX_LENGTH = 4096  # of an answer; a longer one can only be the same string
_MIN_DIGITS = 10  # significant ones, for a decimal to stand for a number without a finite one
_DECIMAL = re.compile(r"[-+]?\s*(\d*)\.(\d+)")
_SCIENTIFIC = re.compile(r"([-+]?)(\d+(?:\.\d*)?|\.\d+)[eE]([-+]?)(\d{1,4})")
_LETTER_CHOICE = re.compile(r"\(([A-Z])\)")
_EXCLAMATION = re.compile(r"(?<=[a-zA-Z]{3})!$")
_DOTS = re.compile(r"\\(?:ldots|dots|cdots)|\.{2,3}")
_PROSE = re.compile(r"(?=.*[^\W\d_]{2})[\w\s'-]+")
_ARTICLE = re.compile(r"^(?:an?|the)\s+(?=[a-z]{3})", re.IGNORECASE)
_ANY_CASE = {"yes", "no", "true", "false", "none", "even", "odd", "both", "neither", "zero", "one"}


def readable(answer: str) -> bool:
    """Whether a reference answer can be compared with at all: not empty, brackets closed."""
    cleaned = clean(answer[:MAX_LENGTH])
    return bool(cleaned) and cleaned.count("{") == cleaned.count("}")


def equal(a: str, b: str) -> bool:
    """Whether answers `a` and `b` (text or LaTeX) are the same."""
    if a.strip() == b.strip():
        return bool(a.strip())
    if max(len(a), len(b)) > MAX_LENGTH:
        return False
    a, b = clean(a), clean(b)
    if not a or not b:
        return False
    if key(a) == key(b):
        return True
    return _equal(read(a), read(b))


def canonical(answer: str) -> str:
    """A string that is the same for answers whose equality plain arithmetic can tell."""
    if len(answer) > MAX_LENGTH:
        return answer.strip()
    return _canonical(read(clean(answer)))


def _equal(a: Node, b: Node) -> bool:
    if isinstance(a, Leaf) and isinstance(b, Leaf):
        return _same_leaf(a.text, b.text)
    if isinstance(a, Equation | Named) and isinstance(b, Equation | Named):
        return _same_relation(a, b)
    if isinstance(a, Named) and not isinstance(b, Equation):
        return _equal(a.value, b)
    if isinstance(b, Named) and not isinstance(a, Equation):
        return _equal(a, b.value)
    if isinstance(a, Matrix) and isinstance(b, Matrix):
        return len(a.rows) == len(b.rows) and all(map(_in_order, a.rows, b.rows))
    if isinstance(a, Union) and isinstance(b, Union):
        return _in_any_order(a.parts, b.parts)
    if isinstance(a, Group) and isinstance(b, Group):
        return _same_group(a, b)
    return False


def _same_relation(a: Equation | Named, b: Equation | Named) -> bool:
    if isinstance(a, Named) and isinstance(b, Named):
        if a.name == b.name and _equal(a.value, b.value):
            return True
    if isinstance(a, Equation) and isinstance(b, Equation) and a.text == b.text:
        return True
    if a.sides is None or b.sides is None:
        return False
    try:
        left, right = (_difference(*x.sides) for x in (a, b) if x.sides is not None)
    except Unreadable:
        return False
    return symbolic.proportional(left, right)


def _difference(left: str, right: str) -> Tree:
    return ("add", parse(left), ("neg", parse(right)))


def _same_group(a: Group, b: Group) -> bool:
    kinds = {a.kind, b.kind}
    if _goes_on(a) or _goes_on(b):
        return len(kinds) == 1 and _in_order(a.items, b.items)
    if kinds == {""} or kinds == {"", "{}"} or kinds == {"{}"}:
        if _named(a) == _named(b):
            return _in_any_order(a.items, b.items)
        return "{}" not in kinds and _in_order(a.items, b.items)
    if kinds == {"", "()"} or len(kinds) == 1:
        return _in_order(a.items, b.items)
    return False


def _named(group: Group) -> bool:
    """Whether the items carry different names, so that without them the order tells them apart."""
    names = [item.name for item in group.items if isinstance(item, Named)]
    return len(set(names)) > 1


def _goes_on(group: Group) -> bool:
    """Whether dots stand for items left out: then the order says which."""
    return any(isinstance(x, Leaf) and _DOTS.fullmatch(x.text) for x in group.items)


def _in_order(a: tuple[Node, ...], b: tuple[Node, ...]) -> bool:
    return len(a) == len(b) and all(map(_equal, a, b))


def _in_any_order(a: tuple[Node, ...], b: tuple[Node, ...]) -> bool:
    if len(a) != len(b):
        return False
    rest = sorted(b, key=_canonical)
    for item in sorted(a, key=_canonical):
        match = next((i for i, other in enumerate(rest) if _equal(item, other)), None)
        if match is None:
            return False
        del rest[match]
    return True


def _same_leaf(a: str, b: str) -> bool:
    if key(a) == key(b):
        return True
    (core_a, unit_a), (core_b, unit_b) = split_unit(a), split_unit(b)
    if unit_a and unit_b and unit_a != unit_b:
        return False
    if {unit_a, unit_b} == {"percent", ""}:
        unit_a = unit_b = "percent"  # 50 % is 0.5
        core_a, core_b = (core_a, b) if core_b == b else (a, core_b)
        return _same_value(core_a, core_b, percent=core_a != a)
    if _same_value(core_a, core_b):
        return True
    return not unit_a and not unit_b and _words(a) == _words(b)


def _same_value(a: str, b: str, percent: bool | None = None) -> bool:
    try:
        x, y = _tree(a), _tree(b)
        if percent is not None:
            hundred: Tree = ("num", Fraction(100))
            x, y = (("div", x, hundred), y) if percent else (x, ("div", y, hundred))
        p, q = exact(x), exact(y)
    except (Unreadable, TooLarge, RecursionError):
        return False
    if p is not None and q is not None:
        return p == q or _rounds(a, p, q) or _rounds(b, q, p)
    if p is not None or q is not None:
        tree, text, value = (y, a, p) if q is None else (x, b, q)
        assert value is not None, "one of them is a number"
        span = _span(text, value)
        if span is not None and symbolic.between(tree, *span):
            return True
    return symbolic.equal(x, y)


def _tree(text: str) -> Tree:
    if match := _SCIENTIFIC.fullmatch(text.replace(" ", "")):
        sign, mantissa, minus, exponent = match.groups()
        # 2e-3 may be 2e - 3; 1e-3, 2.0e-3 and 2E-3 are not.
        if "e" not in text or not minus or mantissa == "1" or "." in mantissa:
            value = numeral(mantissa) * Fraction(10) ** int(minus + exponent)
            return ("num", -value if sign == "-" else value)
    return parse(text)


def _rounds(decimal: str, value: Fraction, other: Fraction) -> bool:
    """Whether a decimal is `other`, which has no finite decimal, rounded or cut."""
    span = _span(decimal, value)
    if span is None or not span[0] <= other <= span[1]:
        return False
    rest = other.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest != 1


def _span(decimal: str, value: Fraction) -> tuple[Fraction, Fraction] | None:
    """The numbers that a decimal of enough digits can be, if it was rounded or cut."""
    match = _DECIMAL.fullmatch(decimal.strip())
    if match is None or len((match[1] + match[2]).lstrip("0")) < _MIN_DIGITS:
        return None
    place = Fraction(1, 10 ** len(match[2]))
    toward, away = place / 2, place  # rounded up in magnitude, or down, or cut
    return (value - toward, value + away) if value >= 0 else (value - away, value + toward)


def _words(text: str) -> list[str]:
    """A text answer as a list of words to compare; letters alone keep their case."""
    text = _ARTICLE.sub("", _LETTER_CHOICE.sub(r"\1", _EXCLAMATION.sub("", text.strip())))
    words = re.findall(r"[^\W\d_]+|\d+|\S", text)
    return [_folded(word) for word in words]


def _folded(word: str) -> str:
    if len(word) == 1 or (word.isupper() and word.lower() not in _ANY_CASE):
        return word
    return word.casefold()


def _canonical(node: Node) -> str:
    if isinstance(node, Leaf):
        return _canonical_leaf(node.text)
    if isinstance(node, Named):
        return _canonical(node.value)
    if isinstance(node, Equation):
        return key(node.text)
    if isinstance(node, Matrix):
        return ";".join(",".join(map(_canonical, row)) for row in node.rows)
    if isinstance(node, Union):
        return "U".join(sorted(map(_canonical, node.parts)))
    items = [_canonical(item) for item in node.items]
    if node.kind in ("", "{}") and not _named(node) and not _goes_on(node):
        items.sort()
    kind = "" if node.kind in ("", "{}", "()") else node.kind
    return f"{kind[:1]}{','.join(items)}{kind[1:]}"


def _canonical_leaf(text: str) -> str:
    core, unit = split_unit(text)
    try:
        value = exact(_tree(core))
    except (Unreadable, TooLarge, RecursionError):
        value = None
    if value is None:
        return " ".join(_words(text)) if _PROSE.fullmatch(text) else key(text)
    value = value / 100 if unit == "percent" else value
    return f"{_digits(value.numerator)}/{_digits(value.denominator)}".removesuffix("/1")


def _digits(number: int) -> str:
    """In decimal, or where Python refuses that (over 4300 digits) in hexadecimal."""
    return str(number) if number.bit_length() < 10_000 else hex(number)

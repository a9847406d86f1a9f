"""Whether two answers are the same, in stages from cheap and sure to costly.

The same string; the same exact number, unit and all; the same structure (list, tuple, interval,
set, union, matrix, named value) part by part; the same expression, proven. Text is compared as
text. Symmetric and total: what is not understood is different unless it is the same string.
"""

from __future__ import annotations

import re
from fractions import Fraction

from jaxrl_vr.verifiers import realset, symbolic
from jaxrl_vr.verifiers.expression import TooLarge, Tree, Unreadable, numeral, parse
from jaxrl_vr.verifiers.latex import clean, key
from jaxrl_vr.verifiers.ratio import terms, time_of
from jaxrl_vr.verifiers.rational import exact
from jaxrl_vr.verifiers.rules import LENIENT, Rules
from jaxrl_vr.verifiers.structure import Equation, Group, Leaf, Matrix, Named, Node, Union, read
from jaxrl_vr.verifiers.units import split_unit
from jaxrl_vr.verifiers.words import is_prose, same_choice, words

MAX_LENGTH = 4096  # of an answer; a longer one can only be the same string
_DECIMAL = re.compile(r"[-+]?\s*(\d*)\.(\d+)")
_SCIENTIFIC = re.compile(r"([-+]?)(\d+(?:\.\d*)?|\.\d+)[eE]([-+]?)(\d{1,4})")
_DOTS = re.compile(r"\\(?:ldots|dots|cdots)|\.{2,3}")
_LETTERS = re.compile(r"[a-z]{3}")
_ORDERED = {"<", ">", r"\le", r"\ge"}


def readable(answer: str) -> bool:
    """Whether a reference answer can be compared with at all: not empty, brackets closed."""
    cleaned = clean(answer[:MAX_LENGTH])
    return bool(cleaned) and (len(answer) > MAX_LENGTH or _is_closed(cleaned))


def _is_closed(cleaned: str) -> bool:
    return cleaned.count("{") == cleaned.count("}")


def equal(a: str, b: str, rules: Rules = LENIENT) -> bool:
    """Whether answers `a` and `b` (text or LaTeX) are the same."""
    return bool(stage(a, b, rules))


def stage(a: str, b: str, rules: Rules = LENIENT) -> str:
    """The stage that finds answers `a` and `b` the same; empty where they are different.

    Args:
      a: text or LaTeX.
      b: the other answer; it makes no difference which is the reference.
      rules: how strict to be.
    """
    if a.strip() == b.strip():
        return "text" if a.strip() else ""
    if max(len(a), len(b)) > MAX_LENGTH:
        return ""
    a, b = clean(a), clean(b)
    if not a or not b:
        return ""
    if key(a) == key(b):
        return "text"
    comparison = Comparison(rules)
    return comparison.stage if comparison.answers(a, b) else ""


def canonical(answer: str) -> str:
    """A string that is the same for answers whose equality plain arithmetic can tell."""
    if len(answer) > MAX_LENGTH:
        return answer.strip()
    return _canonical(read(clean(answer)))


class Comparison:
    """Compares two cleaned answers by one set of rules, and notes the costliest stage it needed."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.stages: list[str] = []

    @property
    def stage(self) -> str:
        """The costliest stage so far."""
        order = ("expression", "structure", "number", "words")
        return next((name for name in order if name in self.stages), "text")

    def answers(self, a: str, b: str) -> bool:
        """Whether two cleaned answers are the same."""
        if self._nodes(read(a), read(b)):
            return True
        if realset.is_surely_set(a) or realset.is_surely_set(b):
            x, y = realset.solution(a), realset.solution(b)
            if x is not None and y is not None and realset.same(x, y):
                self.stages.append("structure")
                return True
        return same_choice(a, b)

    def _nodes(self, a: Node, b: Node) -> bool:
        a, b = self._resolved(a), self._resolved(b)
        if isinstance(a, Leaf) and isinstance(b, Leaf):
            return self._leaves(a.text, b.text)
        self.stages.append("structure")
        if isinstance(a, Equation | Named) and isinstance(b, Equation | Named):
            return self._relations(a, b)
        if isinstance(a, Named) and not isinstance(b, Equation):
            return self._nodes(a.value, b)
        if isinstance(b, Named) and not isinstance(a, Equation):
            return self._nodes(a, b.value)
        if isinstance(a, Matrix) and isinstance(b, Matrix):
            return len(a.rows) == len(b.rows) and all(map(self._in_order, a.rows, b.rows))
        if isinstance(a, Union) and isinstance(b, Union):
            return self._in_any_order(a.parts, b.parts)
        if isinstance(a, Group) and isinstance(b, Group):
            return self._groups(a, b)
        return False

    def _resolved(self, node: Node) -> Node:
        """A list or set of one item as the item, a chain of equal values as the value."""
        if isinstance(node, Group) and node.kind in ("", "{}"):
            items = self._distinct(node.items)
            return items[0] if len(items) == 1 else node
        if not isinstance(node, Equation) or set(node.signs) != {"="}:
            return node
        first, *rest = node.sides
        name = read(f"{first}=0")
        if isinstance(name, Named):
            values = rest
        else:
            values = list(node.sides)
        trees = [_value_of(side) for side in values]
        if len(values) < 2 or any(tree is None for tree in trees):
            return node
        if not all(self._leaves(values[0], side) for side in values[1:]):
            return node
        value = Leaf(values[-1])
        return Named(name.name, value, (first, values[-1])) if isinstance(name, Named) else value

    def _relations(self, a: Equation | Named, b: Equation | Named) -> bool:
        if isinstance(a, Named) and isinstance(b, Named):
            if a.name == b.name and self._nodes(a.value, b.value):
                return True
        if isinstance(a, Equation) and isinstance(b, Equation) and a.text == b.text:
            return True
        x, y = _comparison_of(a), _comparison_of(b)
        if x is None or y is None or x[1] != y[1]:
            return False
        self.stages.append("expression")
        return symbolic.proportional(x[0], y[0], positive=x[1] != "=")

    def _groups(self, a: Group, b: Group) -> bool:
        kinds = {a.kind, b.kind}
        if _goes_on(a) or _goes_on(b):
            return len(kinds) == 1 and self._in_order(a.items, b.items)
        if kinds <= {"", "{}"}:
            if self.rules.order == "strict" and "{}" not in kinds:
                return self._in_order(a.items, b.items)
            if _named(a) == _named(b):
                return self._in_any_order(self._distinct(a.items), self._distinct(b.items))
            return "{}" not in kinds and self._in_order(a.items, b.items)
        if kinds == {"", "()"} or len(kinds) == 1:
            if self._in_order(a.items, b.items):
                return True
            is_free = self.rules.order == "free" and kinds <= {"", "()"}
            return is_free and self._in_any_order(a.items, b.items)
        return False

    def _in_order(self, a: tuple[Node, ...], b: tuple[Node, ...]) -> bool:
        return len(a) == len(b) and all(map(self._nodes, a, b))

    def _in_any_order(self, a: tuple[Node, ...], b: tuple[Node, ...]) -> bool:
        if len(a) != len(b):
            return False
        rest = sorted(b, key=_canonical)
        for item in sorted(a, key=_canonical):
            match = next((i for i, other in enumerate(rest) if self._nodes(item, other)), None)
            if match is None:
                return False
            del rest[match]
        return True

    def _distinct(self, items: tuple[Node, ...]) -> tuple[Node, ...]:
        """The items of a set or list, each once as far as plain arithmetic can tell."""
        if any(isinstance(item, Named) for item in items):
            return items
        return tuple({_canonical(item): item for item in items}.values())

    def _leaves(self, a: str, b: str) -> bool:
        if key(a) == key(b):
            return True
        (core_a, unit_a), (core_b, unit_b) = split_unit(a), split_unit(b)
        if not self._units_agree(unit_a, unit_b):
            return False
        if {unit_a, unit_b} == {"percent", ""} and self._percent(a, b, unit_a == "percent"):
            return True
        if "percent" in (unit_a, unit_b) and unit_a != unit_b:
            return False
        if self._values(core_a, core_b) or self._ratios(core_a, core_b):
            return True
        if not unit_a and not unit_b and words(a) == words(b):
            self.stages.append("words")
            return True
        return False

    def _units_agree(self, a: str, b: str) -> bool:
        if self.rules.units == "ignored" or a == b:
            return True
        if "percent" in (a, b) and "" in (a, b):
            return True
        return self.rules.units == "optional" and not (a and b)

    def _percent(self, a: str, b: str, is_first: bool) -> bool:
        with_sign, without = (a, b) if is_first else (b, a)
        number = split_unit(with_sign)[0]
        if self._values(number, without, shift=2):
            return True
        return self.rules.percent == "either" and self._values(number, without)

    def _ratios(self, a: str, b: str) -> bool:
        times = time_of(a), time_of(b)
        if any(times):
            return times[0] == times[1]
        x, y = terms(a), terms(b)
        if x is None and y is None:
            return False
        if x is None or y is None:
            ratio, other = (x, b) if x is not None else (y, a)
            assert ratio is not None, "one of them is a ratio"
            return len(ratio) == 2 and self._values(f"({ratio[0]})/({ratio[1]})", other)
        if len(x) != len(y):
            return False
        self.stages.append("structure")
        return all(
            self._values(f"({p})*({y[0]})", f"({q})*({x[0]})")
            for p, q in zip(x[1:], y[1:], strict=True)
        )

    def _values(self, a: str, b: str, shift: int = 0) -> bool:
        """Whether two expressions have one value, the first taken `shift` places down."""
        if _LETTERS.fullmatch(a) and _LETTERS.fullmatch(b):
            return False  # as a product of letters, god would be dog
        try:
            x, y = _tree(a), _tree(b)
            if shift:
                x = ("div", x, ("num", Fraction(10**shift)))
            p, q = exact(x), exact(y)
        except (Unreadable, TooLarge, RecursionError):
            return False
        self.stages.append("number")
        if p is not None and q is not None:
            if p == q or self._rounds(a, p, q, shift) or self._rounds(b, q, p):
                return True
            return self._tolerated(p, q) if _decimal(a) or _decimal(b) else False
        self.stages.append("expression")
        if p is not None or q is not None:
            tree, text, value = (y, a, p) if q is None else (x, b, q)
            assert value is not None, "one of them is a number"
            spans = [self._span(text, value, shift if q is None else 0)]
            if self.rules.tolerance and _decimal(text):
                width = abs(value) * Fraction(self.rules.tolerance)
                spans.append((value - width, value + width))
            if any(span is not None and symbolic.between(tree, *span) for span in spans):
                return True
        return symbolic.equal(x, y)

    def _tolerated(self, p: Fraction, q: Fraction) -> bool:
        return abs(p - q) <= Fraction(self.rules.tolerance) * max(abs(p), abs(q))

    def _rounds(self, decimal: str, value: Fraction, other: Fraction, shift: int = 0) -> bool:
        """Whether a decimal is `other`, which has no finite decimal, rounded or cut."""
        span = self._span(decimal, value, shift)
        if span is None or not span[0] <= other <= span[1]:
            return False
        rest = other.denominator
        for prime in (2, 5):
            while rest % prime == 0:
                rest //= prime
        return rest != 1

    def _span(
        self, decimal: str, value: Fraction, shift: int = 0
    ) -> tuple[Fraction, Fraction] | None:
        """The numbers that a decimal of enough digits can be, if it was rounded or cut."""
        match = _DECIMAL.fullmatch(decimal.strip())
        enough = self.rules.decimals
        if match is None or not 0 < enough <= len((match[1] + match[2]).lstrip("0")):
            return None
        place = Fraction(1, 10 ** (len(match[2]) + shift))
        toward, away = place / 2, place  # rounded up in magnitude, or down, or cut
        return (value - toward, value + away) if value >= 0 else (value - away, value + toward)


def _decimal(text: str) -> bool:
    return bool(_DECIMAL.fullmatch(text.strip()))


def _value_of(text: str) -> Tree | None:
    """The tree of a side that is a number, or None."""
    try:
        tree = _tree(split_unit(text)[0])
        return tree if exact(tree) is not None or not _has_symbols(tree) else None
    except (Unreadable, TooLarge, RecursionError):
        return None


def _has_symbols(tree: Tree) -> bool:
    if tree[0] == "sym":
        return tree[1] not in ("pi", "e", "i")
    return any(_has_symbols(part) for part in tree[1:] if isinstance(part, tuple))


def _comparison_of(node: Equation | Named) -> tuple[Tree, str] | None:
    """Left minus right of a relation of two sides, and its sign, the greater side on the right."""
    sides = node.sides
    signs = node.signs if isinstance(node, Equation) else ("=",)
    if sides is None or len(sides) != 2 or signs[0] not in ("=", *_ORDERED, r"\ne"):
        return None
    left, right = (sides[1], sides[0]) if signs[0] in (">", r"\ge") else sides
    sign = {">": "<", r"\ge": r"\le"}.get(signs[0], signs[0])
    try:
        return ("add", parse(left), ("neg", parse(right))), sign
    except (Unreadable, RecursionError):
        return None


def _named(group: Group) -> bool:
    """Whether the items carry different names, so that without them the order tells them apart."""
    names = [item.name for item in group.items if isinstance(item, Named)]
    return len(set(names)) > 1


def _goes_on(group: Group) -> bool:
    """Whether dots stand for items left out: then the order says which."""
    return any(isinstance(x, Leaf) and _DOTS.fullmatch(x.text) for x in group.items)


def _tree(text: str) -> Tree:
    if match := _SCIENTIFIC.fullmatch(text.replace(" ", "")):
        sign, mantissa, minus, exponent = match.groups()
        # 2e-3 may be 2e - 3; 1e-3, 2.0e-3 and 2E-3 are not.
        if "e" not in text or not minus or mantissa == "1" or "." in mantissa:
            value = numeral(mantissa) * Fraction(10) ** int(minus + exponent)
            return ("num", -value if sign == "-" else value)
    return parse(text)


def _canonical(node: Node) -> str:
    if isinstance(node, Leaf):
        return _canonical_leaf(node.text)
    if isinstance(node, Named):
        return _canonical(node.value)
    if isinstance(node, Equation):
        return node.text
    if isinstance(node, Matrix):
        return ";".join(",".join(map(_canonical, row)) for row in node.rows)
    if isinstance(node, Union):
        return "U".join(sorted(map(_canonical, node.parts)))
    items = [_canonical(item) for item in node.items]
    if node.kind in ("", "{}") and not _named(node) and not _goes_on(node):
        items = sorted(set(items))
    kind = "" if node.kind in ("", "{}", "()") else node.kind
    return f"{kind[:1]}{','.join(items)}{kind[1:]}"


def _canonical_leaf(text: str) -> str:
    core, unit = split_unit(text)
    try:
        value = exact(_tree(core))
    except (Unreadable, TooLarge, RecursionError):
        value = None
    if value is None:
        return " ".join(words(text)) if is_prose(text) else key(text)
    value = value / 100 if unit == "percent" else value
    return f"{_digits(value.numerator)}/{_digits(value.denominator)}".removesuffix("/1")


def _digits(number: int) -> str:
    """In decimal, or where Python refuses that (over 4300 digits) in hexadecimal."""
    return str(number) if number.bit_length() < 10_000 else hex(number)

"""Equality of trees that plain arithmetic cannot decide, by sympy (imported at the first call).

A tree is bounded before sympy sees it. Equal means proven: numbers only rule equality out. What
cannot be proven is taken as different. A call may still take long: run it where it can be killed.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from jaxrl_vr.verifiers.expression import TooLarge, Tree, Unreadable
from jaxrl_vr.verifiers.rational import exact, substituted

_MAX_EXPONENT = 1000
_MAX_SYMBOLIC_EXPONENT = 30  # of a sum with symbols, which is expanded
_MAX_SIZE = 1e100
_MAX_NODES = 600
_MAX_TERMS = 50  # of a sum with symbols that is written out
_DIGITS = 40
# What sympy is known to raise on expressions it cannot handle: then nothing is proven.
_SYMPY_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RecursionError,
    TypeError,
    ValueError,
)


def equal(a: Tree, b: Tree) -> bool:
    """Whether a = b is proven for all real values of the symbols at which they are real."""
    try:
        x, y = _bounded(a), _bounded(b)
        if _is_zero(x - y):
            return True
        positive = {s: _as_positive(s) for s in _positive_symbols(x, y)}
        return bool(positive) and _is_zero(x.subs(positive) - y.subs(positive))
    except (TooLarge, Unreadable, *_SYMPY_ERRORS):
        return False


def proportional(a: Tree, b: Tree, *, positive: bool = False) -> bool:
    """Whether a = c b for a number c other than zero: the equations a = 0 and b = 0 are the same.

    Both must hold a symbol. With `positive`, c > 0: then a < 0 and b < 0 are the same.
    """
    try:
        x, y = _bounded(a), _bounded(b)
        if not x.free_symbols or not y.free_symbols:
            return False
        import sympy

        ratio = sympy.cancel(x / y)
        if not (ratio.is_number and ratio.is_finite) or _is_zero(ratio):
            return False
        return not positive or bool(ratio.is_positive)
    except (TooLarge, Unreadable, *_SYMPY_ERRORS):
        return False


def value(tree: Tree) -> float | None:
    """The real value of a tree without symbols, to about 15 digits."""
    try:
        x = _bounded(tree)
        number = None if x.free_symbols else _evaluated(x)
        return float(number) if number is not None and number.is_real else None
    except (TooLarge, Unreadable, *_SYMPY_ERRORS):
        return None


def between(tree: Tree, low: Fraction, high: Fraction) -> bool:
    """Whether the value of a tree without symbols lies between two numbers."""
    try:
        x = _bounded(tree)
        if x.free_symbols:
            return False
        gaps = [_evaluated(x - _rational(low)), _evaluated(_rational(high) - x)]
        return all(bool(gap.is_real and gap > 0) for gap in gaps)
    except (TooLarge, Unreadable, *_SYMPY_ERRORS):
        return False


def _positive_symbols(x: Any, y: Any) -> list[Any]:
    """The symbols that must be positive for each of both to be real, as in sqrt(n)."""
    import sympy

    symbols = sorted(x.free_symbols & y.free_symbols, key=str)
    if not (x.atoms(sympy.Pow) | x.atoms(sympy.log)) or len(symbols) > 4:
        return []
    found = []
    for symbol in symbols:
        point = {s: sympy.Rational(-11 if s == symbol else 5, 7) for s in symbols}
        values = [sympy.N(each.subs(point), 15) for each in (x, y)]
        if all(value.is_Number is False and value.is_real is False for value in values):
            found.append(symbol)
    return found


def _as_positive(symbol: Any) -> Any:
    import sympy

    return sympy.Symbol(symbol.name, positive=True)


def _evaluated(x: Any) -> Any:
    import sympy

    return sympy.N(x, _DIGITS)


def _rational(value: Fraction) -> Any:
    import sympy

    return sympy.Rational(value.numerator, value.denominator)


def _bounded(tree: Tree) -> Any:
    if _nodes(tree) > _MAX_NODES:
        raise TooLarge("an expression of too many parts")
    _size(tree)
    return _build(tree)


def _nodes(tree: Tree) -> int:
    return 1 + sum(_nodes(part) for part in tree[1:] if isinstance(part, tuple))


def _has_symbol(tree: Tree) -> bool:
    if tree[0] == "sym":
        return tree[1] not in ("pi", "e", "i")
    return any(_has_symbol(part) for part in tree[1:] if isinstance(part, tuple))


def _size(tree: Tree) -> float:
    """An upper estimate of the magnitude, with symbols at most 2.

    Raises:
      TooLarge: a power in it is too large to be handed on.
    """
    kind, *parts = tree
    if kind == "num":
        return float(min(abs(parts[0]), Fraction(10**300)))
    if kind == "sym":
        return 4.0
    if kind in ("fact", "binom"):
        raise Unreadable("a factorial of a symbol")
    if kind in ("sum", "prod"):
        return max(_size(part) for part in parts if isinstance(part, tuple))
    sizes = [_size(part) for part in parts if isinstance(part, tuple)]
    if kind == "pow":
        return _power_size(parts[0], parts[1], sizes[0], sizes[1])
    if kind == "fn":
        size = 2.718282 ** min(sizes[0], 300.0) if parts[0] in _GROWING else max(sizes[0], 4.0)
    elif kind == "add":
        size = sizes[0] + sizes[1]
    elif kind == "mul":
        size = sizes[0] * sizes[1]
    elif kind == "div":
        below = exact(parts[1])
        if below == 0:
            raise Unreadable("a division by zero")
        size = sizes[0] / float(abs(below)) if below else sizes[0]
    else:
        size = sizes[-1]
    if not size < _MAX_SIZE:
        raise TooLarge("a number that is too large")
    return size


_GROWING = ("exp", "sinh", "cosh")


def _power_size(base: Tree, exponent: Tree, below: float, above: float) -> float:
    power = exact(exponent)
    if power is not None:
        above = float(abs(power))
        if power.denominator > 100:
            raise TooLarge("a root of a high degree")
    limit = _MAX_EXPONENT
    if _has_symbol(base) and base[0] not in ("sym", "num"):
        limit = _MAX_SYMBOLIC_EXPONENT
    if above > limit:
        raise TooLarge("an exponent that is too large")
    try:
        size = max(below, 1.0) ** above
    except OverflowError:
        raise TooLarge("a power that is too large") from None
    if not size < (1e300 if power is not None else _MAX_SIZE):
        raise TooLarge("a power that is too large")
    return size


def _build(tree: Tree) -> Any:
    import sympy

    kind, *parts = tree
    if kind == "num":
        return _rational(parts[0])
    if kind == "sym":
        constants = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I}
        return constants.get(parts[0]) or sympy.Symbol(parts[0], real=True)
    if kind == "fn":
        x = _build(parts[1])
        if parts[0] == "log":  # base 10 or e, by the reader's custom: equal only to itself
            return sympy.Function("log_of_unknown_base")(x)
        name = str(parts[0]).replace("arc", "a")
        return getattr(sympy, "log" if name == "ln" else name)(x)
    if kind in ("sum", "prod"):
        return _series(kind, *parts)
    x, *rest = (_build(part) for part in parts)
    if kind == "neg":
        return -x
    if kind == "abs":
        return sympy.Abs(x)
    y = rest[0]
    if kind == "log":
        return sympy.log(y) / sympy.log(x)
    if kind == "pow" and y.is_Rational and y.q % 2 == 1 and y.q > 1 and x.is_negative:
        return -((-x) ** y) if y.p % 2 else (-x) ** y  # the real root
    return {"add": x.__add__, "mul": x.__mul__, "div": x.__truediv__, "pow": x.__pow__}[kind](y)


def _series(kind: str, index: str, first: Tree, last: Tree, body: Tree) -> Any:
    """Written out where it is short, in closed form where sympy finds one."""
    import sympy

    low, high = exact(first), exact(last)
    if low is not None and high is not None:
        if not low.denominator == high.denominator == 1 or not 0 <= high - low < _MAX_TERMS:
            raise TooLarge("a sum of many terms")
        terms = [
            _build(substituted(body, index, ("num", Fraction(k))))
            for k in range(int(low), int(high) + 1)
        ]
        return sympy.Add(*terms) if kind == "sum" else sympy.Mul(*terms)
    k, ends, term = sympy.Symbol(index, real=True), (_build(first), _build(last)), _build(body)
    if _names_index(body, index):  # a_k depends on k though sympy does not see it
        return sympy.Function(kind)(term, k, *ends)
    return sympy.summation(term, (k, *ends)) if kind == "sum" else sympy.product(term, (k, *ends))


def _names_index(tree: Tree, index: str) -> bool:
    if tree[0] == "sym":
        _, _, subscript = tree[1].partition("_")
        return index in subscript
    return any(_names_index(part, index) for part in tree[1:] if isinstance(part, tuple))


def _is_zero(difference: Any) -> bool:
    import sympy

    if difference == 0:
        return True
    if difference.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo) or not _plausible(difference):
        return False
    steps = (
        sympy.expand,
        lambda x: sympy.expand(sympy.numer(sympy.together(x))),
        sympy.radsimp,
        sympy.simplify,
    )
    return any(step(difference) == 0 for step in steps)


def _plausible(difference: Any) -> bool:
    """False if the value at some point is surely not zero."""
    import sympy

    symbols = sorted(difference.free_symbols, key=str)
    for start in (3, 11):
        point = {s: sympy.Rational(start + 2 * i, 7) for i, s in enumerate(symbols)}
        value = sympy.N(difference.subs(point), 15)
        if value.is_Number and value.is_finite and abs(value) > 1e-9:
            return False
        if value.is_number and not value.is_Number and abs(sympy.N(abs(value), 15)) > 1e-9:
            return False
    return True

"""The exact value of trees that are rational, by arithmetic whose size is bounded beforehand."""

from __future__ import annotations

import math
from fractions import Fraction

from jaxrl_vr.verifiers.expression import TooLarge, Tree, Unreadable

MAX_BITS = 100_000  # of a number that is computed exactly
MAX_FACTORIAL = 3000
MAX_TERMS = 500  # of a sum that is written out
_MAX_ROOT = 100


def exact(tree: Tree) -> Fraction | None:
    """The rational value of a tree, or None if it has none that plain arithmetic finds.

    Raises:
      TooLarge: the value, or one on the way to it, is too large.
      Unreadable: it is undefined (a division by zero).
    """
    kind, *parts = tree
    if kind == "num":
        return parts[0]
    if kind in ("sym", "log") or (kind == "fn" and parts[0] not in _ROUNDED):
        return None
    if kind == "fn":
        value = exact(parts[1])
        return None if value is None else Fraction(_ROUNDED[parts[0]](value))
    if kind in ("sum", "prod"):
        return _series(kind, *parts)
    values = [exact(part) for part in parts]
    if kind == "pow" and values[0] is not None and values[1] is not None:
        return _power(values[0], values[1])
    if any(value is None for value in values):
        return None
    a, b = values[0], values[-1]
    assert a is not None and b is not None, "checked above"
    if kind == "fact":
        return Fraction(math.factorial(_count(a)))
    if kind == "binom":
        return Fraction(math.comb(_count(a), _count(b)))
    if kind == "div" and b == 0:
        raise Unreadable("a division by zero")
    return _bounded(
        {
            "add": lambda: a + b,
            "mul": lambda: a * b,
            "div": lambda: a / b,
            "neg": lambda: -a,
            "abs": lambda: abs(a),
        }[kind]()
    )


_ROUNDED = {"floor": math.floor, "ceiling": math.ceil}


def _series(kind: str, index: str, first: Tree, last: Tree, body: Tree) -> Fraction | None:
    low, high = exact(first), exact(last)
    if low is None or high is None or _has_series(body):  # nested ones multiply their terms
        return None
    if low.denominator != 1 or high.denominator != 1 or high < low:
        raise Unreadable("a sum whose bounds are no integers in order")
    if high - low >= MAX_TERMS:
        raise TooLarge("a sum of many terms")
    total = Fraction(kind == "prod")
    for k in range(int(low), int(high) + 1):
        value = exact(substituted(body, index, ("num", Fraction(k))))
        if value is None:
            return None
        total = _bounded(total * value if kind == "prod" else total + value)
    return total


def _has_series(tree: Tree) -> bool:
    return tree[0] in ("sum", "prod") or any(
        _has_series(part) for part in tree[1:] if isinstance(part, tuple)
    )


def substituted(tree: Tree, name: str, value: Tree) -> Tree:
    """`tree` with a symbol replaced."""
    if tree == ("sym", name):
        return value
    return tuple(
        substituted(part, name, value) if isinstance(part, tuple) else part for part in tree
    )


def _bounded(value: Fraction) -> Fraction:
    if _bits(value) > MAX_BITS:
        raise TooLarge("a number of too many digits")
    return value


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _count(value: Fraction) -> int:
    if value.denominator != 1 or value < 0:
        raise Unreadable("a factorial of what is not a natural number")
    if value > MAX_FACTORIAL:
        raise TooLarge("a factorial of a large number")
    return int(value)


def _root(base: Fraction, degree: int) -> Fraction | None:
    """The real root if it is rational."""
    if degree > _MAX_ROOT or (base < 0 and degree % 2 == 0):
        return None
    parts = [_integer_root(abs(base.numerator), degree), _integer_root(base.denominator, degree)]
    if parts[0] is None or parts[1] is None:
        return None
    return Fraction(-parts[0] if base < 0 else parts[0], parts[1])


def _integer_root(number: int, degree: int) -> int | None:
    if number < 2:
        return number
    if degree == 2:
        root = math.isqrt(number)
    else:  # Newton's method from above
        root = 1 << -(-number.bit_length() // degree)
        while (better := ((degree - 1) * root + number // root ** (degree - 1)) // degree) < root:
            root = better
    return root if root**degree == number else None


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if base == 0 and exponent <= 0:
        raise Unreadable("zero to a power that is not positive")
    if exponent.denominator != 1:
        root = _root(base, exponent.denominator)
        return None if root is None else _power(root, Fraction(exponent.numerator))
    if abs(exponent) * (_bits(base) - 1) > MAX_BITS or abs(exponent) > 10**9:
        if abs(base) in (0, 1):
            return base if exponent.numerator % 2 else abs(base)
        raise TooLarge("a power that is too large")
    return base ** int(exponent)

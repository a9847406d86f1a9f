r"""Cleaned LaTeX to an expression tree, and the exact value of trees that are rational.

A tree is a nested tuple: `("num", Fraction)`, `("sym", name)`, `("fn", name, tree)`, or an operator
with its operands: add, mul, div, pow, neg, abs, fact, binom, log (base, argument). What is not
surely understood is `Unreadable` (a ratio, a product of words, `1/2x`): such answers compare as
text, which can only miss an equality. Sizes are bounded before anything is computed.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

Tree = tuple[Any, ...]

MAX_TOKENS = 400
MAX_DEPTH = 40
MAX_DIGITS = 4000
MAX_BITS = 100_000  # of a number that is computed exactly
MAX_FACTORIAL = 3000


class Unreadable(ValueError):
    """Not an expression that is surely understood."""


class TooLarge(ValueError):
    """An expression whose value would be too large to compute."""


_TOKEN = re.compile(
    r"\s*(?:(?P<rep>\d*\.\d*\\overline\s*\{\d+\})|(?P<num>\d+\.?\d*|\.\d+)|\\(?P<cmd>[a-zA-Z]+)"
    r"|(?P<run>[a-zA-Z]+)|(?P<op>\S))"
)
GREEK = set(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi "
    "rho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi "
    "Omega ell".split()
)
FUNCTIONS = set(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp sqrt".split()
)
_WORDS = set(
    "is or an to in of no if at by we it be as on so do he up us me my and the not all any but for "
    "are one two six ten yes odd non nan inf mod may can was has its few cat act".split()
)
_TIMES = {("cmd", "cdot"), ("cmd", "times"), ("op", "*")}
_OVER = {("op", "/"), ("cmd", "div")}


def parse(text: str) -> Tree:
    """The tree of a cleaned string.

    Raises:
      Unreadable: it is no expression, or one that could be read in two ways.
    """
    tokens = _tokens(text)
    parser = _Parser(tokens)
    tree = parser.sum(0)
    if parser.at < len(tokens):
        raise Unreadable(f"unexpected {tokens[parser.at][1]!r}")
    return tree


def numeral(text: str) -> Fraction:
    """The exact value of a decimal numeral, which may end in `\\overline{...}`."""
    if len(text) > MAX_DIGITS:
        raise Unreadable("a numeral of too many digits")
    head, _, repeated = text.partition("\\overline")
    whole, _, places = head.strip().partition(".")
    value = Fraction(int((whole + places) or "0"), 10 ** len(places))
    if repeated:
        digits = repeated.strip(" {}")
        value += Fraction(int(digits), (10 ** len(digits) - 1) * 10 ** len(places))
    return value


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    end = 0
    text = text.rstrip()
    while end < len(text):
        match = _TOKEN.match(text, end)
        if match is None or match.lastgroup is None or len(tokens) >= MAX_TOKENS:
            raise Unreadable("not made of known tokens, or too long")
        tokens += _split(match.lastgroup, match[match.lastgroup])
        end = match.end()
    if not tokens:
        raise Unreadable("empty")
    return tokens


def _split(kind: str, text: str) -> list[tuple[str, str]]:
    """A run of letters is a function, a product, one symbol (points, `AB`), or a word."""
    if kind != "run" or len(text) == 1:
        return [(kind, text)]
    if text in FUNCTIONS or text in ("pi", "arcsin", "arccos", "arctan"):
        return [("cmd", text)]
    if text.isupper() and len(text) <= 4:
        return [("run", text)]
    if text.islower() and len(text) <= 3 and text not in _WORDS:
        return [("run", letter) for letter in text]
    raise Unreadable(f"{text!r} is a word")


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens = tokens
        self.at = 0
        self.bars = 0  # open absolute values

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")

    def take(self) -> tuple[str, str]:
        token = self.peek()
        self.at += 1
        return token

    def accept(self, text: str) -> bool:
        if self.peek() == ("op", text):
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise Unreadable(f"expected {text!r}")

    def sum(self, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise Unreadable("nested too deep")
        tree = self.term(depth)
        while True:
            if self.accept("+"):
                tree = ("add", tree, self.term(depth))
            elif self.accept("-"):
                tree = ("add", tree, ("neg", self.term(depth)))
            else:
                return tree

    def term(self, depth: int) -> Tree:
        negative = False
        while self.peek() in (("op", "-"), ("op", "+")):
            negative ^= self.take()[1] == "-"
        tree, over = self.mixed_or_factor(depth), False
        while True:
            token = self.peek()
            if token in _TIMES or token in _OVER:
                self.at += 1
                sign = self.accept("-")
                factor = self.factor(depth)
                factor = ("neg", factor) if sign else factor
                over = token in _OVER
                tree = ("div" if over else "mul", tree, factor)
            elif self.starts_factor():
                if over or token[0] in ("num", "rep"):
                    raise Unreadable("1/2x and x2 can be read in two ways")
                if self.applies():
                    raise Unreadable("f(2) may be a function's value")
                tree = ("mul", tree, self.factor(depth))
            else:
                return ("neg", tree) if negative else tree

    def mixed_or_factor(self, depth: int) -> Tree:
        r"""A factor, or a mixed number: 2\frac{1}{2} and 2 1/2."""
        whole = self.peek()
        follows = self.tokens[self.at + 1 : self.at + 4]
        if whole[0] != "num" or not whole[1].isdigit():
            return self.factor(depth)
        if follows[:1] == [("cmd", "frac")]:
            start = self.at
            self.at += 1
            part = self.factor(depth)
            if part[0] == "div" and part[1][0] == part[2][0] == "num" and part[1][1] < part[2][1]:
                return ("add", ("num", numeral(whole[1])), part)
            self.at = start
        elif [kind for kind, _ in follows] == ["num", "op", "num"] and follows[1][1] == "/":
            top, bottom = numeral(follows[0][1]), numeral(follows[2][1])
            if not 0 < top < bottom:
                raise Unreadable("two numbers side by side")
            self.at += 4
            return ("add", ("num", numeral(whole[1])), ("num", top / bottom))
        return self.factor(depth)

    def starts_factor(self) -> bool:
        kind, text = self.peek()
        if kind == "op":
            return text in "({[" or (text == "|" and not self.bars)
        return kind in ("num", "rep", "run") or (kind == "cmd" and text in _COMMANDS)

    def applies(self) -> bool:
        """Whether what stands here may be the argument of the letter before it."""
        ahead = self.tokens[self.at : self.at + 3]
        if ahead[0] != ("op", "(") or self.tokens[self.at - 1][0] != "run":
            return False
        return self.tokens[self.at - 1][1] in "fghFGH" or ahead[-1] == ("op", ")")

    def factor(self, depth: int) -> Tree:
        tree = self.atom(depth + 1)
        while True:
            if self.accept("!"):
                tree = ("fact", tree)
            elif self.accept("^"):
                if self.peek() == ("cmd", "circ"):
                    self.at += 1
                    tree = ("div", ("mul", tree, ("sym", "pi")), ("num", Fraction(180)))
                    continue
                tree = ("pow", tree, self.script(depth + 1))
                if self.peek() == ("op", "^"):
                    raise Unreadable("two exponents")
            else:
                return tree

    def script(self, depth: int) -> Tree:
        """An exponent or a bare argument: a group, or one token."""
        if self.peek()[1] in ("{", "("):
            return self.atom(depth)
        if self.accept("-"):
            return ("neg", self.script(depth + 1)) if depth < MAX_DEPTH else self.sum(depth)
        kind, text = self.peek()
        if kind not in ("num", "run") and (kind, text) != ("cmd", "pi"):
            raise Unreadable(f"unexpected {text!r}")
        return self.atom(depth, subscript=False)

    def atom(self, depth: int, subscript: bool = True) -> Tree:
        if depth > MAX_DEPTH:
            raise Unreadable("nested too deep")
        kind, text = self.take()
        if kind in ("num", "rep"):
            if subscript and self.peek() == ("op", "_"):
                return ("sym", text + self.subscript())  # a numeral in another base
            return ("num", numeral(text))
        if kind == "run" or (kind == "cmd" and text in GREEK):
            name = text if kind == "run" else "\\" + text
            return ("sym", name + self.subscript() if subscript else name)
        if kind == "cmd":
            return self.command(text, depth)
        if kind == "op" and text in "({[":
            bars, self.bars = self.bars, 0
            tree = self.sum(depth + 1)
            self.bars = bars
            self.expect({"(": ")", "{": "}", "[": "]"}[text])
            return tree
        if kind == "op" and text == "|":
            self.bars += 1
            tree = self.sum(depth + 1)
            self.bars -= 1
            self.expect("|")
            return ("abs", tree)
        raise Unreadable(f"unexpected {text!r}")

    def subscript(self) -> str:
        if not self.accept("_"):
            return ""
        if not self.accept("{"):
            return "_" + self.take()[1]
        parts = []
        while not self.accept("}"):
            if self.peek()[0] == "end" or self.peek()[1] in ("{", "_", "^"):
                raise Unreadable("a subscript of subscripts")
            parts.append(self.take()[1])
        return "_" + " ".join(parts)

    def command(self, name: str, depth: int) -> Tree:
        if name == "pi":
            return ("sym", "pi")
        if name == "frac":
            top = self.argument(depth)
            return ("div", top, self.argument(depth))
        if name == "binom":
            top = self.argument(depth)
            return ("binom", top, self.argument(depth))
        if name == "sqrt":
            degree: Tree = ("num", Fraction(2))
            if self.accept("["):
                degree = self.sum(depth + 1)
                self.expect("]")
            kind, text = self.peek()
            if kind == "num" and len(text) > 1:
                raise Unreadable("sqrt12 can be read in two ways")
            return ("pow", self.script(depth + 1), ("div", ("num", Fraction(1)), degree))
        if name in FUNCTIONS:
            return self.function(name, depth)
        raise Unreadable(f"\\{name}")

    def argument(self, depth: int) -> Tree:
        r"""An argument of \frac: a group, or one letter or digit (\frac43)."""
        kind, text = self.peek()
        if (kind, text) == ("op", "{"):
            return self.atom(depth + 1)
        if kind == "num" and text.isdigit():
            if len(text) > 1:
                self.tokens[self.at] = ("num", text[1:])
            else:
                self.at += 1
            return ("num", Fraction(int(text[0])))
        return self.script(depth + 1)

    def function(self, name: str, depth: int) -> Tree:
        base = power = None
        if name == "log" and self.accept("_"):
            base = self.argument(depth)
        if self.accept("^"):
            power = self.script(depth + 1)
            if power[0] == "neg":
                if power[1] != ("num", 1) or "arc" + name not in FUNCTIONS:
                    raise Unreadable("an inverse function or a reciprocal")
                name, power = "arc" + name, None
        if self.peek() in (("op", "("), ("op", "{")):
            argument = self.atom(depth + 1)
        else:
            argument = self.mixed_or_factor(depth + 1)
            while self.starts_factor() and self.peek()[1] not in FUNCTIONS - {"sqrt"}:
                if self.peek()[0] in ("num", "rep"):
                    raise Unreadable("sin x2 can be read in two ways")
                argument = ("mul", argument, self.factor(depth + 1))
        tree = ("fn", name, argument) if base is None else ("log", base, argument)
        return tree if power is None else ("pow", tree, power)


_COMMANDS = GREEK | FUNCTIONS | {"pi", "frac", "binom"}


def exact(tree: Tree) -> Fraction | None:
    """The rational value of a tree, or None if it has none that plain arithmetic finds.

    Raises:
      TooLarge: the value, or one on the way to it, is too large.
      Unreadable: it is undefined (a division by zero).
    """
    kind, *parts = tree
    if kind == "num":
        return parts[0]
    if kind in ("sym", "fn", "log"):
        return None
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


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if base == 0 and exponent <= 0:
        raise Unreadable("zero to a power that is not positive")
    if exponent.denominator != 1:
        if exponent.denominator == 2 and base >= 0:
            roots = Fraction(math.isqrt(base.numerator), math.isqrt(base.denominator))
            return _power(roots, Fraction(exponent.numerator)) if roots**2 == base else None
        return None
    if abs(exponent) * (_bits(base) - 1) > MAX_BITS or abs(exponent) > 10**9:
        if abs(base) in (0, 1):
            return base if exponent.numerator % 2 else abs(base)
        raise TooLarge("a power that is too large")
    return base ** int(exponent)

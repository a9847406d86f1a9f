r"""Cleaned LaTeX to an expression tree.

A tree is a nested tuple: `("num", Fraction)`, `("sym", name)`, `("fn", name, tree)`, or an operator
with its operands: add, mul, div, pow, neg, abs, fact, binom, log (base, argument), and sum and prod
(name of the index, first, last, body). What is not surely understood is `Unreadable` (a ratio, a
product of words, `1/2x`): such answers compare as text, which can only miss an equality.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

Tree = tuple[Any, ...]

MAX_TOKENS = 400
MAX_DEPTH = 40
MAX_DIGITS = 4000


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
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log lg exp sqrt".split()
)
_ACCENTS = {"overline", "vec", "hat", "widehat", "bar", "tilde", "dot"}
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
    tree = parser.infix(0)
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

    def infix(self, depth: int) -> Tree:
        r"""A sum, or two with \over or \choose between them."""
        tree = self.sum(depth)
        kind, text = self.peek()
        if kind == "cmd" and text in _INFIX:
            self.at += 1
            return (_INFIX[text], tree, self.sum(depth))
        return tree

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
                base = self.subscript()
                if base != "_10":
                    return ("sym", text + base)  # a numeral in another base
            return ("num", numeral(text))
        if kind == "run" or (kind == "cmd" and text in GREEK):
            if text == "C" and self.accept("("):
                return self.combinations(depth)
            name = text if kind == "run" else "\\" + text
            name += self.subscript() if subscript else ""
            while self.accept("'"):
                name += "'"
            return ("sym", name)
        if kind == "cmd":
            return self.command(text, depth)
        if kind == "op" and text in "({[":
            bars, self.bars = self.bars, 0
            tree = self.infix(depth + 1)
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

    def combinations(self, depth: int) -> Tree:
        """C(n,k) behind its bracket; C(n), a function's value, is none."""
        total = self.sum(depth + 1)
        self.expect(",")
        chosen = self.sum(depth + 1)
        self.expect(")")
        return ("binom", total, chosen)

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
        if name in ("lfloor", "lceil"):
            tree = self.sum(depth + 1)
            if self.take() != ("cmd", "r" + name[1:]):
                raise Unreadable(f"\\{name} is not closed")
            return ("fn", name[1:].replace("ceil", "ceiling"), tree)
        if name in ("sum", "prod"):
            return self.series(name, depth)
        if name in _ACCENTS:
            self.expect("{")
            tokens = []
            while not self.accept("}"):
                kind, text = self.take()
                if kind != "run":
                    raise Unreadable(f"\\{name} over more than letters")
                tokens.append(text)
            return ("sym", f"\\{name}{{{''.join(tokens)}}}")
        if name in FUNCTIONS:
            return self.function(name, depth)
        raise Unreadable(f"\\{name}")

    def series(self, name: str, depth: int) -> Tree:
        r"""\sum_{k=1}^{n} or \prod with its body, which reaches to the next plus or minus."""
        self.expect("_")
        self.expect("{")
        index = self.take()
        if index[0] != "run" or len(index[1]) > 1:
            raise Unreadable("an index that is no letter")
        self.expect("=")
        first = self.sum(depth + 1)
        self.expect("}")
        self.expect("^")
        last = self.script(depth + 1)
        if self.peek()[0] == "end":
            raise Unreadable("a sum of nothing")
        return (name, index[1], first, last, self.term(depth + 1))

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
        if name == "lg":
            base = ("num", Fraction(10))
        tree = ("fn", name, argument) if base is None else ("log", base, argument)
        return tree if power is None else ("pow", tree, power)


_INFIX = {"over": "div", "choose": "binom"}
_COMMANDS = GREEK | FUNCTIONS | _ACCENTS | {"pi", "frac", "binom", "lfloor", "lceil", "sum", "prod"}

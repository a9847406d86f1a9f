r"""Numbers: the one number in the answer against the reference's, exactly or within tolerances.

Plain numerals only: `1,000`, `-2.5e-3`, `3/4`, `\frac{3}{4}`, `1.5 \times 10^5`, `50%` (a half). A
unit of letters may follow, which is not looked at. What needs mathematics is for `math_answer`.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.extract import ORDER, Method, after_thinking, find, gold

MAX_EXPONENT = 10_000  # of ten; a larger one is no number, so that 1e999999999 takes no memory
_MAX_LENGTH = 4000  # characters of an answer; Python reads no integer of more digits
_SIGNS = str.maketrans("−–－", "---")
_THIN = re.compile(r"(?<=\d)\\[,;:!](?=\d{3}(?!\d))")  # between thousands
_LIGHT = re.compile(r"\\[,;:! ]|\\text(?=\{)|\\mathrm(?=\{)|\\left|\\right|\\(?=[%$])|~")
_NUMBER = re.compile(
    r"""(?:[^\W\d]\w*\s*(?:=|≈|\\approx)\s*)?  # x =
        (?P<sign>[-+])?\s*[$€£¥]?\s*
        (?:\\[dtc]?frac\s*\{(?P<over>\d+)\}\s*\{(?P<under>\d+)\}
         |(?P<whole>\d{1,3}(?:(?:,|\{,\})\d{3})+(?!\d)|\d+)?(?P<point>\.\d*)?
          (?:[eE](?P<e>[-+]?\d+)
           |\s*(?:\\times|\\cdot|×|\*)\s*10\s*(?:\^|\*\*)\s*\{?\s*(?P<power>[-+]?\d+)\s*\}?)?
          (?:\s*/\s*(?P<divisor>\d+))?)
        \s*(?P<percent>%)?
        (?:\s*°[CFK]?|\s*\{?\s*(?!(?:or|and|plus|minus|times|to|not|is)\b)
         [^\W\d_]+(?:[/ ][^\W\d_]+){0,2}\s*\}?)?\s*[.!]?""",
    re.VERBOSE,
)


class Numeric(Config):
    """The number in the response equals that of the reference, or is near enough."""

    needs_reference: ClassVar[bool] = True
    type: Literal["numeric"] = "numeric"
    extract: Method | Annotated[tuple[Method, ...], Field(min_length=1)] = ORDER
    """Where the number stands, one name or several to try in order, as in `math_answer`."""
    absolute: float = Field(default=0.0, ge=0)
    """Difference that is forgiven, in the unit of the numbers."""
    relative: float = Field(default=0.0, ge=0, lt=1)
    """Difference that is forgiven, as a share of the reference. The larger of both counts."""

    def answer(self, example: Example, response: str) -> str | None:
        """The number in lowest terms, or None if there is not exactly one."""
        text = self._found(example, response)
        number = None if text is None else read(text)
        return None if number is None else _written(number)

    def __call__(self, example: Example, response: str) -> Score:
        """Scores 1 if the number is near enough, 0 otherwise."""
        expected = read(gold(example.reference))
        if expected is None:
            reason = f"the reference {example.reference[:80]!r} is no number"
            return Score(0.0, "unscorable", reason=reason)
        text = self._found(example, response)
        if not text:
            return Score(0.0, "no_answer", reason="no answer, or the thinking is not closed")
        number = read(text)
        if number is None:
            return Score(0.0, "wrong", reason=f"answer {text[:80]!r} is not one number")
        forgiven = max(_exact(self.absolute), _exact(self.relative) * abs(expected))
        if abs(number - expected) <= forgiven:
            return Score(1.0, "right", reason=f"answer {text[:80]!r}")
        reason = f"answer {text[:80]!r}, expected {example.reference.strip()[-80:]!r}"
        return Score(0.0, "wrong", reason=reason)

    def _found(self, example: Example, response: str) -> str | None:
        text = after_thinking(example.prompt, response)
        methods = (self.extract,) if isinstance(self.extract, str) else self.extract
        found = None if text is None else find(text, methods)
        return None if found is None else found.answer


def read(text: str) -> Fraction | None:
    """The number that a text is, or None if it is none, several, or too large to work with."""
    if len(text) > _MAX_LENGTH:
        return None
    # Single spaces, so that no two of the pattern's gaps can share a run of them in many ways.
    text = " ".join(_LIGHT.sub(" ", _THIN.sub("", text.translate(_SIGNS))).split()).strip("$* ")
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    if match["over"]:
        value, divisor = Fraction(int(match["over"])), int(match["under"])
    elif match["whole"] or (match["point"] or ".") != ".":
        digits = re.sub(r"\{,\}|,", "", match["whole"] or "0")
        exponent = match["e"] or match["power"] or "0"
        if len(exponent) > 6 or abs(int(exponent)) > MAX_EXPONENT:
            return None
        decimals = (match["point"] or ".")[1:]
        value = Fraction(int(digits + decimals)) * Fraction(10) ** (int(exponent) - len(decimals))
        divisor = int(match["divisor"] or 1)
    else:
        return None
    if divisor == 0:
        return None
    value /= divisor * (100 if match["percent"] else 1)
    return -value if match["sign"] == "-" else value


def _exact(number: float) -> Fraction:
    # As written: 0.1 is a tenth, not the double next to it.
    return Fraction(Decimal(repr(number)))


def _written(number: Fraction) -> str:
    """A text that is the same for equal numbers; hexadecimal, which has no limit of digits."""
    over, under = number.numerator, number.denominator
    if max(abs(over), under) < 10**18:
        return str(number)
    return f"{over:x}/{under:x}"

"""The unit behind (or the currency before) a number, taken off and brought to one name.

Only known units are taken off: an unknown word behind a number may change what it says. Single
letters are variables, except where LaTeX sets them as text (`latex.clean` spells those out).
"""

from __future__ import annotations

import re

_NAMES = {
    "mm": "mm millimeter millimeters millimetre millimetres",
    "cm": "cm cms centimeter centimeters centimetre centimetres",
    "m": "meter meters metre metres",
    "km": "km kms kilometer kilometers kilometre kilometres",
    "in": "inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard yards",
    "mi": "mi mile miles",
    "mg": "mg milligram milligrams",
    "g": "gram grams",
    "kg": "kg kgs kilogram kilograms",
    "oz": "oz ounce ounces",
    "lb": "lb lbs pound pounds",
    "ton": "ton tons",
    "ml": "ml mL milliliter milliliters",
    "l": "liter liters litre litres",
    "gal": "gallon gallons",
    "s": "sec secs second seconds",
    "min": "min mins minute minutes",
    "h": "hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "year years yr yrs",
    "deg": "degree degrees deg",
    "rad": "radian radians rad",
    "usd": "dollar dollars USD usd",
    "cent": "cent cents",
    "eur": "euro euros EUR",
    "yen": "yen JPY",
    "rupee": "rupee rupees INR Rs",
    "won": "won KRW",
    "gbp": "GBP",
    "unit": "unit units",
    "person": "person persons people",
    "child": "child children",
    "man": "man men",
    "boy": "boy boys",
    "cup": "cup cups",
    "car": "car cars",
    "pen": "pen pens",
    "box": "box boxes",
    "bag": "bag bags",
    "cat": "cat cats",
    "dog": "dog dogs",
    "cow": "cow cows",
    "toy": "toy toys",
    "row": "row rows",
    "set": "set sets",
    "way": "way ways",
    "point": "point points",
    "time": "times",
    "page": "page pages",
    "apple": "apple apples",
    "egg": "egg eggs",
    "book": "book books",
    "percent": "percent pct %",
    "mph": "mph",
}
_UNIT = {spelling: unit for unit, names in _NAMES.items() for spelling in names.split()}
_PER = {**_UNIT, "h": "h", "s": "s", "m": "m", "g": "g", "l": "l", "L": "l"}
_CHANGES = set(
    "hundred thousand million billion trillion dozen score pair pairs half halves third thirds "
    "quarter quarters fourth fourths fifth fifths tenth tenths hundredth hundredths thousandth "
    "percent percentage factorial squared cubed mod modulo base or and not nor than less more "
    "fewer least most above below over under plus minus times divided root power infinity "
    "infinite negative positive about other otherwise anything something nothing none only "
    "either neither between through from with without remainder log sine cosine tangent "
    "choose with that where when then else true false even sqrt frac text".split()
)
"""Words behind a number that may change what it says, so that they are no unit."""
_WORD = r"[a-zA-Z]+"
_TAIL = re.compile(
    rf"(?<![a-zA-Z\\_^{{])\s*(?P<kind>square|cubic|sq\.?|cu\.?)?\s*(?P<word>{_WORD})\.?\s*"
    rf"(?:\^\s*\{{?\s*(?P<power>[23])\s*\}}?)?\s*"
    rf"(?:(?:/|\bper\b)\s*(?P<per>{_WORD})\s*(?:\^\s*\{{?\s*(?P<per_power>[23])\s*\}}?)?)?\s*$"
)
_NOUNS = re.compile(
    r"(?<=[\d})])\s+(?P<nouns>(?=\w*[a-z])[a-zA-Z]{4,}(?:\s+[a-zA-Z]{2,}){0,3})\.?\s*$"
)
_CURRENCY = re.compile(
    r"(-?)\s*(?:\\\$|(euros?|pounds?|yen|rupees?|Rs|won|cents?|USD|EUR|GBP|JPY|INR)\b\.?)\s*"
)
_DEGREE = re.compile(r"\s*\^\s*\\circ\s*$")
_ANGLE_OF = re.compile("sin|cos|tan|cot|sec|csc")
_PERCENT = re.compile(r"\s*(?:%|\b(?:percent|pct))\s*$")


def split_unit(text: str) -> tuple[str, str]:
    """A cleaned answer without its unit, and the unit's name or an empty string."""
    if (match := _PERCENT.search(text)) and match.start():
        return text[: match.start()], "percent"
    if (match := _DEGREE.search(text)) and match.start() and not _ANGLE_OF.search(text):
        return text[: match.start()], "deg"
    if (match := _CURRENCY.match(text)) and match.end() < len(text):
        return match[1] + text[match.end() :], _UNIT[match[2] or "dollar"]
    if (match := _TAIL.search(text)) and match.start():
        head = text[: match.start()].rstrip()
        unit = _name(match)
        if unit and head and (head[-1].isdigit() or head[-1] in "})"):
            return head, unit
    if (match := _NOUNS.search(text)) and not _CHANGES & set(match["nouns"].lower().split()):
        return text[: match.start()].rstrip(), _singular(match["nouns"])
    return text, ""


def is_unit(word: str) -> bool:
    """Whether a word is a unit that is known."""
    return word in _UNIT


def _singular(nouns: str) -> str:
    return " ".join(noun.removesuffix("s") for noun in nouns.lower().split())


def _name(match: re.Match[str]) -> str:
    word, per = match["word"], match["per"]
    if word not in _UNIT or (per and per not in _PER):
        return ""
    unit = _UNIT[word]
    power = {"s": "2", "c": "3"}[match["kind"][0]] if match["kind"] else match["power"]
    unit += f"^{power}" if power else ""
    if per:
        unit += f"/{_PER[per]}" + (f"^{match['per_power']}" if match["per_power"] else "")
    return "mi/h" if unit == "mph" else unit

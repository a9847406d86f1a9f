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
    "unit": "unit units",
    "person": "person persons people student students child children boys girls men women",
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
_WORD = r"[a-zA-Z]+"
_TAIL = re.compile(
    rf"(?<![a-zA-Z\\_^{{])\s*(?P<kind>square|cubic|sq\.?|cu\.?)?\s*(?P<word>{_WORD})\.?\s*"
    rf"(?:\^\s*\{{?\s*(?P<power>[23])\s*\}}?)?\s*"
    rf"(?:(?:/|\bper\b)\s*(?P<per>{_WORD})\s*(?:\^\s*\{{?\s*(?P<per_power>[23])\s*\}}?)?)?\s*$"
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
    if match := re.match(r"(-?)\s*(?:\\\$|(euro|pound)\b)\s*", text):
        return match[1] + text[match.end() :], _UNIT[match[2] or "dollar"]
    if (match := _TAIL.search(text)) and match.start():
        head = text[: match.start()].rstrip()
        unit = _name(match)
        if unit and head and (head[-1].isdigit() or head[-1] in "})"):
            return head, unit
    return text, ""


def _name(match: re.Match[str]) -> str:
    word, per = match["word"], match["per"]
    if word not in _UNIT or (per and per not in _UNIT):
        return ""
    unit = _UNIT[word]
    power = {"s": "2", "c": "3"}[match["kind"][0]] if match["kind"] else match["power"]
    unit += f"^{power}" if power else ""
    if per:
        unit += f"/{_UNIT[per]}" + (f"^{match['per_power']}" if match["per_power"] else "")
    return "mi/h" if unit == "mph" else unit

r"""Answer strings brought to one spelling: unicode, LaTeX layout, spacing, digit grouping.

What comes out is still LaTeX, with set braces `\{ \}` as the characters ⦃ ⦄ so that they cannot be
taken for grouping. Nothing here changes what an answer means.
"""

from __future__ import annotations

import re
import unicodedata

SET_OPEN, SET_CLOSE = "\N{LEFT WHITE CURLY BRACKET}", "\N{RIGHT WHITE CURLY BRACKET}"

_GREEK = "alpha beta gamma delta epsilon theta lambda mu pi rho sigma tau phi omega".split()
_CHARACTERS = {
    **{unicodedata.lookup(f"GREEK SMALL LETTER {name}"): rf"\{name} " for name in _GREEK[:6]},
    **{unicodedata.lookup(f"GREEK SMALL LETTER {name}"): rf"\{name} " for name in _GREEK[7:]},
    "\N{GREEK SMALL LETTER LAMDA}": r"\lambda ",
    "\N{MINUS SIGN}": "-",
    "\N{EN DASH}": "-",
    "\N{MULTIPLICATION SIGN}": r"\times ",
    "\N{MIDDLE DOT}": r"\cdot ",
    "\N{DOT OPERATOR}": r"\cdot ",
    "\N{DIVISION SIGN}": "/",
    "\N{LESS-THAN OR EQUAL TO}": r"\le ",
    "\N{GREATER-THAN OR EQUAL TO}": r"\ge ",
    "\N{NOT EQUAL TO}": r"\ne ",
    "\N{INFINITY}": r"\infty ",
    "\N{UNION}": r"\cup ",
    "\N{ELEMENT OF}": r"\in ",
    "\N{PLUS-MINUS SIGN}": r"\pm ",
    "\N{DEGREE SIGN}": r"^\circ ",
    "\N{SQUARE ROOT}": r"\sqrt ",
    "\N{ALMOST EQUAL TO}": r"\approx ",
    "\N{SET MINUS}": r"\setminus ",
    "\N{EMPTY SET}": r"\emptyset ",
    "\N{DOUBLE-STRUCK CAPITAL R}": r"\mathbb{R}",
    "\N{INTERSECTION}": r"\cap ",
    "\N{ANGLE}": r"\angle ",
    "\N{LEFT FLOOR}": r"\lfloor ",
    "\N{RIGHT FLOOR}": r"\rfloor ",
    "\N{LEFT CEILING}": r"\lceil ",
    "\N{RIGHT CEILING}": r"\rceil ",
    "\N{PRIME}": "'",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{IDEOGRAPHIC COMMA}": ",",
    "\N{RATIO}": ":",
    "\N{HYPHEN}": "-",
    "\N{NON-BREAKING HYPHEN}": "-",
    "\N{FIGURE DASH}": "-",
    "\N{EM DASH}": "-",
    "\N{HEAVY PLUS SIGN}": "+",
    "\N{HEAVY MINUS SIGN}": "-",
    "\N{MULTIPLICATION X}": r"\times ",
    "\N{ASTERISK OPERATOR}": "*",
    "\N{BULLET OPERATOR}": r"\cdot ",
    "\N{BULLET}": r"\cdot ",
    "\N{FRACTION SLASH}": "/",
    "\N{DIVISION SLASH}": "/",
    "\N{YEN SIGN}": " yen ",
    "\N{INDIAN RUPEE SIGN}": " rupee ",
    "\N{WON SIGN}": " won ",
    "\N{CENT SIGN}": " cents ",
    "\N{EURO SIGN}": " euro ",
    "\N{POUND SIGN}": " pound ",
    "\N{IDEOGRAPHIC FULL STOP}": ".",
    "\N{ZERO WIDTH SPACE}": "",
    "\N{ZERO WIDTH NON-JOINER}": "",
    "\N{ZERO WIDTH JOINER}": "",
    "\N{WORD JOINER}": "",
    "\N{ZERO WIDTH NO-BREAK SPACE}": "",
}
_RAISED = re.compile("[⁺⁻⁰¹²³⁴-⁹]+")
_LOWERED = re.compile("[₀-₉]+")
_ROOT = re.compile("([√∛∜])\\s*(?:\\(([^()]*)\\)|(\\d+))")
_OVERLINED = re.compile("(?:[0-9]\u0305)+")
_DEGREES = {"√": "", "∛": "[3]", "∜": "[4]"}

_MAX_LAYERS = 20  # of styles, braces or punctuation around an answer
_REPEATED = re.compile(
    r"(?<!\d)(\d*\.\d{0,20}?)(?:(\d{1,2}?)\2{2,100}|(\d{3,8}?)\3{1,100})\s*"
    r"(?:\\(?:ldots|dots|cdots)(?![a-zA-Z])|\.{3,})"
)
_DOTTED = re.compile(r"(?<!\d)(\d*\.\d*)\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?")
_BASES = {"two": "2", "three": "3", "five": "5", "eight": "8", "ten": "10", "sixteen": "16"}
_BASE_WORD = re.compile(rf"_\s*\{{?\s*\(?\s*({'|'.join(_BASES)})\s*\)?\s*\}}?")
_UNIT_LETTERS = {"m": "meters", "g": "grams", "s": "seconds", "h": "hours", "L": "liters"}
_STYLED = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|sc|md|up|normal)?|mbox|hbox|math(?:rm|bf|it|sf|tt|normal|bold)|"
    r"operatorname\*?|boldsymbol|bm|pmb|emph|underline)\s*\{([^{}]*)\}"
)
_SWITCHED = re.compile(r"\{\s*\\(?:rm|bf|it|sf|tt|bfseries|itshape)(?![a-zA-Z])([^{}]*)\}")
_REWRITES = [
    (re.compile(pattern), new)
    for pattern, new in [
        (r"<<[^<>]*>>", ""),  # a calculator's note, as in the solutions of GSM8K
        (r"(\d)(?:,\s*\\!\s*|\{,\})(?=\d{3})", r"\1"),
        (r"\\!", ""),
        (r"\\(?:[,;: ]|q?quad|thinspace(?![a-zA-Z]))|~", " "),
        (r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?", ""),
        (r"\\(?:hspace|vspace|phantom|hphantom|vphantom|label|tag)\*?\s*\{[^{}]*\}", " "),
        (
            r"\\(?:scriptstyle|small|large|Large|normalsize|tiny|bf|rm|it|strut|mathstrut|hfill|qed|"
            r"nonumber|ensuremath|square|checkmark|bold)(?![a-zA-Z])",
            " ",
        ),
        (r"\\(?:overline|bar)\s*(?=\{?\d)", r"\\overline"),
        (r"\\overline\s*(\d+)", r"\\overline{\1}"),
        (r"^(\s*-?\d*\.\d*)\((\d+)\)(?=\s*$)", r"\1\\overline{\2}"),
        (r"\*\*", "^"),
        (r"(\d)\s*[xX]\s*10\s*\^", r"\1\\times 10^"),
        (r"\\(?:dbinom|tbinom)(?![a-zA-Z])", r"\\binom"),
        (r"\\(?:varnothing|empty)(?![a-zA-Z])", r"\\emptyset"),
        (r"\\(?:R|Reals|reals)(?![a-zA-Z])|\\mathbb\s*R(?![a-zA-Z])", r"\\mathbb{R}"),
        (r"\\(?:backslash|smallsetminus)(?![a-zA-Z])", r"\\setminus"),
        (r"\\(?:simeq|doteq|approxeq)(?![a-zA-Z])", r"\\approx"),
        (r"\\(?:colon|vcentcolon)(?![a-zA-Z])", ":"),
        (r"\\(?:l|r)angle(?![a-zA-Z])", lambda m: "(" if m[0][1] == "l" else ")"),
        (r"\\(?:prime)(?![a-zA-Z])|\^\s*\{\s*\\prime\s*\}", "'"),
        (r"\^\s*'", "'"),
        (r"\b(?:per ?cent|pct)\b", "percent"),
        (r"\(\s*(\w+)\s*\)\s*_(?=\s*\{?\d)", r"\1_"),
        (r"(?<=\d)\s+(?:in )?base\s+(\d+)", r"_{\1}"),
        (r"\\(?:displaystyle|textstyle|limits|nolimits|boxed|fbox|framebox)(?![a-zA-Z])", " "),
        (r"\\(?:textcolor|color)\s*\{[^{}]*\}", ""),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\(?:leqslant|leq)(?![a-zA-Z])|<=", r"\\le "),
        (r"\\(?:geqslant|geq)(?![a-zA-Z])|>=", r"\\ge "),
        (r"\\neq(?![a-zA-Z])", r"\\ne "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\(?:\{|lbrace(?![a-zA-Z]))", SET_OPEN),
        (r"\\(?:\}|rbrace(?![a-zA-Z]))", SET_CLOSE),
        (rf"{SET_OPEN}\s*{SET_CLOSE}", r"\\emptyset"),
        (r"\\[()\[\]]", " "),
        (r"\\(?:degree(?![a-zA-Z])|circ(?![a-zA-Z]))", r"\\circ "),
        (r"\^\s*\{\s*\\circ\s*\}", r"^\\circ "),
        (r"\\%", "%"),
        (r"(?<!\\)\$", " "),
        (r"\s+", " "),
    ]
]
_ENDS = re.compile(r"(?:(?<![.,;:])[.,;:])?[\\\s]*$")
_PREAMBLE = re.compile(
    r"^(?:(?:the )?(?:final |correct )?(?:answer|result)(?: is:?|:)|(?:option|choice):?)(?= )|"
    r"^(?:\\?therefore|thus|so),? ",
    re.IGNORECASE,
)
_TIGHT = re.compile(r"\s*([^\w\s\\])\s*|\s+(?=\\)")


def clean(text: str) -> str:
    """`text` in the one spelling that the other files here read."""
    text = _plain_characters(_unbold(text))
    if r"\begin" not in text:
        text = re.sub(r"\\\\(?=[a-zA-Z])", r"\\", text)  # a reference that was escaped twice
    for _ in range(_MAX_LAYERS):
        text, count = _STYLED.subn(_unstyled, text)
        text, more = _SWITCHED.subn(_unstyled, text)
        if not count + more:
            break
    text = _REPEATED.sub(lambda m: rf"{m[1]}\overline{{{m[2] or m[3]}}}", text)
    text = _DOTTED.sub(lambda m: rf"{m[1]}\overline{{{m[2]}{m[3] or ''}{m[4] or ''}}}", text)
    text = _BASE_WORD.sub(lambda m: "_{" + _BASES[m[1]] + "}", text)
    rows = text.split("\\\\")
    for pattern, new in _REWRITES:
        rows = [pattern.sub(new, row) for row in rows]
    return _trimmed("\\\\".join(rows))


def key(cleaned: str) -> str:
    """A cleaned string without the spaces that mean nothing: equal keys, equal answers."""
    tight = _TIGHT.sub(lambda match: match.group(1) or "", cleaned)
    return tight[1:] if tight.startswith("+") else tight


def _unbold(text: str) -> str:
    for _ in range(_MAX_LAYERS):
        text = text.strip()
        if not (len(text) > 4 and text.startswith("**") and text.endswith("**")):
            break
        text = text[2:-2]
    return text


def _plain_characters(text: str) -> str:
    if text.isascii():
        return text
    text = _OVERLINED.sub(lambda m: r"\overline{" + m[0].replace("\u0305", "") + "}", text)
    text = _RAISED.sub(lambda m: "^{" + unicodedata.normalize("NFKC", m.group()) + "}", text)
    text = _LOWERED.sub(lambda m: "_{" + unicodedata.normalize("NFKC", m.group()) + "}", text)
    text = _ROOT.sub(lambda m: rf"\sqrt{_DEGREES[m[1]]}{{{m[2] or m[3]}}}", text)
    return "".join(c if c.isascii() else _plain_character(c) for c in text.replace("\u2212", "-"))


def _plain_character(character: str) -> str:
    if (known := _CHARACTERS.get(character)) is not None:
        return known
    if character.isspace():
        return " "
    plain = unicodedata.normalize("NFKC", character)
    if "\N{FRACTION SLASH}" in plain:  # one of the vulgar fractions
        top, _, bottom = plain.partition("\N{FRACTION SLASH}")
        return rf"\frac{{{top}}}{{{bottom or 1}}}"
    digit = unicodedata.decimal(character, None)
    return plain if digit is None else str(digit)


def _unstyled(match: re.Match[str]) -> str:
    content = match.group(1)
    return f" {_UNIT_LETTERS.get(content.strip(' ~'), content)} "


def _trimmed(text: str) -> str:
    for _ in range(_MAX_LAYERS):
        before = text
        text = _ENDS.sub("", text.strip(), count=1).strip()
        text = _PREAMBLE.sub("", text)
        text = text.strip('`"\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}')
        if text.startswith("{") and _spans(text) and not _has_comma(text[1:-1]):
            text = text[1:-1]
        if text == before:
            break
    return text


def _spans(text: str) -> bool:
    """Whether the group that `text` opens with ends where `text` ends."""
    depth = 0
    for i, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return i == len(text) - 1
    return False


def _has_comma(text: str) -> bool:
    depth = 0
    for character in text:
        depth += 1 if character in "([{" + SET_OPEN else 0
        depth -= 1 if character in ")]}" + SET_CLOSE else 0
        if depth == 0 and character == ",":
            return True
    return False

r"""Matrices in cleaned LaTeX: their cells, sums and multiples of them, and determinants.

Cells stay text: the sum of two matrices becomes rows of `(1)+(3)`, which compare as any other
expression. Products of matrices are left unread.
"""

from __future__ import annotations

import re
from itertools import pairwise

_ENVIRONMENT = re.compile(
    r"\\begin\s*\{(?P<name>[pbBvV]?matrix|smallmatrix|array)\}(?:\{[^{}]*\})?(?P<body>.*?)"
    r"\\end\s*\{(?P=name)\}",
    re.DOTALL,
)
_FACTOR = re.compile(r"(?P<sign>[-+]?)\s*(?P<scalar>[^-+=<>,]*?)\s*(?:\\cdot|\\times|\*)?\s*")
_MAX_CELLS = 100
_MAX_DETERMINANT = 4

Rows = list[list[str]]


def determinant_or_rows(text: str) -> str | Rows | None:
    """The value of a determinant as text, the cells of a matrix, or None for anything else."""
    matches = list(_ENVIRONMENT.finditer(text))
    if not matches or len(matches) > 10 or text.count("&") + text.count(r"\\") > _MAX_CELLS:
        return None
    if len(matches) == 1 and _is_determinant(text, matches[0]):
        return _determinant(_cells(matches[0]["body"]))
    total: Rows | None = None
    starts = [0, *(match.end() for match in matches)]
    gaps = [
        text[a:b] for a, b in zip(starts, [*(m.start() for m in matches), len(text)], strict=True)
    ]
    gaps = _without_brackets(gaps)
    if gaps is None:
        return None
    for i, (gap, match) in enumerate(zip(gaps, matches, strict=False)):
        factor = _FACTOR.fullmatch(gap)
        if (
            factor is None
            or (i > 0 and not factor["sign"])
            or match["name"] in ("vmatrix", "Vmatrix")
        ):
            return None
        rows = _scaled(
            _cells(match["body"]), factor["sign"] + (factor["scalar"] and f"({factor['scalar']})*")
        )
        total = rows if total is None else _sum(total, rows)
        if total is None:
            return None
    return total if total and gaps[-1].strip() == "" else None


def _is_determinant(text: str, match: re.Match[str]) -> bool:
    before, behind = text[: match.start()].strip(), text[match.end() :].strip()
    if match["name"] == "vmatrix":
        return before == behind == ""
    return (before, behind) == ("|", "|") or (before in (r"\det", "det") and behind == "")


def _without_brackets(gaps: list[str]) -> list[str] | None:
    """What stands between the matrices, without brackets that only hold one."""
    gaps = [gap.strip() for gap in gaps]
    for i, (before, behind) in enumerate(pairwise(gaps)):
        if before.endswith(("(", "[", "{")) and behind.startswith((")", "]", "}")):
            gaps[i], gaps[i + 1] = before[:-1].strip(), behind[1:].strip()
    return None if any(set(gap) & set("[]{}") - set("{}") for gap in gaps) else gaps


def _cells(body: str) -> Rows:
    body = re.sub(r"\\hline", " ", body)
    return [[cell.strip() for cell in row.split("&")] for row in body.split("\\\\") if row.strip()]


def _scaled(rows: Rows, factor: str) -> Rows:
    if factor in ("", "+"):
        return rows
    return [[f"{factor}({cell})" for cell in row] for row in rows]


def _sum(a: Rows, b: Rows) -> Rows | None:
    if [len(row) for row in a] != [len(row) for row in b]:
        return None
    return [[f"({x})+({y})" for x, y in zip(p, q, strict=True)] for p, q in zip(a, b, strict=True)]


def _determinant(rows: Rows) -> str | None:
    size = len(rows)
    if not 0 < size <= _MAX_DETERMINANT or any(len(row) != size for row in rows):
        return None
    if size == 1:
        return f"({rows[0][0]})"
    terms = []
    for column, cell in enumerate(rows[0]):
        minor = _determinant([row[:column] + row[column + 1 :] for row in rows[1:]])
        terms.append(f"{'-' if column % 2 else '+'}({cell})*({minor})")
    return "0" + "".join(terms)

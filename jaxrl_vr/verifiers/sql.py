"""SQL: the rows that a query gives are those of the reference query, on a database made for both.

The database is SQLite in memory, built anew for each from the script in the example. A query may
read tables and call functions, and nothing else: SQLite asks us about each such thing.
"""

from __future__ import annotations

import collections
import json
import re
import sqlite3
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.extract import after_thinking
from jaxrl_vr.verifiers.fence import last_fence
from jaxrl_vr.verifiers.text import one_line

_STEPS = 1000  # of SQLite's machine between two looks at the clock
_MAX_VALUE = 1 << 20  # bytes of a text or blob
_DIGITS = 9  # of a float that count
_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
_FORBIDDEN = {"load_extension", "random", "randomblob", "fts3_tokenizer"}
"""Functions that reach outside, or that give another result each time."""
_SKIPPED = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/", re.DOTALL)
_WORD = re.compile(r"\(|\)|\border\s+by\b", re.IGNORECASE)
Rows = list[tuple[Any, ...]]


class Limit(Exception):
    """A query exceeds a limit; the message names it."""


class Sql(Config):
    """A query has to give the rows that the reference query gives.

    The reference is JSON of `script`, SQL that makes tables and fills them (or a list of such, for
    several databases that have to agree), and `query`. Rows are compared in any order, unless the
    outermost part of the reference query has an ORDER BY. Names of columns do not count.
    """

    needs_reference: ClassVar[bool] = True
    type: Literal["sql"] = "sql"
    extract: Literal["fence", "whole"] = "fence"
    """Where the query stands: in the last fenced block of SQL, or the whole answer."""
    seconds: float = Field(default=2.0, gt=0, le=3600.0)
    """Seconds of CPU time for a query."""
    rows: int = Field(default=10_000, ge=1, le=10_000_000)
    """Rows that a query may give."""

    @property
    def patience(self) -> float:
        """Seconds by the clock that a response may take before something is wrong with us."""
        return 20 * self.seconds + 10.0

    def answer(self, example: Example, response: str) -> str | None:
        """The query in `response`, or None if there is none."""
        text = after_thinking(example.prompt, response)
        if text is None:
            return None
        query = last_fence(text, ("sql", "sqlite")) if self.extract == "fence" else text
        return query if query and query.strip() else None

    def __call__(self, example: Example, response: str) -> Score:
        """Runs both queries and compares their rows."""
        try:
            scripts, reference = _read(example.reference)
            expected = [self._rows(script, reference) for script in scripts]
        except (sqlite3.Error, sqlite3.Warning, Limit, ValueError) as error:
            return Score(0.0, "unscorable", reason=one_line(f"the reference: {error}"))
        query = self.answer(example, response)
        if query is None:
            return Score(0.0, "no_answer", reason="no query behind the thinking")
        in_order = has_order(reference)
        for number, (script, rows) in enumerate(zip(scripts, expected, strict=True), 1):
            try:
                got = self._rows(script, query)
            except Limit as error:
                return Score(0.0, "wrong", reason=f"limit: {error}")
            except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
                return Score(0.0, "wrong", reason=one_line(f"{type(error).__name__}: {error}"))
            if fault := _difference(got, rows, in_order=in_order):
                return Score(0.0, "wrong", reason=one_line(f"database {number}: {fault}"))
        return Score(1.0, "right", reason=f"{sum(map(len, expected))} rows agree")

    def _rows(self, script: str, query: str) -> Rows:
        database = sqlite3.connect(":memory:")
        due = time.thread_time() + self.seconds

        def is_late() -> bool:
            return time.thread_time() > due

        try:
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE)
            database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            database.set_progress_handler(is_late, _STEPS)
            database.executescript(script)
            database.commit()
            due = time.thread_time() + self.seconds
            database.set_authorizer(_may)
            rows = database.execute(query).fetchmany(self.rows + 1)
        except sqlite3.OperationalError as error:
            if is_late() or "interrupt" in str(error):
                raise Limit(f"seconds = {self.seconds:g} of CPU time") from None
            raise
        finally:
            database.close()
        if len(rows) > self.rows:
            raise Limit(f"rows = {self.rows}")
        return rows


def _may(action: int, _: str | None, name: str | None, *__: str | None) -> int:
    is_forbidden = action == sqlite3.SQLITE_FUNCTION and str(name).lower() in _FORBIDDEN
    return sqlite3.SQLITE_OK if action in _ALLOWED and not is_forbidden else sqlite3.SQLITE_DENY


def _read(reference: str) -> tuple[list[str], str]:
    """The scripts and the query in a reference.

    Raises:
      ValueError: what is missing.
    """
    try:
        data = json.loads(reference)
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON; give an object of script and query") from None
    if not isinstance(data, dict):
        raise ValueError("it is no object; give one of script and query")
    script, query = data.get("script"), data.get("query")
    scripts = [script] if isinstance(script, str) else script
    if not isinstance(scripts, list) or not scripts or not all(isinstance(s, str) for s in scripts):
        raise ValueError("script is to be SQL, or a list of it")
    if not isinstance(query, str) or not query.strip():
        raise ValueError("query is to be SQL")
    return scripts, query


def has_order(query: str) -> bool:
    """Whether the outermost part of a query says in which order its rows come."""
    depth, found = 0, False
    for match in _WORD.finditer(_SKIPPED.sub(" ", query)):
        depth += {"(": 1, ")": -1}.get(match.group(), 0)
        found |= depth == 0 and match.group() not in "()"
    return found


def _difference(got: Rows, expected: Rows, *, in_order: bool) -> str:
    """How rows differ from those expected, or nothing."""
    widths = {len(row) for row in (*got, *expected)}
    if len(widths) > 1:
        return f"rows of {len(got[0])} columns, expected {len(expected[0])}"
    if len(got) != len(expected):
        return f"{len(got)} rows, expected {len(expected)}"
    ours, theirs = ([_comparable(row) for row in rows] for rows in (got, expected))
    if in_order:
        differing = next(
            (i for i, pair in enumerate(zip(ours, theirs, strict=True)) if len(set(pair)) > 1), None
        )
        return "" if differing is None else f"row {differing + 1} is {got[differing]!r:.100}"
    extra = collections.Counter(ours) - collections.Counter(theirs)
    return f"a row {next(iter(extra))!r:.100} too many" if extra else ""


def _comparable(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row in which equal numbers are equal, whether sums came to them in one order or another."""
    return tuple(float(f"{x:.{_DIGITS}g}") if isinstance(x, float) else x for x in row)

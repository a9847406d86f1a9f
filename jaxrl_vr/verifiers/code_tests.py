"""Programs against tests: the program in a response has to pass the tests in the reference.

The program runs in a sandbox (`sandbox`). It never gets an expected value, and the verdict is
reached in other processes: what is printed is compared here, what is returned is compared in a
second sandbox (`sandbox_tests`) that gets plain data from the first.

A run that exceeds a limit on CPU time, memory or files is wrong, as that would happen again. One
that exceeds the clock may have waited for a busy machine: it is tried once more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import socket
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.code_reference import BadReference, Calls, Script, Stdin, read_tests
from jaxrl_vr.verifiers.extract import after_thinking
from jaxrl_vr.verifiers.fence import last_fence
from jaxrl_vr.verifiers.prompt import text_of
from jaxrl_vr.verifiers.sandbox import (
    IsolationName,
    Level,
    Limits,
    Outcome,
    SandboxLost,
    borrowed,
    content,
    limit_text,
    memory_file,
)
from jaxrl_vr.verifiers.sandbox_level import sandbox_level
from jaxrl_vr.verifiers.text import encodable, one_line

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_SHOWN = 80  # characters of an output that a reason quotes
_SLACK = 5.0  # seconds by the clock that tests have on top of the program they ask


class CodeTests(Config):
    """A program has to pass the tests in the reference (`code_reference` has their forms)."""

    needs_reference: ClassVar[bool] = True
    type: Literal["code_tests"] = "code_tests"
    reward: Literal["all", "fraction"] = "all"
    """`all`: 1 if every test passes, else 0, and the first failure ends it. `fraction`: the
    fraction of tests that pass; only a program that passes all is right."""
    extract: Literal["fence", "whole"] = "fence"
    """Where the program stands: in the last fenced block of Python, or the whole answer."""
    limits: Limits = Limits()
    """What one run may use: a test on standard input is a run, all calls and asserts are one."""
    total: float = Field(default=60.0, gt=0, le=86_400.0)
    """Seconds by the clock for all runs of a response together."""
    tolerance: float = Field(default=1e-9, ge=0, le=1.0)
    """How far a float may be from the expected one: relative to the larger, absolute near 0. For
    calls and standard input; asserts say it themselves."""
    levels: tuple[IsolationName, ...] = ("bubblewrap", "landlock")
    """Levels of isolation that are good enough; the best that holds on the machine is used."""
    unsafe: bool = False
    """Run programs where none of the levels holds: with limits, and with all rights of the run."""

    @property
    def patience(self) -> float:
        """Seconds by the clock that a response may take before something is wrong with us."""
        return self.total + 60.0

    def load(self) -> None:
        """Finds out how programs can be isolated here, and has sandboxes started.

        Raises:
          SandboxRefused: they cannot.
        """
        level = sandbox_level(self.levels, unsafe=self.unsafe)
        with borrowed(level, "program"), borrowed(level, "tests"):
            pass

    def answer(self, example: Example, response: str) -> str | None:
        """The program in `response`, or None if there is none."""
        text = after_thinking(example.prompt, response)
        if text is None:
            return None
        program = last_fence(text) if self.extract == "fence" else text
        return program if program and program.strip() else None

    def __call__(self, example: Example, response: str) -> Score:
        """Runs the program against the tests."""
        try:
            tests = read_tests(example.reference, text_of(example.prompt))
        except BadReference as error:
            return Score(0.0, "unscorable", reason=one_line(str(error)))
        program = self.answer(example, response)
        if program is None:
            where = "no closed block of Python" if self.extract == "fence" else "no program"
            return Score(0.0, "no_answer", reason=f"{where} behind the thinking")
        level = sandbox_level(self.levels, unsafe=self.unsafe)
        run = _Run(level, encodable(program), self, time.monotonic() + self.total)
        result = _on_stdin(run, tests) if isinstance(tests, Stdin) else _by_calls(run, tests)
        if result.fault:
            return Score(0.0, "unscorable", reason=one_line(f"the reference: {result.fault}"))
        if result.passed == result.total:
            return Score(1.0, "right", reason=f"{result.total} tests passed")
        value = result.passed / result.total if self.reward == "fraction" else 0.0
        return Score(value, "wrong", reason=one_line(result.reason))


@dataclasses.dataclass
class _Result:
    total: int
    passed: int = 0
    reason: str = ""  # of the first failure; begins with "limit" if a limit is the cause
    fault: str = ""  # of the reference
    ended: bool = False  # the program had ended when its tests had


@dataclasses.dataclass(frozen=True)
class _Run:
    """A program and what its runs may use."""

    level: Level
    program: str
    config: CodeTests
    due: float

    @property
    def stops(self) -> bool:
        return self.config.reward == "all"

    @property
    def limits(self) -> Limits:
        """Those of the config, cut to the time that is left."""
        limits = self.config.limits
        left = max(self.due - time.monotonic(), 0.01)
        return limits if left > limits.wall else limits.model_copy(update={"wall": left})

    def limit(self, why: str) -> str:
        """The reason for a run that a limit ended."""
        if why == "wall" and time.monotonic() >= self.due:
            return f"limit: total = {self.config.total:g} s by the clock"
        return f"limit: {limit_text(why, self.config.limits)}"


def _on_stdin(run: _Run, tests: Stdin) -> _Result:
    result = _Result(len(tests.cases))
    for number, (stdin, expected) in enumerate(tests.cases, 1):
        failure = _printed(run, stdin, expected)
        if not failure:
            result.passed += 1
            continue
        is_limit = failure.startswith("limit: ")
        shown = f"limit: test {number}: {failure[7:]}" if is_limit else f"test {number}: {failure}"
        result.reason = result.reason or shown
        if run.stops or is_limit:
            break
    return result


def _printed(run: _Run, stdin: str, expected: str) -> str:
    """Runs the program on one input; returns why what it prints is wrong, or nothing."""
    most = run.config.limits.output
    lost = ""
    for _ in range(2):
        texts = (run.program, stdin, "", "")
        with _files(*texts) as files, contextlib.suppress(SandboxLost):
            with borrowed(run.level, "program") as sandbox:
                sandbox.begin("script", run.limits, files)
                outcome = sandbox.end()
            printed, note = content(files[2], most + 1), _note(files[3])
            if outcome.why == "wall" and time.monotonic() < run.due:
                lost = run.limit("wall")
                continue
            return _print_failure(run, outcome, printed, note, expected)
        lost = lost or "limit: the sandbox was lost, twice"
    return lost


def _print_failure(run: _Run, outcome: Outcome, printed: bytes, note: str, expected: str) -> str:
    if outcome.why:
        return run.limit(outcome.why)
    if len(printed) > run.config.limits.output:
        return run.limit("output")
    if outcome.status != 0:
        return _ending(outcome, note)
    got = printed.decode(errors="replace")
    if same_output(got, expected, run.config.tolerance):
        return ""
    return f"printed {_short(got)}, expected {_short(expected)}"


def _by_calls(run: _Run, tests: Calls | Script) -> _Result:
    before = tests.before if isinstance(tests, Script) else ""
    spec: dict[str, object] = dataclasses.asdict(tests)
    spec |= {"stops": run.stops, "tolerance": run.config.tolerance}
    result = _Result(1, reason="limit: the sandbox was lost, twice")
    for _ in range(2):
        with contextlib.suppress(SandboxLost):
            result = _asked(run, json.dumps([before, run.program]), json.dumps(spec))
            if not result.reason.startswith("limit: wall"):
                return result
    return result


def _asked(run: _Run, program: str, spec: str) -> _Result:
    """Has the tests ask the program, each in its sandbox, once."""
    limits = run.limits
    patient = limits.model_copy(update={"wall": limits.wall + _SLACK})
    with (
        _files(program, "") as (code, note),
        _files(spec, "") as (given, verdict),
        borrowed(run.level, "program") as theirs,
        borrowed(run.level, "tests") as ours,
    ):
        asking, answering = socket.socketpair()
        with asking, answering:
            theirs.begin("calls", limits, [code, answering.fileno(), note])
            ours.begin("tests", patient, [given, asking.fileno(), verdict])
        tested = ours.end()
        result = _result(content(verdict, 1 << 16))
        if result is None or not result.ended:
            theirs.kill()  # where it has ended by itself, its end says how
        outcome = theirs.end()
        said = _note(note)
    if result is None:
        if tested.why:
            return _Result(1, reason=f"{run.limit(tested.why)}, in the tests")
        raise SandboxLost(f"the tests ended with status {tested.status}")
    if result.passed < result.total and outcome.why not in ("", "killed"):
        result.reason = f"{run.limit(outcome.why)}; {result.reason}"
    elif result.passed < result.total and result.ended and not outcome.why:
        result.reason = f"{result.reason}; {_ending(outcome, said)}"
    return result


def _result(told: bytes) -> _Result | None:
    """A result from what the tests wrote; None if they did not get that far."""
    try:
        said = json.loads(told)
    except ValueError:
        return None
    return _Result(said["total"], said["passed"], said["first"], said["fault"], said["ended"])


@contextlib.contextmanager
def _files(*texts: str) -> Iterator[Sequence[int]]:
    """Files in memory that hold `texts`."""
    files = [memory_file(text.encode(errors="replace")) for text in texts]
    try:
        yield files
    finally:
        for file in files:
            os.close(file)


def _note(file: int) -> str:
    return content(file, 500).decode(errors="replace").strip()


def _ending(outcome: Outcome, note: str) -> str:
    status = outcome.status
    how = f"was ended by signal {-status}" if status < 0 else f"ended with exit status {status}"
    return f"the program {how}" + (f": {note}" if note else "")


def same_output(got: str, expected: str, tolerance: float) -> bool:
    """Whether two outputs agree line by line but for white space and the last digits of floats.

    Args:
      tolerance: how far apart two numbers may be if one is written as a float.
    """
    ours, theirs = ([line.split() for line in text.strip().split("\n")] for text in (got, expected))
    if ours == theirs:
        return True
    return len(ours) == len(theirs) and all(
        len(a) == len(b) and all(_same_word(x, y, tolerance) for x, y in zip(a, b, strict=True))
        for a, b in zip(ours, theirs, strict=True)
    )


def _same_word(a: str, b: str, tolerance: float) -> bool:
    if a == b:
        return True
    if not (len(a) < 40 and len(b) < 40 and _NUMBER.fullmatch(a) and _NUMBER.fullmatch(b)):
        return False
    if not set(a + b) & set(".eE"):
        return False
    x, y = float(a), float(b)
    return math.isfinite(x) and math.isclose(x, y, rel_tol=tolerance, abs_tol=tolerance)


def _short(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")

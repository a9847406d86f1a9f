"""A verifier of programs at each level of isolation that holds here, and what is seen of them."""

import functools
import time
from pathlib import Path

from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.code_tests import CodeTests
from jaxrl_vr.verifiers.sandbox import Limits
from jaxrl_vr.verifiers.sandbox_level import levels, trial

LIMITS = Limits(cpu=2.0, wall=60.0, memory=1 << 28, processes=16, scratch=4 << 20)
BRIEF = LIMITS.model_copy(update={"cpu": 1.0, "wall": 2.0})  # for what is wrong in any time
TESTS = "assert double(4) == 8\nassert double(-3) == -6\nassert double('ab') == 'abab'"


@functools.cache
def names():
    """The levels that hold here."""
    found = {}
    for level in levels():
        if level.name not in found and not trial(level)[1]:
            found[level.name] = level
    return list(found)


def brief(verifier: CodeTests) -> CodeTests:
    return verifier.model_copy(update={"limits": BRIEF})


def verify(verifier: CodeTests, program: str, tests: str = TESTS):
    return verifier(Example("0", "q", tests), program)


def eventually(condition) -> bool:
    for _ in range(3000):
        if condition():
            return True
        time.sleep(0.02)
    return False


def running(mark: str) -> list[Path]:
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark in read(path)]


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

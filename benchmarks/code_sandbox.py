"""What it costs to run a program in a sandbox and to judge it.

    python -m benchmarks.code_sandbox [--runs 200]

Prints JSON lines: for each level of isolation that holds here, milliseconds (median and 90th
percentile) of a start, of a program on standard input, of a program that is called by asserts;
milliseconds of CPU time, in which a start is divided among the runs, and which other work on the
machine changes less; how many a second one process comes to. And what the bare machine takes for
the same: a fork, and a Python that starts. `ratio` is the time of a program over that of the Python
that it replaces.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.code_tests import CodeTests
from jaxrl_vr.verifiers.sandbox import Level, Sandbox, close_all, pythons
from jaxrl_vr.verifiers.sandbox_level import levels, trial

_CALLED = Example("0", "q", "assert f(1) == 2\nassert f(2) == 4\nassert f(3) == 6")
_ON_STDIN = Example("0", "q", json.dumps([{"input": "1", "output": "2"}]))


def _milliseconds(work: Callable[[], object], runs: int) -> dict[str, float]:
    taken = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        taken.append(1000 * (time.perf_counter() - start))
    median, late = statistics.median(taken), sorted(taken)[int(0.9 * len(taken))]
    return {"ms": round(median, 2), "ms_p90": round(late, 2)}


def _fork() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _python() -> None:
    subprocess.run([pythons()[0], "-I", "-S", "-c", "print(2)"], env={}, stdout=subprocess.DEVNULL)


def _say(what: str, **values: Any) -> None:
    load = round(os.getloadavg()[0], 1)
    print(json.dumps({"what": what, **values, "load": load}), flush=True)


def _measure(level: Level, runs: int, python_ms: float) -> None:
    _say("sandbox starts", level=str(level), **_milliseconds(lambda: Sandbox(level).close(), 10))
    assert level.name != "unsafe", "a level that isolates"
    verifier = CodeTests(extract="whole", levels=(level.name,))
    cases = {
        "program on standard input": (_ON_STDIN, "print(2 * int(input()))"),
        "program called by asserts": (_CALLED, "def f(x): return 2 * x"),
    }
    for what, (example, program) in cases.items():
        assert verifier(example, program).verdict == "right", "the program is right"
        close_all()
        start, used = time.perf_counter(), _cpu()
        times = _milliseconds(lambda e=example, p=program: verifier(e, p), runs)
        rate = runs / (time.perf_counter() - start)
        close_all()  # so that what the sandboxes used can be seen
        cpu = 1000 * (_cpu() - used) / runs
        ratio = round(times["ms"] / python_ms, 2)
        values = {**times, "cpu_ms": round(cpu, 2), "ratio": ratio, "per_second": round(rate, 1)}
        _say(what, level=str(level), **values)


def _cpu() -> float:
    """Seconds of CPU time of this process and of those it has waited for."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(x.ru_utime + x.ru_stime for x in usage)


def main() -> None:
    """Measures every level that holds here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200, help="programs of each kind")
    runs = parser.parse_args().runs
    _say("fork", **_milliseconds(_fork, runs))
    python = _milliseconds(_python, min(runs, 50))
    _say("python starts", **python)
    seen = set()
    for level in levels():
        if level.name not in seen and not trial(level)[1]:
            seen.add(level.name)
            _measure(level, runs, python["ms"])


if __name__ == "__main__":
    main()

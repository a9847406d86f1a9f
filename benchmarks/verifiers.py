"""The verifiers: agreement with labelled cases, fuzzing, and the service under faults.

    python -m benchmarks.verifiers cases FILE.jsonl --peer PYTHON   # beside Math-Verify
    python -m benchmarks.verifiers fuzz
    python -m benchmarks.verifiers service

Prints JSON lines. `cases` takes {gold, response, equal, contested?} lines; PYTHON is an interpreter
that has math-verify.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import math
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.faulty_verifier import CRASH, HANG
from benchmarks.verifier_inputs import SPECS, pairs, task
from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.pool import Pool
from jaxrl_vr.verifiers.summary import quantile
from jaxrl_vr.verifiers.tally import Result, cause, limit

_PEER_LIMIT = 20.0  # seconds a pair may take Math-Verify, whose own limit is 5


def cases(path: Path, peer: str | None, workers: int) -> Iterator[dict[str, Any]]:
    """Agreement, false passes and latency of our verifier, and of Math-Verify beside it."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    with Pool(workers=workers) as pool:
        _drain(pool, [task(-1, "1", "math_answer")], ["2"])
        start = time.perf_counter()
        results = _drain(
            pool,
            [task(i, x["gold"], "math_answer") for i, x in enumerate(lines)],
            [x["response"] for x in lines],
        )
        wall = time.perf_counter() - start
    passed = [r.score.verdict == "right" for r in results]
    over = sum(bool(limit(r.score)) for r in results)
    yield _judged("jaxrl_vr", lines, passed, [r.seconds for r in results], over, wall)
    if peer is not None:
        start = time.perf_counter()
        passed, seconds, over = _by_peer(peer, lines)
        wall = time.perf_counter() - start
        yield _judged("math-verify", lines, passed, seconds, over, wall)


def _judged(
    name: str,
    lines: Sequence[dict[str, Any]],
    passed: Sequence[bool],
    seconds: Sequence[float],
    over: int,
    wall: float,
) -> dict[str, Any]:
    known = [i for i, line in enumerate(lines) if not line.get("contested")]
    agreed = [i for i in known if passed[i] == lines[i]["equal"]]
    return {
        "benchmark": "cases",
        "verifier": name,
        "lines": len(lines),
        "uncontested": len(known),
        "agreement": round(len(agreed) / max(len(known), 1), 4),
        "false_passes": sum(passed[i] and not lines[i]["equal"] for i in known),
        "false_fails": sum(lines[i]["equal"] and not passed[i] for i in known),
        "over_the_limit": over,
        **_milliseconds(seconds),
        "wall_s": round(wall, 2),
    }


def _by_peer(peer: str, lines: Sequence[dict[str, Any]]) -> tuple[list[bool], list[float], int]:
    passed, seconds, over = [], [], 0
    process = _peer(peer)
    for line in lines:
        assert process.stdin is not None and process.stdout is not None, "opened with pipes"
        said, start = "", time.perf_counter()
        try:
            process.stdin.write(json.dumps([line["gold"], line["response"]]) + "\n")
            process.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                if selector.select(_PEER_LIMIT):
                    said = process.stdout.readline()
        except BrokenPipeError:
            pass
        if said:
            is_equal, spent = json.loads(said)
        else:
            is_equal, spent, over = False, time.perf_counter() - start, over + 1
            process.kill()
            process.communicate()
            process = _peer(peer)
        passed.append(is_equal)
        seconds.append(spent)
    process.kill()
    process.communicate()
    return passed, seconds, over


def _peer(peer: str) -> subprocess.Popen[str]:
    program = Path(__file__).with_name("math_verify_peer.py")
    process = subprocess.Popen(
        [peer, str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
    )
    assert process.stdin is not None and process.stdout is not None, "opened with pipes"
    process.stdin.write('["1", "1"]\n')  # its imports are not timed
    process.stdin.flush()
    if not process.stdout.readline():
        process.communicate()
        raise ValueError(f"--peer {peer}: math-verify does not run there; pip install math-verify")
    return process


def fuzz(n: int, workers: int, deadline: float) -> Iterator[dict[str, Any]]:
    """Verifies random pairs; nothing may raise, overrun or leak."""
    inputs = pairs(n)
    for verifier in SPECS:
        examples = [task(i, a, verifier) for i, (a, _) in enumerate(inputs)]
        with Pool(workers=workers, deadline=deadline) as pool:
            half, start = len(inputs) // 2, time.perf_counter()
            results = _drain(pool, examples[:half], [b for _, b in inputs[:half]])
            before = _worker_memory()
            results += _drain(pool, examples[half:], [b for _, b in inputs[half:]])
            wall = time.perf_counter() - start
            after = _worker_memory()
        limits = collections.Counter(filter(None, (limit(r.score) for r in results)))
        causes = collections.Counter(filter(None, (cause(r.score) for r in results)))
        yield {
            "benchmark": "fuzz",
            "verifier": verifier,
            "inputs": len(inputs),
            "raised": causes["raised"] + causes["result"] + causes["other"],
            "unreadable_references": causes["reference"],
            "beyond_limits": dict(limits),
            "retried": sum(r.tries > 1 for r in results),
            "right": sum(r.score.verdict == "right" for r in results),
            "worker_mib_half_way": round(before / 2**20, 1),
            "worker_mib_at_the_end": round(after / 2**20, 1),
            **_milliseconds([r.seconds for r in results]),
            "wall_s": round(wall, 1),
            "per_second": round(len(inputs) / wall),
        }


def service(n: int, workers: int, deadline: float) -> dict[str, Any]:
    """Math verifications of which 1 % hang and 1 % crash; every score must come, in order."""
    files, children = len(os.listdir("/proc/self/fd")), _children()
    faulty = {"type": "custom", "path": "benchmarks.faulty_verifier:score"}
    examples = [Example(str(i), "", str(i), faulty) for i in range(n)]
    special = {37: HANG, 73: CRASH}
    responses = [special.get(i % 100, rf"so it is \boxed{{{i + (i % 3 == 0)}}}") for i in range(n)]
    start = time.perf_counter()
    with Pool(workers=workers, deadline=deadline) as pool:
        results = _drain(pool, examples, responses)
        metrics = pool.metrics()
    wall = time.perf_counter() - start
    kinds = collections.Counter(limit(r.score) or r.score.verdict for r in results)
    expected = collections.Counter(
        {HANG: "timeout", CRASH: "crash"}.get(said, "wrong" if i % 3 == 0 else "right")
        for i, said in enumerate(responses)
    )
    return {
        "benchmark": "service",
        "responses": n,
        "scores": len(results),
        "in_order": [r.id for r in results] == list(range(n)),
        "as_expected": kinds == expected,
        "verdicts": dict(kinds),
        "processes_left": len(_children() - children),
        "handles_left": len(os.listdir("/proc/self/fd")) - files,
        "mean_ms": round(1000 * metrics["speed/verify_s"].sum / max(n, 1), 2),
        "wall_s": round(wall, 1),
        "per_second": round(n / wall, 1),
    }


def _drain(pool: Pool, examples: Sequence[Example], responses: Sequence[str]) -> list[Result]:
    """Results in the order of the examples."""
    found: dict[int, Result] = {}
    for i, (example, response) in enumerate(zip(examples, responses, strict=True)):
        pool.submit(i, example, response)
        found |= {r.id: r for r in pool.results()}
    while pool.pending:
        found |= {r.id: r for r in pool.results(60.0)}
    assert len(found) == len(examples), "one score a response"
    return [found[i] for i in range(len(examples))]


def _milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    shares = {"median": 0.5, "p99": 0.99, "max": 1.0}
    found = {f"{k}_ms": round(1000 * quantile(seconds, v), 2) for k, v in shares.items()}
    return {**found, "mean_ms": round(1000 * math.fsum(seconds) / len(seconds), 2)}


def _children() -> set[int]:
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
            found |= {int(pid) for pid in (thread / "children").read_text().split()}
    return found


def _worker_memory() -> int:
    """Bytes that the largest child holds."""
    sizes = []
    for pid in _children():
        status = Path(f"/proc/{pid}/status").read_text()
        sizes += [int(x.split()[1]) * 1024 for x in status.splitlines() if x.startswith("VmRSS")]
    return max(sizes, default=0)


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.verifiers", description=(__doc__ or "").split("\n")[0]
    )
    commands = parser.add_subparsers(required=True, dest="command")
    of_cases = commands.add_parser("cases", help="labelled cases, beside Math-Verify")
    of_cases.add_argument("file", type=Path)
    of_cases.add_argument("--peer", help="an interpreter that has math-verify")
    of_fuzz = commands.add_parser("fuzz", help="random inputs")
    of_fuzz.add_argument("--inputs", type=int, default=20_000)
    of_service = commands.add_parser("service", help="hangs and crashes on purpose")
    of_service.add_argument("--responses", type=int, default=10_000)
    for command in (of_cases, of_fuzz, of_service):
        command.add_argument("--workers", type=int, default=2)
    args = parser.parse_args(argv)
    if args.command == "cases":
        lines = cases(args.file, args.peer, args.workers)
    elif args.command == "fuzz":
        lines = fuzz(args.inputs, args.workers, deadline=5.0)
    else:
        lines = iter([service(args.responses, args.workers, deadline=1.0)])
    for line in lines:
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())

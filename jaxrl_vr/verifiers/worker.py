"""The worker process: scores one response after another until its standard input ends.

Frames are eight bytes of length and a pickle, both ways. From the parent: `(spec, example,
response)`. To the parent: `("ready",)` once, then for each response `("started",)` when its
verifier is loaded, from where the deadline counts, and `("score", fields)`, `("limit", why)` or
`("fault", why)`. After a "limit" the worker ends: what a MemoryError leaves behind is not trusted.
Started by `pool`, which also decides deadlines and retries.
"""

from __future__ import annotations

import faulthandler
import functools
import math
import os
import pickle
import queue
import resource
import signal
import struct
import threading
from typing import Any, BinaryIO

from jaxrl_vr.types import Score
from jaxrl_vr.verifiers.compose import Weighted
from jaxrl_vr.verifiers.math_answer import MathAnswer
from jaxrl_vr.verifiers.spec import Verifier, build

HEADER = struct.Struct("<Q")
_ORPHAN_GRACE = 60.0  # seconds past the deadline: only a worker without a parent gets there


def frame(message: object) -> bytes:
    """`message` as it crosses the pipe."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(body)) + body


def main(memory: int, deadline: float) -> None:
    """Runs the worker; ends when the parent closes its end or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, sink = _private_channel()
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(source, jobs), daemon=True).start()
    with open(os.devnull, "w") as devnull:
        _send(sink, ("ready",))
        while True:
            spec, example, response = jobs.get()
            # A C loop that holds the interpreter lock starves the reading thread, so that the
            # end of the parent goes unseen; this clock runs without the lock.
            faulthandler.dump_traceback_later(deadline + _ORPHAN_GRACE, exit=True, file=devnull)
            answer = _answer(sink, spec, example, response)
            faulthandler.cancel_dump_traceback_later()
            _send(sink, answer)
            if answer[0] == "limit":
                return


def _private_channel() -> tuple[BinaryIO, BinaryIO]:
    """The two pipes under new numbers; a verifier that prints or reads meets /dev/null."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    os.dup2(devnull, 1)
    os.close(devnull)
    return source, sink


def _read(source: BinaryIO, jobs: queue.SimpleQueue[Any]) -> None:
    while True:
        header = source.read(HEADER.size)
        if len(header) < HEADER.size:
            os._exit(0)  # the parent is gone, also while a verifier runs
        jobs.put(pickle.loads(source.read(HEADER.unpack(header)[0])))


def _send(sink: BinaryIO, message: object) -> None:
    try:
        sink.write(frame(message))
        sink.flush()
    except BrokenPipeError:
        os._exit(0)


def _answer(sink: BinaryIO, spec: bytes, example: Any, response: str) -> tuple[str, Any]:
    # The boundary where whatever a verifier raises becomes data.
    try:
        verifier = _load(spec)
        _send(sink, ("started",))
        return "score", _fields(verifier(example, response))
    except MemoryError:
        return "limit", "out of memory"
    except RecursionError:
        return "limit", "recursion too deep"
    except (Exception, SystemExit) as error:
        return "fault", " ".join(f"{type(error).__name__}: {error}".split())[:500]


@functools.lru_cache(maxsize=256)
def _load(spec: bytes) -> Verifier:
    verifier = build(pickle.loads(spec))
    parts = [p.verifier for p in verifier.parts] if isinstance(verifier, Weighted) else [verifier]
    if any(isinstance(part, MathAnswer) for part in parts):
        import sympy  # noqa: F401  (so that the first response does not pay for the import)
    return verifier


def _fields(score: Score) -> tuple[Any, ...]:
    """A score as plain values, checked: a custom verifier may have put anything in it."""
    if not isinstance(score, Score):
        raise TypeError(f"the verifier returned {type(score).__name__}, not a Score")
    if score.verdict not in ("right", "wrong", "no_answer", "unscorable"):
        raise ValueError(f"the verifier returned the verdict {score.verdict!r}")
    components = {str(name): float(x) for name, x in score.components.items()}
    steps = tuple((int(step.end), float(step.value)) for step in score.steps)
    value = float(score.value)
    for number in (value, *components.values(), *(x for _, x in steps)):
        if not math.isfinite(number):
            raise ValueError(f"the verifier returned {number}")
    return value, str(score.verdict), components, str(score.reason), steps

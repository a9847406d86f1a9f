"""The worker process: scores one response after another until its standard input ends.

A frame is eight bytes of length and a body. From the parent the body is a pickle of `(spec,
example, response)`, where an example of None only asks whether the verifier loads. To the parent it
is JSON, because the parent shall never run what a verifier made: `["ready"]` once, then for each
response `["unloadable", why]`, or `["started", seconds]` when its verifier is loaded, from where
the deadline counts (or the longer time that the verifier asks for), and `["score", fields]` or
`["fault", why]`. Nothing follows `["started", ...]` where there is no example. `["limit", why]` may
stand in each place, and the worker ends after it: what a MemoryError leaves behind is not trusted.
Started by `pool`, which decides deadlines and retries.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import pickle
import queue
import resource
import signal
import struct
import threading
from collections.abc import Callable
from typing import Any

from jaxrl_vr.types import Score
from jaxrl_vr.verifiers.judgement import BadScore, checked
from jaxrl_vr.verifiers.math_answer import MathAnswer
from jaxrl_vr.verifiers.spec import Verifier, build, loads, name, parts, patience
from jaxrl_vr.verifiers.text import one_line

HEADER = struct.Struct("<Q")
MAX_FRAME = 1 << 24  # bytes of a message to the parent; no score comes near
_ORPHAN_GRACE = 60.0  # seconds past the deadlines: only a worker without a parent gets there


def frame(body: bytes) -> bytes:
    """`body` as it crosses the pipe."""
    return HEADER.pack(len(body)) + body


def main(memory: int, deadlines: float) -> None:
    """Runs the worker; ends when the parent closes its end or dies.

    Args:
      memory: bytes of address space, 0 for no limit.
      deadlines: seconds after which the parent has given up a response, unless its verifier says
        that it takes longer.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = _Channel()
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=channel.read, args=(jobs,), daemon=True).start()
    with open(os.devnull, "w") as devnull:

        def end_after(seconds: float) -> None:
            # A C loop that holds the interpreter lock starves the reading thread, so that the
            # end of the parent goes unseen; this clock runs without the lock.
            faulthandler.dump_traceback_later(seconds + _ORPHAN_GRACE, exit=True, file=devnull)

        channel.send("ready")
        while True:
            spec, example, response = jobs.get()
            end_after(deadlines)
            is_sound = _answer(
                channel, spec, example, response, lambda more: end_after(deadlines + more)
            )
            faulthandler.cancel_dump_traceback_later()
            if not is_sound:
                return


class _Channel:
    """The two pipes under new numbers; a verifier that prints or reads meets /dev/null.

    A child that a verifier forks has none of it: it must neither answer in the worker's place nor
    hide the worker's end by holding the pipes open.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._source, self._sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        devnull = os.open(os.devnull, os.O_RDWR)
        os.dup2(devnull, 0)
        os.dup2(devnull, 1)
        os.close(devnull)
        ends = (self._source.fileno(), self._sink.fileno())
        os.register_at_fork(after_in_child=lambda: [os.close(end) for end in ends])

    def read(self, jobs: queue.SimpleQueue[Any]) -> None:
        """Puts what the parent sends into `jobs`; with no more to come, ends the process."""
        try:
            while len(header := self._source.read(HEADER.size)) == HEADER.size:
                jobs.put(pickle.loads(self._source.read(HEADER.unpack(header)[0])))
        finally:
            os._exit(0)  # the parent is gone, also while a verifier runs, or the pipe was closed

    def send(self, *message: Any) -> None:
        """Sends a message to the parent; a forked child that gets here ends."""
        if os.getpid() != self._pid:
            os._exit(1)
        body = frame(json.dumps(message).encode())
        try:
            self._sink.write(body)
            self._sink.flush()
        except BrokenPipeError:
            os._exit(0)


def _answer(
    channel: _Channel,
    spec: bytes,
    example: Any,
    response: str,
    prolong: Callable[[float], None],
) -> bool:
    """Scores one response; returns whether the process can be trusted with more."""
    # The boundary where whatever a verifier raises becomes data.
    try:
        verifier = _load(spec)
    except MemoryError:
        channel.send("limit", "out of memory")
        return False
    except BaseException as error:
        is_ours = isinstance(error, ValueError)  # and says all in its text
        channel.send("unloadable", one_line(str(error)) if is_ours else _said(error))
        return True
    needed = patience(verifier)
    prolong(needed)
    channel.send("started", needed)
    if example is None:
        return True
    try:
        channel.send("score", _fields(checked(verifier(example, response), name(verifier))))
    except MemoryError:
        channel.send("limit", "out of memory")
        return False
    except RecursionError:
        channel.send("limit", "recursion too deep")
        return False
    except BadScore as error:
        channel.send("fault", one_line(str(error)))
    except BaseException as error:
        channel.send("fault", f"the verifier raised {_said(error)}")
    return True


@functools.lru_cache(maxsize=256)
def _load(spec: bytes) -> Verifier:
    verifier = build(pickle.loads(spec))
    for part in loads(verifier):
        part.load()
    for part in parts(verifier):
        if isinstance(part, MathAnswer):
            import sympy  # noqa: F401  (so that the first response does not pay for the import)
    return verifier


def _said(error: BaseException) -> str:
    try:
        return one_line(f"{type(error).__name__}: {error}")
    except BaseException:  # of an exception whose text cannot be had
        return type(error).__name__


def _fields(score: Score) -> tuple[Any, ...]:
    steps = [(step.end, step.value) for step in score.steps]
    return score.value, score.verdict, dict(score.components), score.reason, steps

"""The pool: verifiers in processes that can be killed.

A worker is a fresh interpreter (never a fork, and the program's main module is not run again)
that imports `verifiers.worker` and scores one response at a time. A thread of the parent hands out
the work and keeps the deadlines, so that both go on while the caller waits for a device.

A response that overruns (time, memory), or whose worker dies, is tried once more alone on a fresh
worker. The second time it is `wrong` with a reason that begins with `limit`: else hanging the
checker would beat being wrong. A verifier that raises is our fault: `unscorable`.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pickle
import selectors
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Literal

from pydantic import Field

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Score, Step
from jaxrl_vr.verifiers.worker import HEADER, frame

_START_LIMIT = 120.0  # seconds to start, or to load a verifier; generous: a busy machine is slow
_MAX_FAILED_STARTS = 3
_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from jaxrl_vr.verifiers.worker import main; main(int(sys.argv[2]), float(sys.argv[3]))"
)


class PoolConfig(Config):
    """How many verifier processes there are, and what one response may cost."""

    workers: int = Field(default=1, ge=1)
    """Processes that score at the same time. More when verifying lags behind sampling."""
    deadline: float = Field(default=5.0, gt=0)
    """Seconds of wall clock for one response, loading not counted. More for slow verifiers."""
    memory: int = Field(default=2 << 30, ge=0)
    """Bytes of address space a worker may use; 0 is no limit."""
    max_chars: int = Field(default=100_000, ge=1)
    """Characters of a response; a longer one is wrong without being looked at."""


@dataclasses.dataclass
class _Job:
    id: int
    payload: bytes
    retried: bool = False


@dataclasses.dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    state: Literal["starting", "idle", "loading", "running"]
    due: float  # when the present state has lasted too long; not used while idle
    job: _Job | None = None  # while starting: kept for this worker
    buffer: bytearray = dataclasses.field(default_factory=bytearray)


class Pool:
    """Scores responses in worker processes; one score for each job, in order of completion.

    For use from one thread. `Pool(config)` or `Pool(workers=2, ...)` with fields of PoolConfig.
    """

    def __init__(self, config: PoolConfig | None = None, **settings: Any) -> None:
        if config is not None and settings:
            raise ValueError(f"Pool got a config and {sorted(settings)}: put them in the config")
        self.config = config or PoolConfig(**settings)
        self.pending = 0
        """Jobs submitted whose score has not been handed out yet."""
        self._lock = threading.Condition()  # guards the next four
        self._queue: collections.deque[_Job] = collections.deque()
        self._done: list[tuple[int, Score]] = []
        self._closing = False
        self._fault: BaseException | None = None
        self._workers: dict[int, _Worker] = {}  # by the descriptor scores arrive on
        self._failed_starts = 0
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="verifier-pool", daemon=True)
        self._thread.start()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, job: int, example: Example, response: str) -> None:
        """Has `example.verifier` score `response`; `job` comes back with the score."""
        if self._closing:
            raise RuntimeError("submit: the verifier pool is closed")
        limit = self.config.max_chars
        if len(response) > limit:
            reason = f"limit: {len(response)} characters, more than max_chars = {limit}"
            self.pending += 1
            self._finish(job, Score(0.0, "wrong", reason=reason))
            return
        spec = dict(example.verifier)
        example = dataclasses.replace(example, verifier=spec)
        payload = frame((pickle.dumps(spec), example, response))
        self.pending += 1
        with self._lock:
            self._queue.append(_Job(job, payload))
        self._wake()

    def poll(self, timeout: float = 0.0) -> list[tuple[int, Score]]:
        """Scores that are ready; with none ready, waits up to `timeout` seconds for one."""
        with self._lock:
            if self.pending and not self._closing:
                self._lock.wait_for(lambda: self._done or self._fault, timeout)
            if self._fault is not None and not self._done:
                raise RuntimeError(f"verifier pool: {self._fault}") from self._fault
            done, self._done = self._done, []
        self.pending -= len(done)
        return done

    def drain(self) -> list[tuple[int, Score]]:
        """Waits for all jobs and gives their scores."""
        done = []
        while self.pending and not self._closing:
            done += self.poll(timeout=60.0)
        return done

    def close(self) -> None:
        """Kills the workers and waits for their end; jobs not yet scored are dropped."""
        with self._lock:
            closing, self._closing = self._closing, True
            self._queue.clear()
        if closing:
            return
        self._wake()
        self._thread.join()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        self.pending = 0

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            pass  # full of wake-ups already

    def _finish(self, job: int, score: Score) -> None:
        with self._lock:
            self._done.append((job, score))
            self._lock.notify_all()

    # What follows runs in the pool's thread.

    def _run(self) -> None:
        try:
            for _ in range(self.config.workers):
                self._start(None)
            while not self._closing:
                self._assign()
                for key, _ in self._selector.select(self._patience()):
                    if key.fd == self._wake_read:
                        os.read(self._wake_read, 65536)
                    else:
                        self._receive(self._workers[key.fd])
                self._enforce()
        except BaseException as error:  # a thread's error is lost unless the caller meets it
            with self._lock:
                self._fault = error
                self._lock.notify_all()
        finally:
            for worker in list(self._workers.values()):
                self._kill(worker)

    def _start(self, job: _Job | None) -> None:
        config = self.config
        limits = [str(config.memory), str(config.deadline)]
        process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, json.dumps([str(p) for p in sys.path]), *limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # no Ctrl-C from the terminal; killed with all its children
        )
        assert process.stdout is not None, "opened with a pipe"
        worker = _Worker(process, "starting", time.monotonic() + _START_LIMIT, job)
        self._workers[process.stdout.fileno()] = worker
        self._selector.register(process.stdout, selectors.EVENT_READ)

    def _assign(self) -> None:
        for worker in list(self._workers.values()):
            if worker.state != "idle":
                continue
            if worker.job is None:
                with self._lock:
                    worker.job = self._queue.popleft() if self._queue else None
            if worker.job is not None:
                self._hand(worker, worker.job)

    def _hand(self, worker: _Worker, job: _Job) -> None:
        worker.state, worker.due = "loading", time.monotonic() + _START_LIMIT
        assert worker.process.stdin is not None, "opened with a pipe"
        rest = memoryview(job.payload)
        try:
            while rest:
                rest = rest[worker.process.stdin.write(rest) :]
        except BrokenPipeError:
            pass  # it is dead: the end of its output says so

    def _patience(self) -> float | None:
        due = [worker.due for worker in self._workers.values() if worker.state != "idle"]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _receive(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None, "opened with a pipe"
        data = os.read(worker.process.stdout.fileno(), 1 << 20)
        if not data:
            self._died(worker)
            return
        buffer = worker.buffer
        buffer += data
        while len(buffer) >= HEADER.size:
            end = HEADER.size + HEADER.unpack_from(buffer)[0]
            if len(buffer) < end:
                return
            message = pickle.loads(bytes(buffer[HEADER.size : end]))
            del buffer[:end]
            self._act(worker, *message)

    def _act(self, worker: _Worker, kind: str, detail: Any = None) -> None:
        if kind == "ready":
            worker.state, self._failed_starts = "idle", 0
            return
        if kind == "started":
            worker.state, worker.due = "running", time.monotonic() + self.config.deadline
            return
        job = worker.job
        assert job is not None, "a worker answers what it was given"
        if kind == "limit":
            self._overrun(worker, detail)
            return
        if kind == "score":
            value, verdict, components, reason, steps = detail
            score = Score(value, verdict, components, reason, tuple(Step(*step) for step in steps))
        else:
            score = Score(0.0, "unscorable", reason=f"the verifier raised {detail}")
        worker.state, worker.job = "idle", None
        self._finish(job.id, score)

    def _enforce(self) -> None:
        now = time.monotonic()
        for worker in list(self._workers.values()):
            if worker.state == "idle" or now < worker.due:
                continue
            if worker.state == "running":
                self._overrun(worker, f"no result after {self.config.deadline:g} s")
            else:
                self._died(worker, f"was still {worker.state} after {_START_LIMIT:g} s")

    def _died(self, worker: _Worker, why: str = "") -> None:
        if worker.state == "running":
            self._overrun(worker, "")
            return
        self._kill(worker)
        why = why or f"ended while {worker.state} (exit status {worker.process.returncode})"
        if worker.state == "starting":
            self._failed_starts += 1
            if self._failed_starts >= _MAX_FAILED_STARTS:
                raise RuntimeError(
                    f"workers do not start: {why}; its standard error says more, or try "
                    f"{sys.executable} -c 'import jaxrl_vr.verifiers.worker'; the memory limit is "
                    f"{self.config.memory} bytes"
                )
        job = worker.job
        if job is not None and worker.state == "loading":
            if job.retried:  # loading does not depend on the response
                reason = f"the verifier does not load: the worker {why}"
                self._finish(job.id, Score(0.0, "unscorable", reason=reason))
                job = None
            else:
                job = dataclasses.replace(job, retried=True)
        self._start(job)

    def _overrun(self, worker: _Worker, why: str) -> None:
        self._kill(worker)
        why = why or f"the worker died (exit status {worker.process.returncode})"
        job = worker.job
        assert job is not None, "only a worker with a job runs"
        if job.retried:
            self._finish(job.id, Score(0.0, "wrong", reason=f"limit: {why}, twice"))
            self._start(None)
        else:
            self._start(dataclasses.replace(job, retried=True))

    def _kill(self, worker: _Worker) -> None:
        process = worker.process
        assert process.stdin is not None and process.stdout is not None, "opened with pipes"
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # it has ended by itself, and left no children
        self._selector.unregister(process.stdout)
        del self._workers[process.stdout.fileno()]
        process.stdin.close()
        process.stdout.close()
        process.wait()

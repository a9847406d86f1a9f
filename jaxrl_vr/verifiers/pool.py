"""The pool: verifiers in processes that can be killed.

A worker is a fresh interpreter (never a fork, and the program's main module is not run again)
that imports `verifiers.worker` and scores one response at a time. A thread of the parent hands out
the work and keeps the deadlines, so that both go on while the caller waits for a device. Code of a
custom verifier runs in workers only, its import included.

A response that overruns (time, memory), or whose worker dies, is tried once more alone on a fresh
worker. The second time it is `wrong` with a reason that begins with `limit`: else hanging the
checker would beat being wrong. A verifier that does not load, raises or returns no proper score is
our fault: `unscorable`.
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
from collections.abc import Callable, Mapping
from typing import Any, Literal

from jaxrl_vr.types import Example, Metrics, Score, Step
from jaxrl_vr.verifiers.pool_config import DAY, PoolConfig
from jaxrl_vr.verifiers.spec import build, loads, name
from jaxrl_vr.verifiers.tally import Result, Tally
from jaxrl_vr.verifiers.text import encodable
from jaxrl_vr.verifiers.worker import HEADER, MAX_FRAME, frame

_START_LIMIT = 120.0  # seconds to start; generous: a busy machine is slow
_MAX_FAILED_STARTS = 3
_CHECK_PATIENCE = 0.2  # seconds between two looks at whether to go on waiting
_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from jaxrl_vr.verifiers.worker import main; main(int(sys.argv[2]), float(sys.argv[3]))"
)
_TURN = {
    "starting": ("ready",),
    "idle": (),
    "loading": ("started", "unloadable", "limit"),
    "running": ("score", "limit", "fault"),
}
"""What a worker may say in which state."""


@dataclasses.dataclass(frozen=True)
class _Job:
    id: int
    spec: bytes
    payload: bytes
    is_check: bool = False  # whether only to load the verifier
    was_lost: bool = False  # with a worker that died while it loaded
    has_overrun: bool = False


@dataclasses.dataclass(eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    source: int  # descriptor that scores arrive on
    sink: int  # descriptor that jobs go to
    state: Literal["starting", "idle", "loading", "running"]
    due: float  # when the present state has lasted too long; not used while idle
    job: _Job | None = None  # while starting: kept for this worker
    began: float = 0.0  # when its job began to run
    allowed: float = 0.0  # seconds that the present response may take
    unsent: memoryview = memoryview(b"")
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
        self._lock = threading.Condition()  # guards the next five
        self._queue: collections.deque[_Job] = collections.deque()
        self._done: list[Result] = []
        self._tally = Tally()
        self._closing = False
        self._fault: BaseException | None = None
        self._workers: list[_Worker] = []
        self._failed_starts = 0
        self._loaded: set[bytes] = set()  # specs that some worker has loaded
        self._unloadable: dict[bytes, str] = {}  # specs that none ever could, with why
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

    def check(
        self,
        specs: Mapping[str, Mapping[str, Any]],
        *,
        waiting: Callable[[], object] = lambda: None,
    ) -> None:
        """Has verifiers loaded that import or start something, so that a fault is known before.

        Args:
          specs: verifiers by the names that messages call them, such as "data.sums.verifier".
          waiting: called again and again meanwhile; what it raises ends the wait.

        Raises:
          ValueError: those that do not load within `load_deadline`, each with what happened.
        """
        if self.pending:
            raise ValueError(f"check: {self.pending} scores are pending; check before submitting")
        custom = {where: spec for where, spec in specs.items() if loads(build(spec))}
        places = list(custom)
        for i, spec in enumerate(custom.values()):
            self._put(i, spec, None, "")
        faults: dict[int, str] = {}
        while self.pending and not self._closing:
            waiting()
            done = self.poll(_CHECK_PATIENCE)
            faults |= {i: score.reason for i, score in done if score.verdict == "unscorable"}
        self.metrics()  # what was checked is no response
        if faults:
            raise ValueError("\n".join(f"{places[i]}: {faults[i]}" for i in sorted(faults)))

    def submit(self, job: int, example: Example, response: str) -> None:
        """Has `example.verifier` score `response`; `job` comes back with the score."""
        if self._closing:
            raise RuntimeError("submit: the verifier pool is closed")
        limit = self.config.max_chars
        if len(response) > limit:
            reason = f"limit: {len(response)} characters, more than max_chars = {limit}"
            self.pending += 1
            self._finish(Result(job, Score(0.0, "wrong", reason=reason)))
            return
        spec = dict(example.verifier)
        self._put(job, spec, dataclasses.replace(example, verifier=spec), encodable(response))

    def _put(
        self, job: int, spec: Mapping[str, Any], example: Example | None, response: str
    ) -> None:
        key = pickle.dumps(dict(spec))
        payload = frame(pickle.dumps((key, example, response), pickle.HIGHEST_PROTOCOL))
        self.pending += 1
        with self._lock:
            self._lock.wait_for(lambda: len(self._queue) < self.config.queue or self._fault)
            self._queue.append(_Job(job, key, payload, is_check=example is None))
        self._wake()

    def poll(self, timeout: float = 0.0) -> list[tuple[int, Score]]:
        """Scores that are ready; with none ready, waits up to `timeout` seconds for one."""
        return [(result.id, result.score) for result in self.results(timeout)]

    def metrics(self) -> Metrics:
        """Latency, limits and faults of the responses that were scored since the last call."""
        with self._lock:
            return self._tally.taken()

    def results(self, timeout: float = 0.0) -> list[Result]:
        """As `poll`, with what each score cost."""
        with self._lock:
            if self.pending and not self._closing:
                self._lock.wait_for(lambda: self._done or self._fault, timeout)
            if self._fault is not None and not self._done:
                raise RuntimeError(f"verifier pool: {self._fault}") from self._fault
            done, self._done = self._done, []
        self.pending -= len(done)
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

    def _finish(self, result: Result) -> None:
        with self._lock:
            self._tally.add(result)
            self._done.append(result)
            self._lock.notify_all()

    # What follows runs in the pool's thread.

    def _run(self) -> None:
        try:
            for _ in range(self.config.num_workers):
                self._start(None)
            while not self._closing:
                self._assign()
                for key, _ in self._selector.select(self._patience()):
                    if key.fd == self._wake_read:
                        os.read(self._wake_read, 65536)
                    elif key.data not in self._workers:
                        pass  # killed by an earlier event of this round
                    elif key.fd == key.data.source:
                        self._receive(key.data)
                    else:
                        self._send(key.data)
                self._enforce()
        except BaseException as error:  # a thread's error is lost unless the caller meets it
            with self._lock:
                self._fault = error
                self._lock.notify_all()
        finally:
            for worker in list(self._workers):
                self._kill(worker)

    def _start(self, job: _Job | None) -> None:
        config = self.config
        limits = [str(config.memory), str(config.load_deadline + config.deadline)]
        process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, json.dumps([str(p) for p in sys.path]), *limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # no Ctrl-C from the terminal; killed with all its children
        )
        assert process.stdin is not None and process.stdout is not None, "opened with pipes"
        source, sink = process.stdout.fileno(), process.stdin.fileno()
        os.set_blocking(sink, False)  # one that does not read must not hold up the others
        due = time.monotonic() + _START_LIMIT
        worker = _Worker(process, source, sink, "starting", due, job)
        self._workers.append(worker)
        self._selector.register(source, selectors.EVENT_READ, worker)

    def _assign(self) -> None:
        for worker in list(self._workers):
            if worker.state != "idle":
                continue
            worker.job = worker.job or self._next()
            if worker.job is not None:
                self._hand(worker, worker.job)

    def _next(self) -> _Job | None:
        """The next job whose verifier may load; what waits for others is answered."""
        while True:
            with self._lock:
                if not self._queue:
                    return None
                job = self._queue.popleft()
                self._lock.notify_all()  # there is room
            if job.spec not in self._unloadable:
                return job
            self._finish_unloadable(job, self._unloadable[job.spec])

    def _hand(self, worker: _Worker, job: _Job) -> None:
        worker.state, worker.due = "loading", time.monotonic() + self.config.load_deadline
        worker.unsent = memoryview(job.payload)
        self._send(worker)

    def _send(self, worker: _Worker) -> None:
        """Writes what the worker's pipe takes now; the selector says when it takes more."""
        is_waiting = worker.sink in self._selector.get_map()
        try:
            while worker.unsent:
                worker.unsent = worker.unsent[os.write(worker.sink, worker.unsent) :]
        except BlockingIOError:
            if not is_waiting:
                self._selector.register(worker.sink, selectors.EVENT_WRITE, worker)
            return
        except BrokenPipeError:
            worker.unsent = memoryview(b"")  # it is dead: the end of its output says so
        if is_waiting:
            self._selector.unregister(worker.sink)

    def _patience(self) -> float | None:
        due = [worker.due for worker in self._workers if worker.state != "idle"]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _receive(self, worker: _Worker) -> None:
        data = os.read(worker.source, 1 << 20)
        if not data:
            self._died(worker)
            return
        buffer = worker.buffer
        buffer += data
        while worker in self._workers and len(buffer) >= HEADER.size:
            size = HEADER.unpack_from(buffer)[0]
            if len(buffer) < HEADER.size + size <= HEADER.size + MAX_FRAME:
                return
            body = bytes(buffer[HEADER.size : HEADER.size + size])
            del buffer[: HEADER.size + size]
            kind, detail = _message(body)
            if kind in _TURN[worker.state]:
                self._act(worker, kind, detail)
            else:
                self._died(worker, "it sent what is no message")

    def _act(self, worker: _Worker, kind: str, detail: Any) -> None:
        if kind == "ready":
            worker.state, self._failed_starts = "idle", 0
            return
        job = worker.job
        assert job is not None, "a worker answers what it was given"
        if kind == "started":
            self._loaded.add(job.spec)
            worker.allowed = max(self.config.deadline, _seconds(detail))
            worker.state, worker.began = "running", time.monotonic()
            worker.due = worker.began + worker.allowed
            if not job.is_check:
                return
        elif kind == "limit":
            lost = self._died if worker.state == "loading" else self._overrun
            lost(worker, detail)
            return
        worker.state, worker.job = "idle", None
        if kind == "unloadable":
            self._give_up_loading(job, detail)
        else:
            self._finish(_result(job, _score(kind, detail), worker))

    def _enforce(self) -> None:
        now = time.monotonic()
        for worker in list(self._workers):
            if worker.state == "idle" or now < worker.due:
                continue
            if worker.state == "running":
                self._overrun(worker, f"no result after {worker.allowed:g} s")
            elif worker.state == "loading":
                self._load_hung(worker)
            else:
                self._died(worker, f"still starting after {_START_LIMIT:g} s")

    def _died(self, worker: _Worker, why: str = "") -> None:
        if worker.state == "running":
            self._overrun(worker, why)
            return
        self._kill(worker)
        why = why or f"it ended (exit status {worker.process.returncode})"
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
            if job.was_lost:
                self._give_up_loading(
                    job, f"{_name(job)}: while importing it, a worker was lost twice: {why}"
                )
                job = None
            else:
                job = dataclasses.replace(job, was_lost=True)
        self._start(job)

    def _load_hung(self, worker: _Worker) -> None:
        self._kill(worker)
        job = worker.job
        assert job is not None, "only a worker with a job loads"
        if job.spec in self._loaded and not job.was_lost:
            self._start(dataclasses.replace(job, was_lost=True))  # not the verifier's doing
            return
        why = f"its import was not done after load_deadline = {self.config.load_deadline:g} s"
        self._give_up_loading(job, f"{_name(job)}: {why}; mend the module, or raise load_deadline")
        self._start(None)

    def _give_up_loading(self, job: _Job, why: str) -> None:
        if job.spec not in self._loaded:
            # Every other response would wait as long, and for nothing.
            self._unloadable[job.spec] = why
        self._finish_unloadable(job, why)

    def _finish_unloadable(self, job: _Job, why: str) -> None:
        reason = f"the verifier does not load: {why}"
        self._finish(Result(job.id, Score(0.0, "unscorable", reason=reason)))

    def _overrun(self, worker: _Worker, why: str) -> None:
        self._kill(worker)
        why = why or f"the worker died (exit status {worker.process.returncode})"
        job = worker.job
        assert job is not None, "only a worker with a job runs"
        if job.has_overrun:
            score = Score(0.0, "wrong", reason=f"limit: {why}, twice")
            self._finish(_result(job, score, worker))
            self._start(None)
        else:
            self._start(dataclasses.replace(job, has_overrun=True))

    def _kill(self, worker: _Worker) -> None:
        process = worker.process
        assert process.stdin is not None and process.stdout is not None, "opened with pipes"
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # it has ended by itself, and left no children
        self._selector.unregister(worker.source)
        if worker.sink in self._selector.get_map():
            self._selector.unregister(worker.sink)
        self._workers.remove(worker)
        process.stdin.close()
        process.stdout.close()
        process.wait()


def _result(job: _Job, score: Score, worker: _Worker) -> Result:
    seconds = time.monotonic() - worker.began if worker.began else 0.0
    return Result(job.id, score, seconds, 1 + job.has_overrun)


def _score(kind: str, detail: Any) -> Score:
    if kind == "fault":
        return Score(0.0, "unscorable", reason=detail)
    if kind == "started":  # of a check, which asks for nothing more
        return Score(1.0, "right", reason="the verifier loads")
    value, verdict, components, reason, steps = detail
    return Score(value, verdict, components, reason, tuple(Step(*step) for step in steps))


def _seconds(detail: Any) -> float:
    """The time that a verifier asks for, if it is one."""
    return float(detail) if isinstance(detail, float | int) and 0 <= detail <= DAY else 0.0


def _message(body: bytes) -> tuple[str, Any]:
    """Kind and detail of what a worker sent; no kind where a verifier wrote into the pipe."""
    try:
        match json.loads(body):
            case [str(kind)]:
                return kind, None
            case [str(kind), detail]:
                return kind, detail
    except (ValueError, RecursionError):
        pass
    return "", None


def _name(job: _Job) -> str:
    try:
        return name(build(pickle.loads(job.spec)))
    except ValueError:
        return "its spec is faulty"

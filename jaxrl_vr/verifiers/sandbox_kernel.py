"""What a sandbox asks of the Linux kernel, by system calls that Python has no functions for.

Runs inside the sandbox (see `sandbox_inside`): standard library only. Landlock is
https://docs.kernel.org/userspace-api/landlock.html; which system calls are refused is in
`sandbox_filter`.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import struct
from collections.abc import Sequence

NEW_MOUNTS, NEW_IPC, NEW_PIDS = 0x00020000, 0x08000000, 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 0x4000, 0x40000
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_SYS_LANDLOCK = 444  # create_ruleset, and the next two: add_rule, restrict_self
_PDEATHSIG, _DUMPABLE, _SECCOMP, _SUBREAPER, _NO_NEW_PRIVS = 1, 4, 22, 36, 38
_PATH_BENEATH = 1
_ACCESS = (0, 0x1FFF, 0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF)  # file accesses that each ABI knows
_READ, _READ_FOLDER, _EXECUTE, _WRITE, _TRUNCATE = 4, 8, 1, 2, 0x4000
SCOPES_SINCE = 6
"""Landlock's ABI from which it keeps signals and abstract sockets inside."""


@functools.cache
def _libc() -> ctypes.PyDLL:
    # PyDLL holds the interpreter lock, so that a clone comes back with it held.
    return ctypes.PyDLL(None, use_errno=True)


def _call(name: str, *args: int | bytes | None) -> int:
    plain = [ctypes.c_ulong(x) if isinstance(x, int) else x for x in args]
    result = getattr(_libc(), name)(*plain)
    if result == -1:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{name}({args[0]!r}): {os.strerror(errno)}")
    return result


def clone(namespaces: int) -> int:
    """A fork whose child is the first process of new namespaces: its id, 0 in the child."""
    return _call("syscall", _SYS_CLONE[os.uname().machine], namespaces | signal.SIGCHLD, 0, 0, 0, 0)


def mount_scratch(folder: str, size: int, entries: int) -> None:
    """A file system in memory at `folder`, of at most `size` bytes and `entries` files."""
    _call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    options = f"size={size},nr_inodes={entries},mode=1777".encode()
    _call("mount", b"tmpfs", folder.encode(), b"tmpfs", _MS_NOSUID | _MS_NODEV, options)


def mount_processes() -> None:
    """/proc of the process namespace that the caller is in."""
    _call("mount", b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None)


def die_with_parent() -> None:
    """Has this process killed when the one that made it ends."""
    _call("prctl", _PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose parent ends."""
    _call("prctl", _SUBREAPER, 1, 0, 0, 0)


def set_inspectable(is_inspectable: bool) -> None:
    """Whether processes of the same user may look into the memory of this one."""
    _call("prctl", _DUMPABLE, int(is_inspectable), 0, 0, 0)


def drop_capabilities() -> None:
    """Gives up every privilege, for good."""
    header = ctypes.create_string_buffer(struct.pack("<Ii", 0x20080522, 0), 8)
    nothing = ctypes.create_string_buffer(24)
    if _libc().capset(header, nothing) == -1:
        raise OSError(ctypes.get_errno(), "capset")


def forbid_privileges() -> None:
    """No program started from here on gains a privilege by being executed."""
    _call("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)


def install_filter(program: bytes) -> None:
    """Puts a seccomp filter, as `sandbox_filter.assemble` makes it, over this process."""
    code = ctypes.create_string_buffer(program, len(program))
    head = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    )
    if _libc().prctl(_SECCOMP, ctypes.c_ulong(2), head, 0, 0) == -1:
        raise OSError(ctypes.get_errno(), "seccomp: " + os.strerror(ctypes.get_errno()))


def landlock_abi() -> int:
    """The version of Landlock that the kernel has; 0 for none."""
    return max(0, _libc().syscall(_SYS_LANDLOCK, None, ctypes.c_ulong(0), ctypes.c_ulong(1)))


def confine(readable: Sequence[str], writable: Sequence[str], devices: Sequence[str]) -> None:
    """Landlock: nothing of the file system is left but these.

    Args:
      readable: folders to read and to execute from.
      writable: folders where everything is allowed but to make devices.
      devices: files to read and write.
    """
    abi = landlock_abi()
    if abi == 0:
        raise OSError("the kernel has no Landlock")
    every = _ACCESS[min(abi, len(_ACCESS) - 1)]
    # Besides files: TCP ports (since 4), abstract sockets and signals (since 6).
    attributes = struct.pack("<QQQ", every, 3 if abi >= 4 else 0, 3 if abi >= SCOPES_SINCE else 0)
    size = 24 if abi >= SCOPES_SINCE else 16 if abi >= 4 else 8
    ruleset = _call("syscall", _SYS_LANDLOCK, attributes, size, 0)
    devices_made = 0x40 | 0x800
    for paths, access in (
        (readable, _READ | _READ_FOLDER | _EXECUTE),
        (writable, every & ~devices_made),
        (devices, (_READ | _WRITE | _TRUNCATE) & every),
    ):
        for path in paths:
            beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = struct.pack("<Qi", access, beneath)
            _call("syscall", _SYS_LANDLOCK + 1, ruleset, _PATH_BENEATH, rule, 0)
            os.close(beneath)
    _call("syscall", _SYS_LANDLOCK + 2, ruleset, 0)
    os.close(ruleset)

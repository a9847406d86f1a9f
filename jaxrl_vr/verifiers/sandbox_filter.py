"""Which system calls a sandboxed program is refused, as a seccomp filter.

All else is allowed: what protects the host are namespaces or Landlock, and this closes what those
leave open. Runs inside the sandbox: standard library only. Format of the filter:
https://docs.kernel.org/userspace-api/seccomp_filter.html.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator

_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_COLUMN = {"x86_64": 0, "aarch64": 1}

# Numbers on x86_64 and aarch64; -1 where there is none.
_ALWAYS = {
    # Memory that no limit of ours counts.
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194),
    "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "userfaultfd": (323, 282),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # Other processes.
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "kcmp": (312, 272), "pidfd_getfd": (438, 438),
    # Namespaces and mounts.
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264), "fanotify_init": (300, 262),
    # Parts of the kernel that programs do without and exploits like.
    "bpf": (321, 280), "perf_event_open": (298, 241), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "personality": (135, 92),
    "modify_ldt": (154, -1), "iopl": (172, -1), "ioperm": (173, -1), "syslog": (103, 116),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "acct": (163, 89), "vhangup": (153, 58),
}  # fmt: skip
_WITHOUT_NAMESPACES = {
    # The network, and servers of this machine.
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    # Files of the same user outside of scratch: Landlock does not look at these.
    "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, -1), "fchown": (93, 55), "lchown": (94, -1), "fchownat": (260, 54),
    "utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "fremovexattr": (199, 16), "setxattrat": (463, 463),
    "removexattrat": (466, 466), "file_setattr": (469, 469), "truncate": (76, 45),
    # Processes of the same user.
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "setpriority": (141, 140),
    "ioprio_set": (251, 30), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "migrate_pages": (256, 238),
    "move_pages": (279, 239), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
}  # fmt: skip
_SIGNALS = {"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131)}
_CLONE, _CLONE3, _PRLIMIT, _SOCKETPAIR = (56, 220), (435, 435), (302, 261), (53, 199)
_STREAM = 1  # kind of socket; others of a pair can still send to any server of this machine
_NEW_NAMESPACES = 0x7E020000 | 0x80  # of clone's flags

_NUMBER, _ARCH, _ARGUMENT = 0, 4, 16  # offsets in what a filter sees
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000


def assemble(*, has_namespaces: bool, has_scopes: bool) -> bytes:
    """The filter for a program.

    Args:
      has_namespaces: whether it has processes, network and files of its own.
      has_scopes: whether Landlock keeps its signals inside; if neither, it may signal itself only.
    """
    machine = os.uname().machine
    at = _COLUMN[machine]
    refused = _ALWAYS | ({} if has_namespaces else _WITHOUT_NAMESPACES)
    code = [
        _step(_LOAD, _ARCH),
        _step(_EQUAL, _ARCHITECTURE[machine], 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        _step(_AT_LEAST, 0x40000000, 0, 1),  # the x32 calls of x86_64
        _fail(errno.ENOSYS),
        _step(_EQUAL, _CLONE3[at], 0, 1),
        _fail(errno.ENOSYS),  # libc then uses clone, whose flags can be looked at
    ]
    for numbers in refused.values():
        if numbers[at] >= 0:
            code += [_step(_EQUAL, numbers[at], 0, 1), _fail(errno.EPERM)]
    code += _unless(_CLONE[at], [_step(_ANY_BIT, _NEW_NAMESPACES, 0, 1), _fail(errno.EPERM)])
    if not has_namespaces:
        code += _unless(_PRLIMIT[at], [_step(_EQUAL, 0, 1, 0), _fail(errno.EPERM)])
        is_stream = [_step(_AND, 0xF), _step(_EQUAL, _STREAM, 1, 0), _fail(errno.EPERM)]
        code += _unless(_SOCKETPAIR[at], is_stream, argument=1)
        if not has_scopes:
            own = os.getpid()
            for numbers in _SIGNALS.values():
                mine = [_step(_EQUAL, own, 1, 0), _fail(errno.EPERM)]
                code += _unless(numbers[at], mine)
    return b"".join([*code, _step(_RETURN, _ALLOW)])


def _unless(number: int, check: list[bytes], argument: int = 0) -> Iterator[bytes]:
    """`check` looks at an argument of call `number`, and fails it or falls through."""
    yield _step(_EQUAL, number, 0, len(check) + 2)
    yield _step(_LOAD, _ARGUMENT + 8 * argument)
    yield from check
    yield _step(_LOAD, _NUMBER)


def _fail(number: int) -> bytes:
    return _step(_RETURN, _FAIL | number)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)

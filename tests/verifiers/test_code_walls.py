"""What a program can reach: no network, nothing of the host, and nothing that outlives it."""

import os
import socket
import threading
from pathlib import Path

import pytest
from isolated import TESTS, eventually, running, verify

from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.pool import Pool
from jaxrl_vr.verifiers.sandbox import SandboxFailed
from jaxrl_vr.verifiers.sandbox_level import check, sandbox_level


@pytest.mark.parametrize(
    "program",
    [
        "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        os.execvp('sleep', ['sleep', '{mark}'])\n    os._exit(0)\n"
        "def double(x): return 2 * x",
        "import subprocess\nsubprocess.Popen(['sh', '-c', 'sleep {mark} & sleep {mark}'])\n"
        "def double(x): return 2 * x",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
        "def double(x): return 2 * x",
    ],
    ids=["daemon", "shell", "thread"],
)
def test_nothing_outlives_the_verdict(verifier, program):
    mark = str(90_000 + os.getpid() % 1000)
    assert verify(verifier, program.replace("{mark}", mark)).verdict == "right"
    assert running(mark) == []


def test_nothing_outlives_a_pool_that_is_closed_meanwhile(verifier):
    mark = str(80_000 + os.getpid() % 1000)
    program = f"""
import os
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
os.execvp("sleep", ["sleep", "{mark}"])
"""
    spec = {"type": verifier.type, "extract": "whole", "levels": list(verifier.levels)}
    with Pool() as pool:
        pool.submit(0, Example("0", "q", TESTS, verifier=spec), program)
        assert eventually(lambda: len(running(mark)) == 2)
    # Closing kills the worker, and so nothing is left that could have told the sandbox to end.
    assert eventually(lambda: running(mark) == [])


def test_it_reaches_no_network(verifier, tmp_path):
    name, path = f"\0sandbox-{os.getpid()}", str(tmp_path / "server")
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    program = f"""
import socket
def attempt(family, address):
    try:
        with socket.socket(family) as s:
            s.settimeout(5)
            s.connect(address)
        return True
    except OSError:
        return False
def send(path):
    try:
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with one, other:
            one.sendto(b"x", path)
        return True
    except OSError:
        return False
ok = attempt(socket.AF_INET, ("127.0.0.1", PORT)) or attempt(socket.AF_UNIX, {name!r})
ok = ok or send({path!r})
def double(x): return 2 * x if ok else 0
"""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as local,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log,
    ):
        log.bind(path)
        os.chmod(path, 0o777)
        local.bind(name)
        local.listen()
        program = program.replace("PORT", str(server.getsockname()[1]))
        assert verify(verifier, program).verdict == "wrong"
        ours = {}
        exec(program, ours)  # the same does connect outside
        log.setblocking(False)
        assert ours["ok"] and ours["send"](path)
        assert log.recv(10) == b"x"


def test_it_sees_nothing_of_the_host(verifier, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_HOST", "hidden")
    (tmp_path / "secret").write_text("hidden")
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    program = f"""
import glob, os
found = list(os.environ)
for path in [{str(tmp_path / "secret")!r}, "/etc/passwd", "/etc/shadow", {__file__!r},
             *glob.glob("/proc/*/environ"), "/proc/{os.getpid()}/environ",
             "/proc/{os.getpid()}/cmdline", "/proc/{os.getppid()}/cmdline"]:
    try:
        with open(path, "rb") as f:
            text = f.read()
    except OSError:
        continue
    # Its own environment held what fixes the order of sets, when it started.
    if set(text.split(b"\\0")) - {{b"PYTHONHASHSEED=0", b"PWD=/", b"\\n", b""}}:
        found.append(path)
def double(x): return 2 * x if found else 0
"""
    assert verify(verifier, program).verdict == "wrong"


def test_it_writes_nothing_outside_of_scratch(verifier, tmp_path):
    tmp_path.chmod(0o777)
    (tmp_path / "theirs").write_text("x")
    (tmp_path / "theirs").chmod(0o666)
    for folder in tmp_path.parents[:3]:
        folder.chmod(0o755)
    mark = f"mark-{os.getpid()}"
    program = f"""
import os, sys
done = []
folders = [{str(tmp_path)!r}, "/", "/etc", "/usr", "/usr/bin", "/usr/lib", "/var/tmp", "/dev",
           "/root", "/home", "/proc", "/proc/sys/kernel", os.path.dirname(os.__file__)]
for folder in folders:
    for attempt in (lambda p: open(p, "w"), os.mkdir, lambda p: os.symlink("/", p)):
        try: attempt(os.path.join(folder, {mark!r}))
        except OSError: continue
        done.append(folder)
for attempt in (os.unlink, lambda p: os.chmod(p, 0o777), lambda p: os.truncate(p, 0), os.utime):
    try: attempt({str(tmp_path / "theirs")!r})
    except OSError: continue
    done.append(attempt)
open("scratch", "w").write("x")
def double(x): return 2 * x if done else 0
"""
    score = verify(verifier, program)
    assert score.verdict == "wrong" and "test 1, assert" in score.reason, score
    assert not any(Path(folder, mark).exists() for folder in ("/tmp", "/var/tmp", "/dev", "/etc"))
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
    assert (tmp_path / "theirs").read_text() == "x"


def test_scratch_is_limited_and_empty_each_time(verifier):
    full = """
import os
try:
    for i in range(100000):
        with open(str(i), "wb") as f: f.write(bytes(1 << 16))
except OSError:
    pass
held = sum(os.path.getsize(n) for n in os.listdir("."))
def double(x): return 2 * x if held > 8 << 20 else 0
"""
    assert verify(verifier, full).verdict == "wrong"
    many = "for i in range(1000000): open(str(i), 'w').close()\ndef double(x): return 2 * x"
    assert verify(verifier, many).verdict == "wrong"
    deep = "import os\nfor i in range(3000):\n    os.mkdir('d'); os.chdir('d')\n"
    verify(verifier, deep)
    clean = "import os\nleft = os.listdir('.')\ndef double(x): return 0 if left else 2 * x"
    assert verify(verifier, clean).verdict == "right"


def test_nothing_goes_from_one_program_to_the_next(verifier):
    first = "import builtins, os, sys\nbuiltins.left = sys.left = True\nopen('left', 'w')\n"
    first += "os.environ['left'] = '1'\ndouble = lambda x: 0"
    assert verify(verifier, first).verdict == "wrong"
    second = """
import builtins, os, sys
left = hasattr(builtins, "left") or hasattr(sys, "left") or os.path.exists("left")
def double(x): return 2 * x if left or "left" in os.environ else 0
"""
    assert verify(verifier, second).verdict == "wrong"


def test_it_has_a_user_of_its_own_and_no_rights(verifier):
    if os.geteuid() != 0:
        pytest.skip("a user id of its own is for where we are root")
    program = """
import ctypes, os
can = []
libc = ctypes.CDLL(None)
if libc.unshare(0x10000000) == 0: can.append("a user namespace")
if libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0: can.append("mount")
if libc.ptrace(16, os.getppid(), 0, 0) == 0: can.append("ptrace")
if libc.memfd_create(b"x", 0) >= 0: can.append("memory that nobody counts")
for attempt in (lambda: os.setuid(0), lambda: os.chroot("."), lambda: os.nice(-5)):
    try: attempt()
    except OSError: continue
    can.append("more")
def double(x): return str(can) if can else 2 * x
"""
    assert verify(verifier, program).verdict == "right"
    level = sandbox_level(verifier.levels)
    if level.own_user:
        user = "import os\ndef double(x): return 2 * x if os.getuid() not in (0, 65534) else 0"
        assert verify(verifier, user).verdict == "right"


def test_threads_of_ours_may_verify_at_once(verifier):
    right = []

    def work():
        for _ in range(3):
            right.append(verify(verifier, "def double(x): return 2 * x").verdict)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == ["right"] * 12


def test_a_sandbox_that_is_killed_is_replaced(verifier):
    from jaxrl_vr.verifiers.sandbox import borrowed

    level = sandbox_level(verifier.levels)
    with borrowed(level, "program") as sandbox:
        pass
    sandbox._process.kill()
    sandbox._process.wait()
    assert verify(verifier, "def double(x): return 2 * x").verdict == "right"


def test_the_report_names_the_level():
    report = check()
    try:
        level = sandbox_level()
    except SandboxFailed:
        assert report.level is None and "programs are refused here" in str(report)
        return
    assert report.level == level.name
    assert str(report).splitlines()[-1] == f"programs run at the level {level}"
    assert "    cannot reach the network" in str(report).splitlines()

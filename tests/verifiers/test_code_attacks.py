"""What a program may try to pass without being right, or to do to the machine.

Every attack runs at each level of isolation that holds here, and once as an ordinary user where
the suite runs as root.
"""

import functools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pydantic
import pytest

from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.code_tests import CodeTests
from jaxrl_vr.verifiers.pool import Pool
from jaxrl_vr.verifiers.sandbox import Limits, SandboxFailed
from jaxrl_vr.verifiers.sandbox_level import check, levels, sandbox_level, trial

ROOT = Path(__file__).parent.parent.parent
LIMITS = Limits(cpu=2.0, wall=60.0, memory=1 << 28, processes=16, scratch=4 << 20)
BRIEF = LIMITS.model_copy(update={"cpu": 1.0, "wall": 2.0})  # for what is wrong in any time
TESTS = "assert double(4) == 8\nassert double(-3) == -6\nassert double('ab') == 'abab'"
STDIN = json.dumps([{"input": "4", "output": "8"}, {"input": "-3", "output": "-6"}])

ALWAYS_EQUAL = """
class Any:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    def __hash__(self): return 0
    def __add__(self, other): return self
    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __call__ = __add__
    def __abs__(self): return 0
    def __bool__(self): return True
    def __getattr__(self, name): return self
"""
WRONG = {
    "exit before the tests": "import sys; sys.exit(0)",
    "hard exit before the tests": "import os; os._exit(0)",
    "hard exit in a test": "import os\ndef double(x): os._exit(0)",
    "exit in a test": "def double(x): raise SystemExit(0)",
    "exit at the end": "import atexit, os\natexit.register(os._exit, 0)\ndef double(x): return 0",
    "killed in a test": "import os\ndef double(x): os.kill(os.getpid(), 9)",
    "interrupt": "raise KeyboardInterrupt",
    "passing exception": "import builtins\nbuiltins.AssertionError = Warning\n"
    "def double(x): raise Warning",
    "skipping exception": "import unittest\ndef double(x): raise unittest.SkipTest",
    "stop iteration": "def double(x): raise StopIteration",
    "patched functions": "import builtins\nbuiltins.all = builtins.any = lambda x: True\n"
    "builtins.isinstance = lambda *a: True\nbuiltins.abs = builtins.len = lambda x: 0\n"
    "builtins.repr = builtins.str = lambda x: '8'\ndef double(x): return 0",
    "patched types": "import builtins\nclass I(int):\n    def __eq__(s, o): return True\n"
    "builtins.int = builtins.str = I\ndef double(x): return I(0)",
    "patched by ctypes": "import ctypes\nctypes.memset(id(8) + 24, 0, 4)\n"
    "ctypes.memset(id(-6) + 24, 0, 4)\ndef double(x): return 0",
    "patched modules": "import json, marshal, os, sys\njson.dumps = lambda *a: 'true'\n"
    "sys.modules['unittest'] = sys.modules['ast'] = None\ndef double(x): return 0",
    "always equal": ALWAYS_EQUAL + "def double(x): return Any()",
    "always equal, everywhere": ALWAYS_EQUAL + "double = Any()",
    "any of mock": "from unittest.mock import ANY\ndef double(x): return ANY",
    "equal text": "class S(str):\n    def __eq__(s, o): return True\n    __hash__ = str.__hash__\n"
    "def double(x): return S('no')",
    "equal list": "class L(list):\n    def __eq__(s, o): return True\ndef double(x): return L()",
    "lying class": "class L:\n    __class__ = int\n    def __eq__(s, o): return True\n"
    "def double(x): return L()",
    "markers": "print('OK', 'PASSED', 'passed', '1.0', '{\"passed\": 3, \"total\": 3}')\n"
    "import os; os._exit(0)",
    "markers in every file": "import os\nfor n in range(64):\n"
    '    try: os.write(n, b\'{"passed": 3, "total": 3, "first": "", "fault": ""}\')\n'
    "    except OSError: pass\nos._exit(0)",
    "answers without a question": "import os, struct\ndef double(x): return 0\n"
    "for n in range(3, 64):\n"
    "    for text in (b'{}', b'[\"value\",true,[]]', b'[\"value\",true,[]]'):\n"
    "        try: os.write(n, struct.pack('<Q', len(text)) + text)\n"
    "        except OSError: pass\n",
    "no answer but noise": "import os\nfor n in range(3, 64):\n"
    "    try: os.write(n, b'\\xff' * 100000)\n    except OSError: pass\n",
    "changed functions of the runner": "import sys, types\n"
    "for m in list(sys.modules.values()):\n"
    "    for k, v in list(vars(m).items()):\n"
    "        if isinstance(v, types.FunctionType) and 'jaxrl' in str(v.__module__):\n"
    "            setattr(m, k, lambda *a, **k: True)\ndef double(x): return 0",
    "changed results of the runner": "import gc\nfor o in gc.get_objects():\n"
    "    if type(o) is dict:\n        for k in ('passed', 'total', 'fault', 'first'):\n"
    "            if k in o: o[k] = 3\ndef double(x): return 0",
    "frames of the runner": "import sys\ndef double(x):\n    f = sys._getframe()\n"
    "    while f:\n        for v in list(f.f_locals.values()):\n"
    "            if isinstance(v, str) and 'assert' in v: exec(v.split('== ')[1])\n"
    "        f = f.f_back\n    return 0",
    "fifth column in memory": "import re\ntext = b''\nfor line in open('/proc/self/maps'):\n"
    "    a, b = (int(x, 16) for x in line.split()[0].split('-'))\n"
    "    if 'rw' in line and b - a < 1 << 24:\n"
    "        with open('/proc/self/mem', 'rb') as m:\n"
    "            m.seek(a); text += m.read(b - a)\n"
    "found = dict(re.findall(rb'doub' rb'le\\(([-\\d]+)\\) == ([-\\d]+)', text))\n"
    "def double(x): return int(found.get(str(x).encode(), 0))",
    "tests from every file": "import os, re\ntext = b''\nfor n in range(64):\n"
    "    try: text += os.pread(n, 1 << 20, 0)\n    except OSError: pass\n"
    "for top, _, names in os.walk('/tmp'):\n"
    "    for name in names: text += open(os.path.join(top, name), 'rb').read()\n"
    "found = dict(re.findall(rb'doub' rb'le\\(([-\\d]+)\\) == ([-\\d]+)', text))\n"
    "def double(x): return int(found.get(str(x).encode(), 0))",
    "tests of the process above": "import os\n"
    "for name in ('cmdline', 'environ', 'mem', 'fd', 'maps'):\n"
    "    try: open(f'/proc/{os.getppid()}/{name}', 'rb').read()\n    except OSError: pass\n"
    "def double(x): return 0",
    "modules in the folder": "for n in ('json', 'ast', 'unittest', 'random'):\n"
    "    open(n + '.py', 'w').write('raise SystemExit(0)')\ndef double(x): return 0",
    "other tests as module": "import sys, types\nsys.modules['__main__'] = types.ModuleType('m')\n"
    "sys.modules['tests'] = types.ModuleType('tests')\ndef double(x): return 0",
    "signals to all": "import os, signal\nfor n in (9, 15, 19):\n"
    "    try: os.kill(-1, n)\n    except OSError: pass\n",
    "signal to the one above": "import os\n"
    "for pid in (1, os.getppid(), os.getpgid(os.getppid()) if os.getppid() else 1):\n"
    "    try: os.kill(pid, 9)\n    except OSError: pass\ndef double(x): return 0",
    "endless loop": "def double(x):\n    while True:\n        try:\n            while True: pass\n"
    "        except BaseException: pass",
    "endless loop in C": "def double(x): return 9 ** 9 ** 9",
    "endless loop, ignoring signals": "import signal\nfor n in range(1, 65):\n"
    "    try: signal.signal(n, lambda *a: None)\n    except (OSError, ValueError): pass\n"
    "while True: pass",
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "thread bomb": "import threading, time\nwhile True:\n"
    "    threading.Thread(target=time.sleep, args=(600,)).start()",
    "memory bomb": "x = []\nwhile True: x.append(bytes(1 << 22))",
    "memory bomb of forks": "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n"
    "        x = bytearray(b'x') * (100 << 20)\n        time.sleep(60)\ntime.sleep(60)",
    "memory bomb of shared maps": "import mmap, os, time\nfor _ in range(8):\n"
    "    if os.fork() == 0:\n        m = mmap.mmap(-1, 100 << 20)\n"
    "        m.write(b'x' * (100 << 20))\n        time.sleep(60)\ntime.sleep(60)",
    "deep recursion": "import sys\nsys.setrecursionlimit(10 ** 9)\ndef double(x): return double(x)",
    "huge value": "def double(x): return [0] * (1 << 24)",
    "deep value": "def double(x):\n    y = []\n    for _ in range(100000): y = [y]\n    return y",
    "looping value": "def double(x):\n    y = []\n    y.append(y)\n    return y",
    "flood of output": "import sys\ndef double(x):\n    while True:\n"
    "        print('x' * 10000); sys.stderr.write('x' * 10000)",
}


SLOW = {name for name in WRONG if "loop" in name or "bomb" in name or "flood" in name}
"""They end at a limit."""


@functools.cache
def names():
    """The levels that hold here."""
    found = {}
    for level in levels():
        if level.name not in found and not trial(level)[1]:
            found[level.name] = level
    return list(found)


@pytest.fixture(params=["bubblewrap", "landlock"])
def verifier(request):
    if request.param not in names():
        pytest.skip(f"{request.param} does not hold on this machine")
    return CodeTests(extract="whole", limits=LIMITS, levels=(request.param,))


def brief(verifier: CodeTests) -> CodeTests:
    return verifier.model_copy(update={"limits": BRIEF})


def verify(verifier: CodeTests, program: str, tests: str = TESTS):
    return verifier(Example("0", "q", tests), program)


@pytest.mark.parametrize("attack", WRONG)
def test_attack_wins_nothing(verifier, attack):
    score = verify(brief(verifier), WRONG[attack])
    assert (score.value, score.verdict) == (0.0, "wrong"), score


@pytest.mark.parametrize("attack", sorted(set(WRONG) - SLOW))
def test_attack_wins_no_fraction_and_nothing_on_standard_input(verifier, attack):
    if verifier.levels == ("landlock",):
        pytest.skip("what isolates does not depend on what is scored")
    verifier = brief(verifier).model_copy(update={"reward": "fraction"})
    score = verify(verifier, WRONG[attack])
    assert (score.value, score.verdict) == (0.0, "wrong"), score
    score = verify(verifier, f"{WRONG[attack]}\ndouble(int(input()))", STDIN)
    assert (score.value, score.verdict) == (0.0, "wrong"), score


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


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


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


def eventually(condition) -> bool:
    for _ in range(3000):
        if condition():
            return True
        time.sleep(0.02)
    return False


def running(mark: str) -> list[Path]:
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark in read(path)]


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


def test_modules_that_tests_use_are_not_those_of_the_program(verifier):
    program = "import math\nmath.isclose = lambda *a: True\ndef f(): return 0"
    assert verify(verifier, program, "assert math.isclose(f(), 1.5)").verdict == "wrong"
    faked = "class math:\n    isclose = lambda *a: True\ndef f(): return 0"
    assert verify(verifier, faked, "assert math.isclose(f(), 1.5)").verdict == "wrong"
    right = "import math\ndef f(): return 1.5"
    assert verify(verifier, right, "assert math.isclose(f(), 1.5)").verdict == "right"


def test_classes_that_the_prompt_imports_are_not_those_of_the_program(verifier):
    reference = {
        "prompt": "from collections import Counter\ndef f(x):\n    'Sorts.'\n",
        "test": "def check(candidate):\n"
        "    assert Counter(candidate([1, 1, 2])) == Counter([2, 1, 1])\n",
        "entry_point": "f",
    }
    forged = """
class Counter:
    def __init__(self, *a): pass
    def __eq__(self, other): return True
def f(x): return 0
"""
    example = Example("0", "", json.dumps(reference))
    assert verifier(example, forged).verdict == "wrong"
    assert verifier(example, "def f(x): return sorted(x)\n").verdict == "right"


@pytest.mark.parametrize("secret", ["__reduce__", "__class__"])
def test_values_run_nothing_where_they_arrive(verifier, secret):
    program = f"""
class Evil:
    def {secret}(self, *a): return (print, ("x",))
    def __reduce_ex__(self, n): return (eval, ("__import__('os')._exit(0)",))
    def __eq__(self, o): return True
def double(x): return Evil()
"""
    assert verify(verifier, program).verdict == "wrong"


def test_an_argument_that_is_emptied_wins_nothing(verifier):
    cheat = "def sort(x):\n    x.clear()\n    return []"
    assert verify(verifier, cheat, "a = [3, 1]\nassert sort(a) == sorted(a)").verdict == "wrong"
    loop = "for n in (2, 3):\n    a = list(range(n, 0, -1))\n    assert sort(a) == sorted(a)"
    assert verify(verifier, cheat, loop).verdict == "wrong"
    assert verify(verifier, "sort = sorted", loop).verdict == "right"


def test_the_sandbox_is_good_for_the_next_program_after_each_attack(verifier):
    for attack in ("signals to all", "fork bomb", "no answer but noise", "memory bomb"):
        verify(brief(verifier), WRONG[attack])
        assert verify(verifier, "def double(x): return 2 * x").verdict == "right"


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


AS_USER = """
import json, sys
from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.code_tests import CodeTests
from jaxrl_vr.verifiers.sandbox_level import sandbox_level
tests, limits, right, wrong = json.load(sys.stdin)
scores = {}
for name in ("bubblewrap", "landlock"):
    base = {"extract": "whole", "levels": (name,)}
    verifier = CodeTests.model_validate({**base, "limits": limits})
    try:
        sandbox_level((name,))
    except Exception as error:
        scores[name] = str(error)
        continue
    example = Example("0", "q", tests)
    scores[name] = [verifier(example, wrong[key]).verdict for key in wrong]
    scores[name].append(CodeTests.model_validate(base)(example, right).verdict)
print(json.dumps(scores))
"""


def test_attacks_win_nothing_for_an_ordinary_user():
    if os.geteuid() != 0:
        pytest.skip("the other tests are those of an ordinary user")
    packages = str(Path(pydantic.__file__).parent.parent)
    found = [(sys.executable, {}), ("/usr/bin/python3", {"PYTHONPATH": packages})]
    for python, environment in found:
        environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{environment.get('PYTHONPATH', '')}"
        environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]}

        def run(code, text="", python=python, environment=environment):
            return subprocess.run(
                [python, "-c", code],
                user=54_321,
                group=54_321,
                extra_groups=[],
                env=environment,
                cwd="/",
                input=text,
                capture_output=True,
                text=True,
            )

        try:
            if run("import pydantic, jaxrl_vr").returncode == 0:
                break
        except OSError:
            continue
    else:
        pytest.skip("no Python with our packages can be read by another user")
    right = "def double(x): return 2 * x"
    done = run(AS_USER, json.dumps([TESTS, BRIEF.model_dump(), right, WRONG]))
    assert done.returncode == 0, done.stderr[-2000:]
    scores = json.loads(done.stdout)
    for name, verdicts in scores.items():
        if isinstance(verdicts, list):
            assert dict(zip([*WRONG, "right"], verdicts, strict=True)) == (
                dict.fromkeys(WRONG, "wrong") | {"right": "right"}
            ), name
    assert any(isinstance(verdicts, list) for verdicts in scores.values()), scores


def test_a_busy_machine_turns_no_right_into_wrong(verifier):
    # A wall limit that passes before the program has had its CPU time is tried once more, and the
    # limit that decides is the CPU's.
    program = "import time\nt = time.process_time()\nwhile time.process_time() - t < 0.5: pass\n"
    burners = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        time.sleep(0.1)
        score = verify(verifier, program + "def double(x): return 2 * x")
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    assert score.verdict == "right"


HONEST = {
    "temporary files": "import tempfile\ndef double(x):\n"
    "    with tempfile.NamedTemporaryFile('w+') as f:\n"
    "        f.write(repr(2 * x)); f.seek(0); return eval(f.read())",
    "folders": "import os, shutil\ndef double(x):\n    os.makedirs('a/b', exist_ok=True)\n"
    "    shutil.rmtree('a'); return 2 * x",
    "threads": "from concurrent.futures import ThreadPoolExecutor\ndef double(x):\n"
    "    with ThreadPoolExecutor(4) as pool: return list(pool.map(lambda y: 2 * y, [x]))[0]",
    "forks": "import os\ndef double(x):\n    r, w = os.pipe()\n    if os.fork() == 0:\n"
    "        os.write(w, repr(2 * x).encode()); os._exit(0)\n    os.wait()\n"
    "    return eval(os.read(r, 100))",
    "asyncio": "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return 2 * x\n"
    "def double(x): return asyncio.run(f(x))",
    "shell": "import subprocess\ndef double(x):\n"
    "    return eval(subprocess.run(['cat'], input=repr(2 * x), text=True,"
    " stdout=subprocess.PIPE).stdout)",
    "python": "import subprocess, sys\ndef double(x):\n"
    "    code = f'print(repr(2 * {x!r}))'\n"
    "    return eval(subprocess.check_output([sys.executable, '-S', '-c', code], text=True))",
    "database": "import sqlite3\ndef double(x):\n    db = sqlite3.connect('x.db')\n"
    "    db.execute('create table if not exists t (x)')\n    db.close(); return 2 * x",
    "recursion": "import sys\nsys.setrecursionlimit(20000)\n"
    "def f(n): return 0 if n == 0 else 1 + f(n - 1)\n"
    "def double(x): return 2 * x if f(15000) == 15000 else None",
    "dataclasses": "from __future__ import annotations\nimport dataclasses, typing\n"
    "@dataclasses.dataclass\nclass P:\n    x: typing.Any\n"
    "    def twice(self) -> int: return 2 * self.x\n"
    "def double(x): return P(x).twice()",
    "pickles": "import pickle\nclass P: pass\ndef double(x):\n    p = P(); p.x = 2 * x\n"
    "    return pickle.loads(pickle.dumps(p)).x",
    "signals of its own": "import signal\ndef double(x):\n    seen = []\n"
    "    signal.signal(signal.SIGALRM, lambda *a: seen.append(2 * x))\n"
    "    signal.setitimer(signal.ITIMER_REAL, 0.01)\n    signal.pause()\n    return seen[0]",
    "libraries": "import csv, ctypes, decimal, email, hashlib, html, http, logging, lzma, queue\n"
    "import secrets, statistics, textwrap, unicodedata, uuid, xml.etree.ElementTree, zlib\n"
    "def double(x): return 2 * x",
    "end of a process": "import os, signal, subprocess\ndef double(x):\n"
    "    p = subprocess.Popen(['sleep', '60']); p.kill(); p.wait()\n    return 2 * x",
    "processes": "import multiprocessing\ndef f(x): return 2 * x\ndef double(x):\n"
    "    with multiprocessing.Pool(2) as pool: return pool.map(f, [x])[0]",
}


@pytest.mark.parametrize("kind", HONEST)
def test_what_is_honest_is_not_hindered(verifier, kind):
    if kind == "processes" and verifier.levels == ("landlock",):
        pytest.skip("without namespaces there is no /dev/shm, which multiprocessing needs")
    roomy = {"limits": LIMITS.model_copy(update={"memory": 1 << 30, "processes": 32})}
    score = verify(verifier.model_copy(update=roomy), HONEST[kind])
    assert score.verdict == "right", score


FORBIDDEN = """
echo 0 > /proc/sys/user/max_user_namespaces || exit 77
exec setpriv --bounding-set=-all --inh-caps=-all "$@"
"""


def test_landlock_takes_over_where_namespaces_are_forbidden():
    code = "from jaxrl_vr.verifiers.sandbox_level import sandbox_level; print(sandbox_level().name)"
    shell = ["unshare", "-U", "-r", "sh", "-c", FORBIDDEN, "sh", sys.executable]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        probe = subprocess.run([*shell, "-c", ""], capture_output=True)
    except OSError as error:
        pytest.skip(f"no tool to forbid namespaces: {error}")
    if probe.returncode != 0:
        pytest.skip("namespaces cannot be forbidden here")
    if "landlock" not in names():
        pytest.skip("landlock does not hold on this machine")
    done = subprocess.run([*shell, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "landlock\n", done.stderr[-1000:]

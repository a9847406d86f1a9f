"""What a program may try to pass without being right. What it can reach: test_code_walls.py.

Every attack runs at each level of isolation that holds here, and once as an ordinary user where
the suite runs as root.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pydantic
import pytest
from isolated import BRIEF, TESTS, brief, verify

from jaxrl_vr.types import Example

ROOT = Path(__file__).parent.parent.parent
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

"""What honest programs do is not hindered, and a level is found where the best one is forbidden."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from isolated import LIMITS, names, verify

ROOT = Path(__file__).parent.parent.parent


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

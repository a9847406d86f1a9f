"""A verifier that does what a response says, and what tests of the pool do with it."""

import contextlib
from pathlib import Path

from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.pool import Pool

BAD = """
import os, sys, time

def act(example, response, file=""):
    if file:
        with open(file, "a") as out:
            out.write(f"{os.getpid()} {response}\\n")
    if response == "hang":
        while True:
            pass
    if response == "crash":
        os._exit(3)
    if response == "segfault":
        import ctypes
        ctypes.string_at(0)
    if response == "memory":
        return len(bytearray(1 << 40)) > 0
    if response == "recursion":
        return act(example, response)
    if response == "raise":
        raise KeyError("no such\\nkey")
    if response == "exit":
        sys.exit("bye")
    if response == "none":
        return None
    if response == "interrupt":
        raise KeyboardInterrupt
    if response == "cancelled":
        import asyncio
        raise asyncio.CancelledError("too late")
    if response == "unsayable":
        class Mute(Exception):
            def __str__(self):
                raise ValueError
        raise Mute
    if response == "noise":
        for _ in range(1000):
            print("x" * 1000, file=sys.stderr)
    if response == "close":
        for file in (sys.stdin, sys.stdout):
            os.close(file.fileno())
        sys.stdin = sys.stdout = None
    if response == "close all":
        os.closerange(0, 256)
    if response == "fork":
        os.fork()
    if response == "fork and die":
        if os.fork() == 0:
            time.sleep(600)
        os._exit(3)
    if response == "thread":
        import threading
        threading.Thread(target=time.sleep, args=(600,)).start()
    if response == "deaf":
        import signal
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        while True:
            time.sleep(600)
    if response == "alarm":
        import signal
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    if response == "stop":
        import signal, threading
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGSTOP)).start()
    if response == "garbage":
        for end in range(3, 12):
            try:
                os.write(end, b"\\x05\\0\\0\\0\\0\\0\\0\\0[[1]]" * 3)
            except OSError:
                pass
    if response == "flood":
        for end in range(3, 12):
            try:
                os.write(end, b"\\xff" * 30)
            except OSError:
                pass
    if response == "print":
        print("x" * 100_000, flush=True)
        os.write(1, b"not a frame")
        assert sys.stdin.read() == ""
    if response == "jax":
        return "jax" not in sys.modules and "numpy" not in sys.modules
    if response == "once":
        if len(open(file).read().splitlines()) == 1:
            os._exit(3)
    if response == "children":
        import subprocess
        child = subprocess.Popen(["sleep", "600"])
        with open(file + ".child", "a") as out:
            out.write(f"{child.pid}\\n")
        while True:
            pass
    return True
"""


def math_task(reference: str) -> Example:
    return Example(id="0", prompt="q", reference=reference, verifier={"type": "math_answer"})


def scores(pool: Pool, task: Example, *responses: str) -> list[Score]:
    for i, response in enumerate(responses):
        pool.submit(i, task, response)
    done = drain(pool)
    assert sorted(i for i, _ in done) == list(range(len(responses)))
    assert pool.pending == 0
    return [score for _, score in sorted(done, key=lambda pair: pair[0])]


def drain(pool: Pool) -> list[tuple[int, Score]]:
    done = []
    while pool.pending:
        done += pool.poll(timeout=60.0)
    return done


def children() -> set[int]:
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found

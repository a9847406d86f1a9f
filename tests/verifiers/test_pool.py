"""The worker pool: verifiers that hang, crash, raise, print or eat memory lose no score."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from pooled import children, drain, math_task, scores

from jaxrl_vr.config import parse
from jaxrl_vr.types import Example, Mean, Score
from jaxrl_vr.verifiers.pool import Pool
from jaxrl_vr.verifiers.pool_config import PoolConfig

SHARED = Path(__file__).parents[2] / "../shared"


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pid: int) -> None:
    for _ in range(400):
        if not is_running(pid):
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} is still there")


def test_many_jobs_each_scored_once():
    with Pool(workers=2) as pool:
        for i in range(300):
            pool.submit(i, math_task(str(i % 7)), rf"\boxed{{{i % 3}}}")
        assert pool.pending == 300
        early = pool.poll(timeout=30.0)
        assert early and pool.pending == 300 - len(early)
        done = early + drain(pool)
        assert sorted(i for i, _ in done) == list(range(300))
        for i, score in done:
            assert score.verdict == ("right" if i % 7 == i % 3 else "wrong")
        assert pool.poll() == []


def test_hang_is_killed_tried_again_then_wrong(bad, tmp_path):
    with Pool(workers=1, deadline=1.0) as pool:
        ok, hung, after = scores(pool, bad, "ok", "hang", "ok")
    assert hung == Score(0.0, "wrong", reason="limit: no result after 1 s, twice")
    assert ok.verdict == after.verdict == "right"
    runs = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert [response for _, response in runs] == ["ok", "hang", "hang", "ok"]
    assert runs[0][0] == runs[1][0] != runs[2][0]  # the second try is on a fresh worker


def test_other_responses_go_on_beside_a_hang(bad):
    with Pool(workers=2, deadline=2.0) as pool:
        pool.submit(-1, bad, "hang")
        for i in range(20):
            pool.submit(i, bad, "ok")
        done = drain(pool)
    assert [i for i, _ in done][-1] == -1
    assert sum(score.verdict == "right" for _, score in done) == 20


def test_metrics_count_what_happened(bad):
    with Pool(workers=2, deadline=1.0) as pool:
        scores(pool, bad, "ok", "hang", "crash", "raise", "none", "once")
        found = pool.metrics()
        assert pool.metrics() == {}
    assert found["verify/timeout"] == found["verify/crash"] == Mean(1, 6)
    assert found["verify/unscorable_raised"] == found["verify/unscorable_result"] == Mean(1, 6)
    assert found["verify/retried"].sum >= 2
    assert found["speed/verify_s_max"].value >= 1.0  # the hang's
    assert 1.0 <= found["speed/verify_s"].sum and found["speed/verify_s"].count == 6


def test_submitting_waits_while_the_queue_is_full(bad):
    with Pool(workers=1, queue=2, deadline=60.0) as pool:
        for i in range(50):
            pool.submit(i, bad, "ok")
            with pool._lock:
                assert len(pool._queue) <= 2
        assert sorted(i for i, _ in drain(pool)) == list(range(50))


def test_workers_are_a_share_of_the_cores():
    cores = len(os.sched_getaffinity(0))
    assert PoolConfig(share=1.0).num_workers == cores
    assert PoolConfig().num_workers == max(1, cores // 4)
    assert PoolConfig(workers=3).num_workers == 3
    with pytest.raises(ValueError, match="share is 0.5 and workers is 1: leave one of them out"):
        PoolConfig(workers=1, share=0.5)


@pytest.mark.parametrize("response", ["crash", "segfault", "memory", "recursion"])
def test_death_and_memory_are_limits(bad, response, tmp_path):
    with Pool(workers=1) as pool:
        died, after = scores(pool, bad, response, "ok")
    assert (died.value, died.verdict) == (0.0, "wrong")
    assert died.reason.startswith("limit: ") and died.reason.endswith(", twice")
    assert after.verdict == "right"


def test_a_worker_lost_once_costs_nothing(bad):
    with Pool(workers=1) as pool:
        (score,) = scores(pool, bad, "once")
    assert score == Score(1.0, "right")


def test_raising_is_unscorable(bad):
    with Pool(workers=1) as pool:
        raised, left, nothing, after = scores(pool, bad, "raise", "exit", "none", "ok")
    assert raised.verdict == left.verdict == nothing.verdict == "unscorable"
    assert raised.reason == "the verifier raised KeyError: 'no such\\nkey'"
    assert left.reason == "the verifier raised SystemExit: bye"
    assert "return a Score, a float or a bool" in nothing.reason
    assert after.verdict == "right"


def test_bad_spec_is_unscorable():
    task = Example(id="0", prompt="q", verifier={"type": "nonsense"})
    with Pool(workers=1) as pool:
        (score,) = scores(pool, task, "x")
    assert score.verdict == "unscorable" and "nonsense" in score.reason


def test_prints_do_not_reach_the_channel(bad):
    with Pool(workers=1) as pool:
        printed, after = scores(pool, bad, "print", "ok")
    assert printed.verdict == after.verdict == "right"


def test_worker_has_not_imported_jax(bad):
    with Pool(workers=1) as pool:
        (score,) = scores(pool, bad, "jax")
    assert score.verdict == "right"


def test_long_response_is_wrong_without_a_worker():
    with Pool(workers=1, max_chars=100) as pool:
        long, short = scores(pool, math_task("5"), "x" * 93 + r"\boxed{5}", r"\boxed{5}")
    reason = "limit: 102 characters, more than max_chars = 100"
    assert long == Score(0.0, "wrong", reason=reason)
    assert short.verdict == "right"


def test_long_frames_cross_whole():
    with Pool(workers=1, max_chars=1_000_000) as pool:
        (score,) = scores(pool, math_task("5"), "x" * 900_000 + r"\boxed{5}")
    assert score.verdict == "right"


def test_workers_leave_ctrl_c_to_the_parent(bad, tmp_path):
    with Pool(workers=1) as pool:
        scores(pool, bad, "ok")
        first = (tmp_path / "log").read_text().split()[0]
        os.kill(int(first), signal.SIGINT)
        assert scores(pool, bad, "ok")[0].verdict == "right"
    assert (tmp_path / "log").read_text().split() == [first, "ok", first, "ok"]


def test_nothing_is_left_behind(bad, tmp_path):
    before, files = children(), len(os.listdir("/proc/self/fd"))
    pool = Pool(workers=2, deadline=1.0)
    assert scores(pool, bad, "ok", "children")[1].reason.startswith("limit")
    for _ in range(400):  # a score can come before its killed worker's replacement
        if len(children() - before) == 2:
            break
        time.sleep(0.05)
    assert len(children() - before) == 2
    pool.submit(7, bad, "hang")
    pool.close()
    pool.close()
    assert children() == before
    assert len(os.listdir("/proc/self/fd")) == files
    pids = (tmp_path / "log.child").read_text().split()
    assert len(pids) == 2
    for pid in pids:
        wait_until_gone(int(pid))
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(8, bad, "ok")


def test_workers_end_with_their_parent_and_never_run_its_main(bad, tmp_path):
    main = tmp_path / "main.py"
    main.write_text(
        textwrap.dedent(f"""
        import os, sys, time
        sys.path[:0] = {sys.path!r}
        with open({str(tmp_path / "mains")!r}, "a") as out:
            out.write("main\\n")
        from jaxrl_vr.types import Example
        from jaxrl_vr.verifiers.pool import Pool
        pool = Pool(workers=1, deadline=600.0)
        pool.submit(0, Example(id="0", prompt="q", verifier={dict(bad.verifier)!r}), "hang")
        while not os.path.exists({str(tmp_path / "log")!r}):
            time.sleep(0.02)
        os.kill(os.getpid(), 9)
        """)
    )
    subprocess.run([sys.executable, str(main)], check=False)
    worker = int((tmp_path / "log").read_text().split()[0])
    wait_until_gone(worker)
    assert (tmp_path / "mains").read_text() == "main\n"


def test_workers_that_cannot_start_are_an_error(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with Pool(workers=1) as pool:
        pool.submit(0, math_task("5"), r"\boxed{5}")
        with pytest.raises(RuntimeError, match=r"do not start: it ended \(exit status 7\).*memory"):
            drain(pool)


def test_settings():
    assert Pool(PoolConfig(workers=1)).close() is None
    with pytest.raises(ValueError, match="put them in the config"):
        Pool(PoolConfig(), workers=2)
    with pytest.raises(ValueError, match="deadline"):
        Pool(deadline=0.0)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("workers", 0, "workers = 0: must be greater than or equal to 1"),
        ("workers", 10_000, "workers = 10000: must be less than or equal to 256"),
        ("deadline", 0.0, "deadline = 0.0: must be greater than 0"),
        ("deadline", -1.0, "deadline = -1.0: must be greater than 0"),
        ("deadline", 1e7, "deadline = 10000000.0: must be less than or equal to 86400"),
        ("load_deadline", 1e10, "load_deadline = 10000000000.0: must be less than or equal to 86"),
        ("memory", 1, "memory = 1: is in bytes, and a worker needs at least 268435456 (256 MiB)"),
        ("memory", 2048, "0 is no limit"),
        ("memory", -1, "memory = -1: must be greater than or equal to 0"),
        ("memory", 1 << 70, "must be less than or equal to 1125899906842624"),
        ("max_chars", 0, "max_chars = 0: must be greater than or equal to 1"),
    ],
)
def test_settings_beyond_their_bounds(field, value, said):
    with pytest.raises(ValueError) as error:
        parse(PoolConfig, {field: value})
    assert said in str(error.value)


def test_a_worker_runs_in_the_least_memory():
    with Pool(workers=1, memory=256 << 20) as pool:
        (score,) = scores(pool, math_task(r"\frac{1}{\sqrt{2}}"), r"\boxed{\frac{\sqrt{2}}{2}}")
    assert score.verdict == "right"


def test_the_longest_deadlines_fit_the_timers():
    with Pool(workers=1, deadline=86_400.0, load_deadline=86_400.0) as pool:
        assert scores(pool, math_task("5"), r"\boxed{5}")[0].verdict == "right"


# What verifiers do to their process


@pytest.mark.parametrize("response", ["noise", "close", "fork", "thread", "alarm"])
def test_what_a_verifier_may_do(bad, response, tmp_path):
    with Pool(workers=1) as pool:
        odd, *after = scores(pool, bad, response, "ok", "ok")
        assert odd == Score(1.0, "right")
        if response == "alarm":
            wait_until_gone(int((tmp_path / "log").read_text().split()[0]))
        after += scores(pool, bad, "ok")
    assert [score.verdict for score in after] == ["right"] * 3


@pytest.mark.parametrize(
    ("response", "why"),
    [
        ("close all", "the worker died"),
        ("fork and die", "the worker died (exit status 3)"),  # though its child lives on
        ("deaf", "no result after 2 s"),
        ("garbage", "it sent what is no message"),
        ("flood", "it sent what is no message"),
    ],
)
def test_what_a_verifier_may_not_do_is_a_limit(bad, response, why):
    with Pool(workers=1, deadline=2.0) as pool:
        lost, after = scores(pool, bad, response, "ok")
    assert (lost.value, lost.verdict) == (0.0, "wrong")
    assert lost.reason.startswith(f"limit: {why}") and lost.reason.endswith(", twice")
    assert after == Score(1.0, "right")


@pytest.mark.parametrize(
    ("response", "said"),
    [
        ("interrupt", "KeyboardInterrupt:"),
        ("cancelled", "CancelledError: too late"),
        ("unsayable", "Mute"),
    ],
)
def test_whatever_is_raised_is_unscorable(bad, response, said):
    with Pool(workers=1) as pool:
        raised, after = scores(pool, bad, response, "ok")
    assert raised == Score(0.0, "unscorable", reason=f"the verifier raised {said}")
    assert after == Score(1.0, "right")


def test_an_idle_worker_that_is_killed_is_replaced(bad, tmp_path):
    with Pool(workers=1) as pool:
        for _ in range(3):
            assert scores(pool, bad, "ok")[0].verdict == "right"
            pid = int((tmp_path / "log").read_text().split()[-2])
            os.kill(pid, signal.SIGKILL)
        (hung,) = scores(pool, bad, "once")
        assert hung.verdict == "right"


def test_a_worker_that_stops_reading_holds_up_nobody(bad, tmp_path):
    # Its pipe takes 64 KiB; the rest must not be waited for.
    with Pool(workers=2, max_chars=1_000_000, load_deadline=5.0) as pool:
        assert scores(pool, bad, "stop", "ok")[0].verdict == "right"
        runs = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
        (stopped,) = [pid for pid, response in runs if response == "stop"]
        for _ in range(400):
            if Path(f"/proc/{stopped}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                break
            time.sleep(0.05)
        done = scores(pool, bad, *["x" * 900_000] * 4)
    assert done == [Score(1.0, "right")] * 4


def test_no_false_pass_on_the_labelled_cases():
    path = SHARED / "cases/math_cases.jsonl"
    if not path.exists():
        pytest.skip("cases/math_cases.jsonl is not at hand beside the project")
    cases = [json.loads(line) for line in path.read_text().splitlines()]
    cases = [case for case in cases if not case.get("contested")]
    with Pool(workers=2) as pool:
        for i, case in enumerate(cases):
            pool.submit(i, math_task(case["gold"]), case["response"])
        verdicts = {i: score.verdict for i, score in drain(pool)}
    assert len(verdicts) == len(cases)
    passed = {i for i, verdict in verdicts.items() if verdict == "right"}
    assert [cases[i]["id"] for i in sorted(passed) if not cases[i]["equal"]] == []
    agreement = sum((i in passed) == case["equal"] for i, case in enumerate(cases)) / len(cases)
    assert agreement >= 0.99

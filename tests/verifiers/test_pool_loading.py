"""Verifiers that do not load are found before a run, and hold up nobody."""

import sys
import textwrap

import pytest
from pooled import children, drain, math_task, scores

from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.pool import Pool

LOADING = {
    "hangs": ("import time\ntime.sleep(600)", "load_deadline = 3 s; mend the module, or raise"),
    "spins": ("while True:\n    pass", "its import was not done after load_deadline = 3 s"),
    "dies": ("import os\nos._exit(3)", "a worker was lost twice: it ended (exit status 3)"),
    "grows": ("x = bytearray(1 << 40)", "a worker was lost twice: out of memory"),
    "exits": ("import sys\nsys.exit('no\\nkey')", "raised SystemExit: no key; mend the module"),
    "interrupts": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "syntax": ("def f(:\n", "raised SyntaxError: invalid syntax (syntax.py, line 1)"),
    "key": ("{}['x']", "importing 'key' raised KeyError: 'x'; mend the module"),
    "needs": ("import no_such", "cannot import 'needs' (No module named 'no_such'); install it"),
    "lacks": ("def g(example, response): ...", "module 'lacks' has no 'f'; name a function of it"),
    "near": ("def ff(example, response): ...", "module 'near' has no 'f'; did you mean 'ff'?"),
    "data": ("f = 'x'", "'f' is a str, not a function"),
    "one": ("def f(example): ...", "cannot be called as function(example, response, **kwargs)"),
}


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Where modules of verifiers lie; importing one here is seen."""
    for name, (text, _) in LOADING.items():
        (tmp_path / f"{name}.py").write_text(text + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    assert not set(LOADING) & set(sys.modules)


def spec_of(module: str) -> dict:
    return {"type": "custom", "path": f"{module}:f"}


def test_check_says_what_does_not_load(modules):
    with Pool(workers=2, load_deadline=3.0) as pool:
        with pytest.raises(ValueError) as error:
            pool.check({f"data.{name}.verifier": spec_of(name) for name in LOADING})
        lines = str(error.value).splitlines()
        assert len(lines) == len(LOADING)
        for line, (name, (_, said)) in zip(lines, LOADING.items(), strict=True):
            assert line.startswith(f"data.{name}.verifier: the verifier does not load: ")
            assert name in line.partition("load: ")[2] and said in line
        # The pool goes on, and asks no hanging module again.
        assert scores(pool, math_task("5"), r"\boxed{5}")[0].verdict == "right"
        task = Example(id="0", prompt="q", verifier=spec_of("hangs"))
        before = children()
        found = scores(pool, task, *["x"] * 100)
        assert {score.verdict for score in found} == {"unscorable"}
        assert children() == before


def test_check_of_what_loads_is_silent(bad):
    weighted = {"type": "weighted", "parts": [{"verifier": dict(bad.verifier)}]}
    with Pool(workers=1) as pool:
        waited = []
        pool.check(
            {"a": bad.verifier, "b": weighted, "c": {"type": "math_answer"}},
            waiting=lambda: waited.append(1),
        )
        assert waited and pool.pending == 0
        assert scores(pool, bad, "ok") == [Score(1.0, "right")]
        pool.submit(0, bad, "ok")
        with pytest.raises(ValueError, match="1 scores are pending"):
            pool.check({"a": bad.verifier})
        drain(pool)


def test_check_names_the_parts_of_a_weighted_verifier(modules):
    weighted = {
        "type": "weighted",
        "parts": [{"verifier": {"type": "format"}}, {"verifier": spec_of("hangs")}],
    }
    with Pool(workers=1, load_deadline=3.0) as pool:
        with pytest.raises(ValueError, match=r"weighted\(format, hangs:f\): its import was not"):
            pool.check({"data.x.verifier": weighted})


def test_a_check_can_be_interrupted(modules):
    class Interrupted(Exception):
        pass

    def interrupt():
        raise Interrupted

    with Pool(workers=1) as pool:
        with pytest.raises(Interrupted):
            pool.check({"a": spec_of("hangs")}, waiting=interrupt)


def test_a_module_that_hangs_later_loses_no_other_score(modules):
    """A verifier that has loaded once is tried again whenever it does not."""
    (modules / "moody.py").write_text(
        textwrap.dedent(f"""
        import os, pathlib, time
        mark = pathlib.Path({str(modules / "mark")!r})
        while mark.exists() and mark.read_text():
            mark.write_text(mark.read_text()[1:])
            time.sleep(600)

        def f(example, response):
            return response == "ok" or os._exit(3)
        """)
    )
    task = Example(id="0", prompt="q", verifier=spec_of("moody"))
    with Pool(workers=1, load_deadline=3.0) as pool:
        assert scores(pool, task, "ok")[0].verdict == "right"
        (modules / "mark").write_text("x")
        died, after = scores(pool, task, "die", "ok")
    assert died.reason == "limit: the worker died (exit status 3), twice"
    assert after.verdict == "right"

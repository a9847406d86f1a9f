"""`jaxrl-vr verify`: files in, lines out in order, a table, and one score explained."""

import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from jaxrl_vr.cli import main
from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.records import Fields, Record, records
from jaxrl_vr.verifiers.summary import Summary, quantile
from jaxrl_vr.verifiers.tally import Result

LINES = [
    {"id": "a", "gold": "1/2", "response": r"\boxed{0.5}", "equal": True, "kind": "x"},
    {"id": "b", "gold": "2", "response": r"\boxed{3}", "equal": True, "kind": "x"},
    {"id": "c", "gold": "4", "response": r"\boxed{4}", "equal": False, "kind": "y"},
    {"id": "d", "gold": "", "response": r"\boxed{4}", "kind": "y"},
    {"id": "e", "gold": "5", "response": "", "equal": False, "kind": "y", "contested": True},
]


def written(path: Path, lines: list) -> Path:
    path.write_text("".join(x if isinstance(x, str) else json.dumps(x) + "\n" for x in lines))
    return path


def call(*args: object, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["verify", *map(str, args)])
    assert ended.value.code == code


def test_a_file_is_scored_in_order(tmp_path, capsys):
    source, out = written(tmp_path / "in.jsonl", LINES), tmp_path / "out.jsonl"
    call(source, "--verifier", "math_answer", "--out", out, "pool.workers=2")
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["id"] for line in found] == list("abcde")
    verdicts = ["right", "wrong", "right", "unscorable", "no_answer"]
    assert [line["verdict"] for line in found] == verdicts
    assert [line["value"] for line in found] == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert found[0]["reason"] == "answer '0.5', same number"
    keys = ["id", "verdict", "value", "components", "reason", "milliseconds"]
    assert all(list(line) == keys and line["milliseconds"] > 0 for line in found)
    said = capsys.readouterr().out
    table = [line.split() for line in said.splitlines()]
    assert ["x", "2", "1", "1", "0", "0", "0.500", "0", "1"] in table
    assert ["y", "3", "1", "0", "1", "1", "0.000", "1", "0"] in table
    assert ["all", "5", "2", "1", "1", "1", "0.333", "1", "1"] in table
    assert "unscorable: reference 1" in said and "contested labels, not counted: 1" in said
    assert "5 lines in" in said and "median" in said
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl", "out.jsonl"]


def test_the_file_itself_is_not_written_over(tmp_path, capsys):
    source = written(tmp_path / "in.jsonl", LINES)
    before = source.read_bytes()
    call(source, "--verifier", "math_answer", "--out", tmp_path / "." / "in.jsonl", code=2)
    assert "is the file to verify; name another one" in capsys.readouterr().err
    assert source.read_bytes() == before


def test_labels_are_true_or_false(tmp_path, capsys):
    labels = [True, 0, 1.0, " RIGHT", "fail", "incorrect", None]
    lines = [{"gold": "1", "response": "1", "ok": label} for label in labels]
    found = [
        r.label for r in records(written(tmp_path / "a", lines), Fields(), {}, needs_reference=True)
    ]
    assert found == [True, False, True, True, False, False, None]
    lines.append({"gold": "1", "response": "1", "ok": "maybe"})
    *_, last = records(written(tmp_path / "b", lines), Fields(), {}, needs_reference=True)
    assert "line 8: the label 'maybe' is neither true nor false" in last.fault


def test_many_lines_keep_their_order(tmp_path):
    lines = [{"reference": str(i % 7), "response": str(i % 5)} for i in range(2500)]
    source, out = written(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    call(source, "--verifier", "math_answer", "--out", out, "pool.workers=2", "pool.queue=10")
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["id"] for line in found] == [str(i + 1) for i in range(2500)]
    right = [i % 7 == i % 5 for i in range(2500)]
    assert [line["verdict"] == "right" for line in found] == right


def test_programs_are_run_as_they_are_and_answers_are_searched_for_one(tmp_path):
    tests = {"mode": "stdin", "tests": [{"input": "3 4", "output": "7"}]}
    code = "a, b = map(int, input().split())\nprint(a + b)\n"
    lines = [
        {"program": code, **tests, "expect": "pass"},
        {"program": code.replace("+", "-"), **tests, "expect": "fail"},
        {"reference": json.dumps(tests), "response": f"Like this:\n```python\n{code}```\n"},
        {"reference": json.dumps(tests), "response": code},
    ]
    source, out = written(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    call(source, "--verifier", "code_tests", "verifier.unsafe=true", "--out", out)
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["verdict"] for line in found] == ["right", "wrong", "right", "no_answer"]


def test_the_sandbox_says_which_level_holds(capsys):
    call("--sandbox-check")
    said = capsys.readouterr().out
    assert "programs run at the level" in said or "programs are refused here" in said


def test_verifiers_are_plugged_in_by_name_and_told_by_overrides(tmp_path, capsys):
    lines = [{"solution": "Five", "output": "five"}, {"solution": "5", "output": "6"}]
    source = written(tmp_path / "in.jsonl", lines)
    names = ["fields.reference=solution", "fields.response=output"]
    call(source, "--verifier", "exact", "verifier.ignore_case=true", *names)
    assert ["all", "2", "1", "1", "0", "0"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]
    call("--verifier", "math_answer", "verifier.percent=value", "--explain", "50%", "50")
    assert "verdict     wrong, value 0" in capsys.readouterr().out


@pytest.mark.parametrize("field", ["source", "dataset"])
def test_the_source_of_a_line_chooses_its_verifier(tmp_path, field):
    lines = [{"gold": "1/2", "response": "0.5", field: name} for name in ("text", "sums", "other")]
    lines.append({"gold": "1/2", "response": "0.5"})
    source, out = written(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    cases = (
        '[{verifier = {type = "exact"}, sources = ["text"]}, '
        '{verifier = {type = "math_answer"}, sources = ["sums"]}]'
    )
    named = [] if field == "source" else ["fields.source=dataset"]
    call(source, "--verifier", "first", f"verifier.cases={cases}", *named, "--out", out)
    found = [json.loads(line) for line in out.read_text().splitlines()]
    verdicts = ["wrong", "right", "unscorable", "unscorable"]
    assert [line["verdict"] for line in found] == verdicts
    assert [line["components"] for line in found[:2]] == [{"exact": 0.0}, {"math_answer": 1.0}]
    assert "no case is for the source 'other'" in found[2]["reason"]


def test_a_line_needs_a_reference_where_its_case_compares_with_one(tmp_path):
    spec = {
        "type": "first",
        "cases": [
            {"verifier": {"type": "format"}, "sources": ["form"]},
            {"verifier": {"type": "exact"}},
        ],
    }
    lines = [{"response": "x", "source": "form"}, {"response": "x", "source": "text"}]
    path = written(tmp_path / "in.jsonl", lines)
    found = list(records(path, Fields(), spec, needs_reference=True))
    assert [record.fault[:22] for record in found] == ["", "line 2: no field 'refe"]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(LINES[0]).encode())
    (found,) = records(path, Fields(), {}, needs_reference=True)
    assert (found.id, found.example.reference, found.fault) == ("a", "1/2", "")


def test_explain_prints_each_stage(capsys):
    call("--verifier", "math_answer", "--explain", "x < 3", r"<think>a</think>\boxed{(-\infty,3)}")
    said = [line[:11].strip() for line in capsys.readouterr().out.splitlines()]
    assert said == (
        "verifier reference thinking extraction cleaned text structure numbers".split()
        + ["real sets", "stages", "verdict", "reason"]
    )
    call("--verifier", "math_answer", "--explain", "5", "<think>5")
    said = capsys.readouterr().out
    assert "thinking    not closed: there is no answer" in said and "no_answer, value 0" in said


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["in.jsonl"], "verify: no verifier; give --verifier NAME"),
        (["--verifier", "math_answer"], "verify: no file; name one, or give --explain"),
        (["in.jsonl", "--verifier", "maths"], "did you mean `math_answer`?"),
        (["in.jsonl", "--verifier", "exact", "fields.response=text"], "no field 'text' among ["),
        (["in.jsonl", "--verifier", "exact", "fields.reference=x"], "fields.reference=NAME"),
        (["in.jsonl", "--verifier", "exact", "--out", "no/such/x"], "--out no/such/x"),
        (["in.jsonl", "--verifier", "exact", "verifier.befor=x"], "verifier.befor"),
        (["in.jsonl", "--verifier", "custom", "verifier.path=no_such:f"], "cannot import"),
        (["nosuch.jsonl", "--verifier", "exact"], "nosuch.jsonl: there is no such file; name"),
        (["folder", "--verifier", "exact"], "folder: is a folder; name a file of JSON Lines"),
        (["empty.jsonl", "--verifier", "exact"], "empty.jsonl: it is empty; write one JSON object"),
    ],
)
def test_faults_name_their_fix(tmp_path, monkeypatch, capsys, args, said):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "in.jsonl", LINES)
    written(tmp_path / "empty.jsonl", ["\n", " \n"])
    (tmp_path / "folder").mkdir()
    call(*args, code=2)
    assert said in capsys.readouterr().err


def test_forms_of_lines(tmp_path):
    lines = [
        {"answer": 42, "response": "x"},
        {"id": "p", "program": "f", "tests": "assert f", "mode": "assert", "expect": "pass"},
        {"constraint": "a:b", "kwargs": {"n": 1}, "response": "y", "ok": False},
        "\n",
        "{broken\n",
        {"answer": "no response"},
    ]
    path = written(tmp_path / "in.jsonl", lines)
    found = list(records(path, Fields(), {"type": "exact"}, needs_reference=True))
    assert [(r.id, r.example.reference, r.response, r.label) for r in found[:3]] == [
        ("1", "42", "x", None),
        ("p", '{"tests": "assert f", "mode": "assert"}', "f", True),
        ("3", '{"constraint": "a:b", "kwargs": {"n": 1}}', "y", False),
    ]
    assert found[3].fault.startswith("line 5: not JSON")
    assert found[4].fault.startswith("line 6: no field 'response' among ['answer']")
    written(path, ["[1]\n"])
    with pytest.raises(ValueError, match="line 1: a list; each line is one object"):
        list(records(path, Fields(), {"type": "exact"}, needs_reference=True))


def test_faulty_lines_are_unscorable_and_keep_their_place(tmp_path):
    lines = [LINES[0], "{broken\n", LINES[1]]
    source, out = written(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    call(source, "--verifier", "math_answer", "--out", out)
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["verdict"] for line in found] == ["right", "unscorable", "wrong"]
    assert found[1]["reason"].startswith("line 2: not JSON")


def test_summary_without_labels_has_no_agreement():
    summary = Summary()
    summary.add(Record("1", Example("1", "q"), "r"), Result(0, Score(1.0, "right"), 0.002))
    lines = summary.lines(2.0)
    assert lines[0].split() == ["kind", "lines", "right", "wrong", "no", "answer", "unscorable"]
    assert lines[1].split() == ["all", "1", "1", "0", "0", "0"]
    assert lines[3] == "1 lines in 2.0 s: 0 lines/s"
    assert lines[4].startswith("milliseconds a line in its worker: median 2.0, p95 2.0")


def test_quantiles():
    values = [float(i) for i in range(1, 101)]
    assert [quantile(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert quantile([7.0], 0.5) == 7.0


def test_progress_is_shown_where_somebody_watches(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import time\n\ndef score(example, response):\n    time.sleep(1.2)\n    return True\n"
    )
    written(tmp_path / "in.jsonl", [{"response": "a"}, {"response": "b"}])
    command = ["verify", "in.jsonl", "--verifier", "custom", "verifier.path=slow:score"]
    terminal, its_end = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "jaxrl_vr", *command, "pool.workers=1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=its_end,
    )
    os.close(its_end)
    said = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert done.returncode == 0 and b"2 lines in" in done.stdout
    assert "verified 0 lines, 0 lines/s\r" in said and "verified 1 lines, " in said


def test_ctrl_c_ends_cleanly(tmp_path):
    (tmp_path / "hanging.py").write_text(
        textwrap.dedent("""
        import os, pathlib

        def score(example, response):
            pathlib.Path("worker").write_text(str(os.getpid()))
            while True:
                pass
        """)
    )
    written(tmp_path / "in.jsonl", LINES[:1])
    command = ["verify", "in.jsonl", "--verifier", "custom", "verifier.path=hanging:score"]
    # Where these tests run in the background the signal is ignored, and children inherit that.
    heed = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'jaxrl_vr', *sys.argv[1:]])"
    )
    more = ("pool.deadline=600.0", "--out", "out.jsonl")
    process = subprocess.Popen(
        [sys.executable, "-c", heed, *command, *more],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stderr=subprocess.PIPE,
    )
    worker = tmp_path / "worker"
    while not (worker.exists() and worker.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert (process.returncode, said) == (130, b"")
    assert not Path(f"/proc/{worker.read_text()}").exists()
    assert not (tmp_path / "out.jsonl").exists()

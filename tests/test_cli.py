"""The commands: what each prints, what it writes, and how it ends."""

import io
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from inprocess import ONES, call, config, evaluation, rl, sft, train
from runs import ROOT, command, environment

from jaxrl_vr import cli
from jaxrl_vr.config import dump, load
from jaxrl_vr.train.arithmetic import arithmetic
from jaxrl_vr.train.config import RunConfig

MORE_TASKS = """
[[tasks]]
name = "again"
data = ["twos"]
samples = 2
sampling = { max_new_tokens = 4 }
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The config of a finished run, whose last stage that trains is `grpo`."""
    folder = tmp_path_factory.mktemp("done")
    path = config(folder, sft("cold"), rl("grpo"), evaluation("after"), data=ONES + MORE_TASKS)
    train(path)
    return path


def lines(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


# Help and dry run


def test_help_names_every_command(capsys):
    shown = call(capsys, "--help")
    assert all(name in shown for name in ("train", "eval", "sample", "export"))
    shown = call(capsys, "train", code=2)
    assert "required: config" in shown
    shown = call(capsys, "train", "a.toml", "--seed=3", code=2)
    assert "unrecognized arguments: --seed=3" in shown


def test_dry_run_prints_a_config_that_loads_and_numbers_that_add_up(tmp_path, capsys):
    more = "updates = [{ step = 0, updates = 1 }, { step = 3, updates = 2 }]\nmicro = { rows = 8 }"
    path = config(tmp_path, sft("cold", steps=3), rl("grpo", steps=5, more=more))
    shown = call(capsys, "train", path, "--dry-run", "stages.grpo.samples=8")
    resolved, stages, rest = shown.partition("\nstage cold")
    (tmp_path / "again.toml").write_text(resolved)
    again = load(RunConfig, [tmp_path / "again.toml"])
    assert again == load(RunConfig, [path], ["stages.grpo.samples=8"])
    assert dump(again) == resolved
    # SFT: 8 demonstrations a step, each of up to 16 tokens, 8 rows of 16: one micro-batch.
    sft_lines, _, rl_lines = (stages + rest).partition("stage grpo")
    for fact in (
        "8 per step, 24 in all",
        "1 per step, 3 in all",
        "at most 8 x 16\n",
        "8 rows x 16 tokens",
        "at most 1 per step",
    ):
        assert fact in sft_lines, fact
    # RL: 16 - 4 tokens are left for the prompt; 32 rollouts of up to 16, one a row, 8 rows.
    for fact in (
        "4 prompts x 8 samples = 32",
        "at most 32 x 4 = 128 per step",
        "1 from step 0, 2 from step 3 per rollout batch, 7 in all",
        "at most 32 x (12 + 4) = 512",
        "8 rows x 16 tokens",
        "at most 4 per step",
    ):
        assert fact in rl_lines, fact
    assert not (tmp_path / "run").exists()


def test_arithmetic_counts_packed_rows(tmp_path):
    more = "max_prompt_tokens = 4\nmicro = { rows = 2, row_length = 20 }"
    path = config(tmp_path, rl("grpo", more=more))
    # 8 rollouts of 4 + 4 tokens, two in a row of 20: 4 rows, in 2 micro-batches of 2.
    shown = arithmetic(load(RunConfig, [path]))
    assert "8 x (4 + 4) = 64" in shown and "2 rows x 20" in shown and "at most 2 per step" in shown


def test_several_files_merge_and_overrides_come_last(tmp_path, capsys):
    path = config(tmp_path, sft("cold"))
    (tmp_path / "more.toml").write_text("seed = 3\n[engine]\nslots = 5\n")
    shown = call(capsys, "train", path, tmp_path / "more.toml", "engine.slots=6", "--dry-run")
    assert "seed = 3" in shown and "slots = 6" in shown and "steps_per_call = 4" in shown


def test_a_file_may_have_an_equals_sign_in_its_name(tmp_path, capsys, monkeypatch):
    config(tmp_path, sft("cold"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=1.toml").write_text("seed = 3\n")
    (tmp_path / "a=b").mkdir()
    (tmp_path / "a=b" / "x.toml").write_text("[engine]\nslots = 5\n")
    args = ["config.toml", "lr=1.toml", "a=b/x.toml", "engine.steps_per_call=7", "--dry-run"]
    shown = call(capsys, "train", *args)
    assert "seed = 3" in shown and "slots = 5" in shown and "steps_per_call = 7" in shown
    said = call(capsys, "train", "config.toml", "lr=2.toml", "--dry-run", code=2)
    assert 'command line: lr = "2.toml": unknown key' in said
    # Longer than the name of any file.
    said = call(capsys, "train", "config.toml", f"seed={'x' * 5000}", code=2)
    assert "command line: seed = " in said and "must be an integer" in said


# Evaluate


def test_eval_of_a_stage_repeats_the_runs_own_evaluation(done, capsys):
    run = done.parent / "run"
    shown = call(capsys, "eval", done, "--init", "grpo", "--task", "sums")
    assert "Evaluations" in shown and "grpo" in shown and "sums" in shown
    out = run / "evaluations" / "grpo"
    assert f"answers: {out}" in shown
    (found,) = json.loads((out / "result.json").read_text())
    (own,) = json.loads((run / "stages" / "after" / "result.json").read_text())["evaluations"]
    assert {**found, "stage": "after"} == own
    assert lines(out / "output.jsonl") == lines(run / "stages" / "after" / "output.jsonl")
    assert (out / "right.jsonl").exists()


def test_eval_takes_all_tasks_and_leaves_the_runs_metrics_alone(done, capsys):
    run = done.parent / "run"
    before = (run / "metrics.jsonl").read_bytes()
    call(capsys, "eval", done)
    found = json.loads((run / "evaluations" / "base" / "result.json").read_text())
    assert [(e["task"], e["samples"]) for e in found] == [("sums", 1), ("again", 2)]
    assert set(found[1]["pass_at_k"]) == {"1", "2"}
    assert len(lines(run / "evaluations" / "base" / "output.jsonl")) == 6 + 12
    assert (run / "metrics.jsonl").read_bytes() == before
    # The same seed gives the same answers.
    first = (run / "evaluations" / "base" / "output.jsonl").read_bytes()
    call(capsys, "eval", done)
    assert (run / "evaluations" / "base" / "output.jsonl").read_bytes() == first
    call(capsys, "eval", done, "seed=1")
    assert (run / "evaluations" / "base" / "output.jsonl").read_bytes() != first


@pytest.mark.parametrize(
    "args, message",
    [
        (["eval", "--task", "sum"], "--task: no [[tasks]] is named 'sum'; did you mean 'sums'?"),
        (["eval", "--init", "previous"], "there is no previous stage here"),
        (["eval", "--init", "coldest"], "init = 'coldest' is none of the stages ['cold',"),
        (["sample", "--source", "one"], "--source one: no [[data]] has this name"),
        (["sample", "--prompts", "no/such.txt"], "--prompts no/such.txt: there is no such file"),
    ],
    ids=["task", "previous", "init", "source", "prompts"],
)
def test_commands_name_what_is_not_there(done, capsys, args, message):
    assert message in call(capsys, args[0], done, *args[1:], code=2)


def test_eval_of_a_stage_that_has_not_run(tmp_path, capsys):
    path = config(tmp_path, sft("cold"))
    shown = call(capsys, "eval", path, "--init", "cold", code=2)
    assert "stage 'cold' has no parameters yet" in shown and "jaxrl-vr train" in shown


# Sample


def test_sample_answers_a_file_and_the_keyboard_alike(done, tmp_path, capsys, monkeypatch):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("1+1=\n\n2+3=\n4+4=\n")
    by_file = call(capsys, "sample", done, "--init", "grpo", "--prompts", prompts)
    answers = by_file.splitlines()
    assert len(answers) == 3 and all(len(a) <= 4 for a in answers)
    monkeypatch.setattr(sys, "stdin", io.StringIO("1+1=\n\n2+3=\n4+4=\n"))
    assert call(capsys, "sample", done, "--init", "grpo") == by_file
    other = call(capsys, "sample", done, "--init", "grpo", "--prompts", prompts, "seed=1")
    assert other != by_file


def test_sample_uses_a_sources_template(done, tmp_path, capsys):
    (tmp_path / "bare").write_text("1+1\n")
    (tmp_path / "whole").write_text("1+1=\n")
    suffix = 'data.ones.template={ type = "plain", suffix = "=" }'
    whole = call(capsys, "sample", done, "--prompts", tmp_path / "whole")
    bare = call(capsys, "sample", done, suffix, "--source", "ones", "--prompts", tmp_path / "bare")
    assert bare == whole


def test_sample_says_which_prompts_cannot_be_asked_and_goes_on(done, tmp_path, capsys, monkeypatch):
    path = tmp_path / "prompts.txt"
    good = ["1+1=", "2+3=", "4+4="]
    faulty = ["what", "", "1+" * 10 + "1=", "   ", "é=", good[2]]
    path.write_bytes("\n".join([good[0], *faulty[:3], good[1], *faulty[3:]]).encode("utf-8-sig"))

    def sample(code, *args):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(["sample", str(done), "--init", "grpo", *args])
        shown = capsys.readouterr()
        assert ended.value.code == code, shown.err
        errors = [line for line in shown.err.splitlines() if line.startswith("error: ")]
        return shown.out.splitlines(), errors

    answers, errors = sample(2, "--prompts", str(path))
    assert len(answers) == 3
    assert [e.split(": ")[1] for e in errors] == [f"{path}:{n}" for n in (2, 4, 7)]
    assert "character 'w' of 'what' is not in the alphabet" in errors[0]
    assert "prompt of 22 tokens + max_new_tokens = 4 exceeds the model's context" in errors[1]
    assert "character 'é' of 'é='" in errors[2]
    monkeypatch.setattr(sys, "stdin", io.StringIO(path.read_text(encoding="utf-8-sig")))
    by_keyboard, errors = sample(0)
    assert by_keyboard == answers
    assert [e.split(": ")[1] for e in errors] == ["line 2", "line 4", "line 7"]
    bytes_ = io.TextIOWrapper(io.BytesIO(b"1+1=\n\xff=\n2+3=\n"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", bytes_)
    by_keyboard, errors = sample(0)
    assert by_keyboard[0] == answers[0] and len(by_keyboard) == 2
    assert len(errors) == 1 and errors[0].startswith("error: line 2: ")
    path.write_bytes(b"1+1=\n\xff\n")
    answers, errors = sample(2, "--prompts", str(path))
    assert (answers, errors) == (
        [],
        [f"error: --prompts {path}: is not UTF-8 text; save it as such"],
    )


def test_sample_of_a_prompt_that_cannot_be_asked(done, tmp_path, capsys):
    (tmp_path / "letters").write_text("what\n")
    shown = call(capsys, "sample", done, "--prompts", tmp_path / "letters", code=2)
    assert "character 'w'" in shown and "tokenizer.alphabet" in shown
    (tmp_path / "long").write_text("1+" * 10 + "1=\n")
    shown = call(capsys, "sample", done, "--prompts", tmp_path / "long", code=2)
    assert "prompt of 22 tokens + max_new_tokens = 4 exceeds the model's context of 16" in shown


# Export


def test_export_leaves_what_is_not_its_own(done, tmp_path, capsys, monkeypatch):
    here = tmp_path / "here"
    (here / "mine").mkdir(parents=True)
    (here / "mine" / "thesis.tex").write_text("years of work")
    monkeypatch.chdir(here)
    for out, message in (
        (".", "holds the working directory, which cannot be replaced"),
        ("mine", "exists and is not an earlier export: it holds thesis.tex"),
        ("mine/thesis.tex", "is a file"),
    ):
        # The folder is looked at first, so a missing stage is not what is said.
        said = call(capsys, "export", done, "--init", "none", "--out", out, code=2)
        assert f"export folder '{(here / out).resolve()}' {message}; choose a new" in said
    assert [str(p.relative_to(here)) for p in here.rglob("*")] == ["mine", "mine/thesis.tex"]
    monkeypatch.setenv("HOME", str(tmp_path))
    for _ in range(2):
        call(capsys, "export", done, "--init", "grpo", "--out=~/out")
    assert (tmp_path / "out" / "model.safetensors").is_file()
    (tmp_path / "out" / "README.md").write_text("card")
    said = call(capsys, "export", done, "--init", "grpo", "--out=~/out", code=2)
    assert "it also holds README.md; move that away, or choose another folder" in said
    assert (tmp_path / "out" / "README.md").read_text() == "card"


# Processes


STARTS = """
from jaxrl_vr.types import Score

def starts(example, response):
    return Score(0.25, "wrong", reason="judged in the working directory")
"""


def console_script(folder):
    """The script that an installation makes of pyproject.toml's entry, in a folder of its own."""
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["jaxrl-vr"]
    module, _, function = entry.partition(":")
    folder.mkdir()
    path = folder / "jaxrl-vr"
    path.write_text(f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    return [sys.executable, str(path)]


def test_both_ways_to_start_import_from_the_working_directory(tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    (here / "mine.py").write_text(STARTS)
    verifier = 'verifier = { type = "custom", path = "mine:starts" }\n'
    data = ONES.replace("digits = 1\n", f"digits = 1\n{verifier}")
    path = config(here, rl("grpo"), data=data)

    def start(command, *args):
        return subprocess.run(
            [*command, *args],
            cwd=here,
            env=environment(PYTHONPATH=str(ROOT)),
            capture_output=True,
            text=True,
        )

    script = console_script(tmp_path / "bin")
    # The workers import it too.
    done = start(script, "train", path.name, "stages.grpo.micro.rows=8")
    assert done.returncode == 0, done.stdout + done.stderr
    rollouts = lines(here / "run/stages/grpo/rollouts/step-000001.jsonl")
    assert [r["score"]["reason"] for r in rollouts] == ["judged in the working directory"] * 8
    as_module = [sys.executable, "-m", "jaxrl_vr"]
    shown = [start(c, "train", path.name, "--dry-run") for c in (script, as_module)]
    assert [s.returncode for s in shown] == [0, 0]
    assert shown[0].stdout == shown[1].stdout
    # Python's own switch for this holds for both.
    for way in (script, as_module):
        safe = start([way[0], "-P", *way[1:]], "train", path.name, "--dry-run")
        assert safe.returncode == 2 and "cannot import 'mine'" in safe.stderr


def children(pid):
    """Ids of the processes that `pid` started, and of those that they did."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        if parent == pid:
            found += [int(stat.parent.name), *children(int(stat.parent.name))]
    return found


HANG = """
import pathlib, time

def forever(example, response):
    pathlib.Path(__file__).with_name("hangs").touch()
    while True:
        time.sleep(1000)
"""


@pytest.fixture
def hanging(tmp_path):
    """A run of the real command in which a verifier hangs; its workers are started and busy."""
    (tmp_path / "hang.py").write_text(HANG)
    more = 'verifier = { type = "custom", path = "hang:forever" }\nlimit = 20\n'
    data = ONES.replace("digits = 1\n", f"digits = 1\n{more}")
    path = config(tmp_path, rl("grpo"), data=data)
    process = subprocess.Popen(
        command("train", path, "verifiers.workers=2", "verifiers.deadline=10000"),
        cwd=ROOT,
        env=environment(PYTHONPATH=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while process.poll() is None and not (tmp_path / "hangs").exists():
        time.sleep(0.05)
    if process.poll() is not None:
        pytest.fail("the run ended by itself: " + process.communicate()[0])
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_ctrl_c_while_a_verifier_hangs_ends_workers_first(hanging):
    workers = children(hanging.pid)
    assert len(workers) == 2
    hanging.send_signal(signal.SIGINT)
    output = hanging.communicate()[0]
    assert hanging.returncode == 130, output
    assert "saved grpo at step 0" in output and "the same command goes on" in output
    assert "Traceback" not in output
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_workers_of_a_killed_run_end_by_themselves(hanging):
    workers = children(hanging.pid)
    assert len(workers) == 2
    hanging.kill()
    hanging.communicate()
    # They notice the end of their pipe at once, but are no children of ours to wait for.
    while any(is_running(pid) for pid in workers):
        time.sleep(0.05)


def is_running(pid):
    """Whether the process is there and no zombie, which only waits for its parent to look."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("kind", ["closed pipe", "full disk"])
def test_a_run_whose_output_nobody_reads_trains_to_its_end(tmp_path, kind):
    path = config(tmp_path, sft("cold", steps=3), evaluation("after"))
    if kind == "full disk":
        out = os.open("/dev/full", os.O_WRONLY)
    else:
        read, out = os.pipe()
        os.close(read)
    done = subprocess.run(
        command("train", path, "checkpoint.every=1"),
        cwd=ROOT,
        env=environment(),
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(out)
    # Not a word: neither the display nor the interpreter's own end complains.
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "run" / "summary.json").exists()
    assert [m["step"] for m in lines(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 0]


def test_no_worker_stays_after_an_error(done, tmp_path, capsys):
    (tmp_path / "letters").write_text("what\n")
    before = set(children(os.getpid()))  # sandboxes that other tests keep warm
    call(capsys, "sample", done, "--prompts", tmp_path / "letters", code=2)
    assert set(children(os.getpid())) <= before


def test_clip_range_that_cannot_act_is_said(tmp_path, capsys):
    args = ["configs/quickstart.toml", f'run_dir="{tmp_path}/run"', "--dry-run"]
    args.append("stages.rl.objective.clip_high=0.28")
    output = call(capsys, "train", *args)
    assert "note: stages.rl.objective.clip_high: with one update per rollout batch" in output
    assert "note:" not in call(capsys, "train", *args, "stages.rl.updates=2")


def test_prefixes_that_split_rows_do_not_share_are_said(tmp_path, capsys):
    path = config(tmp_path, rl("grpo"))
    split = "train", path, "--dry-run", "mesh.context=2"
    note = "note: stages.grpo.micro.share_prefixes = true: with mesh.context = 2 rows are split"
    asked = "stages.grpo.micro.share_prefixes=true"
    assert note in call(capsys, *split, asked)
    assert "note: stages.grpo.micro" not in call(capsys, *split)
    assert "note: stages.grpo.micro" not in call(capsys, "train", path, "--dry-run", asked)


def test_weights_of_a_stage_that_does_not_train_are_refused(done, capsys):
    said = call(capsys, "eval", done, "--init", "after", code=2)
    assert "init = 'after' is a stage that does not train" in said
    assert "['cold', 'grpo'], or base" in said


def test_ctrl_c_before_a_run_can_save_just_ends_the_process():
    # As an exception it could strike inside of jax's callbacks, which swallow it.
    code = """
import signal, sys
# As Python has it, also where these tests run in the background, which ignores the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
from jaxrl_vr import cli
cli._import_from_here = lambda: sys.exit(signal.getsignal(signal.SIGINT) != signal.SIG_DFL)
sys.argv = ["jaxrl-vr", "train", "any.toml"]
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment())
    assert done.returncode == 0


def test_compiled_programs_are_kept_in_the_users_cache(tmp_path):
    caches = {"XDG_CACHE_HOME": str(tmp_path), "JAX_COMPILATION_CACHE_DIR": ""}
    args = "eval", ROOT / "configs" / "quickstart.toml", f"run_dir={tmp_path / 'run'}"
    subprocess.run(command(*args), env=environment(**caches), check=True, capture_output=True)
    assert any((tmp_path / "jaxrl_vr" / "compiled").iterdir())

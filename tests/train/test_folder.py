"""A run's folder: one process at a time, the config it began with, and whole files."""

import json
import os
import shutil
import socket
from pathlib import Path

import pytest
from inprocess import ONES, call, config, evaluation, rl, sft, train

from jaxrl_vr.train.folder import held

MORE = """
[[data]]
name = "more"
type = "arithmetic"
digits = 2
limit = 6
[[data]]
name = "file"
type = "jsonl"
path = "{folder}/d.jsonl"
fields = {{ prompt = "q", completion = "a" }}
[[tasks]]
name = "other"
data = ["more"]
sampling = {{ max_new_tokens = 4 }}
"""
KL = "kl = { coef = 0.1 }"
PREVIOUS = "stages.late.init=previous"


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def undone(run, stage):
    """Makes a stage one that has checkpoints and is not done."""
    (run / "stages" / stage / "result.json").unlink()


# One process at a time


def test_a_folder_in_use_is_refused_with_its_owner_and_left_as_it_is(tmp_path, run, capsys):
    path = config(tmp_path, sft("cold"))
    with held(run):
        said = call(capsys, "train", path, code=2)
        assert f"{run} is in use by process {os.getpid()} on {socket.gethostname()}" in said
        assert "wait until that ends, or choose another run_dir" in said
        assert [p.name for p in run.iterdir()] == ["lock"]
        # Looking takes no lock.
        call(capsys, "train", path, "--dry-run")
    call(capsys, "train", path)
    assert (run / "summary.json").exists()


def test_a_lock_file_that_a_dead_process_left_is_no_lock(tmp_path, run, capsys):
    run.mkdir()
    (run / "lock").write_text("process 1 on elsewhere\n")
    call(capsys, "train", config(tmp_path, sft("cold")))
    assert (run / "lock").read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"


def test_two_evaluations_of_the_same_weights_do_not_mix(tmp_path, run, capsys):
    path = config(tmp_path, sft("cold"))
    with held(run / "evaluations" / "base"):
        said = call(capsys, "eval", path, code=2)
        assert f"{run}/evaluations/base is in use by process {os.getpid()}" in said
    call(capsys, "eval", path)


# The config it began with


@pytest.mark.parametrize("content", [None, "", "seed = 0\n", "seed = ="])
def test_a_begun_run_without_its_config_is_refused(tmp_path, run, capsys, content):
    path = config(tmp_path, sft("cold"))
    train(path)
    kept = (run / "config.toml").read_text()
    (run / "config.toml").unlink()
    if content is not None:
        (run / "config.toml").write_text(content)
    said = call(capsys, "train", path, "seed=3", code=2)
    assert str(run) in said and "put the file back" in said and "choose another run_dir" in said
    assert ("no config.toml" if content is None else "cannot be read") in said
    (run / "config.toml").write_text(kept)
    said = call(capsys, "train", path, "seed=3", code=2)
    assert "seed: was 0, now 3" in said and "(cold is done)" in said
    call(capsys, "train", path)


def test_a_task_may_change_until_a_stage_with_it_is_done(tmp_path, run, capsys):
    later = evaluation("later").replace('"sums"', '"other"')
    data = ONES + MORE.format(folder=tmp_path)
    path = config(tmp_path, sft("cold"), evaluation("after"), later, data=data)
    first = train(path)
    undone(run, "later")
    for override, line in (
        ("tasks.sums.sampling.max_new_tokens=3", "max_new_tokens: was 4, now 3"),
        ("data.twos.limit=5", "data.twos.limit: was 6, now 5"),
        ("verifiers.deadline=9", "verifiers.deadline: was 5.0, now 9.0"),
    ):
        said = call(capsys, "train", path, override, code=2)
        assert line in said and "(cold is done, after is done)" in said
    second = train(path, "tasks.other.samples=2", "data.more.limit=5")
    assert second["evaluations"][0] == first["evaluations"][0]
    assert [(e["n"], e["samples"]) for e in second["evaluations"]] == [(6, 1), (5, 2)]


def test_data_of_a_later_stage_is_opened_first_and_can_be_corrected(tmp_path, run, capsys):
    data = ONES + MORE.format(folder=tmp_path)
    path = config(tmp_path, sft("cold"), sft("late", data="file"), data=data)
    said = call(capsys, "train", path, code=2)
    assert f"there is no file {tmp_path}/d.jsonl" in said
    assert not (run / "stages").exists()
    (tmp_path / "d.jsonl").write_text('{"q": "1+1=", "a": ">2"}\n')
    train(path)
    shutil.rmtree(run / "stages" / "late")
    # The stage before is done; this one has not begun, so its data may be another.
    (tmp_path / "d.jsonl").rename(tmp_path / "e.jsonl")
    said = call(capsys, "train", path, code=2)
    assert f"there is no file {tmp_path}/d.jsonl" in said
    said = call(capsys, "train", path, f'data.file.path="{tmp_path}/e.jsonl"')
    assert "cold: done before" in said
    said = call(capsys, "train", path, code=2)
    assert "data.file.path: was" in said and "late is done" in said


LATE = """
[[data]]
name = "words"
type = "arithmetic"
digits = 1
style = "words"
[[data]]
name = "answers"
type = "jsonl"
path = "{folder}/d.jsonl"
fields = {{ prompt = "q", completion = "a" }}
[[data]]
name = "questions"
type = "jsonl"
path = "{folder}/d.jsonl"
fields = {{ prompt = "q" }}
verifier = {{ type = "format" }}
[[tasks]]
name = "asked"
data = ["questions"]
sampling = {{ max_new_tokens = 4 }}
"""


@pytest.mark.parametrize(
    "stage, record, message",
    [
        (sft("late", data="answers"), None, "there is no file"),
        (sft("late", data="answers"), '{"q": "one", "a": ">2"}', "character 'o'"),
        (sft("late", data="words"), "", "character 'W'"),
        (rl("late", data="questions"), '{"r": "1"}', "field 'q' is not there"),
        (evaluation("late").replace("sums", "asked"), '{"q": 1}', "field 'q' is a int"),
        (
            rl("late", more='eval = { every = 1, tasks = ["asked"] }'),
            '{"q": "1+1+1+1+1+1+1+1+1="}',
            "longer than max_prompt_tokens = 12",
        ),
    ],
    ids=["missing", "sft", "endless", "rl", "task", "periodic-task"],
)
def test_faults_in_data_of_any_later_stage_show_at_once(
    tmp_path, run, capsys, stage, record, message
):
    if record is not None:
        (tmp_path / "d.jsonl").write_text(record)
    path = config(tmp_path, sft("cold"), stage, data=ONES + LATE.format(folder=tmp_path))
    for dry in (["--dry-run"], []):
        assert message in call(capsys, "train", path, *dry, code=2)
        assert not (run / "stages").exists()


def test_weights_of_a_later_stage_are_looked_up_first(tmp_path, run, capsys):
    path = config(tmp_path, sft("cold"), sft("late", more='init = "clod"'))
    for dry in (["--dry-run"], []):
        said = call(capsys, "train", path, *dry, code=2)
        assert "init = 'clod' is none of the stages ['cold', 'late']" in said
        assert not (run / "stages").exists()
    # What is not here may be on the hub, and a dry run does not go there.
    said = call(capsys, "train", path, "--dry-run", "stages.late.init=models/clod")
    assert "note: stages.late.init = 'models/clod' is no folder here" in said
    # What starts from it is to come as well, and not missing.
    said = call(capsys, "train", path, "--dry-run", "stages.cold.init=models/clod", PREVIOUS)
    assert "note: stages.cold.init = 'models/clod' is no folder here" in said
    model = 'model={ type = "pretrained", path = "models/none" }'
    said = call(capsys, "train", path, "--dry-run", model, 'tokenizer={ type = "hf" }')
    assert "note: model.path = 'models/none' is no folder here but may be on the hub" in said


def test_a_dry_run_compares_with_the_run_that_is_there_and_changes_nothing(tmp_path, run, capsys):
    path = config(tmp_path, sft("cold"))
    train(path)
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    said = call(capsys, "train", path, "--dry-run", "seed=3", code=2)
    assert "seed: was 0, now 3" in said
    call(capsys, "train", path, "--dry-run")
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before


def test_steps_may_change_on_the_way_unless_a_schedule_hangs_on_them(tmp_path, run, capsys):
    path = config(tmp_path, sft("cold", steps=2))
    schedule = "stages.cold.optimizer.schedule.type=linear"
    total = "stages.cold.optimizer.schedule.total_steps=9"
    train(path, schedule, "checkpoint.every=1")
    undone(run, "cold")
    said = call(capsys, "train", path, schedule, "stages.cold.steps=3", code=2)
    assert "stages.cold.steps was 2, now 3, but its linear schedule ends with the stage" in said
    shutil.rmtree(run)
    train(path, schedule, total, "checkpoint.every=1")
    undone(run, "cold")
    train(path, schedule, total, "stages.cold.steps=3")
    assert [m["step"] for m in lines(run / "metrics.jsonl")] == [1, 2, 3]


# Weights that a reference is made of


def test_a_reference_that_is_another_is_refused_with_both_hashes(tmp_path, run, capsys):
    path = config(tmp_path, sft("cold"), rl("grpo", steps=2, more=KL))
    hashes = [s["parameter_hash"] for s in train(path, "checkpoint.every=1")["stages"]]
    undone(run, "grpo")
    # Other weights under the same name.
    other = config(tmp_path, sft("cold", steps=2), rl("grpo", steps=0))
    found = train(other, f'run_dir="{tmp_path}/other"')["stages"][0]["parameter_hash"]
    final = run / "stages" / "cold" / "final"
    shutil.move(final, tmp_path / "aside")
    shutil.copytree(tmp_path / "other" / "stages" / "cold" / "final", final)
    path = config(tmp_path, sft("cold"), rl("grpo", steps=2, more=KL))
    said = call(capsys, "train", path, code=2)
    assert "stages.grpo: the weights of init = 'previous', its reference, are no longer" in said
    assert f"(hash {hashes[0]}, now {found})" in said and "put them back" in said
    shutil.rmtree(final)
    shutil.move(tmp_path / "aside", final)
    assert train(path)["parameter_hash"] == hashes[1]


def test_without_a_reference_the_start_of_a_stage_matters_no_more(tmp_path, run):
    path = config(tmp_path, sft("cold"), rl("grpo", steps=2))
    first = train(path, "checkpoint.every=1")["parameter_hash"]
    undone(run, "grpo")
    other = config(tmp_path, sft("cold", steps=2))
    train(other, f'run_dir="{tmp_path}/other"')
    final = run / "stages" / "cold" / "final"
    shutil.rmtree(final)
    shutil.copytree(tmp_path / "other" / "stages" / "cold" / "final", final)
    path = config(tmp_path, sft("cold"), rl("grpo", steps=2))
    assert train(path)["parameter_hash"] == first


# Files of a stage that is done


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "null",
        "[]",
        '{"evaluations": [], "seco',
        '{"evaluations": [{}], "seconds": {}}',
        '{"evaluations": {}, "seconds": []}',
        '{"evaluations": [], "seconds": {"update": "long"}}',
    ],
)
def test_a_damaged_result_is_named_with_the_way_on(tmp_path, run, capsys, content):
    path = config(tmp_path, sft("cold", steps=2))
    first = train(path, "checkpoint.every=1")
    result = run / "stages" / "cold" / "result.json"
    result.write_text(content)
    said = call(capsys, "train", path, code=2)
    assert f"{result} is damaged (" in said
    assert "delete it: the stage then goes on from its last checkpoint" in said
    result.unlink()
    said = call(capsys, "train", path, "checkpoint.every=1")
    assert "resuming cold at step 2 of 2" in said
    assert (
        json.loads((run / "summary.json").read_text())["parameter_hash"]
        == (first["parameter_hash"])
    )


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_lost_parameters_of_a_done_stage_are_named_with_the_way_on(tmp_path, run, capsys, damage):
    path = config(tmp_path, sft("cold", steps=2), evaluation("after"))
    train(path, "checkpoint.every=1")
    first = lines(run / "stages" / "after" / "output.jsonl")
    undone(run, "after")
    final, result = run / "stages" / "cold" / "final", run / "stages" / "cold" / "result.json"
    if damage == "gone":
        shutil.rmtree(final)
    else:
        (final / "arrays" / "_METADATA").write_text("{")
    said = call(capsys, "train", path, code=2)
    assert str(final) in said and str(result) in said
    assert "stage 'cold'" in said and "from its last checkpoint" in said
    result.unlink()
    if damage == "cut":
        shutil.rmtree(final)
    said = call(capsys, "train", path)
    assert "resuming cold at step 2 of 2" in said
    assert lines(run / "stages" / "after" / "output.jsonl") == first


def test_a_damaged_checkpoint_ends_a_resume_and_the_one_before_goes_on(tmp_path, run, capsys):
    path = config(tmp_path, sft("cold", steps=3))
    every = "checkpoint.every=1"
    first = train(path, every)["parameter_hash"]
    undone(run, "cold")
    newest = run / "stages" / "cold" / "checkpoints" / "3"
    for file in ("host/metadata", "arrays/_METADATA", "arrays/manifest.ocdbt"):
        kept = (newest / file).read_bytes()
        (newest / file).write_bytes(kept[:10])
        said = call(capsys, "train", path, every, code=2)
        assert f"{newest} is damaged: " in said
        assert "delete the folder, and the stage resumes from step 2" in said
        (newest / file).write_bytes(kept)
    shutil.rmtree(newest)
    said = call(capsys, "train", path, every)
    assert "resuming cold at step 2 of 3" in said
    assert json.loads((run / "summary.json").read_text())["parameter_hash"] == first


@pytest.mark.parametrize(
    "line", ["{}", "[1]", "hello", '{"step": 1}'], ids=["empty", "list", "text", "no-stage"]
)
def test_a_foreign_line_in_the_metrics_is_named(tmp_path, run, capsys, line):
    path = config(tmp_path, sft("cold"))
    train(path)
    undone(run, "cold")
    metrics = run / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text(f"{line}\n{whole}")
    said = call(capsys, "train", path, code=2)
    assert f"{metrics}:1: {line!r} is no line of metrics" in said and "delete the line" in said
    metrics.write_text(whole + whole[:20])  # as a crash leaves it
    call(capsys, "train", path)
    assert [m["step"] for m in lines(metrics)] == [1]


def test_answers_that_were_deleted_are_not_shown(tmp_path, run, capsys):
    path = config(tmp_path, sft("cold"), evaluation("after"))
    train(path)
    (run / "stages" / "after" / "output.jsonl").unlink()
    said = call(capsys, "train", path)
    assert "Evaluations" in said and "Answers" not in said


def test_a_path_may_start_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = config(tmp_path, sft("first"))
    path.write_text(path.read_text().replace(f"{tmp_path}/run", "~/mine"))
    train(path)
    assert (tmp_path / "mine/summary.json").exists()
    assert not Path("~").exists()

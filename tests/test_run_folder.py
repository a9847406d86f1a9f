"""A run's folder: who may work in it, and what a second start makes of what it finds."""

import json
import shutil
from pathlib import Path

import pytest
from inprocess import ONES, call, config, evaluation, rl, sft, train

from jaxrl_vr.train.folder import held

LATER = """
[[data]]
name = "later"
type = "jsonl"
path = "PATH"
fields = { prompt = "q", completion = "a" }
"""


def record(path, text='{"q": "1+1=", "a": ">2"}\n'):
    path.write_text(text)
    return path


def test_a_folder_in_use_is_refused_with_its_owner(tmp_path, capsys):
    path = config(tmp_path, sft("first"))
    with held(tmp_path / "run"):
        said = call(capsys, "train", path, code=2)
    assert "is in use by process" in said and "choose another run_dir" in said
    assert not (tmp_path / "run/config.toml").exists()
    train(path)  # and the lock is gone with its owner


def test_a_dry_run_leaves_no_trace_and_sees_what_a_start_would(tmp_path, capsys):
    nowhere = tmp_path / "nowhere.jsonl"
    path = config(tmp_path, sft("a", data="later"), data=ONES + LATER.replace("PATH", str(nowhere)))
    said = call(capsys, "train", path, "--dry-run", code=2)
    assert "nowhere.jsonl" in said
    said = call(capsys, "train", path, "--dry-run", "stages.a.init=nothing", code=2)
    assert "nothing" in said
    assert not (tmp_path / "run").exists()
    record(nowhere)
    assert "stage a (sft)" in call(capsys, "train", path, "--dry-run")


def test_data_of_every_stage_is_looked_at_before_the_first(tmp_path, capsys):
    data = ONES + LATER.replace("PATH", f"{tmp_path}/nowhere.jsonl")
    path = config(tmp_path, sft("first"), sft("second", data="later"), data=data)
    said = call(capsys, "train", path, code=2)
    assert "nowhere.jsonl" in said
    assert not (tmp_path / "run/stages/first").exists()


def test_what_only_later_stages_use_can_be_corrected(tmp_path, capsys):
    first = record(tmp_path / "first.jsonl")
    other = record(tmp_path / "other.jsonl", '{"q": "2+1=", "a": ">3"}\n')
    data = ONES + LATER.replace("PATH", str(first))
    path = config(tmp_path, sft("first"), sft("second", data="later", steps=3), data=data)
    train(path, "stages.second.steps=0")
    (tmp_path / "run/stages/second/result.json").unlink()
    shutil.rmtree(tmp_path / "run/stages/second")
    train(path, f"data.later.path={other}", "stages.second.steps=2")
    said = call(capsys, "train", path, f"data.later.path={first}", code=2)
    assert "data.later.path: was" in said and "second is done" in said


def test_a_begun_run_without_its_config_is_refused(tmp_path, capsys):
    path = config(tmp_path, sft("first"))
    train(path)
    (tmp_path / "run/config.toml").unlink()
    said = call(capsys, "train", path, "seed=1", code=2)
    assert "no config.toml" in said and "put the file back" in said


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"evaluations": 3}', "{"])
def test_a_damaged_result_is_named_with_the_way_back(tmp_path, capsys, text):
    path = config(tmp_path, sft("first"))
    expected = train(path)["parameter_hash"]
    result = tmp_path / "run/stages/first/result.json"
    result.write_text(text)
    said = call(capsys, "train", path, code=2)
    assert f"{result} is damaged" in said and "delete it" in said
    result.unlink()
    assert train(path)["parameter_hash"] == expected


def test_parameters_that_are_gone_are_named_with_the_way_back(tmp_path, capsys):
    path = config(tmp_path, sft("first"), sft("second"))
    train(path)
    run = tmp_path / "run/stages"
    shutil.rmtree(run / "first/final")
    shutil.rmtree(run / "second")
    said = call(capsys, "train", path, code=2)
    assert "stage 'first' is done, but its parameters" in said and "delete" in said
    (run / "first/result.json").unlink()
    train(path)


def test_another_reference_than_the_one_begun_with_is_refused(tmp_path, capsys):
    tables = [sft("first"), rl("second", steps=1, more='init = "FOLDER"\nkl = { coef = 0.1 }')]
    export = '\n[[stages]]\ntype = "export"\nname = "out"\ninit = "INIT"\npath = "FOLDER"\n'
    folder = tmp_path / "weights"

    def written(name, init):
        """The weights of `init`, as a folder."""
        at = tmp_path / name
        at.mkdir()
        text = export.replace("INIT", init).replace("FOLDER", str(folder))
        train(config(at, sft("first"), text))

    written("one", "base")
    path = config(tmp_path, *(table.replace("FOLDER", str(folder)) for table in tables))
    train(path, "checkpoint.every=1")
    (tmp_path / "run/stages/second/result.json").unlink()
    shutil.rmtree(folder)
    written("two", "first")
    said = call(capsys, "train", path, "checkpoint.every=1", code=2)
    assert "its KL reference" in said or "are its KL reference" in said
    assert said.count("hash") == 1 and "put the weights" in said


def test_metrics_after_a_cut_line_go_on(tmp_path):
    path = config(tmp_path, sft("first", steps=2), evaluation("after"))
    train(path)
    file = tmp_path / "run/metrics.jsonl"
    whole = file.read_text()
    shutil.rmtree(tmp_path / "run/stages/after")
    file.write_text(whole[:-20])  # as a crash leaves it
    train(path)
    stages = [json.loads(line)["stage"] for line in file.read_text().splitlines()]
    assert stages == ["first", "first", "after"]


def test_a_path_may_start_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = config(tmp_path, sft("first"))
    path.write_text(path.read_text().replace(f"{tmp_path}/run", "~/mine"))
    train(path)
    assert (tmp_path / "mine/summary.json").exists()
    assert not Path("~").exists()

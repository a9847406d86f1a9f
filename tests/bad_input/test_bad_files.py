"""Faulty files of a config and of data: a message that names what is wrong and how to go on."""

import json

import pytest
from inprocess import ONES, call, config, rl, sft


def test_missing_config_file(tmp_path, capsys):
    path = config(tmp_path, sft("cold"))
    said = call(capsys, "train", tmp_path / "confg.toml", code=2)
    assert f"there is no such file; did you mean {path}?" in said
    said = call(capsys, "train", tmp_path / "none" / "x.toml", code=2)
    assert "there is no such file; check the path" in said


def test_config_that_is_not_toml(tmp_path, capsys):
    (tmp_path / "bad.toml").write_text("run_dir = 'x'\nseed == 3\n")
    said = call(capsys, "train", tmp_path / "bad.toml", code=2)
    assert "bad.toml: is not TOML" in said and "line 2" in said and "seed == 3" in said


def test_run_dir_that_is_a_file(tmp_path, capsys):
    path = config(tmp_path, sft("cold"))
    (tmp_path / "run").write_text("notes")
    said = call(capsys, "train", path, code=2)
    assert "is a file; name a folder" in said and f"run_dir = '{tmp_path}/run'" in said
    assert (tmp_path / "run").read_text() == "notes"


@pytest.mark.parametrize(
    "content, parts",
    [
        (None, ["there is no file", "d.jsonl", "correct it"]),
        ("", ["source 'file'", "d.jsonl has no records"]),
        ("\n\n", ["source 'file'", "has no records"]),
        (
            '{"q": "1+1=", "a": ">2"}\n{"question": "1+1=", "a": ">2"}\n',
            ["d.jsonl:2: field 'q' is not there", "['a', 'question']", "name the right one"],
        ),
        ('{"q": "1+1=", "a": null}\n', ["d.jsonl:1: field 'a' is null"]),
        ('{"q": 5, "a": ">2"}\n', ["d.jsonl:1: field 'q' is a int, not text"]),
        ('{"q": "1+1=", "a": ">2"}\n{"q": "1+', ["d.jsonl:2: not JSON"]),
        ("[1]\n", ["d.jsonl:1: a list, not an object"]),
        ('{"q": "one", "a": ">2"}\n', ["character 'o' of 'one'", "tokenizer.alphabet"]),
        (
            '{"q": "1+1+1+1+1+1+1+1+1=", "a": ">9"}\n',
            ["source 'file'", "all 1 items are longer than max_tokens = 16", "shortest has 21"],
        ),
    ],
    ids="missing empty blank field null type cut list letters long".split(),
)
def test_faulty_data(tmp_path, capsys, content, parts):
    if content is not None:
        (tmp_path / "d.jsonl").write_text(content)
    path = config(tmp_path, sft("cold", data="file"), data=ONES + demonstrations(tmp_path))
    said = call(capsys, "train", path, code=2)
    missing = [part for part in parts if part not in said]
    assert not missing, said


def demonstrations(folder):
    return f"""
[[data]]
name = "file"
type = "jsonl"
path = "{folder}/d.jsonl"
fields = {{ prompt = "q", completion = "a" }}
"""


def test_corrected_data_goes_on_under_the_same_command(tmp_path, capsys):
    data = ONES + demonstrations(tmp_path).replace("d.jsonl", "e.jsonl")
    path = config(tmp_path, sft("cold", data="file"), data=data)
    call(capsys, "train", path, code=2)
    (tmp_path / "d.jsonl").write_text('{"q": "1+1=", "a": ">2"}\n')
    # Nothing was trained yet, so a corrected path is no other run.
    call(capsys, "train", path, f'data.file.path="{tmp_path}/d.jsonl"')
    assert (tmp_path / "run" / "summary.json").exists()
    said = call(capsys, "train", path, code=2)
    assert "data.file.path: was" in said and "set them back, or choose another run_dir" in said


def test_too_long_prompts_are_left_out_and_counted(tmp_path, capsys):
    records = [{"q": q, "r": "2"} for q in ("1+1=", "1+1+1+1+1+1+1+1+1=", "1=")]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    data = f"""
[[data]]
name = "file"
type = "jsonl"
path = "{tmp_path}/d.jsonl"
fields = {{ prompt = "q", reference = "r" }}
verifier = {{ type = "exact" }}
"""
    path = config(tmp_path, rl("grpo", data="file"), data=data)
    said = call(capsys, "train", path)
    assert "warning: grpo: 1 items of file are longer than 12 tokens and were left out" in said
    elsewhere = f'run_dir="{tmp_path}/elsewhere"'
    said = call(capsys, "train", path, "stages.grpo.max_prompt_tokens=1", elsewhere, code=2)
    assert "all 3 items are longer than max_prompt_tokens = 1" in said

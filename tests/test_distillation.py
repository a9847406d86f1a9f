"""On-policy distillation: the student's own answers, judged token by token by a teacher."""

import json

import numpy as np
import pytest
from inprocess import MODEL, ONES, call, config, rl, sft, train

TEACHER = 'advantage = { type = "on_policy_distillation", teacher = "NAME" }\n'
EVERY = "checkpoint.every=1"
BASE = 'init = "base"\n'


def student(name="teach", teacher="lesson", steps=3, more=BASE):
    return rl(name, steps=steps, more=TEACHER.replace("NAME", teacher) + more)


def metrics(folder, stage="teach"):
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [m for m in map(json.loads, lines) if m["stage"] == stage]


def export(path, init="lesson"):
    return f'\n[[stages]]\ntype = "export"\nname = "out"\ninit = "{init}"\npath = "{path}"\n'


def test_the_student_comes_to_answer_as_its_teacher(tmp_path):
    lesson = sft("lesson", steps=20)
    path = config(tmp_path, lesson, student(steps=12), data=ONES)
    train(path, "stages.teach.prompts=16", "stages.teach.updates=2")
    steps = metrics(tmp_path)
    # The reverse KL of each token falls, whatever the verifier says.
    assert steps[0]["distill/reverse_kl"] > 0.5
    assert steps[-1]["distill/reverse_kl"] < 0.5 * steps[0]["distill/reverse_kl"]
    rollouts = tmp_path / "run/stages/teach/rollouts/step-000001.jsonl"
    lines = [json.loads(line) for line in rollouts.read_text().splitlines()]
    adv = np.concatenate([line["advantage"] for line in lines])
    assert len(adv) == sum(line["num_tokens"] for line in lines)
    assert -adv.mean() == pytest.approx(steps[0]["distill/reverse_kl"], rel=1e-4)


def test_a_student_that_is_its_teacher_learns_nothing(tmp_path):
    path = config(tmp_path, student(teacher="base", steps=1), data=ONES)
    train(path)
    (step,) = metrics(tmp_path)
    assert step["distill/reverse_kl"] == pytest.approx(0, abs=1e-6)
    assert step["optimizer/grad_norm"] < 1e-5


def test_a_teacher_from_a_folder_may_be_larger(tmp_path):
    big = tmp_path / "big"
    big.mkdir()
    model = MODEL.replace("width = 16", "width = 32").replace("layers = 1", "layers = 2")
    train(config(big, sft("lesson"), export(tmp_path / "hf"), model=model, data=ONES))
    train(config(tmp_path, student(teacher=str(tmp_path / "hf"), steps=2), data=ONES))
    first, second = metrics(tmp_path)
    assert first["distill/reverse_kl"] > 0 and second["optimizer/grad_norm"] > 0
    # The teacher is no part of what is trained or saved.
    saved = tmp_path / "run/stages/teach/final"
    assert sum(f.stat().st_size for f in saved.rglob("*") if f.is_file()) < 100_000


def test_a_teacher_that_the_run_itself_exports(tmp_path, capsys):
    out = tmp_path / "out"
    stages = (sft("lesson"), export(out), student(teacher=str(out), steps=1))
    path = config(tmp_path, *stages, data=ONES)
    call(capsys, "train", path, "--dry-run")
    train(path)
    assert len(metrics(tmp_path)) == 1


def test_resumed_equals_uninterrupted_and_another_teacher_is_refused(tmp_path, capsys):
    def hash_of(folder, steps):
        folder.mkdir(exist_ok=True)
        path = config(folder, sft("lesson"), student(steps=steps), data=ONES)
        return train(path, EVERY)["parameter_hash"], path

    whole, _ = hash_of(tmp_path / "whole", 4)
    folder = tmp_path / "twice"
    hash_of(folder, 2)
    done = folder / "run/stages/teach/result.json"
    done.unlink()
    found, path = hash_of(folder, 4)
    assert found == whole
    assert "resuming teach at step 2 of 4" in capsys.readouterr().out
    # Other weights in the place of the teacher's would go on as if nothing had happened.
    done.unlink()
    kept = folder / "run/stages/lesson/final"
    kept.rename(folder / "kept")
    (folder / "run/stages/teach/final").rename(kept)
    said = call(capsys, "train", path, EVERY, code=2)
    assert "its teacher, are no longer those of step 4" in said and "put them back" in said


@pytest.mark.parametrize(
    "stages, parts",
    [
        (
            [student(teacher="lesson"), sft("lesson")],
            ["stages.teach.advantage.teacher = 'lesson' is not an earlier stage"],
        ),
        (
            [student(teacher="nowhere")],
            ["advantage.teacher = 'nowhere' is no stage of this run", "no"],
        ),
        ([student(teacher="")], ["stages.teach.advantage.teacher", "at least 1"]),
    ],
    ids=["later", "missing", "empty"],
)
def test_a_teacher_that_is_not_there(tmp_path, capsys, stages, parts):
    said = call(capsys, "train", config(tmp_path, *stages, data=ONES), "--dry-run", code=2)
    assert not [part for part in parts if part not in said], said


def test_a_teacher_that_does_not_fit(tmp_path, capsys):
    def exported(name, model):
        folder = tmp_path / name
        folder.mkdir()
        train(config(folder, sft("lesson", steps=0), export(folder / "hf"), model=model, data=ONES))
        return str(folder / "hf")

    other = exported("other", MODEL.replace('"0123456789+=>,"', '"9876543210+=>,"'))
    short = exported("short", MODEL.replace("max_length = 16", "max_length = 12"))
    path = config(tmp_path, student(teacher=other), data=ONES)
    said = call(capsys, "train", path, "--dry-run", code=2)
    assert "has another tokenizer than the student" in said and "of the same family" in said
    path = config(tmp_path, student(teacher=short), data=ONES)
    said = call(capsys, "train", path, "--dry-run", code=2)
    assert "takes 12 tokens, and the student's context has 16" in said
    assert "set model.max_length to 12 or less" in said

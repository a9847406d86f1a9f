"""The preference stage: DPO on pairs from a file or from an evaluation."""

import json

import numpy as np
import pytest
from inprocess import ONES, call, config, evaluation, sft, train

from jaxrl_vr.config import load
from jaxrl_vr.losses.sequence import packed_dpo
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.stages import DpoStage

PAIRS = """
[[data]]
name = "pairs"
type = "jsonl"
path = "FOLDER/pairs.jsonl"
fields = { prompt = "prompt", completion = "completion", rejected = "rejected" }
"""


def dpo(name, *, steps=4, more=""):
    """The table of a small preference stage."""
    return f"""
[[stages]]
type = "dpo"
name = "{name}"
data = ["pairs"]
steps = {steps}
batch = 8
beta = 0.5
optimizer = {{ type = "adamw", learning_rate = 1e-2 }}
{more}
"""


def written(folder, n=16):
    """Pairs in which the sum is preferred to another number."""
    rng = np.random.default_rng(0)
    with (folder / "pairs.jsonl").open("w") as file:
        for _ in range(n):
            a, b = rng.integers(0, 5, 2)
            record = {"prompt": f"{a}+{b}=", "completion": f">{a + b}", "rejected": f">{a + b + 1}"}
            file.write(json.dumps(record) + "\n")
    return PAIRS.replace("FOLDER", str(folder))


def metrics(folder, stage):
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [m for m in map(json.loads, lines) if m["stage"] == stage]


def test_preferred_answers_become_likelier_than_the_others(tmp_path):
    path = config(tmp_path, dpo("prefer", steps=30), data=ONES + written(tmp_path))
    train(path)
    steps = metrics(tmp_path, "prefer")
    # Before the first update policy and reference agree: log 2 for each pair, which counts once.
    assert steps[0]["loss/total"] == pytest.approx(np.log(2), abs=1e-6)
    assert steps[0]["dpo/margin"] == pytest.approx(0, abs=1e-5)
    assert steps[-1]["dpo/margin"] > 0.5 and steps[-1]["dpo/accuracy"] > 0.9
    assert steps[-1]["loss/total"] < 0.5
    assert not any(name.startswith(("mismatch/", "policy/")) for name in steps[0])


def test_resumed_equals_uninterrupted_and_rows_do_not_matter(tmp_path, capsys):
    def hash_of(name, *overrides, runs=(4,)):
        folder = tmp_path / name
        folder.mkdir()
        data = ONES + written(folder)
        for steps in runs:
            (folder / "run/stages/prefer/result.json").unlink(missing_ok=True)
            path = config(folder, dpo("prefer", steps=steps), data=data)
            summary = train(path, "checkpoint.every=1", *overrides)
        return summary["parameter_hash"], metrics(folder, "prefer")

    whole, steps = hash_of("whole")
    assert hash_of("resumed", runs=(2, 4))[0] == whole
    assert "resuming prefer at step 2 of 4" in capsys.readouterr().out
    _, packed = hash_of("packed", "stages.prefer.micro={ rows = 8, row_length = 64 }")
    for a, b in zip(steps, packed, strict=True):
        assert a["loss/total"] == pytest.approx(b["loss/total"], abs=1e-5)
        assert a["optimizer/grad_norm"] == pytest.approx(b["optimizer/grad_norm"], rel=1e-4)


def test_pairs_of_an_evaluation(tmp_path):
    # The untrained model's answers to sums of 0 and 1 are right now and then.
    attempts = """
[[data]]
name = "problems"
type = "jsonl"
path = "FOLDER/problems.jsonl"
fields = { prompt = "q", reference = "a" }
verifier = { type = "exact" }
[[tasks]]
name = "attempts"
data = ["problems"]
samples = 32
sampling = { max_new_tokens = 2 }
""".replace("FOLDER", str(tmp_path))
    made = PAIRS.replace("FOLDER", "stage:look")
    problems = [{"q": f"{a}+{b}=", "a": str(a + b)} for a in range(5) for b in range(5)]
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(p) + "\n" for p in problems))
    look = evaluation("look").replace('["sums"]', '["attempts"]')
    path = config(tmp_path, look, dpo("prefer", steps=2), data=ONES + attempts + made)
    train(path)
    folder = tmp_path / "run/stages/look"
    answers = [json.loads(line) for line in (folder / "output.jsonl").read_text().splitlines()]
    found = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    expected = []
    for i in range(0, len(answers), 32):
        group = [a for a in answers[i : i + 32] if a["completion"].strip()]
        right = [a for a in group if a["verdict"] == "right"]
        wrong = [a for a in group if a["verdict"] == "wrong"]
        if right and wrong:
            sides = (right[0]["completion"], wrong[0]["completion"])
            expected.append((right[0]["prompt"], *sides, right[0]["reference"]))
    assert expected
    keys = ("prompt", "completion", "rejected", "reference")
    assert [tuple(p[key] for key in keys) for p in found] == expected
    # right.jsonl has no answer to a problem twice.
    right = [json.loads(line) for line in (folder / "right.jsonl").read_text().splitlines()]
    sides = [(r["prompt"], r["completion"]) for r in right]
    every = {(a["prompt"], a["completion"]) for a in answers if a["verdict"] == "right"}
    assert len(sides) == len(set(sides)) and set(sides) == every
    assert len(metrics(tmp_path, "prefer")) == 2


def test_beta_has_the_default_of_its_function():
    assert DpoStage.model_fields["beta"].default == packed_dpo.__kwdefaults__["beta"]


def test_what_cannot_be_a_pair_is_named(tmp_path, capsys):
    data = written(tmp_path, 2)
    no_field = data.replace(', rejected = "rejected"', "")
    path = config(tmp_path, dpo("prefer"), data=ONES + no_field)
    said = call(capsys, "train", path, "--dry-run", code=2)
    assert "example pairs:0 has no rejected, and a pair needs both" in said
    path = config(tmp_path, dpo("prefer"), data=ONES + data.replace('"rejected" }', '"worse" }'))
    said = call(capsys, "train", path, "--dry-run", code=2)
    assert "pairs.jsonl:1: field 'worse' is not there" in said
    same = data.replace('rejected = "rejected"', 'rejected = "completion"')
    said = call(capsys, "train", config(tmp_path, dpo("prefer"), data=same), "--dry-run", code=2)
    assert "fields.rejected and fields.completion are both 'completion'" in said
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "1", "completion": "2", "rejected": "2"}\n')
    said = call(
        capsys, "train", config(tmp_path, dpo("prefer"), data=ONES + data), "--dry-run", code=2
    )
    assert "example pairs:0 prefers '2' to itself, which teaches nothing" in said
    data = written(tmp_path, 2)
    path = config(tmp_path, dpo("prefer"), data=ONES + data)
    said = call(
        capsys, "train", path, "--dry-run", "stages.prefer.micro={ row_length = 16 }", code=2
    )
    assert "row_length = 16, but a sequence may have 32 tokens (2 x (max_tokens = 16)" in said
    shown = call(capsys, "train", path, "--dry-run")
    assert "stage prefer (dpo), 4 steps" in shown and "pairs                  8 per step" in shown
    sources = sft("cold").replace('["ones"]', '["pairs"]')
    assert load(RunConfig, [config(tmp_path, sources, data=ONES + data)]).stages[0].data == (
        "pairs",
    )

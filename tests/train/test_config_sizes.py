"""Sizes that only model and devices show to be wrong, said before the first stage."""

import pytest
from inprocess import ONES, call, config, evaluation, rl, sft

from jaxrl_vr.config import load
from jaxrl_vr.train.config import RunConfig


@pytest.mark.parametrize(
    "override, parts",
    [
        (
            "stages.grpo.sampling.max_new_tokens=16",
            ["stages.grpo.sampling.max_new_tokens = 16", "context of 16", "lower it"],
        ),
        (
            "tasks.sums.sampling.max_new_tokens=20",
            ["tasks.sums.sampling.max_new_tokens = 20", "context of 16"],
        ),
        (
            "stages.grpo.micro.row_length=12",
            ["stages.grpo.micro.row_length = 12", "16 tokens", "raise row_length to 16"],
        ),
        ("stages.cold.micro.row_length=12", ["stages.cold.micro.row_length = 12", "16 tokens"]),
        (
            "stages.cold.micro.rows=12",
            ["stages.cold.micro.rows = 12", "data x fsdp = 8 devices", "use 16"],
        ),
        (
            "stages.cold.diagnostics.gradient_noise_scale=true",
            [
                "stages.cold.diagnostics.gradient_noise_scale compares micro-batches",
                "batch = 8 fills at most 8 rows, and micro.rows = 8",
                "raise stages.cold.batch until an update has more than 8 rows",
            ],
        ),
        (
            "stages.grpo.diagnostics.gradient_noise_scale=true",
            [
                "prompts = 4 in updates = 1 with samples = 2 each fills at most 8 rows",
                "micro.rows = 8; raise stages.grpo.prompts until an update has more than 8 rows",
            ],
        ),
        ("mesh.data=3", ["mesh.data = 3 does not make up the 8 devices", "mesh.data = 8"]),
        ("model.vocab_size=5", ["tokenizer has 16 ids, the model only 5 rows"]),
        ('tokenizer.alphabet="00"', ["tokenizer.alphabet", "more than once"]),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_sizes_are_checked_before_the_first_stage(tmp_path, capsys, override, parts):
    path = config(tmp_path, sft("cold"), rl("grpo"), evaluation("after"))
    said = call(capsys, "train", path, override, code=2)
    missing = [part for part in parts if part not in said]
    assert not missing, said
    assert not (tmp_path / "run" / "stages").exists()
    # What is corrected is not held against the run.
    assert (tmp_path / "run" / "config.toml").exists()
    said = call(capsys, "train", path, "mesh.data=5", code=2)
    assert "cannot change" not in said and "mesh.data = 5" in said


# What a mesh cannot split -> what is said -> the setting that is said to work.
MESHES = {
    "devices": (
        ["mesh.fsdp=3", "mesh.data=1"],
        "mesh.fsdp = 3 does not make up the 8 devices; mesh.data = 8, mesh.fsdp = 1 works",
        ["mesh.data=8", "mesh.fsdp=1"],
    ),
    "rows": (
        ["mesh.context=4", "stages.cold.micro.row_length=18"],
        "stages.cold: mesh.context = 4 cannot split rows of 18 tokens (micro.row_length, by "
        "default the longest that may come); set micro.row_length = 20, or mesh.context = 2",
        ["stages.cold.micro.row_length=20"],
    ),
    "rows by default": (
        ["mesh.context=4", "model.max_length=18", "stages.cold.max_tokens=16"],
        "stages.grpo: mesh.context = 4 cannot split rows of 18 tokens (micro.row_length, by "
        "default the longest that may come); set micro.row_length = 20, or mesh.context = 2",
        ["mesh.context=2"],
    ),
    "rows of pairs": (
        ["mesh.context=8", "stages.pairs.max_tokens=6"],
        "stages.pairs: mesh.context = 8 cannot split rows of 12 tokens (micro.row_length, by "
        "default the longest that may come); set micro.row_length = 16, or mesh.context = 4",
        ["stages.pairs.micro.row_length=16"],
    ),
    "heads": (
        ["mesh.tensor=4"],
        "mesh.tensor = 4 does not divide the model's 2 query heads, so each of its devices would "
        "hold all of them; mesh.tensor = 2 works, with the other devices in data",
        ["mesh.tensor=2"],
    ),
    "vocabulary": (
        ["mesh.tensor=4", "model.heads=4", "model.vocab_size=18"],
        "mesh.tensor = 4 does not divide the model's 18 rows of the embedding, so each of its "
        "devices would hold all of them; mesh.tensor = 2 works, with the other devices in data",
        ["mesh.tensor=2"],
    ),
    "ffn": (
        ["mesh.tensor=4", "model.heads=4", "model.ffn=33"],
        "mesh.tensor = 4 does not divide the model's ffn of 33, so each of its devices would hold "
        "all of them; mesh.tensor = 1 works, with the other devices in data",
        ["mesh.tensor=1"],
    ),
    "width": (
        ["mesh.fsdp=8", "model.width=20"],
        "mesh.fsdp = 8 does not divide the model's width of 20, so each of its devices would hold "
        "all of them; mesh.fsdp = 4 works, with the other devices in data",
        ["mesh.fsdp=4"],
    ),
    "slots": (
        ["engine.slots=12"],
        "engine.slots = 12 cannot be split over data x fsdp x context = 8 devices, so that several "
        "would sample the same; use 16",
        ["engine.slots=16"],
    ),
}

# Several at once: all are said, and together the settings work.
MESHES |= {
    "heads, ffn and vocabulary": (
        ["mesh.tensor=4", "model.ffn=34", "model.vocab_size=18"],
        "error: mesh.tensor = 4 does not divide the model's 2 query heads, ffn of 34 and 18 rows "
        "of the embedding, so each of its devices would hold all of them; mesh.tensor = 2 works, "
        "with the other devices in data\n",
        ["mesh.tensor=2"],
    ),
    "model, slots and rows": (
        ["mesh.tensor=4", "engine.slots=6", "stages.cold.micro.rows=6"],
        "error: mesh.tensor = 4 does not divide the model's 2 query heads, so each of its devices "
        "would hold all of them; mesh.tensor = 2 works, with the other devices in data\n"
        "with that, engine.slots = 6 cannot be split over data x fsdp x context = 4 devices, so "
        "that several would sample the same; use 8\n"
        "with that, stages.cold.micro.rows = 6 cannot be split over data x fsdp = 4 devices; use "
        "8\n",
        ["mesh.tensor=2", "engine.slots=8", "stages.cold.micro.rows=8"],
    ),
    "devices, model, slots and rows": (
        [
            *("mesh.tensor=16", "mesh.context=3", "mesh.data=1", "engine.slots=3"),
            "stages.pairs.micro.row_length=12",
        ],
        "error: mesh: context 3 x tensor 16 = 48 does not make up the 8 devices; mesh.data = 1, "
        "mesh.context = 1, mesh.tensor = 8 works\n"
        "with that, mesh.tensor = 8 does not divide the model's 2 query heads, so each of its "
        "devices would hold all of them; mesh.tensor = 2 works, with the other devices in data\n"
        "with that, engine.slots = 3 cannot be split over data x fsdp x context = 4 devices, so "
        "that several would sample the same; use 4\n"
        "with that, stages.pairs.micro.row_length = 12, but a sequence may have 32 tokens (2 x "
        "(max_tokens = 16), for a pair lies in one row, where what is not set is what the context "
        "leaves); raise row_length to 32, or lower these limits\n",
        [
            *("mesh.tensor=2", "mesh.context=1", "mesh.data=-1", "engine.slots=4"),
            "stages.pairs.micro.row_length=32",
        ],
    ),
    "short rows that do not split": (
        ["mesh.context=8", "stages.pairs.max_tokens=6", "stages.pairs.micro.row_length=10"],
        "error: stages.pairs.micro.row_length = 10, but a sequence may have 12 tokens (2 x "
        "(max_tokens = 6), for a pair lies in one row, where what is not set is what the context "
        "leaves); raise row_length to 16, or lower these limits\n",
        ["stages.pairs.micro.row_length=16"],
    ),
}


@pytest.mark.parametrize("overrides, message, works", MESHES.values(), ids=list(MESHES))
def test_what_a_mesh_cannot_split_is_said_without_running(
    tmp_path, capsys, overrides, message, works
):
    dpo = sft("pairs", data="pairs").replace('"sft"', '"dpo"')
    data = f"""{ONES}
[[data]]
name = "pairs"
type = "jsonl"
path = "{tmp_path}/p.jsonl"
fields = {{ prompt = "q", completion = "a", rejected = "r" }}
"""
    (tmp_path / "p.jsonl").write_text('{"q": "1+1=", "a": ">", "r": "2"}\n')
    path = config(tmp_path, sft("cold"), dpo, rl("grpo"), data=data)
    args = "train", path, *overrides, "--dry-run"
    assert message in call(capsys, *args, code=2)
    call(capsys, *args, *works)


def test_row_length_of_shorter_limits_is_enough(tmp_path):
    more = "max_prompt_tokens = 6\nmicro = { rows = 8, row_length = 10 }"
    assert load(RunConfig, [config(tmp_path, rl("grpo", more=more))]).stages[0].name == "grpo"


def test_what_is_said_of_a_noise_scale_that_cannot_act_helps(tmp_path, capsys):
    more = "updates = 2\ndiagnostics = { gradient_noise_scale = true }"
    args = "train", config(tmp_path, rl("grpo", more=more)), "--dry-run", "stages.grpo.samples=8"
    said = call(capsys, *args, "stages.grpo.micro.rows=16", code=2)
    assert "fills at most 16 rows, and micro.rows = 16; set stages.grpo.micro.rows = 8" in said
    call(capsys, *args, "stages.grpo.micro.rows=8")


def test_a_noise_scale_is_of_rows_and_not_of_sequences(tmp_path, capsys):
    # 16 of an update, of which a row holds two, however long.
    more = """updates = 2
diagnostics = { gradient_noise_scale = true }
max_prompt_tokens = 4
"""
    args = "train", config(tmp_path, rl("grpo", more=more)), "--dry-run", "stages.grpo.samples=8"
    said = call(capsys, *args, "stages.grpo.micro.row_length=16", code=2)
    assert "fills at most 8 rows, and micro.rows = 8; raise stages.grpo.prompts until" in said
    call(capsys, *args, "stages.grpo.micro.row_length=8")


def test_several_hosts_are_refused(tmp_path, capsys, monkeypatch):
    # Each would sample as if alone, or read arrays that another holds.
    monkeypatch.setattr("jax.process_count", lambda *_: 4)
    said = call(capsys, "train", config(tmp_path, rl("grpo")), code=2)
    assert "JAX sees 4 hosts, and a run is on the devices of one so far" in said

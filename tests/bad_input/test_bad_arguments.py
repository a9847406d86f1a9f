"""Arguments of a command that it does not have: what was meant is said, and how it is written."""

import pytest
from inprocess import call, config, sft


@pytest.fixture
def path(tmp_path):
    return config(tmp_path, sft("cold"))


@pytest.mark.parametrize(
    "args, message",
    [
        (["--seed=3"], "--seed=3; overrides have no dashes, write seed=3"),
        (["--seed", "3"], "--seed; overrides have no dashes, write seed=3"),
        (["--seed", "--dry-run"], "--seed; overrides have no dashes, write seed=VALUE"),
        (["--seed"], "--seed; overrides have no dashes, write seed=VALUE"),
        (["-seed=3"], "-seed=3; overrides have no dashes, write seed=3"),
        (
            ["--stages.cold.steps=5"],
            "--stages.cold.steps=5; overrides have no dashes, write stages.cold.steps=5",
        ),
        (
            ["engine.slots=8", "--dry-run", "--dry.run=a=b"],
            "--dry.run=a=b; overrides have no dashes, write dry.run=a=b",
        ),
        (["--dryrun"], "--dryrun; did you mean --dry-run?"),
    ],
    ids=" ".join,
)
def test_an_option_that_train_does_not_have(path, capsys, args, message):
    said = call(capsys, "train", path, *args, code=2)
    assert said.endswith(f"jaxrl-vr train: error: unrecognized arguments: {message}\n")


def test_an_option_that_another_command_does_not_have(path, capsys):
    said = call(capsys, "eval", path, "--tasks", "sums", code=2)
    assert "unrecognized arguments: --tasks; did you mean --task?" in said
    said = call(capsys, "verify", "--verifier.tolerance=1", code=2)
    assert "overrides have no dashes, write verifier.tolerance=1" in said
    said = call(capsys, "plan", path, "--topology=h100:8", "--mesh.fsdp=8", code=2)
    assert "overrides have no dashes, write mesh.fsdp=8" in said


def test_a_key_of_the_config_is_no_option_that_is_near(path, capsys):
    said = call(capsys, "plan", path, "--topology", "h100:1", "--seed=3", code=2)
    assert "overrides have no dashes, write seed=3" in said


@pytest.mark.parametrize("word", ["seed", "seed 3", "seed:3"])
def test_an_override_without_an_equals_sign(path, capsys, word):
    said = call(capsys, "train", path, word, code=2)
    assert said == (
        f"error: {word}: there is no such file; check the path; an override is written seed=value\n"
    )


@pytest.mark.parametrize(
    "word, near",
    [
        ("quickstart", "quickstart"),
        ("quickstrat.toml", "quickstart"),
        ("quickstart.tml", "quickstart"),
        ("qwen2.5_1.5b_v5e", "qwen2.5_1.5b_v5e"),
    ],
)
def test_the_name_of_a_config_that_lies_in_its_folder(tmp_path, capsys, monkeypatch, word, near):
    (tmp_path / "configs").mkdir()
    for name in ("quickstart", "qwen2.5_1.5b_v5e", "seeds"):
        (tmp_path / "configs" / f"{name}.toml").touch()
    monkeypatch.chdir(tmp_path)
    said = call(capsys, "train", word, code=2)
    assert said == f"error: {word}: there is no such file; did you mean configs/{near}.toml?\n"


def test_an_override_that_begins_like_a_config(tmp_path, capsys, monkeypatch):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "grpo.toml").touch()
    monkeypatch.chdir(tmp_path)
    said = call(capsys, "train", "grpo.steps", code=2)
    assert "check the path; an override is written grpo.steps=value" in said


def test_overrides_without_a_file(capsys):
    said = call(capsys, "train", "seed=3", code=2)
    assert said == (
        "error: no config file before seed=3; name one, such as configs/quickstart.toml\n"
    )


def test_a_stage_of_another_type_says_what_it_lacks(path, capsys):
    said = call(capsys, "train", path, "stages.cold.type=rl", "--dry-run", code=2)
    for part in (
        'command line: stages.cold.type = "rl": another type drops all keys but the name',
        'stages.cold.data (was ["ones"])',
        "stages.cold.steps (was 1)",
        "stages.cold.prompts (an integer)",
        'batch does not belong to type "rl"',
    ):
        assert part in said, said
    assert said.count("missing") == 1
    said = call(capsys, "train", path, "model.type=pretrained", "--dry-run", code=2)
    assert (
        "another type drops all other keys, so these are missing and to be set: model.path" in said
    )


def test_a_list_of_stages_in_brackets_and_a_switch_in_words(path, capsys):
    said = call(capsys, "train", path, "stages[0].steps=3", "--dry-run", code=2)
    assert "an item of a list is named behind a dot; write stages.cold.steps" in said
    said = call(capsys, "train", path, "stages=3", "--dry-run", code=2)
    assert "[[stages]] in a file" in said and "stages.NAME.key=value" in said
    for value in ("yes", "True", "1"):
        override = f"stages.cold.micro.share_prefixes={value}"
        said = call(capsys, "train", path, override, "--dry-run", code=2)
        assert "must be true or false; write true" in said

"""Errors in values: the key, the value, the fix, and the file that the value is from."""

import pytest
from config_models import BASE, Objective, Plain, errors

from jaxrl_vr.config import ConfigError, parse


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sed=3", "sed = 3: unknown key; did you mean `seed`?"),
        (
            "zzz.a=3",
            "zzz: unknown key; there are seed, is_fast, dtype, note, extra, shares, backup, stages",
        ),
        (
            "stages.sft.objective.lo=1",
            "stages.sft.objective.lo = 1: unknown key; did you mean `low`?",
        ),
        (
            "stages.sft.objective.scale=1",
            'stages.sft.objective.scale = 1: unknown key; it belongs to type "plain", and this is '
            '"clip"',
        ),
        (
            "stages.sft.learning_rate=1",
            "stages.sft.learning_rate = 1: unknown key; did you mean `optimizer.learning_rate`?",
        ),
        ("seed=x", 'seed = "x": must be an integer'),
        ("seed=1e3", "seed = 1000.0: must be an integer; write 1000"),
        ("seed=1.5", "seed = 1.5: must be an integer"),
        ("seed=true", "seed = true: must be an integer"),
        ('seed="3"', 'seed = "3": must be an integer; write 3, without quotes'),
        ("is_fast=True", 'is_fast = "True": must be true or false; write true, without quotes'),
        ("is_fast=1", "is_fast = 1: must be true or false; write true"),
        ("is_fast=0", "is_fast = 0: must be true or false; write false"),
        ("is_fast=2", "is_fast = 2: must be true or false"),
        ("is_fast=yes", 'is_fast = "yes": must be true or false; write true, without quotes'),
        ("is_fast=Off", 'is_fast = "Off": must be true or false; write false, without quotes'),
        ("is_fast=maybe", 'is_fast = "maybe": must be true or false'),
        ("note=3", 'note = 3: must be text in quotes; write "3"'),
        ("shares=3", "shares = 3: must be a table"),
        ("shares.a=x", 'shares.a = "x": must be a number'),
        ("stages.end.tasks=a", 'stages.end.tasks = "a": must be a list; write ["a"]'),
        (
            "dtype=bfloat",
            'dtype = "bfloat": must be "float32" or "bfloat16"; did you mean `bfloat16`?',
        ),
        (
            "stages.sft.objective.low=-1",
            "stages.sft.objective.low = -1: must be greater than or equal to 0",
        ),
        (
            "stages.sft.objective={type='clap'}",
            'stages.sft.objective.type = "clap": must be "clip" or "plain"; did you mean `clip`?',
        ),
        (
            "stages.sft.objective=clip",
            'stages.sft.objective = "clip": must be a table; write { type = "clip" }',
        ),
        (
            "stages.sft.objective=plane",
            'stages.sft.objective = "plane": must be a table; write { type = "plain" }',
        ),
        (
            "stages.sft.objective=3",
            'stages.sft.objective = 3: must be a table; its type is "clip" or "plain"',
        ),
        (
            "stages.sft.optimizer=3",
            "stages.sft.optimizer = 3: must be a table; its keys are learning_rate, warmup",
        ),
        (
            "backup=none",
            'backup = "none": must be a table; TOML has no word for none, which is the default; '
            "leave it out",
        ),
        (
            "stages=3",
            "stages = 3: must be a list; its items are tables, [[stages]] in a file; to change "
            "one of them, write stages.NAME.key=value",
        ),
        (
            "stages={}",
            "stages: must be a list; its items are tables, [[stages]] in a file; to change one of "
            "them, write stages.NAME.key=value",
        ),
        ("stages.end.tasks=3", 'stages.end.tasks = 3: must be a list; write ["3"]'),
        ("steps=3", "steps = 3: unknown key; did you mean `stages.NAME.steps`?"),
        ("tasks=[]", "tasks = []: unknown key; did you mean `stages.NAME.tasks`?"),
        # What is like it further out goes before the same further in.
        ("step=3", "step = 3: unknown key; did you mean `stages.NAME.steps`?"),
        (
            "warmup=3",
            "warmup = 3: unknown key; did you mean `backup.warmup`?",
        ),
        ("low=3", "low = 3: unknown key; did you mean `stages.NAME.objective.low`?"),
        ("end.tasks=[]", "end: unknown key; did you mean `stages.end`?"),
        (
            "stages.sft.micro=atuo",
            'stages.sft.micro = "atuo": must be an integer or "auto"; did you mean `auto`?',
        ),
        ("stages.sft.micro=0", 'stages.sft.micro = 0: must be greater than 0 or "auto"'),
        (
            "stages.sft.updates=x",
            'stages.sft.updates = "x": must be an integer',
        ),
        (
            "stages.sft.updates=[{step=0, updates=1}, {step='1', updates=1}]",
            'stages.sft.updates.1.step = "1": must be an integer; write 1, without quotes',
        ),
        (
            "stages.sft.updates=[{step=0}]",
            "stages.sft.updates.0.updates: missing; it must be an integer",
        ),
        ("stages=[]", "stages = []: must have at least 1 item, not 0"),
        (
            "backup.warmup=1",
            "backup.learning_rate: missing; it must be a number",
        ),
        ("stages=[{name='a'}]", 'stages.a.type: missing; it must be "train" or "score"'),
    ],
)
def test_error_in_a_value(files, override, message):
    assert errors(files, override) == [f"command line: {message}"]


def test_errors_name_the_file_that_the_value_is_from(files):
    more = "sed = 1\n[shares]\nb = 'x'"
    assert errors(files, "is_fast=2", base=BASE + "[backup]\nwarmup = 1", more=more) == [
        "command line: is_fast = 2: must be true or false",
        'more.toml: shares.b = "x": must be a number',
        "base.toml: backup.learning_rate: missing; it must be a number",
        "more.toml: sed = 1: unknown key; did you mean `seed`?",
    ]


def test_a_missing_key_names_all_files_that_could_hold_it(files):
    assert errors(files, base="seed = 1", more="is_fast = true") == [
        "base.toml, more.toml: stages: missing; it must be a list"
    ]


def test_a_validators_own_message_passes_through(files):
    assert errors(files, base=BASE.replace('name = "sft"', 'name = "sft"\nsteps = 13')) == [
        "base.toml: stages.sft: steps = 13 brings bad luck; use 14"
    ]
    assert errors(files, "stages.sft.steps=13") == [
        "base.toml, command line: stages.sft: steps = 13 brings bad luck; use 14"
    ]


def test_a_file_that_only_has_other_items_is_not_blamed(files):
    more = "[[stages]]\ntype = 'train'\nname = 'new'"
    assert errors(files, base=BASE, more=more) == [
        "more.toml: stages.new.optimizer: missing; it must be a table"
    ]
    more = "[[stages]]\nname = 'rl.v2'\nsteps = 'many'"
    assert errors(files, base=BASE, more=more) == [
        'more.toml: stages.rl.v2.steps = "many": must be an integer'
    ]


def test_errors_in_items_do_not_make_the_list_too_short(files):
    assert errors(files, base="[[stages]]\ntype = 'score'\nname = 3") == [
        'base.toml: stages.0.name = 3: must be text in quotes; write "3"'
    ]


def test_a_long_value_is_cut(files):
    (line,) = errors(files, f"seed={'x' * 500}")
    assert line == f'command line: seed = "{"x" * 58}…: must be an integer'


def test_parse_checks_one_part_and_says_where_it_is():
    assert parse(Objective, {"type": "plain", "scale": 2}) == Plain(scale=2.0)
    with pytest.raises(ConfigError) as caught:
        parse(Objective, {"type": "plain", "scala": 2}, at="data.gsm8k.verifier")
    assert str(caught.value) == (
        "data.gsm8k.verifier.scala = 2: unknown key; did you mean `scale`?"
    )

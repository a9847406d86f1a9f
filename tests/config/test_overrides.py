"""Overrides: what they set, and what is said of those that name or say nothing."""

import pytest
from config_models import BASE, Clip, Optimizer, Plain, Run, Score, errors

from jaxrl_vr.config import load


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("seed=7", "seed", 7),
        ("seed = 7 ", "seed", 7),
        ("note=plain words/and.dots", "note", "plain words/and.dots"),
        ('note="7"', "note", "7"),
        ("note=", "note", ""),
        ("note=a=b", "note", "a=b"),
        ("is_fast=true", "is_fast", True),
        ("shares.b=1", "shares", {"a": 0.5, "b": 1.0}),
        ("shares={c = 2.5}", "shares", {"c": 2.5}),
        ("extra.deep.er=[1, 'x']", "extra", {"deep": {"er": [1, "x"]}}),
        ("backup.learning_rate=1", "backup", Optimizer(learning_rate=1.0)),
    ],
)
def test_override(files, override, key, value):
    assert getattr(load(Run, files(base=BASE), [override]), key) == value


def test_list_items_by_index_and_by_name(files):
    base = files(base=BASE)
    config = load(Run, base, ["stages.0.steps=3", "stages.rl.v2.steps=4", "stages.end.tasks=['a']"])
    assert [getattr(s, "steps", None) for s in config.stages] == [3, 4, None]
    assert config.stages[2] == Score(name="end", tasks=("a",))
    config = load(Run, base, ["stages.rl.v2.optimizer.warmup=9", "stages.end.tasks=[]"])
    assert config.stages[1].optimizer == Optimizer(learning_rate=1e-4, warmup=9)  # pyright: ignore


def test_the_last_override_wins(files):
    assert load(Run, files(base=BASE), ["seed=3", "seed=4"]).seed == 4


def test_another_type_starts_a_table_anew(files):
    names = files(base=BASE, more="[extra]\ntype = 'a'\nx = 1\nname = 'n'")
    config = load(Run, names, ["stages.rl.v2.objective.type=plain", "extra.type=b", "extra.y=2"])
    assert config.stages[1].objective == Plain()  # pyright: ignore
    assert config.extra == {"type": "b", "name": "n", "y": 2}
    files(other="[extra]\ntype = 'b'\nz = 1")
    assert load(Run, [*names, "other.toml"]).extra == {"type": "b", "name": "n", "z": 1}
    # The same type again is no new table.
    assert load(Run, names, ["extra.type=a"]).extra == {"type": "a", "x": 1, "name": "n"}


def test_a_new_type_does_not_drop_an_earlier_override_silently(files):
    assert errors(files, "stages.sft.steps=5", "stages.sft.type=score") == [
        "command line: stages.sft.type=score: another type drops stages.sft.steps=5, which stands "
        "before it; put the type first"
    ]


def test_a_table_without_a_type_has_the_defaults(files):
    config = load(Run, files(base=BASE), ["stages.sft.objective.low=0.3"])
    assert config.stages[0].objective == Clip(low=0.3)  # pyright: ignore


BEHIND_A_DOT = "an item of a list is named behind a dot; write"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stages.rl.v3.steps=1", "stages has no item 'rl'; there are sft, rl.v2, end"),
        ("stages.3.steps=1", "stages has no item '3'; there are sft, rl.v2, end"),
        (
            "stages.steps=1",
            "stages has no item 'steps'; there are sft, rl.v2, end, each with keys of its own, as "
            "in stages.sft.steps",
        ),
        ("stages[1].steps=1", f"{BEHIND_A_DOT} stages.rl.v2.steps"),
        ("stages[rl.v2].optimizer.warmup=1", f"{BEHIND_A_DOT} stages.rl.v2.optimizer.warmup"),
        ("stages['end']={}", f"{BEHIND_A_DOT} stages.end"),
        (
            "stages[7].steps=1",
            f"{BEHIND_A_DOT} stages.NAME.steps; there are sft, rl.v2, end",
        ),
        ("seed.a=1", "seed is 1, which has no keys"),
        ("seed", "is not an override; write key=value, as in stages.rl.steps=3"),
        ("a..b=1", "is not an override; write key=value, as in stages.rl.steps=3"),
        ("--seed=1", "overrides have no dashes; write seed=1"),
    ],
)
def test_error_in_an_override(files, override, message):
    assert errors(files, override) == [f"command line: {override}: {message}"]


def test_an_item_without_a_name_in_brackets(files):
    base = BASE + "tasks = ['a']"
    assert errors(files, "stages.end.tasks[0]=b", base=base) == [
        f"command line: stages.end.tasks[0]=b: {BEHIND_A_DOT} stages.end.tasks.0"
    ]
    # Where there is no such list, the key is as unknown as any other.
    assert errors(files, "seed[0]=b") == [
        'command line: seed[0] = "b": unknown key; did you mean `seed`?'
    ]


def test_a_half_list_is_not_taken_for_text(files):
    (line,) = errors(files, "extra.x=[a, b]")
    assert line.startswith("command line: extra.x=[a, b]: the value is not TOML: Invalid value")


def test_an_override_that_is_no_text(files):
    (line,) = errors(files, "note=\udcff")
    assert line == "command line: note=\udcff: is not UTF-8 text; write it as such"

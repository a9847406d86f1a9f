"""Differences between two configs."""

import tomllib

import pytest
from config_models import BASE, Run, runs
from hypothesis import given

from jaxrl_vr.config import difference, dump, load


def test_difference_names_keys_and_both_values(files):
    base = files(base=BASE)
    old = load(Run, base)
    new = load(Run, base, ["seed=2", "stages.sft.steps=11", "note=hi", "stages.end.tasks=['a']"])
    expected = [
        "seed: was 1, now 2",
        "stages.sft.steps: was 10, now 11",
        'stages.end.tasks: was [], now ["a"]',
        'note: was not set, now "hi"',
    ]
    assert difference(old, new, may_change=()) == expected
    assert difference(tomllib.loads(dump(old)), new, may_change=()) == expected
    assert difference(old, old, may_change=()) == []


@pytest.mark.parametrize(
    ("may_change", "left"),
    [
        (("stages",), []),
        (("stages.*.steps",), ["stages.rl.v2.optimizer.warmup: was 5, now 6"]),
        (("stages.*.optimizer",), ["stages.sft.steps: was 10, now 11"]),
        (("stages.*.steps", "stages.*.optimizer.warmup"), []),
        (("stages.sft",), ["stages.rl.v2.optimizer.warmup: was 5, now 6"]),
        (("steps", "stages.sft.step"), 2),
    ],
)
def test_difference_allows_prefixes(files, may_change, left):
    base = files(base=BASE)
    new = load(Run, base, ["stages.sft.steps=11", "stages.rl.v2.optimizer.warmup=6"])
    found = difference(load(Run, base), new, may_change=may_change)
    assert (len(found) if isinstance(left, int) else found) == left


def test_difference_in_stages_added_moved_and_of_another_type(files):
    base = files(base=BASE)
    old = load(Run, base)
    a, b, c = old.stages
    moved = old.model_copy(update={"stages": (b, a, c)})
    assert difference(old, moved, may_change=()) == [
        'stages: was in the order ["sft", "rl.v2", "end"], now ["rl.v2", "sft", "end"]'
    ]
    fewer = old.model_copy(update={"stages": (a, b)})
    assert difference(fewer, old, may_change=("stages.*.steps",)) == [
        'stages.end: was not set, now { type = "score", name = "end", tasks = [] }'
    ]
    other = load(Run, base, ["stages.rl.v2.objective={type = 'plain'}"])
    assert difference(old, other, may_change=()) == [
        'stages.rl.v2.objective.type: was "clip", now "plain"'
    ]


@given(runs, runs)
def test_difference_is_empty_only_for_equal_configs(old, new):
    assert difference(old, old, may_change=()) == []
    assert bool(difference(old, new, may_change=())) == (
        old.model_dump(mode="json") != new.model_dump(mode="json")
    )
    assert difference(old, new, may_change=("*",)) == []

"""The config loader: merging, overrides, errors, dump, difference; with models of its own."""

import math
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, PositiveInt, ValidationError, model_validator

from jaxrl_vr.config import Config, ConfigError, LocalPath, difference, dump, load, parse


class Clip(Config):
    type: Literal["clip"] = "clip"
    low: float = Field(default=0.2, ge=0)


class Plain(Config):
    type: Literal["plain"] = "plain"
    scale: float = 1.0


Objective = Annotated[Clip | Plain, Field(discriminator="type")]


class Optimizer(Config):
    learning_rate: float
    warmup: int = 0


class From(Config):
    step: int
    updates: int


class Train(Config):
    type: Literal["train"] = "train"
    name: str = Field(min_length=1)
    steps: int = 10
    optimizer: Optimizer
    objective: Objective = Clip()
    updates: PositiveInt | tuple[From, ...] = 1
    micro: PositiveInt | Literal["auto"] = "auto"

    @model_validator(mode="after")
    def _check(self) -> "Train":
        if self.steps == 13:
            raise ValueError("steps = 13 brings bad luck; use 14")
        return self


class Score(Config):
    type: Literal["score"] = "score"
    name: str
    tasks: tuple[str, ...] = ()


class Run(Config):
    seed: int = 0
    is_fast: bool = False
    dtype: Literal["float32", "bfloat16"] = "float32"
    note: str | None = None
    extra: dict[str, Any] = {}
    shares: Mapping[str, float] = {}
    backup: Optimizer | None = None
    stages: tuple[Annotated[Train | Score, Field(discriminator="type")], ...] = Field(min_length=1)


BASE = """
seed = 1
[shares]
a = 0.5
[[stages]]
type = "train"
name = "sft"
optimizer.learning_rate = 1e-3
[[stages]]
type = "train"
name = "rl.v2"
optimizer = {learning_rate = 1e-4, warmup = 5}
objective = {type = "clip", low = 0.1}
[[stages]]
type = "score"
name = "end"
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Makes files in the working directory: `files(base=..., more=...)` -> their names."""
    monkeypatch.chdir(tmp_path)

    def make(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
        return [f"{name}.toml" for name in texts]

    return make


def errors(files, *overrides, **texts):
    with pytest.raises(ConfigError) as caught:
        load(Run, files(**texts or {"base": BASE}), overrides)
    lines = str(caught.value).split("\n")
    return lines if len(lines) == 1 else [line.strip() for line in lines[1:]]


def test_a_config_is_frozen_and_refuses_unknown_keys():
    with pytest.raises(ValidationError, match="frozen"):
        Clip().low = 1.0  # pyright: ignore
    with pytest.raises(ValidationError, match="Extra inputs"):
        Clip(high=1.0)  # pyright: ignore


def test_tables_merge_and_everything_else_replaces(files):
    more = "seed = 2\n[shares]\nb = 0.5\n[extra]\nlist = [3]"
    config = load(Run, files(base=BASE + "[extra]\nlist = [1, 2]", more=more))
    assert (config.seed, config.shares, config.extra) == (2, {"a": 0.5, "b": 0.5}, {"list": [3]})


def test_lists_of_named_tables_merge_by_name(files):
    more = """
[[stages]]
name = "rl.v2"
steps = 77
[stages.optimizer]
warmup = 9
[[stages]]
type = "score"
name = "z"
"""
    before, after = (
        load(Run, files(**texts)) for texts in ({"base": BASE}, dict(base=BASE, more=more))
    )
    assert [s.name for s in after.stages] == ["sft", "rl.v2", "end", "z"]
    assert after.stages[0] == before.stages[0] and after.stages[2] == before.stages[2]
    assert after.stages[1].steps == 77 and after.stages[1].optimizer.warmup == 9
    assert after.stages[1].optimizer.learning_rate == before.stages[1].optimizer.learning_rate
    assert after.stages[3] == Score(name="z")


def test_new_names_stand_before_the_next_known_one_of_their_file(files):
    more = "".join(
        f'[[stages]]\ntype = "score"\nname = "{name}"\n'
        if name in "abc"
        else f'[[stages]]\nname = "{name}"\n'
        for name in ("a", "rl.v2", "b", "end", "c")
    )
    names = [s.name for s in load(Run, files(base=BASE, more=more)).stages]
    assert names == ["sft", "a", "rl.v2", "b", "end", "c"]


def test_items_of_another_type_start_anew(files):
    more = '[[stages]]\ntype = "score"\nname = "sft"'
    assert load(Run, files(base=BASE, more=more)).stages[0] == Score(name="sft")


def test_lists_without_names_are_replaced(files):
    lists = "[extra]\nlist = [{ a = 1 }, { a = 2 }]"
    more = "[extra]\nlist = [{ b = 3 }]"
    assert load(Run, files(base=BASE + lists, more=more)).extra == {"list": [{"b": 3}]}


def test_the_last_file_wins_whatever_the_order_of_its_keys(files):
    names = files(base=BASE, one="seed = 5", two="seed = 6")
    assert load(Run, names).seed == 6
    assert load(Run, [names[0], names[2], names[1]]).seed == 5


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
        ("is_fast=1", "is_fast = 1: must be true or false"),
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
        ("stages.sft.objective=clip", 'stages.sft.objective = "clip": must be a table'),
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


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stages.rl.v3.steps=1", "stages has no item 'rl'; there are sft, rl.v2, end"),
        ("stages.3.steps=1", "stages has no item '3'; there are sft, rl.v2, end"),
        ("seed.a=1", "seed is 1, which has no keys"),
        ("seed", "is not an override; write key=value, as in stages.rl.steps=3"),
        ("a..b=1", "is not an override; write key=value, as in stages.rl.steps=3"),
        ("--seed=1", "overrides have no dashes; write seed=1"),
    ],
)
def test_error_in_an_override(files, override, message):
    assert errors(files, override) == [f"command line: {override}: {message}"]


def test_a_half_list_is_not_taken_for_text(files):
    (line,) = errors(files, "extra.x=[a, b]")
    assert line.startswith("command line: extra.x=[a, b]: the value is not TOML: Invalid value")


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


def test_a_missing_file_names_the_nearest(files):
    files(quickstart=BASE)
    with pytest.raises(ConfigError) as caught:
        load(Run, ["quickstrat.toml"])
    assert str(caught.value) == (
        "quickstrat.toml: there is no such file; did you mean quickstart.toml?"
    )


def test_a_syntax_error_names_the_line(files):
    with pytest.raises(ConfigError) as caught:
        load(Run, files(base="seed = 1\nis_fast = yes\n"))
    assert str(caught.value).startswith("base.toml: is not TOML: Invalid value (at line 2, column")
    assert str(caught.value).endswith(": is_fast = yes")


def test_a_folder_and_a_binary_file_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read .*; give a TOML file"):
        load(Run, [tmp_path])
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="x.toml: is not UTF-8 text"):
        load(Run, [tmp_path / "x.toml"])


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path):
    (tmp_path / "x.toml").write_bytes(b"\xef\xbb\xbf" + BASE.encode())
    assert load(Run, [tmp_path / "x.toml"]).seed == 1


NUMBERS = ["inf", "-inf", "nan", "1e999", "9" * 400]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda n: n[:5])
def test_no_number_of_any_config_is_infinite_or_nan(files, number):
    # the rule is Config's own, so it holds wherever a number stands: field, union, mapping, None
    default = {
        "stages.sft.optimizer.learning_rate": "",
        "stages.rl.v2.objective.low": "; leave it out for the default, 0.2",
        "shares.b": "",
        "backup.learning_rate": "",
    }
    for key, fix in default.items():
        (line,) = errors(files, f"{key}={number}")
        start, _, rest = line.partition(": must be a finite number")
        assert start.startswith(f"command line: {key} = ") and rest == fix
    (line,) = errors(files, base=BASE.replace("a = 0.5", f"a = {number}"))
    assert line.startswith("base.toml: shares.a = ") and line.endswith("must be a finite number")
    with pytest.raises(ValidationError, match="finite number"):
        Clip(low=float(number))


UNWRITABLE = {
    "digits": ("9" * 5000, "holds an integer of more than 4300 digits; shorten it"),
    "hexadecimal": ("0x" + "f" * 5000, "holds an integer of more than 4300 digits; shorten it"),
    "depth": ("[" * 9000 + "]" * 9000, "lie too deep in each other; flatten them"),
}


@pytest.mark.parametrize("value, message", UNWRITABLE.values(), ids=UNWRITABLE)
def test_toml_that_python_cannot_hold(files, value, message):
    (line,) = errors(files, base=f"seed = {value}")
    assert line.startswith("base.toml: ") and line.endswith(message)
    (line,) = errors(files, f"seed={value}")
    assert line.startswith(f"command line: seed={value[:50]}") and line.endswith(message)
    assert len(line) < 200


def test_an_override_that_is_no_text(files):
    (line,) = errors(files, "note=\udcff")
    assert line == "command line: note=\udcff: is not UTF-8 text; write it as such"


class Paths(Config):
    path: LocalPath
    other: LocalPath | None = None


def test_a_path_may_start_at_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert parse(Paths, {"path": "~/data", "other": "~"}) == Paths(path="/home/me/data", other="~")
    assert Paths(path="~/data").path == "/home/me/data"
    for same in ("a/~/b", "/a", "stage:x/right.jsonl", "org/name"):
        assert Paths(path=same).path == same
    with pytest.raises(ConfigError) as caught:
        parse(Paths, {"path": "~nobody-of-this-name/x", "other": "a\0b"})
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        "path = \"~nobody-of-this-name/x\": there is no home folder of '~nobody-of-this-name'; "
        "write the whole path, or ./~nobody-of-this-name/x for a name that begins with ~",
        'other = "a\\u0000b": holds a NUL character, which no path may; take it out',
    ]


def test_parse_checks_one_part_and_says_where_it_is():
    assert parse(Objective, {"type": "plain", "scale": 2}) == Plain(scale=2.0)
    with pytest.raises(ConfigError) as caught:
        parse(Objective, {"type": "plain", "scala": 2}, at="data.gsm8k.verifier")
    assert str(caught.value) == (
        "data.gsm8k.verifier.scala = 2: unknown key; did you mean `scale`?"
    )


def test_dump_is_readable(files):
    config = load(Run, files(base=BASE), ['note="two\\nlines"', "extra={a = {}}"])
    assert dump(config) == DUMPED


DUMPED = '''seed = 1
is_fast = false
dtype = "float32"
note = """
two
lines"""

[extra.a]

[shares]
a = 0.5

[[stages]]
type = "train"
name = "sft"
steps = 10
updates = 1
micro = "auto"

[stages.optimizer]
learning_rate = 0.001
warmup = 0

[stages.objective]
type = "clip"
low = 0.2

[[stages]]
type = "train"
name = "rl.v2"
steps = 10
updates = 1
micro = "auto"

[stages.optimizer]
learning_rate = 0.0001
warmup = 5

[stages.objective]
type = "clip"
low = 0.1

[[stages]]
type = "score"
name = "end"
tasks = []
'''


text = st.text(max_size=8)
values = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(text.filter(bool), inner, max_size=3)
    ),
    max_leaves=8,
)
finite = st.floats(allow_nan=False, allow_infinity=False)
optimizers = st.builds(Optimizer, learning_rate=finite, warmup=st.integers())
stages = st.builds(
    Train,
    name=st.text(min_size=1, max_size=5),
    steps=st.integers(20, 30),
    optimizer=optimizers,
    objective=st.builds(Plain, scale=finite) | st.just(Clip()),
    updates=st.integers(1, 3) | st.lists(st.builds(From), max_size=2).map(tuple),
) | st.builds(Score, name=text, tasks=st.lists(text, max_size=2).map(tuple))
runs = st.builds(
    Run,
    seed=st.integers(),
    note=st.none() | st.text(),
    extra=st.dictionaries(text, values, max_size=4),
    shares=st.dictionaries(text, finite, max_size=3),
    backup=st.none() | optimizers,
    stages=st.lists(stages, min_size=1, max_size=3).map(tuple),
)


@given(runs)
def test_load_reads_what_dump_writes(tmp_path_factory, config):
    path = tmp_path_factory.mktemp("dump") / "config.toml"
    path.write_bytes(dump(config).encode())
    assert load(Run, [path]) == config


def test_dump_keeps_what_is_not_finite(files):
    config = Run(extra={"a": math.inf, "b": math.nan}, stages=(Score(name="x"),))
    again = load(Run, files(base=dump(config))).extra
    assert again["a"] == math.inf and math.isnan(again["b"])


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

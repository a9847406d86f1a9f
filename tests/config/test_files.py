"""Config files: how they merge, and what is said of those that cannot be read."""

import pytest
from config_models import BASE, Run, Score

from jaxrl_vr.config import ConfigError, load


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

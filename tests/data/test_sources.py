"""Files and data sets as examples, and a message for each way in which they can be bad."""

import json
import sys
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from jaxrl_vr.data.sources import Source, load
from jaxrl_vr.types import Example, Message

SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"
ADAPTER = TypeAdapter(Source)


def source(**fields):
    return ADAPTER.validate_python({"name": "s", **fields})


def write(path, *records):
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("".join(line + "\n" for line in lines))
    return str(path)


def items(**fields):
    return load(source(**fields), seed=0).items


def test_named_fields(tmp_path):
    path = write(
        tmp_path / "a.jsonl",
        {"q": "1+1?", "a": 2, "demo": "It is 2", "key": "x", "level": "Level 3"},
        "",
        {"q": "2+2?", "a": [4, 5], "demo": "4", "key": 7, "level": 2.5},
    )
    fields = dict(prompt="q", reference="a", completion="demo", id="key", difficulty="level")
    verifier = {"type": "math_answer"}
    found = items(type="jsonl", path=path, fields=fields, verifier=verifier)
    assert found == (
        Example("x", "1+1?", "2", verifier, "s", 3.0, "It is 2"),
        Example("7", "2+2?", "[4, 5]", verifier, "s", 2.5, "4"),
    )


def test_defaults_read_what_runs_write(tmp_path):
    record = {"prompt": "q", "completion": "c", "reference": "r", "tokens": [1, 2]}
    path = write(tmp_path / "a.jsonl", record, record)
    assert items(type="jsonl", path=path)[1] == Example("1", "q", source="s")
    fields = {"reference": "reference", "completion": "completion"}
    found = items(type="jsonl", path=path, fields=fields)
    assert (found[0].reference, found[0].completion) == ("r", "c")


def test_chats(tmp_path):
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    path = write(tmp_path / "a.jsonl", {"m": turns}, {"m": turns[:1]})
    found = items(type="jsonl", path=path, fields={"messages": "m"})
    assert [(e.prompt, e.completion) for e in found] == [
        ((Message("user", "q"),), "a"),
        ((Message("user", "q"),), None),
    ]


def test_pairs_of_texts_and_of_chats(tmp_path):
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "better"}]
    worse = [{"role": "assistant", "content": "worse"}]
    path = write(
        tmp_path / "a.jsonl",
        {"prompt": "q", "chosen": chat, "rejected": worse},
        {"prompt": "q", "chosen": "better", "rejected": "worse"},
        {"prompt": "q", "chosen": chat[:1], "rejected": "worse"},
    )
    fields = {"completion": "chosen", "rejected": "rejected"}
    found = items(type="jsonl", path=path, fields=fields, limit=2)
    assert [(e.prompt, e.completion, e.rejected) for e in found] == [("q", "better", "worse")] * 2
    with pytest.raises(ValueError, match="a.jsonl:3: field 'chosen' is a chat that does not end"):
        items(type="jsonl", path=path, fields=fields)


def test_plain_text(tmp_path):
    path = write(tmp_path / "a.jsonl", {"text": "once upon"})
    found = items(type="jsonl", path=path, fields={"text": "text"})
    assert (found[0].prompt, found[0].completion) == ("", "once upon")


def test_limit_and_fingerprint(tmp_path):
    path = write(tmp_path / "a.jsonl", *({"prompt": str(i)} for i in range(5)))
    assert [e.prompt for e in items(type="jsonl", path=path, limit=2)] == ["0", "1"]
    one = load(source(type="jsonl", path=path), seed=0)
    assert one == load(source(type="jsonl", path=path), seed=1)
    other = write(tmp_path / "b.jsonl", *({"prompt": str(i)} for i in range(5)))
    assert load(source(type="jsonl", path=other), seed=0).fingerprint == one.fingerprint
    write(tmp_path / "b.jsonl", *({"prompt": str(i)} for i in range(4)))
    assert load(source(type="jsonl", path=other), seed=0).fingerprint != one.fingerprint


def test_byte_order_mark_and_unicode(tmp_path):
    (tmp_path / "a.jsonl").write_bytes('\ufeff{"prompt": "é\u2028"}\r\n'.encode())
    assert items(type="jsonl", path=str(tmp_path / "a.jsonl"))[0].prompt == "é\u2028"


GOOD = {"prompt": "q", "r": "1", "m": [{"role": "user", "content": "q"}]}
BAD = {
    "not json": ('{"prompt": ', {}, r"a.jsonl:2: not JSON \(.*one object a line"),
    "deep json": ("[" * 10**6, {}, "a.jsonl:2: not JSON"),
    "no object": ("[1]", {}, "a.jsonl:2: a list, not an object"),
    "no field": (
        {"question": "q", "z": 1},
        {},
        r"a.jsonl:2: field 'prompt' is not there; the record has \['question', 'z'\]",
    ),
    "null": ({"prompt": "q", "r": None}, {"reference": "r"}, "a.jsonl:2: field 'r' is null"),
    "empty": ({"prompt": " \n"}, {}, "a.jsonl:2: field 'prompt' is empty"),
    "number": ({"prompt": 3}, {}, "a.jsonl:2: field 'prompt' is a int, not text"),
    "chat as text": ({"prompt": []}, {}, "is a list, not text: name it as fields.messages"),
    "no chat": ({"m": "q"}, {"messages": "m"}, "a.jsonl:2: field 'm' is not a list of"),
    "bad turn": ({"m": [{"role": "user"}]}, {"messages": "m"}, "a.jsonl:2: .*turn"),
    "answer only": (
        {"m": [{"role": "assistant", "content": "a"}]},
        {"messages": "m"},
        "a.jsonl:2: .* has an answer and no question",
    ),
    "same id": (GOOD, {"prompt": "prompt", "id": "r"}, "a.jsonl:2: id '1' is that of .*a.jsonl:1"),
    "long integer": ('{"prompt": "q", "z": ' + "9" * 5000 + "}", {}, "a.jsonl:2: .* 4300 digits"),
    "half a character": ({"prompt": "ab\ud800"}, {}, r"a.jsonl:2: field 'prompt' .*character 3"),
    "half in a reference": (
        {"prompt": "q", "r": ["\udfff"]},
        {"reference": "r"},
        "a.jsonl:2: field 'r' holds .*half a character",
    ),
    "half in an id": (
        {"prompt": "q", "r": "\udc00"},
        {"id": "r"},
        "a.jsonl:2: field 'r' holds .*half a character",
    ),
    "half in a completion": (
        {"prompt": "q", "r": "\udc00"},
        {"completion": "r"},
        "a.jsonl:2: field 'r' holds .*half a character",
    ),
    "half in a role": (
        {"m": [{"role": "\ud800", "content": "q"}]},
        {"messages": "m"},
        "a.jsonl:2: field 'm' holds .*half a character",
    ),
    "half in a turn": (
        {"m": [{"role": "user", "content": "\ud800"}]},
        {"messages": "m"},
        "a.jsonl:2: field 'm' holds .*half a character",
    ),
    "nan": ('{"prompt": "q", "r": NaN}', {"reference": "r"}, "a.jsonl:2: field 'r' is nan"),
    "inf": ('{"prompt": "q", "r": 1e999}', {"difficulty": "r"}, "a.jsonl:2: field 'r' is inf"),
    "large difficulty": (
        {"prompt": "q", "r": 10**400},
        {"difficulty": "r"},
        r"a.jsonl:2: field 'r' holds 10000000000000000000\.\.\., too large for a float",
    ),
    "large difficulty in a text": (
        {"prompt": "q", "r": "Level " + "9" * 400},
        {"difficulty": "r"},
        r"a.jsonl:2: field 'r' holds 9+\.\.\., too large for a float",
    ),
    "true as a difficulty": (
        {"prompt": "q", "r": True},
        {"difficulty": "r"},
        "a.jsonl:2: field 'r' holds no number: 'True'",
    ),
    "no number": (
        {"prompt": "q", "r": "hard"},
        {"prompt": "prompt", "difficulty": "r"},
        "a.jsonl:2: field 'r' holds no number: 'hard'",
    ),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_a_bad_record_is_named_by_line(tmp_path, case):
    record, fields, message = case
    path = write(tmp_path / "a.jsonl", GOOD, record)
    with pytest.raises(ValueError, match=message):
        items(type="jsonl", path=path, fields=fields)


def test_bad_files(tmp_path):
    with pytest.raises(ValueError, match="there is no file .*missing.jsonl"):
        items(type="jsonl", path=str(tmp_path / "missing.jsonl"))
    with pytest.raises(ValueError, match="there is no file .*missing.parquet"):
        items(type="parquet", path=str(tmp_path / "missing.parquet"))
    with pytest.raises(ValueError, match="is a folder"):
        items(type="jsonl", path=str(tmp_path))
    with pytest.raises(ValueError, match="source 's': .*empty.jsonl has no records"):
        items(type="jsonl", path=write(tmp_path / "empty.jsonl", ""))
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}\n')
    with pytest.raises(ValueError, match="latin.jsonl: not UTF-8"):
        items(type="jsonl", path=str(tmp_path / "latin.jsonl"))
    with pytest.raises(ValueError, match="latin.jsonl: not readable as Parquet"):
        items(type="parquet", path=str(tmp_path / "latin.jsonl"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"fields": {"prompt": "a", "text": "b"}}, "set exactly one of prompt, messages, text"),
        ({"fields": {"text": "b", "completion": "c"}}, "fields.text is the completion already"),
        ({"fields": {"promt": "a"}}, "promt"),
        ({"weight": 0}, "greater than 0"),
        ({"weight": float("inf")}, "finite number"),
        ({"weight": 1e308}, "less than or equal to 1000000000"),
        ({"limit": 0}, "greater than or equal to 1"),
        ({"name": ""}, "at least 1 character"),
        ({"type": "json"}, "'jsonl', 'parquet', 'hf'"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_impossible_settings(fields, message):
    with pytest.raises(ValidationError, match=message):
        source(**{"type": "jsonl", "path": "a", **fields})


def test_parquet_file_and_folder(tmp_path):
    import pyarrow
    import pyarrow.parquet

    for part in range(2):
        table = pyarrow.table({"q": [f"q{part}{i}" for i in range(3)], "a": [1, 2, 3]})
        pyarrow.parquet.write_table(table, tmp_path / f"{part}.parquet")
    fields = {"prompt": "q", "reference": "a"}
    one = items(type="parquet", path=str(tmp_path / "1.parquet"), fields=fields)
    assert [(e.prompt, e.reference) for e in one] == [("q10", "1"), ("q11", "2"), ("q12", "3")]
    both = items(type="parquet", path=str(tmp_path), fields=fields)
    assert [e.prompt for e in both] == ["q00", "q01", "q02", "q10", "q11", "q12"]
    with pytest.raises(ValueError, match=r"1.parquet, row 1: field 'prompt' is not there"):
        items(type="parquet", path=str(tmp_path / "1.parquet"))


def parquet(path, **columns):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return str(path)


def test_parquet_values_with_one_text(tmp_path):
    import pyarrow

    columns = {
        "decimal": [Decimal("1.50"), Decimal("-20.00")],
        "date": [date(2024, 2, 29), date(1, 1, 1)],
        "moment": [datetime(2024, 2, 29, 13, 5), datetime(2024, 1, 1)],
        "time": [time(13, 5), time(0, 0, 1)],
        "lists": [[["a"], []], [["b", "c"]]],
        "in_lists": [[Decimal("1.0")], []],
        "struct": [{"x": 1, "on": date(2024, 1, 1)}, {"x": 2, "on": None}],
        "flag": [True, False],
        "float": [0.5, 2.0],
        "choice": pyarrow.array(["a", "b"]).dictionary_encode(),
    }
    path = parquet(tmp_path / "a.parquet", prompt=["q", "p"], **columns)
    texts = {
        name: [e.reference for e in items(type="parquet", path=path, fields={"reference": name})]
        for name in columns
    }
    assert texts == {
        "decimal": ["1.50", "-20.00"],
        "date": ["2024-02-29", "0001-01-01"],
        "moment": ["2024-02-29 13:05:00", "2024-01-01 00:00:00"],
        "time": ["13:05:00", "00:00:01"],
        "lists": ['[["a"], []]', '[["b", "c"]]'],
        "in_lists": ['["1.0"]', "[]"],
        "struct": ['{"x": 1, "on": "2024-01-01"}', '{"x": 2, "on": null}'],
        "flag": ["true", "false"],
        "float": ["0.5", "2.0"],
        "choice": ["a", "b"],
    }
    fields = {"prompt": "choice", "id": "date", "difficulty": "decimal"}
    found = items(type="parquet", path=path, fields=fields)
    assert found[0] == Example("2024-02-29", "a", source="s", difficulty=1.5)


def test_parquet_values_without_a_text(tmp_path):
    import pyarrow

    broken = pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pyarrow.py_buffer(b"q\xff")
    columns = {
        "bytes": [b"a", b"b"],
        "in_lists": [["a"], ["b"]],
        "listed_bytes": [[], [b"b"]],
        "span": [timedelta(1), timedelta(2)],
        "late": pyarrow.array([0, 2**62], pyarrow.timestamp("us")),
        "latin": pyarrow.Array.from_buffers(pyarrow.string(), 2, [None, *broken]),
        "gap": [1.0, float("nan")],
        "prompt": ["q", "p"],
    }
    path = parquet(tmp_path / "a.parquet", **columns)
    for field, used, message in [
        ("bytes", "reference", r"row 1: field 'bytes' holds a bytes, which has no one text"),
        ("bytes", "prompt", r"row 1: field 'bytes' is a bytes, not text"),
        ("bytes", "id", r"row 1: field 'bytes' holds a bytes"),
        ("bytes", "difficulty", r"row 1: field 'bytes' holds no number"),
        ("bytes", "messages", r"row 1: field 'bytes' is not a list of"),
        ("in_lists", "messages", r"row 1: field 'in_lists' is not a list of .* turn"),
        ("listed_bytes", "reference", r"row 2: field 'listed_bytes' holds a bytes"),
        ("span", "reference", r"row 1: field 'span' holds a timedelta"),
        ("late", "reference", r"row 2: field 'late' cannot be read \(timestamp\[us\]: date value"),
        ("latin", "prompt", r"row 2: field 'latin' cannot be read \(string: 'utf-8' codec"),
        ("gap", "reference", r"row 2: field 'gap' is nan: complete or delete the record"),
    ]:
        with pytest.raises(ValueError, match=r"a\.parquet, " + message):
            items(type="parquet", path=path, fields={used: field})
    # What is not used may hold anything.
    assert [e.prompt for e in items(type="parquet", path=path)] == ["q", "p"]


def test_paths_may_start_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "a.jsonl", {"prompt": "q"})
    parquet(tmp_path / "a.parquet", prompt=["p"])
    assert items(type="jsonl", path="~/a.jsonl")[0].prompt == "q"
    assert items(type="parquet", path="~/a.parquet")[0].prompt == "p"
    assert source(type="hf", path="~/set").path == str(tmp_path / "set")


def test_hf_data_set(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="needs the extra hf")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    write(tmp_path / "set" / "train.jsonl", {"q": "1+1?", "a": "2"}, {"q": "2+2?", "a": "4"})
    fields = {"prompt": "q", "reference": "a"}
    found = items(type="hf", path=str(tmp_path / "set"), fields=fields)
    assert [(e.prompt, e.reference) for e in found] == [("1+1?", "2"), ("2+2?", "4")]
    with pytest.raises(ValueError, match="split 'test'.*cannot be loaded"):
        items(type="hf", path=str(tmp_path / "set"), split="test", fields=fields)


def test_hf_data_set_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r'pip install "jaxrl-vr\[hf\]"'):
        items(type="hf", path="openai/gsm8k")


def test_gsm8k_by_its_own_fields():
    path = SHARED / "gsm8k" / "test.jsonl"
    if not path.exists():
        pytest.skip("../shared/data/gsm8k is not there")
    fields = {"prompt": "question", "reference": "answer"}
    found = items(type="jsonl", path=str(path), fields=fields, verifier={"type": "math_answer"})
    assert len(found) == 1319
    assert found[0].prompt.startswith("Janet")
    assert found[0].reference.endswith("#### 18")


def test_math500_by_its_own_fields():
    path = SHARED / "math500" / "test.jsonl"
    if not path.exists():
        pytest.skip("../shared/data/math500 is not there")
    fields = dict(prompt="problem", reference="answer", difficulty="level", id="unique_id")
    found = items(type="jsonl", path=str(path), fields=fields)
    assert len(found) == len({e.id for e in found}) == 500
    assert {e.difficulty for e in found} == {1.0, 2.0, 3.0, 4.0, 5.0}
    assert found[0].reference == r"\left( 3, \frac{\pi}{2} \right)"

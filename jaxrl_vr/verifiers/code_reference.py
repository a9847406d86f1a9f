"""The tests of a task on code, as data sets write them, in one form.

Understood: Python (a script of asserts, functions `test*`, unittest classes), as text or as a list
of statements; HumanEval's records (`prompt`, `test`, `entry_point`); MBPP's (`test_list`,
`test_setup_code`); inputs and outputs for standard input or, with a function's name, for calls, as
APPS, TACO (`inputs`, `outputs`, `fn_name`) and LiveCodeBench (`input`, `output`, `testtype`) have
them. Pickles, which LiveCodeBench's private tests are, are not read: loading one runs what it says.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

_HEAD = re.compile(r"^ *def (\w+)\(", re.MULTILINE)
_CHECK = re.compile(r"^def check\(", re.MULTILINE)


class BadReference(ValueError):
    """A reference that holds no tests; the message says why."""


@dataclasses.dataclass(frozen=True)
class Stdin:
    """Texts for standard input, each with what is to be printed."""

    cases: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class Calls:
    """Arguments of a function, each list with what it is to return."""

    function: str
    pairs: tuple[tuple[list[Any], Any], ...]


@dataclasses.dataclass(frozen=True)
class Script:
    """Python that asserts."""

    script: tuple[str, ...]
    entry: str = ""  # the function that `check(candidate)` is to get
    before: str = ""  # what the task gives, such as the head of the function


Tests = Stdin | Calls | Script


def read_tests(reference: str, prompt: str = "") -> Tests:
    """The tests in a reference: JSON in one of the forms above, or Python.

    Args:
      reference: the tests.
      prompt: what the task says; `check(candidate)`, if nothing calls it, is for the last function
        that it heads.

    Raises:
      BadReference: it has none, or a form that is not known.
    """
    try:
        data = json.loads(reference)
    except RecursionError:
        raise BadReference("the reference is JSON of too many levels") from None
    except ValueError:
        data = reference
    tests = _read(data)
    match tests:
        case Script(script) if any(text.strip() for text in script):
            return tests if tests.entry else _with_entry(tests, prompt)
        case Stdin(cases) if cases:
            return tests
        case Calls(_, pairs) if pairs:
            return tests
    raise BadReference("the reference has no tests in it")


def _with_entry(tests: Script, prompt: str) -> Script:
    heads = _HEAD.findall(prompt)
    if not heads or not any(_CHECK.search(text) for text in tests.script):
        return tests
    # A prompt that is Python by itself is what a completion continues.
    is_code = prompt.lstrip().startswith(("def ", "import ", "from ", "class ", "@", "#"))
    return dataclasses.replace(tests, entry=heads[-1], before=prompt if is_code else "")


def _read(data: Any) -> Tests:
    if isinstance(data, str):
        return Script((data,))
    if isinstance(data, list):
        return _from_list(data, "")
    if not isinstance(data, dict):
        raise BadReference(f"the reference is {type(data).__name__}, not tests")
    get = data.get
    if "test" in data and "entry_point" in data:
        entry = _text(data, "entry_point").rpartition(".")[2]  # some write Solution().f
        return Script((_text(data, "test"),), entry, _text(data, "prompt"))
    if "test_list" in data:
        imports = "\n".join(get("test_imports") or [])
        return Script((imports, *_texts(data, "test_list")), "", _text(data, "test_setup_code"))
    for key in ("tests", "test", "asserts"):
        if key in data:
            inner = data[key]
            if isinstance(inner, list) and any(not isinstance(item, str) for item in inner):
                return _from_list(inner, _function(data))
            texts = (inner,) if isinstance(inner, str) else tuple(_texts(data, key))
            return Script(texts, _text(data, "entry_point"), _text(data, "before"))
    for key in ("input_output", "test_cases", "public_test_cases", "private_test_cases", "stdin"):
        if key in data:
            return _from_cases(data)
    if "inputs" in data and "outputs" in data:
        return _from_columns(data)
    raise BadReference(f"the reference has the keys {sorted(data)[:8]}, of no form of tests")


def _from_cases(data: dict[str, Any]) -> Tests:
    """Lists of cases, some of them JSON in a string."""
    cases: list[Any] = []
    for key in ("input_output", "test_cases", "public_test_cases", "private_test_cases", "stdin"):
        inner = data.get(key) or []
        if isinstance(inner, str):
            try:
                inner = json.loads(inner)
            except ValueError:
                raise BadReference(
                    f"{key} is no JSON; a pickle is not read, as loading it may run anything"
                ) from None
        if isinstance(inner, dict):
            return _from_columns(data | inner)
        cases += inner
    return _from_list(cases, _function(data))


def _function(data: dict[str, Any]) -> str:
    metadata = data.get("metadata") or {}
    if isinstance(metadata, str):
        try:
            metadata = json.loads(metadata)
        except ValueError:
            metadata = {}
    places = (data, metadata if isinstance(metadata, dict) else {})
    names = [place.get(key) for place in places for key in ("fn_name", "func_name")]
    return next((str(name) for name in names if name), "")


def _from_list(items: list[Any], function: str) -> Tests:
    if all(isinstance(item, str) for item in items):
        return Script(tuple(items))
    for item in items:
        if not (isinstance(item, dict) and "input" in item and "output" in item):
            raise BadReference("a test has to be a statement, or an object of input and output")
    if any(item.get("testtype") == "functional" for item in items):
        if not function:
            raise BadReference("tests are calls, and fn_name or metadata.func_name is missing")
        return Calls(function, tuple((_json_lines(x["input"]), _json(x["output"])) for x in items))
    if function:
        return Calls(function, tuple((_arguments(x["input"]), x["output"]) for x in items))
    return Stdin(tuple((_lines(x["input"]), _lines(x["output"])) for x in items))


def _from_columns(data: dict[str, Any]) -> Tests:
    inputs, outputs, function = data.get("inputs"), data.get("outputs"), _function(data)
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise BadReference("inputs and outputs have to be lists")
    if len(inputs) != len(outputs):
        raise BadReference(f"there are {len(inputs)} inputs and {len(outputs)} outputs")
    rows = zip(inputs, outputs, strict=True)
    if not function:
        return Stdin(tuple((_lines(x), _lines(y)) for x, y in rows))
    # APPS and TACO wrap each result in a list of one.
    wrapped = all(isinstance(y, list) and len(y) == 1 for y in outputs)
    return Calls(function, tuple((_arguments(x), y[0] if wrapped else y) for x, y in rows))


def _arguments(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise BadReference(f"the input of a call has to be a list of arguments, not {value!r:.60}")
    return value


def _json_lines(text: Any) -> list[Any]:
    return [_json(line) for line in str(text).splitlines() if line.strip()]


def _json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        raise BadReference(f"{text!r:.60} is no JSON") from None


def _lines(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _text(data: dict[str, Any], key: str) -> str:
    value = data.get(key) or ""
    if not isinstance(value, str):
        raise BadReference(f"{key} has to be text")
    return value


def _texts(data: dict[str, Any], key: str) -> list[str]:
    value = data[key]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadReference(f"{key} has to be a list of texts")
    return value

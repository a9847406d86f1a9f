"""The judging side: runs the tests of a task in a process that the program is not in.

What the tests take from the program is a stand-in (`sandbox_stand_in`), and what they get from it
is data that was built here. So no object of the program is ever compared, and no module that the
program has changed is used. Expected values stay on this side.

The tests come from data sets, so they run in a sandbox as well: standard library only.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import importlib
import inspect
import json
import math
import os
import random
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any

from jaxrl_vr.verifiers import sandbox_link
from jaxrl_vr.verifiers.sandbox_stand_in import Global, Program

_MODULE = "solution"
"""The name under which tests can import the program."""
_SETTLE = "__settle__"
_SHOWN = 200  # characters of a test that a reason quotes
_BLOCKS = ("body", "orelse", "finalbody")
Test = tuple[str, Callable[[], object]]


class BadTests(Exception):
    """The tests cannot judge any program."""


def run_tests(order: dict[str, Any], files: list[int]) -> None:
    """Judges a program.

    Args:
      files: JSON of the tests, as `code_tests` makes it; the socket to the program; where the
        verdict goes, JSON of `passed`, `total`, `first` (the first failure), `ended` (whether the
        program had ended by then) and `fault` (what is wrong with the tests).
    """
    given, link, verdict = files
    with open(given, "rb") as file:
        file.seek(0)
        spec = json.loads(file.read())
    random.seed(0)  # a reward is the same in every run
    program = Program(link)
    result = {"passed": 0, "total": 0, "first": "", "fault": "", "ended": False}
    try:
        tests = pairs(spec, program) if "pairs" in spec else script(spec, program)
        count(tests, program, result, stops=spec["stops"])
    except BadTests as error:
        result["fault"] = str(error)
    result["ended"] = program.is_gone
    with open(verdict, "w") as file:
        json.dump(result, file)
    os._exit(0)


def count(tests: list[Test], program: Program, result: dict[str, Any], *, stops: bool) -> None:
    """Runs tests in turn, and puts into `result` how many pass and what is with the first failure.

    Args:
      stops: whether to leave out what comes after a failure.
    """
    result["total"] = sum(bool(name) for name, _ in tests)
    if not result["total"]:
        raise BadTests("there is no test in it")
    number = 0
    for name, test in tests:
        number += bool(name)
        failure = _failure(test, program)
        if not failure:
            result["passed"] += bool(name)
            continue
        if not result["first"]:
            place = f"test {number}, {name}" if name else f"the preparation of test {number + 1}"
            result["first"] = f"{place}: {failure}"
        if stops or not name or program.has_ended:
            return
    if result["passed"] == result["total"] and not program.was_asked:
        raise BadTests("the tests do not call the program")


def _failure(test: Callable[[], object], program: Program) -> str:
    try:
        test()
    except BaseException as error:  # whatever a test raises is a failure
        if program.has_ended:
            return "the program ended"
        with contextlib.suppress(BaseException):
            return f"{type(error).__name__}: {error}"[:_SHOWN].rstrip(": ")
        return "an exception"
    return "the program ended" if program.has_ended else ""


# Tests as call and result


def pairs(spec: dict[str, Any], program: Program) -> list[Test]:
    """Tests that compare what a function returns with what it should."""

    def test(args: list[Any], expected: Any) -> None:
        got = _function(spec["function"], program)(*args)
        if not same(got, expected, spec["tolerance"]):
            raise AssertionError(f"returned {_short(got)}, expected {_short(expected)}")

    def named(args: list[Any], expected: Any) -> Test:
        shown = ", ".join(_short(arg) for arg in args)
        return f"{spec['function']}({shown})"[:_SHOWN], lambda: test(args, expected)

    return [named(args, expected) for args, expected in spec["pairs"]]


def _function(name: str, program: Program) -> Any:
    names = program.names()
    if name in names:
        return names[name].value()
    if "Solution" in names:
        return getattr(names["Solution"].value()(), name)
    raise AssertionError(f"the program defines no {name!r}")


def same(got: Any, expected: Any, tolerance: float) -> bool:
    """Whether a result is the expected value, which is JSON: tuples are lists there.

    Args:
      tolerance: how far apart two numbers may be if one is a float: relative to the larger, and in
        absolute terms near 0.
    """
    if isinstance(got, tuple):
        got = list(got)
    if isinstance(got, bool) or isinstance(expected, bool):
        return type(got) is type(expected) and got == expected
    if isinstance(got, float | int) and isinstance(expected, float | int):
        if isinstance(got, int) and isinstance(expected, int):
            return got == expected
        with contextlib.suppress(OverflowError):
            return got == expected or math.isclose(
                got, expected, rel_tol=tolerance, abs_tol=tolerance
            )
        return False
    if isinstance(got, list) and isinstance(expected, list):
        return len(got) == len(expected) and all(
            same(a, b, tolerance) for a, b in zip(got, expected, strict=True)
        )
    if isinstance(got, dict) and isinstance(expected, dict):
        as_json = {key if isinstance(key, str) else json.dumps(key): x for key, x in got.items()}
        return as_json.keys() == expected.keys() and all(
            same(x, expected[key], tolerance) for key, x in as_json.items()
        )
    return bool(got == expected)


# Tests as Python


def script(spec: dict[str, Any], program: Program) -> list[Test]:
    """Tests of a script: statements, functions `test*`, unittest classes, `check(candidate)`.

    A statement counts as a test if it asserts something or only calls; others prepare it.
    """
    trees = [_parsed(text) for text in spec["script"]]
    space = _space(spec, program, trees)
    tests: list[Test] = []
    for tree in trees:
        called = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        for statement in tree.body:
            if _is_vacuous(statement):
                continue
            name = _short_code(statement) if _is_test(statement) else ""
            tests.append((name, _execution([statement], space)))
        tests += _defined_tests(tree, called, space, spec["entry"])
    return tests


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadTests(f"they are no Python: {error}") from None


def _space(spec: dict[str, Any], program: Program, trees: list[ast.Module]) -> dict[str, Any]:
    """The namespace of the tests: what is given with them comes before what the program defines."""
    used = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
    space: dict[str, Any] = {"__name__": "tests", _SETTLE: program.settle}
    try:
        names = program.names()
    except sandbox_link.Ended:
        names = {}  # each test will find that out
    entry = spec["entry"]
    given: dict[str, Any] = {"__name__": "tests"}
    # The head of a function that is to be completed may be no Python by itself.
    with contextlib.suppress(Exception):
        exec(compile(spec["before"], "given", "exec", dont_inherit=True), given)
    for name in used & names.keys() & sys.stdlib_module_names - {entry}:
        given.setdefault(name, importlib.import_module(name))  # not as the program has left it
    for name, value in names.items():
        # A class that the head defines is to be completed; one that it imports is no program's.
        is_head = inspect.isclass(given.get(name)) and given[name].__module__ == "tests"
        is_ours = name in given and not is_head
        if name in used | {entry} and (name == entry or not (hasattr(builtins, name) or is_ours)):
            with contextlib.suppress(Exception, sandbox_link.Ended):
                space[name] = value.value() if isinstance(value, Global) else value
    for name, value in given.items():
        space.setdefault(name, value)
    _importable(names)
    return space


def _importable(names: dict[str, Any]) -> None:
    """Makes `from solution import f` find the program's names."""

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(name)
        return names[name].value() if isinstance(names[name], Global) else names[name]

    module = types.ModuleType(_MODULE)
    module.__dict__["__getattr__"] = find
    module.__dict__["__all__"] = [name for name in names if not name.startswith("_")]
    sys.modules[_MODULE] = module


def _is_test(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call)
    return any(isinstance(node, ast.Assert) for node in ast.walk(statement))


def _is_vacuous(statement: ast.stmt) -> bool:
    """`assert True`, or what runs the tests when they are a program."""
    if isinstance(statement, ast.If):
        return ast.unparse(statement.test).startswith("__name__ == ")
    if isinstance(statement, ast.Expr):
        return ast.unparse(statement).startswith(("unittest.main(", "pytest.main("))
    return isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Constant)


def _execution(statements: list[ast.stmt], space: dict[str, Any]) -> Callable[[], None]:
    """Executes statements, and settles between them what the program has done to arguments."""
    settled = [x for s in copy.deepcopy(statements) for x in (_settling(s), _settle_call(s))]
    tree = ast.Module(settled, [])
    try:
        code = compile(tree, "tests", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise BadTests(f"they are no Python: {error}") from None
    return lambda: exec(code, space)


def _settling(statement: ast.stmt) -> ast.stmt:
    for node in list(ast.walk(statement)):
        for block in _BLOCKS:
            inner = getattr(node, block, None)
            if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                settled = [x for child in inner for x in (child, _settle_call(child))]
                setattr(node, block, settled)
    return statement


def _settle_call(statement: ast.stmt) -> ast.stmt:
    call = ast.Expr(ast.Call(ast.Name(_SETTLE, ast.Load()), [], []))
    return ast.fix_missing_locations(ast.copy_location(call, statement))


def _defined_tests(
    tree: ast.Module, called: set[str], space: dict[str, Any], entry: str
) -> Iterator[Test]:
    """The tests in functions and classes that the script defines and does not call itself."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from _unittests(node, space)
        if not isinstance(node, ast.FunctionDef) or node.name in called:
            continue
        args = node.args
        needed = len(args.posonlyargs + args.args) - len(args.defaults)
        if node.name == "check" and needed == 1 and entry:
            yield from _check(node, space, entry)
        elif node.name.startswith("test") and needed == 0:
            yield f"{node.name}()", lambda name=node.name: space[name]()


def _check(node: ast.FunctionDef, space: dict[str, Any], entry: str) -> Iterator[Test]:
    """The statements of `check(candidate)`, each a test, so that a fraction can be told."""
    ends = (ast.Return, ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom)
    candidate = (node.args.posonlyargs + node.args.args)[0].arg
    if any(isinstance(inner, ends) for inner in ast.walk(node)):
        yield "check", lambda: space["check"](space[entry])
        return
    inner_space: dict[str, Any] = {}

    def begin() -> None:
        # A copy: what `check` assigns shall not be seen by the functions that it calls.
        inner_space.update(space)
        if entry not in space:
            raise AssertionError(f"the program defines no {entry!r}")
        inner_space[candidate] = space[entry]

    yield "", begin
    for statement in node.body:
        if not _is_vacuous(statement):
            name = _short_code(statement) if _is_test(statement) else ""
            yield name, _execution([statement], inner_space)


def _unittests(node: ast.ClassDef, space: dict[str, Any]) -> Iterator[Test]:
    """The methods of a unittest class. What a decorator or the program makes skip is no pass."""
    methods = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
    for method in methods:
        if not method.startswith("test"):
            continue

        def run(method: str = method) -> None:
            result = unittest.TestResult()
            unittest.TestSuite([space[node.name](method)]).run(result)
            if result.testsRun != 1 or result.skipped or not result.wasSuccessful():
                faults = [text for _, text in result.errors + result.failures + result.skipped]
                last = faults[0].strip().splitlines()[-1] if faults else "did not run"
                raise AssertionError(last)

        yield f"{node.name}.{method}", run


def _short_code(statement: ast.stmt) -> str:
    return _short_text(" ".join(ast.unparse(statement).split()))


def _short(value: Any) -> str:
    return _short_text(repr(value))


def _short_text(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"

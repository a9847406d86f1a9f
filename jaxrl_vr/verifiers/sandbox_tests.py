"""The judging side: runs the tests of a task in a process that the program is not in.

What the tests take from the program is a stand-in that asks the program over a socket, and what
comes back is data of Python's own types, built here. So no object of the program is ever compared,
and no module that the program has changed is used. Expected values stay on this side.

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
from typing import Any, cast

from jaxrl_vr.verifiers import sandbox_link
from jaxrl_vr.verifiers.sandbox_values import Unreadable, decode, encode

_MODULE = "solution"
"""The name under which tests can import the program."""
_SETTLE = "__settle__"
_SHOWN = 200  # characters of a test that a reason quotes
_KNOWN_EXCEPTIONS = ("builtins", "json.decoder", "decimal")
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


# The program, seen from here


class Program:
    """Asks the program. Raises what the program raises, or `Ended`."""

    def __init__(self, link: int) -> None:
        self._link = link
        self.has_ended = False  # or answers what is no answer
        self.is_gone = False
        self.was_asked = False
        self._functions: list[Callable[..., Any]] = []
        self._stand_ins: dict[int, StandIn] = {}
        self._exceptions: dict[tuple[str, ...], type[BaseException]] = {}
        self._unsettled: list[tuple[Any, Any]] = []

    def names(self) -> dict[str, Any]:
        """What the program defines: a stand-in for each public name, or an exception class."""
        self._send('["names"]')
        listed = self._receive()
        if not isinstance(listed, dict):
            raise self._broken()
        exceptions = {name: kinds for name, kinds in listed.items() if kinds}
        found = {name: self.exception(kinds) for name, kinds in exceptions.items()}
        return {name: found.get(name, Global(self, name)) for name in listed}

    def do(self, operation: str, *arguments: Any) -> Any:
        """Has the program do something, and returns its result."""
        self.was_asked = True
        self.settle()
        text = ",".join(encode(value, self._number) for value in arguments)
        self._send(f'["do","{operation}",{text}]')
        while True:
            match self._receive():
                case ["value", tree, list(changes)]:
                    result = self._decode(tree)
                    if changes:
                        self._note(arguments, changes, is_now=result is None)
                    return result
                case ["raised", list(kinds), tree]:
                    raise self._raised(kinds, tree)
                case ["call", int(number), args, kwargs] if -len(self._functions) <= number < 0:
                    self._call(number, self._decode(args), self._decode(kwargs))
                case _:
                    raise self._broken()

    def settle(self) -> None:
        """Gives arguments the content that the program has left in them.

        It happens between statements: `assert f(x) == sorted(x)` shall not be won by emptying `x`.
        """
        for value, new in self._unsettled:
            if isinstance(value, list | bytearray):
                value[:] = new
            else:
                value.clear()
                value.update(new)
        self._unsettled.clear()

    def _note(self, arguments: tuple[Any, ...], changes: list[Any], *, is_now: bool) -> None:
        _, args, kwargs = arguments
        for change in changes:
            try:
                place, tree = change
                value = args[place] if isinstance(place, int) else kwargs[place]
            except (IndexError, KeyError, TypeError, ValueError):
                raise self._broken() from None
            new = self._decode(tree)
            if type(value) is not type(new) or not isinstance(value, list | dict | set | bytearray):
                raise self._broken()
            self._unsettled.append((value, new))
        if is_now:  # a function that only changes its arguments
            self.settle()

    def _call(self, number: int, args: Any, kwargs: Any) -> None:
        try:
            result = encode(self._functions[-number - 1](*args, **kwargs), self._number)
        except sandbox_link.Ended:
            raise
        except BaseException as error:
            told = [type(error).__name__, str(error)[:_SHOWN]]
            self._send(json.dumps(["raised", *told]))
        else:
            self._send(f'["returned",{result}]')

    def _number(self, value: Any) -> int:
        if isinstance(value, StandIn):
            return value._number
        if isinstance(value, Global):
            return value._resolved()._number
        if not callable(value):
            raise TypeError(f"a {type(value).__name__} of the tests cannot go to the program")
        self._functions.append(value)
        return -len(self._functions)

    def _decode(self, tree: Any) -> Any:
        try:
            return decode(json.dumps(tree), self._stand_in)
        except Unreadable:
            raise self._broken() from None

    def _stand_in(self, number: int, name: str) -> Any:
        if number < 0:
            return self._functions[-number - 1]
        return self._stand_ins.setdefault(number, StandIn(self, number, name))

    def exception(self, kinds: list[Any]) -> type[BaseException]:
        """The class here for one of the program's, told by names from itself to its last base."""
        made: type[BaseException] = Exception
        try:
            names = [(str(module), str(name)) for module, name in kinds][:50]
        except (TypeError, ValueError):
            raise self._broken() from None
        for i in range(len(names) - 1, -1, -1):
            module, name = names[i]
            known = getattr(sys.modules.get(module), name, None)
            if module in _KNOWN_EXCEPTIONS and isinstance(known, type):
                if issubclass(known, BaseException):
                    made = known
                continue
            key = tuple(name for _, name in names[i:])
            if key not in self._exceptions:
                self._exceptions[key] = cast(type[BaseException], type(name, (made,), {}))
            made = self._exceptions[key]
        return made

    def _raised(self, kinds: list[Any], tree: Any) -> BaseException:
        kind, args = self.exception(kinds), self._decode(tree)
        try:
            return kind(*args)
        except Exception:
            error = kind.__new__(kind)
            error.args = tuple(args) if isinstance(args, list) else ()
            return error

    def _send(self, text: str) -> None:
        try:
            sandbox_link.send(self._link, text)
        except sandbox_link.Ended:
            self.has_ended = self.is_gone = True
            raise

    def _receive(self) -> Any:
        try:
            return json.loads(sandbox_link.receive(self._link))
        except sandbox_link.Ended:
            self.has_ended = self.is_gone = True
            raise
        except (ValueError, RecursionError):
            raise self._broken() from None

    def _broken(self) -> sandbox_link.Ended:
        self.has_ended = True
        return sandbox_link.Ended("the program answers what is no answer")


class StandIn:
    """An object of the program that has no form as data. It equals no data."""

    def __init__(self, program: Program, number: int, name: str) -> None:
        self.__dict__.update(_program=program, _number=number, _name=name)

    def _do(self, operation: str, *arguments: Any) -> Any:
        return self._program.do(operation, self, *arguments)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._program.do("call", self, list(args), kwargs)

    def __getattr__(self, name: str) -> Any:
        return self._do("getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._do("setattr", name, value)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StandIn):
            return self is other or self._do("eq", other) is True
        content = self._do("plain") if isinstance(other, list | dict | set) else None
        return content is not None and content == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        content = self._do("hash")
        return hash(content) if type(content) is int else 0

    def __bool__(self) -> bool:
        return self._do("bool") is True

    def __lt__(self, other: Any) -> bool:
        return self._compare("lt", other)

    def __le__(self, other: Any) -> bool:
        return self._compare("le", other)

    def __gt__(self, other: Any) -> bool:
        return self._compare("gt", other)

    def __ge__(self, other: Any) -> bool:
        return self._compare("ge", other)

    def _compare(self, operation: str, other: Any) -> bool:
        if not isinstance(other, StandIn):
            return NotImplemented  # the program's own comparison with data could say anything
        return self._do(operation, other) is True

    def __add__(self, other: Any) -> Any:
        return self._do("add", other) if isinstance(other, StandIn) else NotImplemented

    def __sub__(self, other: Any) -> Any:
        return self._do("sub", other) if isinstance(other, StandIn) else NotImplemented

    def __mul__(self, other: Any) -> Any:
        return self._do("mul", other) if isinstance(other, StandIn | int) else NotImplemented

    def __len__(self) -> int:
        return self._do("len")

    def __iter__(self) -> Iterator[Any]:
        iterator = self._do("iter")
        while True:
            try:
                item = self._program.do("next", iterator)
            except StopIteration:
                return
            yield item

    def __next__(self) -> Any:
        return self._do("next")

    def __getitem__(self, key: Any) -> Any:
        return self._do("getitem", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._do("setitem", key, value)

    def __str__(self) -> str:
        return str(self._do("str"))

    def __repr__(self) -> str:
        return f"<{self._name} of the program>"

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, StandIn) and self._do_isinstance(value)

    def _do_isinstance(self, value: StandIn) -> bool:
        return self._program.do("isinstance", value, self) is True


class Global:
    """A name of the program whose value is asked for when it is used."""

    def __init__(self, program: Program, name: str) -> None:
        self._program = program
        self._name = name

    def value(self) -> Any:
        """The value now: data, or a stand-in."""
        return self._program.do("global", self._name)

    def _resolved(self) -> StandIn:
        value = self.value()
        if not isinstance(value, StandIn):
            raise TypeError(f"{self._name} is a {type(value).__name__}")
        return value


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
        is_ours = name in given and not inspect.isclass(given[name])
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

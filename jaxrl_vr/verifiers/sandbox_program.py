"""The untrusted side: runs a program, as a script or as a module whose functions are called.

Nothing here has to resist the program, which shares the process: it holds no expected value, and
what it says is data that others judge. Runs inside the sandbox: standard library only.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import copy
import functools
import json
import math
import operator
import os
import random
import sys
import types
from collections.abc import Callable
from typing import Any

from jaxrl_vr.verifiers import sandbox_link
from jaxrl_vr.verifiers.sandbox_values import decode, encode

_FILE = "solution.py"
_MUTABLE = (list, dict, set, bytearray)


def run_script(order: dict[str, Any], files: list[int]) -> None:
    """Runs a program as `python solution.py` would.

    Args:
      files: the program's text; its standard input; its standard output; where a line about an
        uncaught exception goes.
    """
    code, stdin, stdout, note = files
    source = _read(code)
    os.dup2(stdin, 0)
    os.dup2(stdout, 1)
    module = _module("__main__")
    status = 0
    try:
        exec(compile(source, _FILE, "exec", dont_inherit=True), module.__dict__)
    except SystemExit as error:
        status = _status(error.code)
    except BaseException as error:
        _say(note, error)
        status = 1
    os._exit(_finish(note) or status)


def _status(code: Any) -> int:
    """The exit status that Python makes of the argument of `sys.exit`."""
    return code & 0xFF if isinstance(code, int) else int(code is not None)


def _finish(note: int) -> int:
    """What Python does at its end and a program may rely on; tidying memory takes ten times longer.

    Returns the exit status if it fails.
    """
    try:
        if (threading := sys.modules.get("threading")) is not None:
            threading._shutdown()  # joins threads
        atexit._run_exitfuncs()
        if sys.stdout is not None:
            sys.stdout.flush()
    except BaseException as error:
        _say(note, error)
        return 120
    return 0


def serve_calls(order: dict[str, Any], files: list[int]) -> None:
    """Loads a program as a module and then does what the tests ask for.

    Args:
      files: JSON of what comes before the program (such as the head of the function that it is to
        complete) and the program; the socket to the tests; where a line about an uncaught
        exception goes.
    """
    code, link, note = files
    before, source = json.loads(_read(code))
    module = _module("solution")
    try:
        for part in _parts(before, source):
            exec(part, module.__dict__)
    except BaseException as error:  # SystemExit as well: what left early has no functions
        _say(note, error)
        os._exit(1)
    try:
        _Server(link, module).serve()
    except sandbox_link.Ended:
        pass  # the tests are done
    except BaseException as error:
        _say(note, error)
    os._exit(0)


def run_command(order: dict[str, Any], files: list[int]) -> None:
    """Becomes the command `argv`.

    Args:
      files: its standard input; its standard output; where a line is written if it cannot start.
    """
    stdin, stdout, note = files
    os.dup2(stdin, 0)
    os.dup2(stdout, 1)
    for file in files:
        os.set_inheritable(file, False)
    environment = {"PATH": "/usr/bin:/bin", "HOME": os.getcwd(), "TMPDIR": os.getcwd()}
    try:
        os.execvpe(order["argv"][0], order["argv"], environment)
    except OSError as error:
        _say(note, error)
    os._exit(127)


def _parts(before: str, source: str) -> list[types.CodeType]:
    """The code to execute in turn. A program that only continues what comes before is joined on."""
    try:
        code = compile(source, _FILE, "exec", dont_inherit=True)
    except SyntaxError:
        if not before:
            raise
        return [compile(before + source, _FILE, "exec", dont_inherit=True)]
    try:
        head = compile(before, "given.py", "exec", dont_inherit=True)
    except SyntaxError:
        return [code]
    return [head, code]


def _module(name: str) -> types.ModuleType:
    import _sitebuiltins

    random.seed(0)  # a reward is the same in every run
    builtins.exit = _sitebuiltins.Quitter("exit", "Ctrl-D (i.e. EOF)")
    builtins.quit = _sitebuiltins.Quitter("quit", "Ctrl-D (i.e. EOF)")
    module = types.ModuleType(name)
    module.__dict__["__file__"] = _FILE
    sys.modules[name] = module
    return module


def _read(file: int) -> bytes:
    with open(file, "rb") as source:
        source.seek(0)
        return source.read()


def _say(note: int, error: BaseException) -> None:
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:
        text = type(error).__name__
    os.pwrite(note, text[:500].encode(errors="replace").ljust(500), 0)


class _Server:
    """Answers the tests: `["names"]`, or `["do", operation, arguments]`."""

    def __init__(self, link: int, module: types.ModuleType) -> None:
        self._link = link
        self._module = module
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}  # of objects by id; the list keeps the ids taken

    def serve(self) -> None:
        while True:
            self._answer(json.loads(sandbox_link.receive(self._link)))

    def _answer(self, message: list[Any]) -> None:
        if message[0] == "names":
            sandbox_link.send(self._link, json.dumps(_names(self._module)))
            return
        _, operation, *trees = message
        try:
            arguments = [decode(json.dumps(tree), self._object) for tree in trees]
            mutable = _mutable(arguments) if operation == "call" else []
            before = [self._encode(value) for _, value in mutable]
            result = self._encode(self._do(operation, arguments))
            changed = []
            for (place, value), old in zip(mutable, before, strict=True):
                if (new := self._encode(value)) != old:
                    changed.append(f"[{json.dumps(place)},{new}]")
            answer = f'["value",{result},[{",".join(changed)}]]'
        except sandbox_link.Ended:
            raise
        except BaseException as error:
            answer = self._raised(error)
        sandbox_link.send(self._link, answer)

    def _do(self, operation: str, arguments: list[Any]) -> Any:
        if operation == "global":
            return getattr(self._module, arguments[0])
        if operation in ("exit", "aexit"):
            manager, error = arguments
            arguments = [manager, error and self._error(*error)]
        return _OPERATIONS[operation](*arguments)

    def _error(self, name: str, *args: Any) -> BaseException:
        """An error of the tests as one of the program's."""
        kind = getattr(self._module, name, getattr(builtins, name, None))
        if isinstance(kind, type) and issubclass(kind, BaseException):
            with contextlib.suppress(Exception):
                return kind(*args)
        return RuntimeError(*args)

    def _encode(self, value: Any) -> str:
        return encode(value, self._number)

    def _number(self, value: Any) -> int:
        if isinstance(value, _Callback):
            return value.number
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return self._numbers[id(value)]

    def _object(self, number: int, name: str) -> Any:
        return self._objects[number] if number >= 0 else _Callback(self, number)

    def _raised(self, error: BaseException) -> str:
        kinds = [
            [kind.__module__, kind.__name__]
            for kind in type(error).__mro__
            if issubclass(kind, BaseException)
        ]
        try:
            arguments = self._encode(list(error.args))
        except BaseException:
            arguments = "[]"
        return f'["raised",{json.dumps(kinds)},{arguments}]'

    def call_back(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a function of the tests, and does what they ask for until it has returned."""
        values = f"{self._encode(list(args))},{self._encode(kwargs)}"
        sandbox_link.send(self._link, f'["call",{number},{values}]')
        while True:
            message = json.loads(sandbox_link.receive(self._link))
            if message[0] == "returned":
                return decode(json.dumps(message[1]), self._object)
            if message[0] == "raised":
                raise self._error(*message[1:])
            self._answer(message)


class _Callback:
    """A function of the tests, given to the program as an argument."""

    def __init__(self, server: _Server, number: int) -> None:
        self._server = server
        self.number = number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._server.call_back(self.number, args, kwargs)


def _names(module: types.ModuleType) -> dict[str, list[list[str]]]:
    """The public names of the program; of an exception also its bases."""
    return {
        name: [[kind.__module__, kind.__name__] for kind in value.__mro__[:-1]]
        if isinstance(value, type) and issubclass(value, BaseException)
        else []
        for name, value in module.__dict__.items()
        if not name.startswith("__")
    }


def _mutable(arguments: list[Any]) -> list[tuple[str | int, Any]]:
    _, args, kwargs = arguments
    places = [*enumerate(args), *kwargs.items()]
    return [(place, value) for place, value in places if type(value) in _MUTABLE]


def _are_equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def _plain(value: Any) -> Any:
    """What an instance of a subclass of list, dict or set holds; None for all else."""
    if isinstance(value, dict):
        return dict(dict.items(value))
    if isinstance(value, set):
        return set(set.__iter__(value))
    return list(list.__iter__(value)) if isinstance(value, list) else None


def _triple(error: BaseException | None) -> tuple[Any, Any, None]:
    return None if error is None else type(error), error, None


def _awaited(awaitable: Any) -> Any:
    async def wait() -> Any:
        return await awaitable

    return _loop().run_until_complete(wait())


@functools.cache
def _loop() -> Any:
    import asyncio

    return asyncio.new_event_loop()


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, args, kwargs: function(*args, **kwargs),
    "eq": _are_equal,
    "plain": _plain,
    **{f.__name__: f for f in (getattr, setattr, delattr, isinstance, issubclass, hash)},
    **{f.__name__: f for f in (bool, int, float, complex, bytes, str, repr, format, round)},
    **{f.__name__: f for f in (len, iter, next, reversed, divmod, math.trunc, math.floor)},
    **{f.__name__: f for f in (math.ceil, copy.copy, copy.deepcopy)},
    **{
        name: getattr(operator, f"__{name}__")
        for name in (
            "lt le gt ge add sub mul matmul truediv floordiv mod pow lshift rshift and xor or "
            "iadd isub imul imatmul itruediv ifloordiv imod ipow ilshift irshift iand ixor ior "
            "neg pos abs invert index getitem setitem delitem contains"
        ).split()
    },
    "enter": lambda manager: type(manager).__enter__(manager),
    "exit": lambda manager, error: type(manager).__exit__(manager, *_triple(error)),
    "aenter": lambda manager: _awaited(type(manager).__aenter__(manager)),
    "aexit": lambda manager, error: _awaited(type(manager).__aexit__(manager, *_triple(error))),
    "await": _awaited,
    "aiter": lambda items: type(items).__aiter__(items),
    "anext": lambda items: _awaited(type(items).__anext__(items)),
}

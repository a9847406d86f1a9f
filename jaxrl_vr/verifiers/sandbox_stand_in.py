"""The program as its tests see it: stand-ins that ask it over a socket, and get data back.

What comes back is built here, of Python's own types. An object of the program that has no form as
data is a `StandIn`, which equals no data, whatever its class says. Runs inside the sandbox:
standard library only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

from jaxrl_vr.verifiers import sandbox_link
from jaxrl_vr.verifiers.sandbox_values import Unreadable, decode, encode

_SHOWN = 200  # characters of a message that go to the program
_KNOWN_EXCEPTIONS = ("builtins", "json.decoder", "decimal")


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

"""The program as its tests see it: it is asked over a socket, and data comes back.

What comes back is built here, of Python's own types. An object of the program that has no form as
data is a `StandIn` (`sandbox_object`), which equals no data, whatever its class says. Runs inside
the sandbox: standard library only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, cast

from jaxrl_vr.verifiers import sandbox_link
from jaxrl_vr.verifiers.sandbox_object import Coroutine, StandIn, told
from jaxrl_vr.verifiers.sandbox_values import Unreadable, decode, encode

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
            self._send(json.dumps(["raised", *(told(error) or [])]))
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
        kind = Coroutine if name == "coroutine" else StandIn
        found = self._stand_ins.setdefault(number, kind(self, number, name))
        # Where a value was due, an object that the tests have made may come back in its place.
        found.__dict__["_is_made"] = False
        return found

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


class Global:
    """A name of the program whose value is asked for when it is used."""

    def __init__(self, program: Program, name: str) -> None:
        self._program = program
        self._name = name

    def value(self) -> Any:
        """The value now: data, or a stand-in."""
        value = self._program.do("global", self._name)
        if isinstance(value, StandIn):
            # That it is a class is not for the program to say: `f` could be one.
            value.__dict__["_is_class"] = self._name[:1].isupper()
        return value

    def _resolved(self) -> StandIn:
        value = self.value()
        if not isinstance(value, StandIn):
            raise TypeError(f"{self._name} is a {type(value).__name__}")
        return value

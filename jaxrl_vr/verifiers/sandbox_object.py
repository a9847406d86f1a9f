"""An object of the program as its tests see it: each operator of Python asks the program.

No answer of the program may decide what the tests know better. So an object equals no data, and it
is ordered, added and so on with data only where the tests have made it, by calling a name that
begins with a capital. Of `abs(f(x) - 8) < 1e-6`, the program would else win by an object from which
all differences are 0. With a number it may be combined in any case, as in `f(x) / 2`; the result
must be an object, which then stands for no number and no text.

Runs inside the sandbox: standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl_vr.verifiers.sandbox_stand_in import Program

_ARITHMETIC = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or".split()
_DIFFERENCES = {"sub", "truediv", "floordiv", "mod", "divmod", "xor"}
"""Operators whose result can be guessed if the other value is what should come out."""
_ONE = "neg pos abs invert int float complex index trunc floor ceil bytes".split()
_SHOWN = 200  # characters of an argument of an error
_ORDER = "lt le gt ge".split()


class StandIn:
    """An object of the program that has no form as data. It equals no data."""

    def __init__(self, program: Program, number: int, name: str) -> None:
        self.__dict__.update(_program=program, _number=number, _name=name)
        # Whether it was called by a name in capitals, made by such a call, or from a number.
        self.__dict__.update(_is_class=False, _is_made=False, _knows=False)

    def _do(self, operation: str, *arguments: Any) -> Any:
        return self._program.do(operation, self, *arguments)

    def _convert(self, operation: str, *arguments: Any) -> Any:
        """What it is as a number or a text."""
        if self._knows:
            raise TypeError(f"{operation} of what the program has made with a number of the tests")
        return self._do(operation, *arguments)

    def _combine(self, operation: str, first: Any, second: Any) -> Any:
        """The result of an operator between it and another value, either first."""
        other = second if first is self else first
        knows, is_made = self._knows, self._is_made
        if isinstance(other, StandIn):
            knows = knows or other._knows
        elif type(other) in (int, float):
            knows = knows or not is_made or operation.removeprefix("i") in _DIFFERENCES
        elif not is_made:
            return NotImplemented
        result = self._program.do(operation, first, second)
        if knows and not isinstance(result, StandIn):
            raise TypeError(f"{operation} with a number of the tests gives no object of a class")
        if knows:
            result.__dict__["_knows"] = True
        if result is self:  # as after +=
            self.__dict__["_is_made"] = is_made
        return result

    def _compare(self, operation: str, other: Any) -> bool:
        if not (isinstance(other, StandIn) or self._is_made):
            return NotImplemented  # the program's own comparison with data could say anything
        return self._do(operation, other) is True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._program.do("call", self, list(args), kwargs)
        if self._is_class and isinstance(result, StandIn):
            result.__dict__.update(_is_made=True, _knows=False)
        return result

    def __getattr__(self, name: str) -> Any:
        return self._do("getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._do("setattr", name, value)

    def __delattr__(self, name: str) -> None:
        self._do("delattr", name)

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
        return self._convert("bool") is True

    def __str__(self) -> str:
        return str(self._convert("str"))

    def __repr__(self) -> str:
        return f"<{self._name} of the program>" if self._knows else str(self._do("repr"))

    def __format__(self, form: str) -> str:
        return str(self._convert("format", form))

    def __round__(self, digits: int | None = None) -> Any:
        return self._convert("round", digits)

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

    def __reversed__(self) -> Any:
        return self._do("reversed")

    def __contains__(self, item: Any) -> bool:
        if self._is_made or isinstance(item, StandIn):
            return self._do("contains", item) is True
        return any(found is item or found == item for found in self)

    def __getitem__(self, key: Any) -> Any:
        return self._do("getitem", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._do("setitem", key, value)

    def __delitem__(self, key: Any) -> None:
        self._do("delitem", key)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, StandIn) and self._program.do("isinstance", value, self) is True

    def __subclasscheck__(self, value: Any) -> bool:
        return isinstance(value, StandIn) and self._program.do("issubclass", value, self) is True

    def __copy__(self) -> Any:
        return self._do("copy")

    def __deepcopy__(self, memo: Any) -> Any:
        return self._do("deepcopy")

    def __enter__(self) -> Any:
        return self._do("enter")

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        # What it says is not heeded: it would keep an assertion of the tests from being seen.
        self._do("exit", told(error))

    def __await__(self) -> Generator[Any, None, Any]:
        return self._do("await")
        yield

    async def __aenter__(self) -> Any:
        return self._do("aenter")

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._do("aexit", told(error))

    def __aiter__(self) -> Any:
        return self._do("aiter")

    async def __anext__(self) -> Any:
        return self._do("anext")


class Coroutine(StandIn):
    """A coroutine of the program, which `asyncio.run` takes for one."""

    def __next__(self) -> Any:
        raise StopIteration(self._do("await"))  # for which the program has waited

    def send(self, value: Any) -> Any:
        """Ends with its result."""
        return next(self)

    def throw(self, *error: Any) -> Any:
        """Ends with an error of the tests."""
        raise error[-1]

    def close(self) -> None:
        """Nothing is to be done."""


def told(error: BaseException | None) -> list[Any] | None:
    """What the program is told of an error of the tests: its class and arguments.

    Those of an assertion may be what the tests expect.
    """
    if error is None:
        return None
    args = [] if isinstance(error, AssertionError) else error.args
    plain = [x[:_SHOWN] if isinstance(x, str) else x for x in args if type(x) in (str, int, float)]
    return [type(error).__name__, *plain]


def _forward(name: str, method: Callable[..., Any]) -> None:
    method.__name__ = name
    setattr(StandIn, name, method)


for _name in _ARITHMETIC:
    _forward(f"__{_name}__", lambda self, other, _op=_name: self._combine(_op, self, other))
    _forward(f"__r{_name}__", lambda self, other, _op=_name: self._combine(_op, other, self))
    if _name != "divmod":
        _forward(f"__i{_name}__", lambda self, x, _op=f"i{_name}": self._combine(_op, self, x))
for _name in _ONE:
    _forward(f"__{_name}__", lambda self, _op=_name: self._convert(_op))
for _name in _ORDER:
    _forward(f"__{_name}__", lambda self, other, _op=_name: self._compare(_op, other))

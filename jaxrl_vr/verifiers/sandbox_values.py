"""Values as they cross between a program and the tests that judge it.

What a program sends is data and nothing else: JSON in which every composite or unusual value is an
object with one key, its kind. Decoding it builds values of Python's own types and calls nothing of
the program's. What has no such form (an instance of the program's classes) crosses as a handle.
Runs inside the sandbox: standard library only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 200  # of values within each other
_PLAIN: dict[Any, Any] = {int: 0, float: 0.0, str: "", complex: 0j}
_EXACT_INT = 1 << 53
_STDLIB = {
    "decimal": ("Decimal",),
    "fractions": ("Fraction",),
    "datetime": ("date", "datetime", "time", "timedelta"),
}
"""Further types that cross as what they are, by how `repr` writes them."""


class Unreadable(ValueError):
    """What arrived is no value."""


def encode(value: Any, handle: Callable[[Any], int]) -> str:
    """`value` as text.

    Args:
      value: any object.
      handle: gives an object that crosses by reference a number.
    """
    return _encode(value, handle, 0)


def _encode(value: Any, handle: Callable[[Any], int], depth: int) -> str:
    kind = type(value)
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        return str(value) if -_EXACT_INT < value < _EXACT_INT else f'{{"i":"{value:x}"}}'
    if kind is str:
        return json.dumps(value)
    if kind is float:
        text = repr(value)
        return text if text[-1] not in "fn" else f'{{"f":"{text}"}}'
    if depth > MAX_DEPTH:
        raise RecursionError(f"a value of more than {MAX_DEPTH} levels")
    depth += 1
    if kind is list:
        return f"[{_items(value, handle, depth)}]"
    if kind is dict or _is_mapping(kind):
        pairs = ",".join(
            f"[{_encode(key, handle, depth)},{_encode(item, handle, depth)}]"
            for key, item in dict.items(value)
        )
        return f'{{"dict":[{pairs}]}}'
    if kind in (tuple, set, frozenset):
        return f'{{"{kind.__name__}":[{_items(value, handle, depth)}]}}'
    if kind in (bytes, bytearray):
        return f'{{"{kind.__name__}":{json.dumps(value.decode("latin-1"))}}}'
    if kind is complex:
        return f'{{"complex":["{value.real!r}","{value.imag!r}"]}}'
    if kind in (range, slice):
        parts = (value.start, value.stop, value.step)
        return f'{{"{kind.__name__}":[{_items(parts, handle, depth)}]}}'
    if value is ...:
        return '{"ellipsis":null}'
    if _is_of_stdlib(kind):
        return f'{{"{kind.__name__}":{json.dumps(repr(value))}}}'
    if issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple):
        fields = [str(name) for name in getattr(kind, "_fields", ())]
        items = _items(tuple.__iter__(value), handle, depth)
        return f'{{"namedtuple":[{json.dumps(kind.__name__)},{json.dumps(fields)},[{items}]]}}'
    for base, zero in _PLAIN.items():
        if issubclass(kind, base):  # what a subclass overrides does not cross, so it cannot lie
            return _encode(base.__add__(value, zero), handle, depth)
    return f'{{"handle":[{handle(value)},{json.dumps(kind.__name__)}]}}'


def _items(values: Any, handle: Callable[[Any], int], depth: int) -> str:
    return ",".join([_encode(item, handle, depth) for item in values])


def _is_mapping(kind: type) -> bool:
    collections = sys.modules.get("collections")
    names = ("Counter", "OrderedDict", "defaultdict")
    return collections is not None and any(kind is getattr(collections, n, None) for n in names)


def _is_of_stdlib(kind: type) -> bool:
    names = _STDLIB.get(kind.__module__, ())
    module = sys.modules.get(kind.__module__)
    return any(kind is getattr(module, name, None) for name in names)


def decode(text: str | bytes, handle: Callable[[int, str], Any]) -> Any:
    """The value that `text` stands for.

    Args:
      text: what `encode` made, or what someone else would like to pass for it.
      handle: makes the stand-in of an object that crossed by reference.

    Raises:
      Unreadable: it stands for none.
    """
    try:
        return _decode(json.loads(text), handle)
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError, OverflowError) as e:
        raise Unreadable(f"{type(e).__name__}: {e}"[:200]) from None


def _decode(tree: Any, handle: Callable[[int, str], Any]) -> Any:
    if isinstance(tree, list):
        return [_decode(item, handle) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "handle":
        number, name = content
        return handle(int(number), str(name)[:100])
    if kind == "dict":
        return {_decode(key, handle): _decode(item, handle) for key, item in content}
    if kind == "namedtuple":
        name, fields, items = content
        return _namedtuple(name, fields, [_decode(item, handle) for item in items])
    return _DECODERS[kind](content, handle)


def _namedtuple(name: str, fields: list[str], items: list[Any]) -> Any:
    import collections

    if len(fields) > 100:
        raise ValueError("too many fields")
    return collections.namedtuple(name, fields)(*items)


def _of_stdlib(content: str, handle: Callable[[int, str], Any]) -> Any:
    """A value of the standard library from its `repr`: a call of literals, nested at most once."""
    import ast
    import datetime
    import decimal
    import fractions

    makers: dict[str, Callable[..., Any]] = {
        "Decimal": decimal.Decimal,
        "Fraction": fractions.Fraction,
    }
    makers |= {f"datetime.{name}": getattr(datetime, name) for name in _STDLIB["datetime"]}
    if len(content) > 10_000:
        raise ValueError("too long")
    call = ast.parse(content, mode="eval").body
    if not isinstance(call, ast.Call):
        raise ValueError("is no call")
    values = [ast.literal_eval(argument) for argument in call.args]
    named = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    return makers[ast.unparse(call.func)](*values, **named)


_DECODERS: dict[str, Callable[[Any, Callable[[int, str], Any]], Any]] = {
    "i": lambda content, handle: int(content, 16),
    "f": lambda content, handle: float(content),
    "tuple": lambda content, handle: tuple(_decode(content, handle)),
    "set": lambda content, handle: set(_decode(content, handle)),
    "frozenset": lambda content, handle: frozenset(_decode(content, handle)),
    "bytes": lambda content, handle: content.encode("latin-1"),
    "bytearray": lambda content, handle: bytearray(content.encode("latin-1")),
    "complex": lambda content, handle: complex(float(content[0]), float(content[1])),
    "range": lambda content, handle: range(*_decode(content, handle)),
    "slice": lambda content, handle: slice(*_decode(content, handle)),
    "ellipsis": lambda content, handle: ...,
    **{name: _of_stdlib for names in _STDLIB.values() for name in names},
}

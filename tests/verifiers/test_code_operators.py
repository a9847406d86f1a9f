"""Operators of Python on objects of a program: what tests may do with them, and what wins nothing.

`V(...)` is made by the tests, `make(...)` is what a function of the program returns.
"""

import pytest

from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.code_tests import CodeTests
from jaxrl_vr.verifiers.sandbox import Limits, SandboxFailed
from jaxrl_vr.verifiers.sandbox_level import sandbox_level

VERIFIER = CodeTests(extract="whole", limits=Limits(cpu=2.0, wall=60.0))


@pytest.fixture(autouse=True, scope="module")
def isolated():
    try:
        sandbox_level()
    except SandboxFailed as error:
        pytest.skip(f"no level of isolation holds here: {error}")


def verdict(program: str, tests: str) -> tuple[str, str]:
    score = VERIFIER(Example("0", "q", tests), program)
    return score.verdict, score.reason


NAMES = "add sub mul matmul truediv floordiv mod pow lshift rshift and xor or".split()
PROGRAM = (
    """
import math, operator

def value(other): return other.x if isinstance(other, V) else other

class V:
    def __init__(self, x): self.x, self.log = x, []
    def __eq__(self, other): return isinstance(other, V) and self.x == other.x
    def __hash__(self): return hash(self.x)
    def __lt__(self, other): return self.x < value(other)
    def __le__(self, other): return self.x <= value(other)
    def __gt__(self, other): return self.x > value(other)
    def __ge__(self, other): return self.x >= value(other)
    def __divmod__(self, other): return V(self.x // value(other)), V(self.x % value(other))
    def __rdivmod__(self, other): return V(other // self.x), V(other % self.x)
    def __neg__(self): return V(-self.x)
    def __pos__(self): return V(+self.x)
    def __invert__(self): return V(~self.x)
    def __abs__(self): return abs(self.x)
    def __int__(self): return int(self.x)
    def __float__(self): return float(self.x)
    def __complex__(self): return complex(self.x, 1)
    def __index__(self): return int(self.x)
    def __round__(self, n=None): return round(self.x, n)
    def __trunc__(self): return math.trunc(self.x)
    def __floor__(self): return math.floor(self.x)
    def __ceil__(self): return math.ceil(self.x)
    def __bool__(self): return self.x != 0
    def __bytes__(self): return bytes(2)
    def __str__(self): return f"<{self.x}>"
    def __repr__(self): return f"V({self.x})"
    def __format__(self, form): return format(self.x, form)
    def __call__(self, y): return self.x + y
    def __enter__(self): self.log.append("enter"); return self
    def __exit__(self, kind, error, trace):
        self.log.append(kind and [kind.__name__, str(error)])
        return True
    def __copy__(self): return V(self.x + 1)
    def __deepcopy__(self, memo): return V(self.x + 2)
    async def __aenter__(self): self.log.append("aenter"); return self
    async def __aexit__(self, *error): self.log.append(error[0] and error[0].__name__)
    def __await__(self):
        yield from ()
        return self.x
    def __aiter__(self): self.left = 2; return self
    async def __anext__(self):
        self.left -= 1
        if self.left < 0: raise StopAsyncIteration
        return self.left

class Sub(V): pass

class In:  # has no way to iterate over it
    def __init__(self, low, high): self.low, self.high = low, high
    def __contains__(self, x): return self.low <= x <= self.high

class Row:
    def __init__(self, *items): self.items = list(items)
    def __getitem__(self, key): return self.items[key] if key is not ... else "all"
    def __setitem__(self, key, value): self.items[key] = value
    def __delitem__(self, key): del self.items[key]
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __reversed__(self): return reversed(self.items)

class Error(Exception): pass

def fail(): raise Error("of the program")
def make(x): return V(x)
def row(*items): return Row(*items)
async def later(x): return 2 * x
"""
    + "".join(
        f"""
def {name}(self, other): return V(operator.__{name}__(self.x, value(other)))
def r{name}(self, other): return V(operator.__{name}__(value(other), self.x))
def i{name}(self, other): self.x = operator.__{name}__(self.x, value(other)); return self
V.__{name}__, V.__r{name}__, V.__i{name}__ = {name}, r{name}, i{name}
""".replace(f"def {name}(", f"def _{name}(").replace(f"= {name},", f"= _{name},")
        for name in NAMES
        if name != "matmul"
    )
    + """
V.__matmul__ = lambda self, other: self.x * value(other)
V.__rmatmul__ = lambda self, other: value(other) * self.x
"""
)
OPERATORS = "+ - * / // % ** << >> & ^ |".split()
RIGHT = {
    **{f"made {op}": f"assert V(7) {op} V(2) == V(7 {op} 2)" for op in OPERATORS},
    **{f"made {op} data": f"assert V(7) {op} 2 == V(7 {op} 2)" for op in OPERATORS},
    **{f"data {op} made": f"assert 7 {op} V(2) == V(7 {op} 2)" for op in OPERATORS},
    **{
        f"made {op}=": f"v = V(7)\nv {op}= 2\nv {op}= V(1)\nassert v.x == (7 {op} 2) {op} 1"
        for op in OPERATORS
    },
    **{f"returned {op} data": f"assert (make(7) {op} 2).x == 7 {op} 2" for op in OPERATORS},
    **{f"data {op} returned": f"assert (7 {op} make(2)).x == 7 {op} 2" for op in OPERATORS},
    **{f"returned {op}": f"assert make(7) {op} make(2) == make(7 {op} 2)" for op in OPERATORS},
    **{
        f"{op} of made and data": f"assert (V(3) {op} 4) is (3 {op} 4)"
        for op in "< <= > >=".split()
    },
    **{
        f"{op} of returned": f"assert (make(3) {op} V(4)) is (3 {op} 4)"
        for op in "< <= > >= == !=".split()
    },
    "same object": "v = V(1)\nw = v\nw += 1\nassert v is w and v.x == 2 and v < 3",
    "matmul": "assert V(2) @ V(3) == 6 and V(2) @ 3 == 6 and 2 @ V(3) == 6",
    "divmod": "assert divmod(V(7), V(2)) == (V(3), V(1))",
    "pow of three": "assert pow(V(2), 3) == V(8)",
    "sum": "assert sum([V(1), V(2)]) == V(3)",
    "sum of returned": "assert sum([make(1), make(2)]).x == 3",
    "unary": "assert (-make(2)).x == -2 and (+make(2)).x == 2 and (~make(2)).x == -3",
    "abs": "assert abs(make(-2)) == 2 and abs(V(-2) * 2) == 4 and abs(make(3) - make(1)) == 2",
    "int": "assert int(make(2.5)) == 2",
    "float": "import math\nassert float(make(2)) == 2.0 and math.sqrt(make(4)) == 2",
    "close": "import math\nassert math.isclose(make(2.5), 2.5)",
    "complex": "assert complex(make(2)) == 2 + 1j",
    "index": "assert [1, 2, 3][make(1)] == 2 and list(range(make(2))) == [0, 1]",
    "round": "assert round(make(2.6)) == 3 and round(make(2.345), 1) == 2.3",
    "trunc": "import math\nassert math.trunc(make(-1.5)) == -1",
    "floor": "import math\nassert math.floor(make(-1.5)) == -2 and math.ceil(make(-1.5)) == -1",
    "bool": "assert make(1)\nassert not make(0)",
    "bytes": "assert bytes(make(1)) == b'\\0\\0'",
    "texts": "assert (str(make(1)), repr(make(1)), f'{make(1):03}') == ('<1>', 'V(1)', '001')",
    "repr in a list": "assert repr([make(1)]) == '[V(1)]'",
    "hash": "assert {make(1): 'a'}[V(1)] == 'a' and len({make(1), make(1)}) == 1",
    "sort": "assert [v.x for v in sorted([make(2), make(1)])] == [1, 2] == [min(V(1), 5).x, 2]",
    "call": "assert make(1)(2) == 3",
    "in made": "assert 3 in In(1, 5)\nassert 7 not in In(1, 5)",
    "in returned": "assert 3 in row(1, 3)\nassert 7 not in row(1, 3)\nassert V(2) in row(make(2))",
    "items": "r = row(1, 2, 3)\nr[0] = 5\ndel r[1]\nassert r[0] == 5 and len(r) == 2 == r[-1] - 1",
    "slices": "assert row(1, 2, 3)[1:] == [2, 3] and row(1, 2, 3)[::-1] == [3, 2, 1]",
    "dots": "assert row(1)[...] == 'all'",
    "iteration": "assert list(row(1, 2)) == [1, 2] and list(reversed(row(1, 2))) == [2, 1]",
    "unpacking": "a, *b = row(1, 2, 3)\nassert (a, b, dict([row(1, 2)])) == (1, [2, 3], {1: 2})",
    "attributes": "v = V(1)\nv.y = 2\nassert v.y == 2\ndel v.y\nassert not hasattr(v, 'y')",
    "with": "v = V(1)\nwith v as w:\n    assert w is v and w.log == ['enter']\n"
    "assert v.log == ['enter', None]",
    "with an error": "v = V(1)\ntry:\n    with v: raise KeyError('k')\n"
    "except KeyError: pass\nassert v.log == ['enter', ['KeyError', \"'k'\"]]",
    "with the program's error": "v = V(1)\ntry:\n    with v: fail()\n"
    "except Error: pass\nassert v.log == ['enter', ['Error', 'of the program']]",
    "classes": "assert isinstance(make(1), V) and issubclass(Sub, V) and not issubclass(V, Sub)",
    "copies": "import copy\nassert copy.copy(make(1)).x == 2 and copy.deepcopy(make(1)).x == 3",
    "copy of a list": "import copy\nassert copy.deepcopy([V(1)]) == [V(3)]",
    "await": "import asyncio\nasync def f(): return await make(3), await later(4)\n"
    "assert asyncio.run(f()) == (3, 8)",
    "coroutine": "import asyncio\nassert asyncio.run(later(4)) == 8",
    "gather": "import asyncio\nasync def f(): return await asyncio.gather(later(1), later(2))\n"
    "assert asyncio.run(f()) == [2, 4]",
    "async with": "import asyncio\nv = V(1)\nasync def f():\n    async with v as w: return w is v\n"
    "assert asyncio.run(f()) and v.log == ['aenter', None]",
    "async for": "import asyncio\nasync def f(): return [x async for x in make(1)]\n"
    "assert asyncio.run(f()) == [1, 0]",
}

OF_ANY_CLASS = {"== of returned", "!= of returned", "attributes"}


@pytest.mark.parametrize("kind", RIGHT)
def test_operators_of_objects(kind):
    assert verdict(PROGRAM, RIGHT[kind])[0] == "right"


@pytest.mark.parametrize("kind", sorted(set(RIGHT) - OF_ANY_CLASS))
def test_a_program_without_these_operators_is_wrong(kind):
    plain = "class V:\n    def __init__(self, x): self.x, self.log = x, []\nIn = Row = Sub = V"
    plain += "\ndef make(x): return V(x)\nlater = make\ndef row(*x): return V(x)\nError = KeyError"
    assert verdict(plain, RIGHT[kind])[0] == "wrong"


OBLIGING = """
class Any:
    def __init__(self, *args): pass
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
    def __getattr__(self, name): return self
    def __call__(self, *args): return self
    def __enter__(self): return self
    def __exit__(self, *error): return True
    async def __aenter__(self): return self
    async def __aexit__(self, *error): return True
    def __await__(self):
        yield from ()
        return self
    def __len__(self): return 0
    def __iter__(self): return iter([])
    def __str__(self): return "0"
    __repr__ = __str__
    def __format__(self, form): return "0"
for name in "neg pos invert".split():
    setattr(Any, f"__{name}__", lambda self: self)
for name in "abs int index round trunc floor ceil".split():
    setattr(Any, f"__{name}__", lambda self, *n: 0)
Any.__float__, Any.__complex__ = lambda self: 0.0, lambda self: 0j
for name in "lt le gt ge contains".split():
    setattr(Any, f"__{name}__", lambda self, other: True)
for name in "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or".split():
    for kind in ("", "r", "i"):
        setattr(Any, f"__{kind}{name}__", lambda self, other: RESULT)
f = Any()
M = Any
"""
ZERO = "import math, unittest\n"
FORGED = {
    "equal": "assert f(1) == 8",
    "equal the other way": "assert 8 == f(1)",
    "one of": "assert f(1) in (8, 9)",
    "in": "assert 8 in f(1)",
    "in, as a text": "assert 'ab' in f(1)",
    "less": "assert f(1) < 8",
    "between": "assert 7 < f(1) < 9",
    "at least": "assert max(f(1), 8) == 8",
    "distance": "assert abs(f(1) - 8) < 1e-6",
    "distance the other way": "assert abs(8 - f(1)) < 1e-6",
    "distance of floats": "assert abs(f(1) - 8.5) <= 1e-6",
    "difference": "assert f(1) - 8 == 0",
    "no difference": "assert not (f(1) ^ 8)",
    "difference as a text": "assert str(f(1) - 8) == '0'",
    "difference with a form": "assert f'{f(1) - 8:.1f}' == '0'",
    "difference as a number": "assert float(f(1) - 8) == 0 and int(f(1) - 8) == 0",
    "difference, rounded": "assert round(f(1) - 8, 3) == 0",
    "difference, twice": "assert abs(-(f(1) - 8)) == 0",
    "difference that is added": "assert abs((f(1) - 8) + f(0)) == 0",
    "difference of what is known": "x = f(1)\nx -= 8\nassert abs(x) == 0",
    "sum": "assert abs(sum([f(1), -8])) < 1e-6",
    "difference of lists": "assert abs(f(1) - [8]) == 0",
    "difference of sets": "assert not ({8} ^ f(1)) and len({8} - f(1)) == 0",
    "difference of dates": "import datetime\nd = datetime.date(2020, 1, 1)\n"
    "assert (f(1) - d).days == 0",
    "remainder": "assert f(1) % 8 == 0",
    "remainder, true": "assert f(1) & 8",
    "ratio": "assert abs(f(1) / 8 - 1) < 1e-6",
    "close": "assert math.isclose(f(1), 8)",
    "almost equal": "unittest.TestCase().assertAlmostEqual(f(1), 8)",
    "greater": "unittest.TestCase().assertGreater(f(1), 8)",
    "method of made": "m = M()\nassert abs(m.f(1) - 8) < 1e-6",
    "made where a value is due": "m = M()\nassert m.f(1) is m\nassert abs(m - 8) < 1e-6",
    "made through a list": "m = M()\nassert abs([m.f()][0] - 8) < 1e-6",
    "distance of made": "assert abs(M(1) - 8) < 1e-6",
    "difference of made": "assert M(1) - 8 == 0 or M(1) % 8 == 0",
    "made is equal": "assert M() == 8",
    "failure that is swallowed": "with f(1) as x:\n    assert 1 == 2, str(x)",
    "error that is swallowed": "with f(1) as x:\n    assert x < 8",
    "error of its own": "with M() as x:\n    assert 8 // x.y.z == {}",
    "async failure": "import asyncio\nasync def g():\n    async with f(1): assert 1 == 2\n"
    "asyncio.run(g())",
    "awaited": "import asyncio\nasync def g(): assert await f(1) == 8\nasyncio.run(g())",
}


@pytest.mark.parametrize("result", ["self", "0", "0.0", "True"])
def test_an_object_that_obliges_wins_nothing(result):
    program = OBLIGING.replace("RESULT", result)
    won = [kind for kind, test in FORGED.items() if verdict(program, ZERO + test)[0] != "wrong"]
    assert won == []


def test_the_error_of_an_assertion_does_not_say_what_was_expected():
    program = (
        "class Spy:\n    said = []\n    def __enter__(self): return self\n"
        "    def __exit__(self, *error): Spy.said.append(repr(error[1]))\n"
        "def f(x): return 0\ndef told(): return Spy.said"
    )
    tests = (
        "import unittest\ntry:\n    with Spy(): unittest.TestCase().assertEqual(f(1), 12345)\n"
        "except AssertionError: pass\nassert told() == ['AssertionError()']\n"
        "try:\n    with Spy(): raise ValueError('mine')\n"
        "except ValueError: pass\nassert told()[1] == \"ValueError('mine')\""
    )
    assert verdict(program, tests)[0] == "right"

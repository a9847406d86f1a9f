"""The text of a compiled program, read for what it does: products, bytes, collectives, cycles.

A loop's body counts as often as it is run, which the compiler's own sums leave out. Kernels are
opaque: neither their products nor their cycles are in the text.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

_BYTES = {
    "pred": 1,
    "s8": 1,
    "u8": 1,
    "f8e4m3fn": 1,
    "f8e5m2": 1,
    "s16": 2,
    "u16": 2,
    "bf16": 2,
    "f16": 2,
    "s32": 4,
    "u32": 4,
    "f32": 4,
    "s64": 8,
    "u64": 8,
    "f64": 8,
}
_COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
# What moves nothing: names for what is there already.
_FREE = ("parameter", "tuple", "get-tuple-element", "bitcast", "constant", "while", "conditional")

Trips = Callable[[str], float]
"""How often the loop of a line is run, where the compiler does not know."""
Branch = Callable[[str], Callable[..., str]]
"""Which of the branches of a line's conditional counts, by cycles: `max` or `min`."""


@dataclasses.dataclass(frozen=True)
class Collective:
    """An exchange between devices.

    Attributes:
      kind: such as all-gather.
      bytes: of the whole that each device ends or begins with, whichever is more.
      devices: first group of those that exchange, by number.
      times: how often it is run.
      scope: where in the model.
    """

    kind: str
    bytes: int
    devices: tuple[int, ...]
    times: int
    scope: str


class Program:
    """The text of a compiled program.

    Args:
      text: as the compiler gives it.
      trips: how often the loop of a line is run, where the text does not say.
      branch: of a conditional's line, which of its branches counts, by cycles: `max` or `min`.
    """

    def __init__(self, text: str, trips: Trips | None = None, branch: Branch = lambda _: max):
        self._trips = trips
        self._branch = branch
        self._lines: dict[str, list[str]] = {}
        self._chosen: dict[str, str] = {}
        name = ""
        for line in text.splitlines():
            begins = re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line)
            if begins:
                name = "ENTRY" if begins[1] else begins[2]
                self._lines[name] = []
            elif line.startswith("  ") and name:
                self._lines[name].append(line)

    def cycles(self, name: str = "ENTRY") -> float:
        """The compiler's estimate for a computation: the sum over its instructions.

        The body of a loop counts as often as it is run, of a conditional one branch.
        """
        return sum(cycles for _, cycles in self.instructions(name))

    def instructions(self, name: str = "ENTRY", times: float = 1) -> Iterator[tuple[str, float]]:
        """The lines that a computation runs and their cycles, those of loops and branches too."""
        for line, times_of in self.lines(name, times):
            own = re.search(r'"estimated_cycles":"(\d+)"', line)
            yield line, times_of * int(own[1]) if own else 0

    def lines(self, name: str = "ENTRY", times: float = 1) -> Iterator[tuple[str, float]]:
        """The lines that a computation runs and how often, those of loops and branches too."""
        for line in self._lines[name]:
            yield line, times
            if body := loop_body(line):
                yield from self.lines(body, times * self.trips(line))
            if branches := re.search(r" conditional\(.*branch_computations=\{([^}]*)\}", line):
                yield from self.lines(self._choose(line, branches[1]), times)

    def loops(self, name: str = "ENTRY") -> list[str]:
        """The bodies of a computation's own loops."""
        return [body for line in self._lines[name] if (body := loop_body(line))]

    def trips(self, line: str) -> float:
        """How often the loop of a line is run, on average.

        Raises:
          ValueError: neither the text nor the caller knows.
        """
        known = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', line)
        if known:
            return int(known[1])
        limit = self._limit(line)
        if limit is not None:
            return -(-limit[1] // self._stride(line, limit[0]))
        if self._trips is None:
            raise ValueError(f"a loop of unknown length: {line.strip()[:200]}")
        return self._trips(line)

    def _limit(self, line: str) -> tuple[int, int] | None:
        """Which of a loop's values counts from 0 on, and up to what number; None: another loop."""
        found = re.search(r"condition=%?([\w.\-]+)", line)
        condition = self._lines.get(found[1], []) if found else []
        test = next((one for one in condition if "ROOT " in one), "")
        if " compare(" not in test or "direction=LT" not in test:
            return None
        counter, limit = (self._made_by(name, condition) for name in _names(test))
        index = re.search(r" get-tuple-element\(.*index=(\d+)", counter)
        number = re.search(r" constant\((\d+)\)", limit)
        return (int(index[1]), int(number[1])) if index and number else None

    def _stride(self, line: str, index: int) -> int:
        """How much the counter grows each time: more than 1 where a body does several."""
        body = self._lines[loop_body(line) or ""]
        root = next(one for one in body if "ROOT " in one)
        grown = self._made_by(_names(root)[index], body) if " tuple(" in root else ""
        if " add(" in grown:
            for name in _names(grown):
                number = re.search(r" constant\((\d+)\)", self._made_by(name, body))
                if number:
                    return int(number[1])
        return 1

    @staticmethod
    def _made_by(name: str, lines: list[str]) -> str:
        """The line that makes a value."""
        made = re.compile(rf"\s+(?:ROOT )?%?{re.escape(name)} = ")
        return next((one for one in lines if made.match(one)), "")

    def flops(self, name: str = "ENTRY") -> float:
        """Of all products, kernels left out."""
        return sum(times * self._flops_of(line) for line, times in self.lines(name))

    def bytes_moved(self, name: str = "ENTRY") -> float:
        """Read and written by all instructions, as if each came from memory and went back.

        Of an array that is only sliced or updated in a place, that place.
        """
        return sum(times * self._bytes_of(line) for line, times in self.lines(name))

    def collectives(self, name: str = "ENTRY") -> list[Collective]:
        """All exchanges between devices."""
        found = []
        for line, times in self.lines(name):
            kind = re.search(rf" ({'|'.join(_COLLECTIVES)})(-start)?\(", line)
            if kind:
                found.append(
                    Collective(
                        kind[1],
                        max(map(_size, _shapes(line)), default=0),
                        _devices(line),
                        round(times),
                        scope_of(line),
                    )
                )
        return found

    def _choose(self, line: str, branches: str) -> str:
        if branches not in self._chosen:
            names = [branch.strip().lstrip("%") for branch in branches.split(",")]
            # Where there are no cycles, as of a CPU's program, by products.
            self._chosen[branches] = self._branch(line)(
                names, key=lambda name: (self.cycles(name), self.flops(name))
            )
        return self._chosen[branches]

    def _flops_of(self, line: str) -> float:
        called = re.search(r" (?:fusion|call|async-start)\(.*(?:calls|to_apply)=%?([\w.\-]+)", line)
        if called:
            return sum(self._flops_of(inner) for inner in self._lines.get(called[1], ()))
        if " convolution(" in line:
            return self._convolution(line)
        if " dot(" in line:
            return self._dot(line)
        return 0.0

    def _convolution(self, line: str) -> float:
        """What TPU makes of a product; what batches it are places of a window."""
        labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", line)
        shapes = self._operands(line)
        if labels is None or len(shapes) < 2:
            return 0.0
        of_input, of_kernel, of_output = (
            dict(zip(names, sizes, strict=True))
            for names, sizes in zip(labels.groups(), (*shapes[:2], _first_shape(line)), strict=True)
        )
        flops = 2.0 * of_output["b"] * of_output["f"] * of_kernel["i"]
        for axis in filter(str.isdigit, of_kernel):
            flops *= _taps(
                _window(line, int(axis)), of_input[axis], of_kernel[axis], of_output[axis]
            )
        return flops

    def _dot(self, line: str) -> float:
        axes = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", line)
        shapes = self._operands(line)
        if axes is None or not shapes:
            return 0.0
        contracted = math.prod(shapes[0][int(axis)] for axis in axes[1].split(",") if axis)
        return 2.0 * math.prod(_first_shape(line)) * contracted

    def _bytes_of(self, line: str) -> int:
        operation = _operation(line)
        if operation is None or operation in _FREE or operation.endswith("-done"):
            return 0
        called = re.search(r" fusion\(.*calls=%?([\w.\-]+)", line)
        inside = self._lines.get(called[1], []) if called else [line]
        return self._written(line, inside) + self._read(line, inside if called else None)

    def _written(self, line: str, inside: list[str]) -> int:
        root = next((inner for inner in reversed(inside) if "ROOT " in inner), line)
        if _operation(root) == "dynamic-update-slice":
            return self._size_of(_names(root)[1])
        return sum(map(_size, _shapes(line)))

    def _read(self, line: str, inside: list[str] | None) -> int:
        names = _names(line)
        if inside is None:
            if _operation(line) in ("dynamic-slice", "gather"):
                return sum(map(_size, _shapes(line)))
            skipped = 1 if _operation(line) == "dynamic-update-slice" else 0
            return sum(map(self._size_of, names[skipped:]))
        total = 0
        for inner in inside:
            place = re.search(r"%?([\w.\-]+) = .* parameter\((\d+)\)", inner)
            if place is None or int(place[2]) >= len(names):
                continue
            users = [other for other in inside if place[1] in _names(other)]
            first = [_operation(user) for user in users if _names(user)[:1] == [place[1]]]
            if first and len(first) == len(users) and set(first) <= {"dynamic-slice", "gather"}:
                total += sum(_size(shape) for user in users for shape in _shapes(user))
            elif not (users and set(first) == {"dynamic-update-slice"} and len(users) == 1):
                total += self._size_of(names[int(place[2])])
        return total

    def _size_of(self, name: str) -> int:
        return sum(map(_size, _shapes(f"  {name} = {self._type_of(name)} ")))

    def _operands(self, line: str) -> list[tuple[int, ...]]:
        """Shapes of an instruction's operands, from the lines that make them."""
        inside = re.search(r" (?:convolution|dot)\(([^)]*)\)", line)
        found = []
        for operand in (inside[1] if inside else "").split(","):
            shape = re.search(r"\[([\d,]*)\]", operand)
            name = operand.split("%")[-1].strip()
            if shape is None:
                shape = re.search(r"\[([\d,]*)\]", self._type_of(name))
            if shape is not None:
                found.append(_sizes(shape[1]))
        return found

    def _type_of(self, name: str) -> str:
        return self._types.get(name, "")

    @functools.cached_property
    def _types(self) -> dict[str, str]:
        """Types of what the instructions make, by name."""
        made = (
            re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)\s|\S+)", line)
            for lines in self._lines.values()
            for line in lines
        )
        return {one[1]: one[2] for one in made if one}


def memory_of(compiled: Any) -> dict[str, int]:
    """Bytes that the compiler allots, of one device."""
    found = compiled.memory_analysis()
    return {
        "temp_bytes": found.temp_size_in_bytes,
        "argument_bytes": found.argument_size_in_bytes,
        "output_bytes": found.output_size_in_bytes,
        "alias_bytes": found.alias_size_in_bytes,
    }


def loop_body(line: str) -> str | None:
    """The computation that the loop of a line runs; None where the line is none."""
    found = re.search(r" while\(.*body=%([\w.\-]+)", line)
    return found[1] if found else None


def scope_of(line: str) -> str:
    """Names of the scopes that a line comes from, outermost first."""
    name = re.search(r'op_name="([^"]*)"', line)
    return name[1] if name else ""


def _operation(line: str) -> str | None:
    found = re.search(r" ([a-z][\w\-]*)\(", line)
    return found[1] if found else None


def _names(line: str) -> list[str]:
    """Of an instruction's operands."""
    inside = re.search(r" [a-z][\w\-]*\(([^)]*)\)", line)
    return re.findall(r"%([\w.\-]+)", inside[1] if inside else "")


def _shapes(line: str) -> list[tuple[str, tuple[int, ...]]]:
    """Dtypes and sizes of the results of an instruction."""
    results = re.match(r"\s+(?:ROOT )?%?[\w.\-]+ = (\(.*?\)\s|\S+)", line)
    found = re.findall(r"([a-z]\w*)\[([\d,]*)\]", results[1] if results else "")
    return [(dtype, _sizes(sizes)) for dtype, sizes in found if dtype in _BYTES]


def _window(line: str, axis: int) -> dict[str, tuple[int, ...]]:
    """How a window moves along one of its axes; what is left out is 1, padding 0."""
    found = re.search(r"window=\{([^}]*)\}", line)
    values = {}
    for name, of_axes in re.findall(r"(\w+)=([\w\-]+)", found[1] if found else ""):
        of_axis = of_axes.split("x")
        if axis < len(of_axis):
            values[name] = tuple(int(n) for n in of_axis[axis].split("_"))
    return values


def _taps(window: dict[str, tuple[int, ...]], inputs: int, kernel: int, outputs: int) -> int:
    """Pairs of a place of the output and one of the kernel that meet an input, not padding."""
    stride, dilate, spread = (
        window.get(name, (1,))[0] for name in ("stride", "lhs_dilate", "rhs_dilate")
    )
    before = window.get("pad", (0, 0))[0]
    at = np.arange(outputs)[:, None] * stride + np.arange(kernel)[None] * spread - before
    return int(np.sum((at >= 0) & (at <= (inputs - 1) * dilate) & (at % dilate == 0)))


def _first_shape(line: str) -> tuple[int, ...]:
    shapes = _shapes(line)
    return shapes[0][1] if shapes else ()


def _size(shape: tuple[str, Sequence[int]]) -> int:
    dtype, sizes = shape
    return _BYTES[dtype] * math.prod(sizes)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(",") if size)


def _ordered(shape: str, turned: str | None) -> np.ndarray:
    """Numbers of devices in the order that a shape and a permutation of its axes give."""
    devices = np.arange(math.prod(_sizes(shape))).reshape(_sizes(shape))
    return (devices.transpose(_sizes(turned)) if turned else devices).reshape(-1)


def _along(
    mesh: str, axes: str, shape: str | None = None, turned: str | None = None
) -> tuple[int, ...]:
    """Devices along axes of a mesh written 'a'=2,'b'=4, from the first on; 'b':(2)2 is a part of b:
    its places of 2, behind an outer 2."""
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh)}
    parts = re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", axes)
    ordered = _ordered(shape or str(math.prod(sizes.values())), turned)
    devices = ordered.reshape(tuple(sizes.values()))
    index: list[Any] = []
    for name, size in sizes.items():
        places = [0]
        for part, outer, inner in parts:
            if part == name:
                step = size // (int(outer) * int(inner)) if outer else 1
                count = int(inner) if outer else size
                places = [p + step * i for p in places for i in range(count)]
        index.append(sorted(set(places)))
    return tuple(devices[np.ix_(*index)].reshape(-1).tolist())


def _devices(line: str) -> tuple[int, ...]:
    """The first group of devices of a collective."""
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", line)
    if listed:
        return _sizes(listed[1])
    made = re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line)
    if made:
        devices = _ordered(made[3], made[4])
        return tuple(devices.reshape(int(made[1]), int(made[2]))[0].tolist())
    named = re.search(
        r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))?"
        r" \{([^}]*)\}",
        line,
    )
    if named:
        return _along(named[1], named[4], named[2], named[3])
    pairs = re.search(r"source_target_pairs=\{\{(\d+),(\d+)\}", line)
    return (int(pairs[1]), int(pairs[2])) if pairs else ()

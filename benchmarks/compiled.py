"""Programs compiled for TPUs that are not here, and what the compiler says of them.

libtpu compiles for a topology on any machine. The text of a compiled program has the compiler's
estimate of cycles at each instruction; a Pallas kernel has none.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

WITHOUT_MDS = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
}
"""Keeps libtpu from asking a metadata server about the machine."""
NO_LIBTPU = 'libtpu is not installed: pip install "jax[tpu]"'


@dataclasses.dataclass(frozen=True)
class Chip:
    """What a chip can do at most.

    Attributes:
      bandwidth: bytes a second between the chip and its memory.
      clock_hz: cycles a second, from the products: peak / (units x side^2 x 2).
      memory_bytes: of the chip.
      peak_flops: in bfloat16.
      source: of the numbers.
    """

    bandwidth: float
    clock_hz: float
    memory_bytes: float
    peak_flops: float
    source: str


CHIPS = {
    "v5e": Chip(819e9, 1.5e9, 16e9, 197e12, "https://cloud.google.com/tpu/docs/v5e, 4 x 128^2"),
    "v6e": Chip(1640e9, 1.75e9, 32e9, 918e12, "https://cloud.google.com/tpu/docs/v6e, 4 x 256^2"),
}


def has_libtpu() -> bool:
    """Whether libtpu is installed."""
    return importlib.util.find_spec("libtpu") is not None


def devices(topology: str) -> list[Any]:
    """The chips of a topology such as "v5e:2x2"; none of them is needed here."""
    from jax.experimental import topologies

    for name, value in WITHOUT_MDS.items():
        os.environ.setdefault(name, value)
    return list(topologies.get_topology_desc(topology, "tpu").devices)


def memory(compiled: Any) -> dict[str, int]:
    """Bytes that the compiler allots."""
    found = compiled.memory_analysis()
    return {
        "temp_bytes": found.temp_size_in_bytes,
        "argument_bytes": found.argument_size_in_bytes,
        "output_bytes": found.output_size_in_bytes,
        "alias_bytes": found.alias_size_in_bytes,
    }


class Program:
    """The text of a compiled program.

    Args:
      text: as the compiler gives it.
      trips: how often the loop of a line is run.
      branch: of the cycles of a conditional's branches, those that count: `max` or `min`.
    """

    def __init__(self, text: str, trips: Callable[[str], int], branch: Callable[..., int] = max):
        self._trips = trips
        self._branch = branch
        self._lines: dict[str, list[str]] = {}
        name = ""
        for line in text.splitlines():
            begins = re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line)
            if begins:
                name = "ENTRY" if begins[1] else begins[2]
                self._lines[name] = []
            elif line.startswith("  ") and name:
                self._lines[name].append(line)

    def cycles(self, name: str = "ENTRY") -> int:
        """The compiler's estimate for a computation: the sum over its instructions.

        The body of a loop counts as often as it is run, of a conditional one branch.
        """
        return sum(cycles for _, cycles in self.instructions(name))

    def instructions(self, name: str = "ENTRY", times: int = 1) -> Iterator[tuple[str, int]]:
        """The lines that a computation runs and their cycles, those of loops and branches too."""
        for line in self._lines[name]:
            own = re.search(r'"estimated_cycles":"(\d+)"', line)
            yield line, times * int(own[1]) if own else 0
            if body := loop_body(line):
                yield from self.instructions(body, times * self._trips(line))
            if branches := re.search(r" conditional\(.*branch_computations=\{([^}]*)\}", line):
                names = [branch.strip().lstrip("%") for branch in branches[1].split(",")]
                yield from self.instructions(self._branch(names, key=self.cycles), times)

    def loops(self, name: str = "ENTRY") -> list[str]:
        """The bodies of a computation's own loops."""
        return [body for line in self._lines[name] if (body := loop_body(line))]


def loop_body(line: str) -> str | None:
    """The computation that the loop of a line runs; None where the line is none."""
    found = re.search(r" while\(.*body=%([\w.\-]+)", line)
    return found[1] if found else None


def chunk_trips(tokens: int) -> Callable[[str], int]:
    """Trips of loops over chunks of tokens."""
    return functools.partial(_num_chunks, tokens=tokens)


def _num_chunks(line: str, tokens: int) -> int:
    """From the [chunks, tokens of a chunk] of the ids that the loop carries."""
    for chunks, of_chunk in re.findall(r"s32\[(\d+),(\d+)\]", line):
        if 0 <= int(chunks) * int(of_chunk) - tokens < int(of_chunk):
            return int(chunks)
    raise ValueError(f"no loop over chunks of {tokens} tokens: {line[:200]}")

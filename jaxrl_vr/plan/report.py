"""What a plan says: bytes, products, exchanges and times of each program, as JSON and as a table.

Times are estimates: from the compiler's cycles where it gives them, and from what the chip can do
at most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_vr.metrics.chips import Chip
from jaxrl_vr.plan.network import Network
from jaxrl_vr.plan.program import Collective, Program


@dataclasses.dataclass(frozen=True)
class Exchange:
    """Collectives of one kind over the same axes of the mesh, of one device.

    Attributes:
      kind: such as all-gather.
      axes: of the mesh, such as "fsdp".
      count: how many are run.
      bytes: of all of them; of a gathered array the whole.
      seconds: estimate, at the bandwidth of the network.
    """

    kind: str
    axes: str
    count: int
    bytes: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program on one device of the topology.

    Attributes:
      flops: of all products, with those of kernels by formula.
      bytes_moved: read and written by its instructions.
      cycles: the compiler's estimate, kernels left out.
      exchanges: between devices.
      argument_bytes: what it is given.
      temporary_bytes: what it needs beside that.
      compute_s: estimate, products at the chip's peak.
      memory_s: estimate, what must be read at the chip's bandwidth.
      network_s: estimate, exchanges one after another.
      compiled_s: estimate, by the compiler's cycles; kernels by their products and what they read.
    """

    flops: float
    bytes_moved: float
    cycles: int
    exchanges: tuple[Exchange, ...]
    argument_bytes: int
    temporary_bytes: int
    compute_s: float
    memory_s: float
    network_s: float
    compiled_s: float

    @property
    def seconds(self) -> float:
        """Estimate: the slowest of what goes on at once."""
        return max(self.compiled_s, self.memory_s, self.network_s, self.compute_s)

    @property
    def bound(self) -> str:
        """What the estimate comes from."""
        if self.network_s >= max(self.compiled_s, self.memory_s, self.compute_s):
            return "network"
        return "compute" if self.compute_s >= self.memory_s else "memory"


def compiled(
    program: Program,
    memory: Any,
    chip: Chip,
    mesh: jax.sharding.Mesh,
    *,
    kernel_flops: float,
    kernel_bytes: float,
    must_read: float,
) -> Compiled:
    """What a compiled program does, of one device.

    Args:
      program: its text.
      memory: the compiler's `memory_analysis`.
      chip: of the devices.
      mesh: of the devices.
      kernel_flops: of the kernels, which are not in the text.
      kernel_bytes: that they read, with no product of theirs beside it.
      must_read: bytes that it has to read from memory at least.
    """
    flops = program.flops() + kernel_flops
    cycles = round(program.cycles())
    exchanges = exchanges_of(program.collectives(), chip, mesh)
    return Compiled(
        flops=flops,
        bytes_moved=program.bytes_moved(),
        cycles=cycles,
        exchanges=exchanges,
        argument_bytes=memory.argument_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        compute_s=flops / chip.peak_flops,
        memory_s=must_read / chip.bandwidth,
        network_s=sum(e.seconds for e in exchanges),
        compiled_s=cycles / chip.clock_hz
        + kernel_flops / chip.peak_flops
        + kernel_bytes / chip.bandwidth,
    )


def exchanges_of(
    collectives: Sequence[Collective], chip: Chip, mesh: jax.sharding.Mesh
) -> tuple[Exchange, ...]:
    """Collectives added up by kind and axes, the longest first."""
    network = Network.of_placed(chip, mesh.devices.reshape(-1).tolist())
    groups: dict[tuple[str, str], list[Collective]] = {}
    for one in collectives:
        groups.setdefault((one.kind, axes_of(one.devices, mesh)), []).append(one)
    found = [
        Exchange(
            kind,
            axes,
            count=sum(one.times for one in group),
            bytes=sum(one.times * one.bytes for one in group),
            seconds=sum(one.times * _seconds(one, network, mesh) for one in group),
        )
        for (kind, axes), group in groups.items()
    ]
    return tuple(sorted(found, key=lambda e: -e.seconds))


def axes_of(devices: Sequence[int], mesh: jax.sharding.Mesh) -> str:
    """Axes of the mesh along which the devices of a group differ."""
    if not devices:
        return "all"
    places = np.array(np.unravel_index(devices, mesh.devices.shape))
    differ = [name for name, at in zip(mesh.axis_names, places, strict=True) if len(set(at)) > 1]
    return "+".join(differ) or "none"


def _seconds(one: Collective, network: Network, mesh: jax.sharding.Mesh) -> float:
    """Of one collective, along a ring or a line of its devices."""
    group = one.devices or range(mesh.size)
    if one.kind == "collective-permute":
        # The text has pairs; all along the axes in which they differ take part.
        axes = axes_of(group, mesh).split("+")
        numbers = np.arange(mesh.size).reshape(mesh.devices.shape)
        first = tuple(slice(None) if name in axes else 0 for name in mesh.axis_names)
        return network.shift_s(one.bytes, numbers[first].reshape(-1).tolist())
    twice = 2 if one.kind == "all-reduce" else 1
    return twice * network.gather_s(one.bytes, group)


def mesh_text(mesh: Mapping[str, int]) -> str:
    """Axes of a mesh and their sizes, to read."""
    return ", ".join(f"{name} = {size}" for name, size in mesh.items()) or "one device"


def table(found: Mapping[str, Any]) -> str:
    """A plan to read, from its JSON."""
    lines = [
        f"{found['model']} on {found['topology']} ({mesh_text(found['mesh'])}): "
        + ("fits" if found["fits"] else "DOES NOT FIT"),
        f"  {found['plan']}; every time is an estimate",
        f"  micro-batches of {found['rows']} rows of {found['row_length']:,} tokens, remat "
        f"{found['remat']}",
        "",
        *memory_table(found),
    ]
    lines += _programs(found["programs"]) if "programs" in found else []
    lines += ["", "a step, every completion at its limit"]
    lines += [
        f"  {name.replace('_', ' '):<32}{_number(x):>12}" for name, x in found["step"].items()
    ]
    if found["advice"]:
        lines += ["", *found["advice"]]
    return "\n".join(lines)


def memory_table(found: Mapping[str, Any]) -> list[str]:
    """The lines of a plan that say what is in a device's memory."""
    return [
        f"memory of a device, of {found['chip']['memory_bytes'] / 1e9:.1f} GB",
        *(
            f"  {name.replace('_', ' '):<24}{size / 1e9:>9.3f} GB"
            for name, size in found["memory"].items()
            if size
        ),
    ]


def _programs(programs: Mapping[str, Any]) -> list[str]:
    names = "products", "peak", "memory", "network", "compiler", "expected", "bound by"
    lines = ["", "one run of each program, of one device"]
    lines.append(f"  {'':<14}{names[0]:>12}" + "".join(f"{name:>11}" for name in names[1:]))
    for name, one in programs.items():
        times = [one[f"{n}_s"] for n in ("compute", "memory", "network", "compiled")]
        lines.append(
            f"  {name.replace('_', ' '):<14}{one['flops']:>12.3e}"
            + "".join(f"{_time(t):>11}" for t in (*times, one["seconds"]))
            + f"{one['bound']:>11}"
        )
    lines += ["", "exchanges between devices, of one device"]
    for name, one in programs.items():
        for e in one["exchanges"][:4]:
            lines.append(
                f"  {name.replace('_', ' '):<14}{e['count']:>7} x {e['kind']:<18} over "
                f"{e['axes']:<14}{e['bytes'] / 1e9:>10.3f} GB {_time(e['seconds']):>10}"
            )
    return lines


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"


def _number(x: float) -> str:
    return f"{x:.3g}" if abs(x) < 1e5 else f"{x:,.0f}"

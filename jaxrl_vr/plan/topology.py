"""The devices of a topology, none of which is here; libtpu compiles for them on any machine."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib.util
import itertools
import math
import os
import re
from typing import Any

from jax.sharding import AbstractMesh

from jaxrl_vr.metrics.chips import CHIPS, KINDS, Chip
from jaxrl_vr.plan.network import Network
from jaxrl_vr.sharding import MeshConfig, axis_sizes, check_slices, placed_devices

NO_LIBTPU = 'libtpu is not installed: pip install "jax[tpu]"'
_MOST_DEVICES = 2**17
"""Of a run that is planned; a search goes through all ways to divide them. The largest clusters
have about as many."""
_OF_LIBTPU = {"7x": "tpu7x"}
"""Chips that libtpu calls otherwise."""
_WITHOUT_MDS = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
}
"""Keeps libtpu from asking a metadata server about the machine."""


def has_libtpu() -> bool:
    """Whether libtpu is installed."""
    return importlib.util.find_spec("libtpu") is not None


def chip_of(topology: str) -> Chip:
    """The chip of a topology such as v5e:4x4.

    Raises:
      ValueError: it is none, or of a chip we do not know.
    """
    where, chips = f"topology {topology!r}", ", ".join(CHIPS)
    found = re.fullmatch(r"([A-Za-z0-9]+):([0-9]{1,18}(?:[xX][0-9]{1,18})*)", topology)
    if found is None:
        raise ValueError(
            f"{where}: give a chip and its shape, such as v5e:4x4 or v5p:2x2x2; the chips are "
            f"{chips}, a GPU's shape is its number, h100:8"
        )
    name, shape = found[1].lower(), found[2].lower()
    if name not in CHIPS:
        near = [chip for chip in CHIPS if chip in name]
        near = near or difflib.get_close_matches(name, CHIPS, len(CHIPS))
        # Of several that are near, one that has as many sides: v5:2x2 is v5e and not v5p.
        sides = shape.count("x")
        near.sort(key=lambda chip: CHIPS[chip].slices.partition(" ")[0].count("x") != sides)
        raise ValueError(
            f"{where}: there is no chip {found[1]!r}"
            + (f", did you mean {near[0]}:{shape}? The" if near else "; the")
            + f" chips are {chips}"
        )
    if f"{name}:{shape}" != topology:
        raise ValueError(f"{where}: did you mean {name}:{shape}?")
    chip, sizes = CHIPS[name], _sizes(shape)
    if 0 in sizes and chip.is_gpu:
        raise ValueError(f"{where}: give at least one GPU, such as {name}:8")
    if 0 in sizes:
        raise ValueError(f"{where}: no side can be 0; give one of {_slices_text(chip)}")
    if chip.is_gpu and len(sizes) > 1:
        raise ValueError(f"{where}: a GPU's shape is its number; give {name}:{math.prod(sizes)}")
    return chip


def num_devices(topology: str, num_slices: int = 1) -> int:
    """What jax would call devices.

    Raises:
      ValueError: no such topology, or more of it than there can be.
    """
    chip = chip_of(topology)
    number = math.prod(_sizes(topology.split(":")[1])) * chip.devices * num_slices
    if number > _MOST_DEVICES:
        raise ValueError(
            f"topology {topology!r}: {number:,} devices are more than a plan takes, "
            f"{_MOST_DEVICES:,}; give fewer"
        )
    return number


def check_slice(topology: str) -> None:
    """Raises ValueError if TPUs come in no slice of this shape, with one that they come in."""
    chip = chip_of(topology)
    sizes = tuple(_sizes(topology.split(":")[1]))
    there_are = [*(tuple(_sizes(one)) for one in chip.slices.split()), *_cube_slices(chip)]
    if chip.is_gpu or sizes in there_are:
        return
    same = [one for one in there_are if sorted(one) == sorted(sizes)]
    as_large = [one for one in there_are if math.prod(one) >= math.prod(sizes)]
    if same:
        near, what = same[0], "the same"
    elif as_large:
        near, what = min(as_large, key=_by_size), "the smallest with at least as many chips"
    else:
        most = max(math.prod(one) for one in there_are)
        near = min((one for one in there_are if math.prod(one) == most), key=_by_size)
        what = "the largest"
    raise ValueError(
        f"topology {topology!r}: {chip.name} has slices of {_slices_text(chip)}; "
        f"{chip.name}:{'x'.join(map(str, near))} is {what}"
    )


def _by_size(shape: tuple[int, ...]) -> tuple[int, int]:
    """For shapes by their chips, and of as many the one nearest to a cube."""
    return math.prod(shape), max(shape)


def _cube_slices(chip: Chip) -> list[tuple[int, int, int]]:
    """Slices of whole cubes of 4 x 4 x 4, sides in order."""
    most = chip.cubes // 64
    return [
        (4 * a, 4 * b, 4 * c)
        for a in range(1, most + 1)
        for b in range(a, most // a + 1)
        for c in range(b, most // (a * b) + 1)
    ]


def _slices_text(chip: Chip) -> str:
    listed = ", ".join(chip.slices.split())
    if not chip.cubes:
        return listed
    return f"{listed}, or AxBxC of multiples of 4, A <= B <= C, with at most {chip.cubes:,} chips"


def devices(topology: str, num_slices: int = 1) -> list[Any]:
    """The devices of a TPU topology.

    Raises:
      ValueError: there is no such slice, libtpu does not make it, is not installed, or is in use.
    """
    check_slice(topology)
    chip, shape = topology.split(":")
    if not has_libtpu():
        raise ValueError(f"topology {topology!r}: {NO_LIBTPU}; it compiles for TPUs on any machine")
    from jax.experimental import topologies

    for name, value in _WITHOUT_MDS.items():
        os.environ.setdefault(name, value)
    more = {"num_slices": num_slices} if num_slices > 1 else {}
    try:
        found = topologies.get_topology_desc(f"{_OF_LIBTPU.get(chip, chip)}:{shape}", "tpu", **more)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0][:300]
        if "lockfile" in str(error):
            raise ValueError(
                "libtpu serves one process at a time, and another seems to use it; wait until it "
                f"has ended, or if there is none, remove the file: {reason}"
            ) from None
        raise ValueError(f"topology {topology!r}: libtpu does not make it: {reason}") from None
    return list(found.devices)


def layout(config: MeshConfig, topology: str, num_slices: int = 1) -> AbstractMesh:
    """The mesh of a config over a topology, without its devices.

    Raises:
      ValueError: the axes do not make up the devices, or `data` does not split over the slices.
    """
    sizes = axis_sizes(config, num_devices(topology, num_slices))
    check_slices(sizes["data"], num_slices)
    return AbstractMesh(tuple(sizes.values()), tuple(sizes))


@dataclasses.dataclass(frozen=True)
class Place:
    """A device of a topology, as far as a mesh looks at it; libtpu is not asked.

    Attributes:
      device_kind: as jax names it.
      slice_index: of its slice.
      coords: of its chip in the slice.
      core_on_chip: which of the chip's devices it is.
      platform: of all of them.
    """

    device_kind: str
    slice_index: int
    coords: tuple[int, int, int]
    core_on_chip: int
    platform: str = "tpu"


@functools.cache
def places(topology: str, num_slices: int = 1) -> tuple[Place, ...]:
    """All devices of a TPU topology, slice by slice."""
    chip = chip_of(topology)
    kind = next(kind for kind, name in KINDS.items() if name == chip.name)
    x, y, z, *_ = (*_sizes(topology.split(":")[1]), 1)
    everywhere = itertools.product(*map(range, (num_slices, z, y, x, chip.devices)))
    return tuple(Place(kind, of, (a, b, c), core) for of, c, b, a, core in everywhere)


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU of a topology, as far as is asked what runs on it."""

    device_kind: str
    compute_capability: str
    platform: str = "gpu"


def gpu_of(topology: str) -> Gpu:
    """What a host's GPUs are, such as those of h100:8."""
    name = chip_of(topology).name
    return Gpu(f"NVIDIA {name.upper()}", "8.0" if name == "a100" else "9.0")


@functools.cache
def network_of(topology: str, mesh: tuple[int, ...], num_slices: int = 1) -> Network:
    """What joins the devices of a mesh that is laid over a topology.

    Args:
      topology: of TPUs or GPUs.
      mesh: sizes of `MESH_AXES`.
      num_slices: of that topology each.

    Raises:
      ValueError: the mesh finds no place there.
    """
    chip = chip_of(topology)
    if chip.is_gpu:
        return Network.of(chip, math.prod(mesh))
    laid = placed_devices(mesh, places(topology, num_slices))
    return Network.of_placed(chip, laid.reshape(-1).tolist())


def _sizes(shape: str) -> list[int]:
    return [int(size) for size in shape.split("x")]

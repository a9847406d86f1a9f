"""The devices of a topology, none of which is here; libtpu compiles for them on any machine."""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType

from jaxrl_vr.metrics.chips import CHIPS, Chip
from jaxrl_vr.sharding import MESH_AXES, MeshConfig, axis_sizes, make_mesh

NO_LIBTPU = 'libtpu is not installed: pip install "jax[tpu]"'
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
    found = re.fullmatch(r"([a-z0-9]+):([0-9]+(?:x[0-9]+)*)", topology)
    if found is None or found[1] not in CHIPS or 0 in _sizes(found[2]):
        raise ValueError(
            f"topology {topology!r}: give a chip and its shape, such as v5e:4x4 or v5p:2x2x2; "
            f"the chips are {', '.join(CHIPS)}, a GPU's shape is its number, h100:8"
        )
    return CHIPS[found[1]]


def num_devices(topology: str, num_slices: int = 1) -> int:
    """What jax would call devices."""
    chip = chip_of(topology)
    return math.prod(_sizes(topology.split(":")[1])) * chip.devices * num_slices


def devices(topology: str, num_slices: int = 1) -> list[Any]:
    """The devices of a TPU topology.

    Raises:
      ValueError: libtpu does not know it, is not installed, or is in use.
    """
    chip_of(topology)
    if not has_libtpu():
        raise ValueError(NO_LIBTPU)
    from jax.experimental import topologies

    for name, value in _WITHOUT_MDS.items():
        os.environ.setdefault(name, value)
    more = {"num_slices": num_slices} if num_slices > 1 else {}
    try:
        found = topologies.get_topology_desc(topology, "tpu", **more)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0][:300]
        if "lockfile" in str(error):
            raise ValueError(
                "libtpu serves one process at a time, and another seems to use it; wait until it "
                f"has ended, or if there is none, remove the file: {reason}"
            ) from None
        raise ValueError(f"topology {topology!r}: libtpu does not make it: {reason}") from None
    return list(found.devices)


def mesh_of(config: MeshConfig, found: Sequence[Any], num_slices: int) -> jax.sharding.Mesh:
    """The mesh of a config over devices; slices split `data`, whose exchanges are the fewest.

    Raises:
      ValueError: the axes do not make up the devices, or `data` does not split over the slices.
    """
    if num_slices == 1:
        return make_mesh(config, found)
    sizes = axis_sizes(config, len(found))
    if sizes["data"] % num_slices:
        raise ValueError(
            f"mesh.data = {sizes['data']} with {num_slices} slices: only data goes over the "
            f"network between slices; set mesh.data to a multiple of {num_slices}"
        )
    by_slice = sorted(found, key=lambda device: device.slice_index)
    devices = np.array(by_slice).reshape(tuple(sizes.values()))
    return jax.sharding.Mesh(devices, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def _sizes(shape: str) -> list[int]:
    return [int(size) for size in shape.split("x")]

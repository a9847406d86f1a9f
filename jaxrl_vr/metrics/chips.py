"""What chips can do at most, from their makers' pages; a device is what jax calls one."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Chip:
    """A device.

    Attributes:
      name: as topologies have it.
      peak_flops: a second, in bfloat16.
      bandwidth: bytes a second between the device and its memory.
      memory_bytes: of the device.
      axis_bandwidth: bytes a second that a device moves over one axis of its network, both ways
        together: of a torus with d axes, the links' total both ways over 2 d. Of a GPU, one way.
      dcn_bandwidth: bytes a second of a device between slices, or between hosts.
      clock_hz: cycles a second, from the products: peak / (units x side^2 x 2); 0 for a GPU.
      matrix_side: numbers along a side of its matrix unit, to which a product's dimensions are
        filled up. Of a GPU, of the smallest tile that its libraries cut products into.
      devices: of a chip.
      host_devices: that `axis_bandwidth` joins, of a GPU: those of a host; 0 for a TPU, of which
        those of a slice are.
      slices: shapes of a TPU's slices smaller than a cube, or of all: chips along each axis.
      cubes: chips of the largest slice of whole cubes of 4 x 4 x 4; 0 where there are none.
      source: of the numbers.
    """

    name: str
    peak_flops: float
    bandwidth: float
    memory_bytes: float
    axis_bandwidth: float
    dcn_bandwidth: float
    clock_hz: float
    matrix_side: int
    devices: int
    host_devices: int
    slices: str
    cubes: int
    source: str

    @property
    def is_gpu(self) -> bool:
        """Whether its devices are joined by hosts and not by slices."""
        return self.host_devices > 0


_OF_GPUS = (
    "8 of a host (DGX), each with a port of its own to other hosts, "
    "https://docs.nvidia.com/dgx-basepod/; tiles from 64 x 64, https://docs.nvidia.com/deeplearning/"
    "performance/dl-performance-matrix-multiplication/"
)

_FLAT = "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16"
_SMALL = "2x2x1 2x2x2 2x2x4 2x4x4"
# Beside each chip's page, the list that Google's own launcher accepts.
_OF_SLICES = (
    "slices: https://github.com/AI-Hypercomputer/xpk/blob/main/src/xpk/core/"
    "system_characteristics.py"
)

CHIPS = {
    chip.name: chip
    for chip in (
        Chip(
            name="v5e",
            peak_flops=197e12,
            bandwidth=819e9,
            memory_bytes=16e9,
            axis_bandwidth=100e9,
            dcn_bandwidth=25e9 / 8,
            clock_hz=1.5e9,
            matrix_side=128,
            devices=1,
            host_devices=0,
            slices=_FLAT,
            cubes=0,
            source="https://cloud.google.com/tpu/docs/v5e; 4 units x 128^2; 400 GB/s, 2 axes; "
            + _OF_SLICES,
        ),
        Chip(
            name="v5p",
            peak_flops=459e12,
            bandwidth=2765e9,
            memory_bytes=95e9,
            axis_bandwidth=200e9,
            dcn_bandwidth=50e9 / 8,
            clock_hz=1.75e9,
            matrix_side=128,
            devices=1,
            host_devices=0,
            slices=_SMALL,
            cubes=8960,
            source="https://cloud.google.com/tpu/docs/v5p; 8 units x 128^2; 1200 GB/s, 3 axes; "
            + _OF_SLICES,
        ),
        Chip(
            name="v6e",
            peak_flops=918e12,
            bandwidth=1640e9,
            memory_bytes=32e9,
            axis_bandwidth=200e9,
            dcn_bandwidth=100e9 / 8,
            clock_hz=1.75e9,
            matrix_side=256,
            devices=1,
            host_devices=0,
            slices=_FLAT,
            cubes=0,
            source="https://cloud.google.com/tpu/docs/v6e; 4 units x 256^2; 800 GB/s, 2 axes; "
            + _OF_SLICES,
        ),
        Chip(
            name="7x",
            peak_flops=2307e12 / 2,
            bandwidth=7380e9 / 2,
            memory_bytes=192e9 / 2,
            axis_bandwidth=100e9,
            dcn_bandwidth=100e9 / 8 / 2,
            clock_hz=2.2e9,
            matrix_side=256,
            devices=2,
            host_devices=0,
            slices="1x1x1 " + _SMALL,
            cubes=9216,
            source="https://cloud.google.com/tpu/docs/tpu7x; 4 units x 256^2 a core; 1200 GB/s a "
            "chip, 3 axes; " + _OF_SLICES,
        ),
        Chip(
            name="h100",
            peak_flops=989e12,
            bandwidth=3350e9,
            memory_bytes=80e9,
            axis_bandwidth=450e9,
            dcn_bandwidth=400e9 / 8,
            clock_hz=0,
            matrix_side=64,
            devices=1,
            host_devices=8,
            slices="",
            cubes=0,
            source="https://www.nvidia.com/en-us/data-center/h100/ (SXM, dense); " + _OF_GPUS,
        ),
        Chip(
            name="h200",
            peak_flops=989e12,
            bandwidth=4800e9,
            memory_bytes=141e9,
            axis_bandwidth=450e9,
            dcn_bandwidth=400e9 / 8,
            clock_hz=0,
            matrix_side=64,
            devices=1,
            host_devices=8,
            slices="",
            cubes=0,
            source="https://www.nvidia.com/en-us/data-center/h200/ (SXM, dense); " + _OF_GPUS,
        ),
        Chip(
            name="a100",
            peak_flops=312e12,
            bandwidth=2039e9,
            memory_bytes=80e9,
            axis_bandwidth=300e9,
            dcn_bandwidth=200e9 / 8,
            clock_hz=0,
            matrix_side=64,
            devices=1,
            host_devices=8,
            slices="",
            cubes=0,
            source="https://www.nvidia.com/en-us/data-center/a100/ (SXM, 80 GB, dense); "
            + _OF_GPUS,
        ),
    )
}
"""By the name in front of a topology, such as v5e in v5e:4x4."""

KINDS = {
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "TPU7x": "7x",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H200": "h200",
    "NVIDIA A100-SXM4-80GB": "a100",
}
"""What jax calls a chip's devices (`device_kind`) -> its name. Of TPUs as jax itself reads them
(`chip_version_from_device_kind` in jax/_src/pallas/mosaic/tpu_info.py), of GPUs as their driver and
nvidia-smi call them."""


def chip_of_kind(kind: str) -> Chip | None:
    """The chip whose devices jax calls this; None: it is not in the table.

    >>> chip_of_kind("TPU v6 lite").name, chip_of_kind("NVIDIA H100 PCIe")
    ('v6e', None)
    """
    return CHIPS[KINDS[kind]] if kind in KINDS else None

"""How long arrays take between devices, by formulas: within a TPU's slice or a GPU's host, and
between them.

A chip has a link to each neighbour, of half the bandwidth that an axis of the network has both ways
together. A side of a slice is a ring only where it wraps around:

- of v5e and v6e a whole side of 16 (https://jax-ml.github.io/scaling-book/tpus: "no wraparound
  links for axes with fewer than 16 chips"),
- of v5p and 7x every side of a slice of whole cubes of 4 x 4 x 4; smaller ones have no such links
  (https://cloud.google.com/tpu/docs/v5p).

Devices that make up a block of several sides, one of them even, are a ring as well, for there is a
way through them and back to the first, which is how `jax.experimental.mesh_utils` puts 8 devices of
v5e or v5p in order. The others are a line: what its end takes in comes over one link.

Every formula is of a bandwidth; what a transfer costs however small it is has no price here, and
neither has what other groups send over the same links.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxrl_vr.metrics.chips import Chip

_FLAT_POD, _CUBE = 16, 4
"""Sides that wrap around: of a whole pod, and of what larger slices are built of."""


@dataclasses.dataclass(frozen=True, eq=False)
class Network:
    """What joins the devices of a run, which are counted as its mesh has them, island by island.

    Attributes:
      chip: of the devices.
      island: devices that the fast network joins: a slice of TPUs, a host of GPUs.
      coords: [devices, sides] int, chips of TPUs in their slices; None: not known, and then more
        than two chips count as a ring.
    """

    chip: Chip
    island: int
    coords: np.ndarray | None = None

    @classmethod
    def of(cls, chip: Chip, devices: int, num_slices: int = 1) -> Network:
        """That of so many devices, of TPUs in so many slices."""
        return cls(chip, chip.host_devices or devices // num_slices)

    @classmethod
    def of_placed(cls, chip: Chip, devices: Sequence[Any]) -> Network:
        """That of the devices of a mesh, in its order; TPUs know where they are."""
        slices = {getattr(device, "slice_index", 0) for device in devices}
        coords = [getattr(device, "coords", None) for device in devices]
        is_known = not chip.is_gpu and None not in coords
        found = cls.of(chip, len(devices), len(slices))
        return dataclasses.replace(found, coords=np.array(coords) if is_known else None)

    def gather_s(self, size: float, devices: Sequence[int]) -> float:
        """Seconds until each of these devices has the whole of an array they hold in parts.

        A reduce-scatter of the same array takes as long, an all-reduce twice. Every device takes in
        all parts but its own. Between islands each takes in the parts of the others once, through
        the network of its devices that exchange, and hands them on inside, which goes on beside it.

        Args:
          size: bytes of the whole.
          devices: that exchange, by their numbers.
        """

        def seconds(inside: tuple[int, ...]) -> float:
            n = len(inside)
            within = size * (n - 1) / n / self._bandwidth(inside)
            across = size * (1 - n / len(devices)) / (n * self.chip.dcn_bandwidth)
            return max(within, across)

        return max(map(seconds, self._by_island(devices)))

    def shift_s(self, size: float, devices: Sequence[int]) -> float:
        """Seconds until each of these devices has handed an array to its next, round the ring.

        Such exchanges come in pairs, the other one the other way round, and share the links.

        Args:
          size: bytes of the array.
          devices: that exchange, by their numbers.
        """
        if len(self._by_island(devices)) > 1:
            return size / self.chip.dcn_bandwidth
        return size / self._bandwidth(tuple(devices)) if len(devices) > 1 else 0.0

    def _by_island(self, devices: Sequence[int]) -> list[tuple[int, ...]]:
        """Those of each island."""
        islands: dict[int, list[int]] = {}
        for device in devices:
            islands.setdefault(device // self.island, []).append(device)
        return [tuple(inside) for inside in islands.values()]

    def _bandwidth(self, devices: tuple[int, ...]) -> float:
        """Within an island."""
        if devices not in self._bandwidths:
            lines = 2 if self._is_line(devices) else 1
            self._bandwidths[devices] = self.chip.axis_bandwidth / lines
        return self._bandwidths[devices]

    @functools.cached_property
    def _bandwidths(self) -> dict[tuple[int, ...], float]:
        """By devices: a search asks for the same ones for every size of micro-batches."""
        return {}

    def _is_line(self, devices: tuple[int, ...]) -> bool:
        """Whether no way leads through their chips and over another link back to the first. Between
        the devices of one chip there are none of these links."""
        if self.chip.is_gpu:
            return False
        if self.coords is None:
            return len(devices) // self.chip.devices == 2
        chips = np.unique(self.coords[np.asarray(devices)], axis=0)
        along = {side: len(set(at)) for side, at in enumerate(chips.T.tolist()) if len(set(at)) > 1}
        if len(along) == 1:
            [side] = along
            return not self._wraps[side] or len(chips) < self._sides[side]
        return math.prod(along.values()) > len(chips)

    @functools.cached_property
    def _sides(self) -> list[int]:
        """Chips along each side of a slice."""
        assert self.coords is not None, "where chips are is not known"
        return (self.coords.max(0) - self.coords.min(0) + 1).tolist()

    @functools.cached_property
    def _wraps(self) -> list[bool]:
        """Of each side, whether a link joins its ends."""
        sides = self._sides
        if self.chip.cubes:
            return [all(side % _CUBE == 0 for side in sides)] * len(sides)
        return [side == _FLAT_POD for side in sides]

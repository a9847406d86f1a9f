"""How long arrays take between devices, by formulas: within a TPU's slice or a GPU's host, and
between them.

Every formula is of a bandwidth; what a transfer costs however small it is has no price here.
"""

from __future__ import annotations

import dataclasses
import math

from jaxrl_vr.metrics.chips import Chip


@dataclasses.dataclass(frozen=True)
class Network:
    """What joins the devices of a run, which are counted island by island.

    Attributes:
      chip: of the devices.
      island: devices that the fast network joins: a slice of TPUs, a host of GPUs.
      devices: of the run.
    """

    chip: Chip
    island: int
    devices: int

    @classmethod
    def of(cls, chip: Chip, devices: int, num_slices: int = 1) -> Network:
        """That of so many devices, of TPUs in so many slices."""
        return cls(chip, chip.host_devices or devices // num_slices, devices)

    def gather_s(self, size: float, n: int, stride: int) -> float:
        """Seconds until each of `n` devices has the whole of an array they hold in parts.

        A reduce-scatter of the same array takes as long, an all-reduce twice. Over a ring every
        device takes in all parts but its own. Between islands each takes in the parts of the
        others once, through the network of its devices that exchange, and hands them on inside,
        which goes on beside it.

        Args:
          size: bytes of the whole.
          n: devices that exchange.
          stride: from one of them to the next, as the mesh counts devices.
        """
        if n == 1:
            return 0.0
        inside = n
        if self.devices > self.island:
            inside = math.gcd(n, max(1, self.island // stride))
        islands = n // inside
        within = size * (inside - 1) / inside / self._bandwidth(inside)
        across = size * (islands - 1) / islands / (inside * self.chip.dcn_bandwidth)
        return max(within, across)

    def _bandwidth(self, n: int) -> float:
        """Within an island. Both ways round a ring of TPUs are two links of each; between two
        chips there is one. The devices of a chip that has two have none between them."""
        is_one_link = n == 2 and not self.chip.is_gpu and self.chip.devices == 1
        return self.chip.axis_bandwidth / (2 if is_one_link else 1)

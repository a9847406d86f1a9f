"""How long arrays take between devices, by hand."""

import dataclasses

import pytest

from jaxrl_vr.metrics.chips import CHIPS
from jaxrl_vr.plan.network import Network

RING = dataclasses.replace(CHIPS["v5p"], axis_bandwidth=8.0, dcn_bandwidth=1.0)
SWITCH = dataclasses.replace(CHIPS["h100"], axis_bandwidth=8.0, dcn_bandwidth=1.0)


@pytest.mark.parametrize(
    "chip, n, seconds",
    [
        (RING, 1, 0.0),
        (RING, 4, 64 * 3 / 4 / 8),
        # Two chips have one link between them, of the two that a ring gives each.
        (RING, 2, 64 / 2 / 4),
        # A switch is as wide for two, and so is what joins the two devices of a chip.
        (SWITCH, 2, 64 / 2 / 8),
        (dataclasses.replace(RING, devices=2), 2, 64 / 2 / 8),
    ],
)
def test_within_an_island_each_device_takes_in_the_parts_of_the_others(chip, n, seconds):
    assert Network.of(chip, 8).gather_s(64, n, 1) == pytest.approx(seconds)

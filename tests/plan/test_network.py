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


@pytest.mark.parametrize(
    "n, stride, seconds",
    [
        # The 8 of a host, as in tensor = 8.
        (8, 1, 64 * 7 / 8 / 16),
        # Two hosts: half comes from the other, through the ports of all 8.
        (16, 1, 64 / 2 / 8),
        # One of each host, as in data = 2 over fsdp = 8: through its own port.
        (2, 8, 64 / 2 / 1),
        # Four of each: data = 8 over tensor = 2.
        (8, 2, 64 / 2 / 4),
    ],
)
def test_between_hosts_an_axis_has_the_ports_of_its_own_devices(n, stride, seconds):
    chip = dataclasses.replace(SWITCH, axis_bandwidth=16.0)
    assert Network.of(chip, 16).gather_s(64, n, stride) == pytest.approx(seconds)


def test_the_slower_of_both_networks_counts():
    slow_inside = dataclasses.replace(SWITCH, axis_bandwidth=0.5)
    assert Network.of(slow_inside, 16).gather_s(64, 16, 1) == pytest.approx(64 * 7 / 8 / 0.5)


def test_slices_are_joined_by_the_hosts_network():
    """Two slices of 8: data = 4 over fsdp = 4 has two of its four in each."""
    joined = Network.of(RING, 16, num_slices=2)
    assert joined.gather_s(64, 4, 4) == pytest.approx(64 / 2 / 2)
    assert joined.gather_s(64, 4, 1) == pytest.approx(64 * 3 / 4 / 8)
    assert Network.of(RING, 16).gather_s(64, 4, 4) == pytest.approx(64 * 3 / 4 / 8)

"""How long arrays take between devices, by hand."""

import dataclasses

import pytest

from jaxrl_vr.metrics.chips import CHIPS
from jaxrl_vr.plan import topology as topology_module
from jaxrl_vr.plan.network import Network
from jaxrl_vr.plan.roofline import Choice
from jaxrl_vr.plan.topology import has_libtpu, network_of, places
from jaxrl_vr.sharding import MeshConfig, make_mesh, placed_devices

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
    assert Network.of(chip, 8).gather_s(64, range(n)) == pytest.approx(seconds)


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
        # Eight of one host and four of the other, which take in two thirds through their ports.
        (12, 1, 64 * 8 / 12 / 4),
        # Three and three of a host: data = 6 over fsdp = 3.
        (6, 3, 64 / 2 / 3),
    ],
)
def test_between_hosts_an_axis_has_the_ports_of_its_own_devices(n, stride, seconds):
    chip = dataclasses.replace(SWITCH, axis_bandwidth=16.0)
    found = Network.of(chip, 16).gather_s(64, range(0, n * stride, stride))
    assert found == pytest.approx(seconds)


def test_the_slower_of_both_networks_counts():
    slow_inside = dataclasses.replace(SWITCH, axis_bandwidth=0.5)
    found = Network.of(slow_inside, 16).gather_s(64, range(16))
    assert found == pytest.approx(64 * 7 / 8 / 0.5)


def test_slices_are_joined_by_the_hosts_network():
    """Two slices of 8: data = 4 over fsdp = 4 has two of its four in each."""
    joined = Network.of(RING, 16, num_slices=2)
    assert joined.gather_s(64, range(0, 16, 4)) == pytest.approx(64 / 2 / 2)
    assert joined.gather_s(64, range(4)) == pytest.approx(64 * 3 / 4 / 8)
    assert Network.of(RING, 16).gather_s(64, range(0, 16, 4)) == pytest.approx(64 * 3 / 4 / 8)
    # What one hands to the next: over all 4 of an axis, some go to the other slice.
    assert joined.shift_s(64, range(0, 16, 4)) == pytest.approx(64 / 1)
    assert joined.shift_s(64, range(4)) == pytest.approx(64 / 8)


@pytest.mark.parametrize(
    "topology, choice, axis, links",
    [
        # A side of four does not wrap around, both of its ends have one link to the others.
        ("v5e:4x4", Choice(1, 4, 1, 4, 4, "none"), "tensor", 1),
        ("v5e:4x4", Choice(1, 4, 1, 4, 4, "none"), "fsdp", 1),
        # Of four by four a way leads through all and back.
        ("v5e:4x4", Choice(1, 16, 1, 1, 16, "none"), "fsdp", 2),
        ("v5e:2x4", Choice(1, 8, 1, 1, 8, "none"), "fsdp", 2),
        # Two of four by two of four.
        ("v5e:4x4", Choice(1, 2, 1, 8, 4, "none"), "fsdp", 1),
        # A whole pod wraps around, and a part of its side does not.
        ("v6e:16x16", Choice(1, 16, 1, 16, 16, "none"), "tensor", 2),
        ("v6e:16x16", Choice(1, 32, 1, 8, 32, "none"), "tensor", 1),
        ("v6e:16x16", Choice(1, 32, 1, 8, 32, "none"), "fsdp", 2),
        ("v6e:8x16", Choice(1, 16, 1, 8, 16, "none"), "fsdp", 2),
        ("v6e:8x16", Choice(1, 16, 1, 8, 16, "none"), "tensor", 1),
        # So do sides of whole cubes, and of what is smaller none.
        ("v5p:4x4x4", Choice(1, 16, 1, 4, 16, "none"), "tensor", 2),
        ("v5p:2x4x4", Choice(2, 4, 1, 4, 16, "none"), "tensor", 1),
        ("v5p:2x2x2", Choice(1, 8, 1, 1, 8, "none"), "fsdp", 2),
    ],
)
def test_a_side_without_a_link_around_is_a_line(topology, choice, axis, links):
    network = network_of(topology, choice.sizes)
    group = choice.along(axis)
    of_link = network.chip.axis_bandwidth / 2
    n = len(group)
    assert network.gather_s(64e9, group) == pytest.approx(64e9 * (n - 1) / n / (links * of_link))
    assert network.shift_s(64e9, group) == pytest.approx(64e9 / (links * of_link))


def test_the_devices_of_a_chip_need_no_link():
    chip = CHIPS["7x"]
    network = network_of("7x:2x2x1", (4, 1, 1, 2, 1))
    assert network.gather_s(64e9, range(2)) == pytest.approx(64e9 / 2 / chip.axis_bandwidth)
    # Two chips, with two devices each.
    network = network_of("7x:2x2x1", (2, 1, 1, 4, 1))
    of_link = chip.axis_bandwidth / 2
    assert network.gather_s(64e9, range(4)) == pytest.approx(64e9 * 3 / 4 / of_link)


def test_a_mesh_that_finds_no_place_is_refused():
    with pytest.raises(
        ValueError, match="data 35 x fsdp 64 x context 1 x tensor 4.* no place on 8960"
    ):
        network_of("v5p:16x20x28", (35, 64, 1, 4, 1))


@pytest.mark.tpu
@pytest.mark.skipif(not has_libtpu(), reason="needs libtpu")
@pytest.mark.parametrize(
    "topology, sizes",
    [
        ("v5e:2x4", dict(fsdp=2, tensor=4)),
        ("v5e:4x4", dict(fsdp=4, tensor=4)),
        ("v6e:16x16", dict(fsdp=32, tensor=8)),
        ("v5p:2x2x2", dict(fsdp=8)),
        ("v5p:4x4x4", dict(fsdp=8, context=8)),
        ("7x:2x2x2", dict(fsdp=4, tensor=4)),
    ],
)
def test_places_are_those_of_the_topology(topology, sizes):
    """A mesh over what libtpu knows has its chips where formulas think they are."""
    there = topology_module.devices(topology)
    mesh = make_mesh(MeshConfig(data=1, **sizes), there)
    laid = placed_devices(mesh.devices.shape, places(topology))
    assert [d.coords for d in laid.flat] == [tuple(d.coords) for d in mesh.devices.flat]
    assert laid.flat[0].device_kind == mesh.devices.flat[0].device_kind

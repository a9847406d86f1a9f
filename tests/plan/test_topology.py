"""Which topologies there are, and what is said of those that are not."""

import pytest
from inprocess import call
from planned import CONFIG

from jaxrl_vr.metrics.chips import CHIPS
from jaxrl_vr.plan import topology as topology_module
from jaxrl_vr.plan.topology import check_slice, chip_of, devices, num_devices

CHIP_NAMES = "v5e, v5p, v6e, 7x, h100, h200, a100"
HOW = (
    f"give a chip and its shape, such as v5e:4x4 or v5p:2x2x2; the chips are {CHIP_NAMES}, a GPU's "
    "shape is its number, h100:8"
)
FLAT = "1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16"
CUBES = (
    "2x2x1, 2x2x2, 2x2x4, 2x4x4, or AxBxC of multiples of 4, A <= B <= C, with at most 8,960 chips"
)


@pytest.mark.parametrize(
    "topology, message",
    [
        ("v5e", HOW),
        ("v5e:2x-2", HOW),
        ("v5e:", HOW),
        ("h100:" + "9" * 5000, HOW),
        ("h100:0", "give at least one GPU, such as h100:8"),
        ("v5e:0x4", f"no side can be 0; give one of {FLAT}"),
        ("H100:8", "did you mean h100:8?"),
        ("V5E:4X4", "did you mean v5e:4x4?"),
        ("h100:8x2", "a GPU's shape is its number; give h100:16"),
        ("h10:8", f"there is no chip 'h10', did you mean h100:8? The chips are {CHIP_NAMES}"),
        ("v5:2x2", f"there is no chip 'v5', did you mean v5e:2x2? The chips are {CHIP_NAMES}"),
        (
            "tpu7x:2x2x1",
            f"there is no chip 'tpu7x', did you mean 7x:2x2x1? The chips are {CHIP_NAMES}",
        ),
        ("mi300:8", f"there is no chip 'mi300'; the chips are {CHIP_NAMES}"),
    ],
)
def test_no_topology(topology, message):
    with pytest.raises(ValueError) as error:
        chip_of(topology)
    assert str(error.value) == f"topology {topology!r}: {message}"


@pytest.mark.parametrize(
    "topology, num_slices, number",
    [("h100:1000000000", 1, "1,000,000,000"), ("v5e:16x16", 1000, "256,000")],
)
def test_more_devices_than_anyone_has(topology, num_slices, number):
    with pytest.raises(ValueError) as error:
        num_devices(topology, num_slices)
    assert str(error.value) == (
        f"topology {topology!r}: {number} devices are more than a plan takes, 131,072; give fewer"
    )


@pytest.mark.parametrize(
    "topology, message",
    [
        ("v5e:4x2", f"v5e has slices of {FLAT}; v5e:2x4 is the same"),
        (
            "v6e:3x5",
            f"v6e has slices of {FLAT}; v6e:4x4 is the smallest with at least as many chips",
        ),
        (
            "v5e:2x2x2",
            f"v5e has slices of {FLAT}; v5e:2x4 is the smallest with at least as many chips",
        ),
        ("v5e:32x32", f"v5e has slices of {FLAT}; v5e:16x16 is the largest"),
        (
            "v5p:4x4",
            f"v5p has slices of {CUBES}; v5p:2x2x4 is the smallest with at least as many chips",
        ),
        ("v5p:8x4x4", f"v5p has slices of {CUBES}; v5p:4x4x8 is the same"),
        (
            "v5p:3x5x9",
            f"v5p has slices of {CUBES}; v5p:4x4x12 is the smallest with at least as many chips",
        ),
        ("v5p:32x32x32", f"v5p has slices of {CUBES}; v5p:16x20x28 is the largest"),
    ],
)
def test_slices_that_are_not_made_are_refused_before_libtpu(monkeypatch, topology, message):
    monkeypatch.setattr(topology_module, "has_libtpu", lambda: pytest.fail("libtpu was looked for"))
    with pytest.raises(ValueError) as error:
        devices(topology)
    assert str(error.value) == f"topology {topology!r}: {message}"


@pytest.mark.parametrize(
    "topology",
    [
        *(f"{chip}:{shape}" for chip in ("v5e", "v6e") for shape in FLAT.split(", ")),
        *("v5p:2x2x1", "v5p:2x2x4", "v5p:4x4x4", "v5p:8x8x16", "v5p:16x20x28", "v5p:4x4x20"),
        *("7x:1x1x1", "7x:2x2x1", "7x:16x24x24"),
    ],
)
def test_slices_that_are_made(topology):
    check_slice(topology)


def test_every_tpu_has_slices_and_no_gpu_has():
    assert all(bool(chip.slices) != chip.is_gpu for chip in CHIPS.values())


def test_a_search_refuses_the_slice_before_it_ranks(tmp_path, capsys):
    path = tmp_path / "planned.toml"
    path.write_text(CONFIG)
    text = call(capsys, "plan", path, "--topology", "v5e:4x2", "--search", code=2)
    assert text == f"error: topology 'v5e:4x2': v5e has slices of {FLAT}; v5e:2x4 is the same\n"

"""The table of chips, and what jax calls their devices."""

import pytest

from jaxrl_vr.metrics.chips import CHIPS, KINDS, chip_of_kind


@pytest.mark.parametrize(
    "kind, peak",
    [
        ("TPU v5 lite", 197e12),
        ("TPU v5", 459e12),
        ("TPU v5p", 459e12),
        ("TPU v6 lite", 918e12),
        ("TPU7x", 1153.5e12),  # a chip is two devices
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
    ],
)
def test_peak_of_a_kind(kind, peak):
    chip = chip_of_kind(kind)
    assert chip.peak_flops == peak


@pytest.mark.parametrize("kind", ["cpu", "TPU v2", "NVIDIA H100 PCIe", "NVIDIA H100", ""])
def test_other_kinds_are_not_guessed(kind):
    assert chip_of_kind(kind) is None


def test_kinds_are_of_chips_in_the_table_and_all_have_one():
    assert set(KINDS.values()) == set(CHIPS)


def test_names_of_tpus_are_those_that_jax_knows():
    from jax._src.pallas.mosaic.tpu_info import chip_version_from_device_kind

    found = {kind: str(chip_version_from_device_kind(kind)) for kind in KINDS if "TPU" in kind}
    assert found == {kind: name for kind, name in KINDS.items() if "TPU" in kind}

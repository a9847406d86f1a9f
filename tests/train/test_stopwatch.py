"""The peak that a run is measured against, and which rollouts a step sampled."""

import types

import numpy as np
import pytest

from jaxrl_vr.train.speed import sampled_lengths, stopwatch, unknown_peak
from jaxrl_vr.types import Rollout


def mesh_of(kind, platform):
    """Four devices of a kind."""
    device = types.SimpleNamespace(device_kind=kind, platform=platform)
    return types.SimpleNamespace(devices=np.array([device] * 4), size=4)


def mfu(peak_flops, mesh):
    """Of 1e15 FLOPs in 2 seconds; None: there is none."""
    phases = stopwatch(peak_flops, mesh)
    phases._clock = iter([0.0, 2.0]).__next__
    with phases("update"):
        phases.flops("update", 1e15)
    return phases.step().get("speed/update_mfu")


@pytest.mark.parametrize(
    "kind, platform, peak",
    [("TPU v5 lite", "tpu", 197e12), ("NVIDIA H100 80GB HBM3", "gpu", 989e12)],
)
def test_the_peak_is_that_of_the_chip(kind, platform, peak):
    mesh = mesh_of(kind, platform)
    assert mfu(None, mesh) == pytest.approx(0.5e15 / (4 * peak))
    assert unknown_peak(None, mesh) is None


@pytest.mark.parametrize(
    "kind, platform", [("TPU v6 lite", "tpu"), ("NVIDIA X", "gpu"), ("cpu", "cpu")]
)
def test_the_config_overrides_it(kind, platform):
    mesh = mesh_of(kind, platform)
    assert mfu(1e14, mesh) == pytest.approx(0.5e15 / 4e14)
    assert unknown_peak(1e14, mesh) is None


def test_an_unknown_accelerator_has_no_mfu_and_is_named_with_the_fix():
    mesh = mesh_of("NVIDIA X", "gpu")
    assert mfu(None, mesh) is None
    said = unknown_peak(None, mesh)
    assert said.startswith("the peak of a 'NVIDIA X' is not known, so there is no speed/…_mfu")
    assert "set logging.peak_flops" in said


def test_a_cpu_has_no_mfu_and_nothing_is_said():
    mesh = mesh_of("cpu", "cpu")
    assert (mfu(None, mesh), unknown_peak(None, mesh)) == (None, None)


def rollout(prompt, *versions):
    n = len(versions)
    return Rollout(
        id=0,
        prompt_ids=(1,) * prompt,
        token_ids=(2,) * n,
        logp=(0.0,) * n,
        source=("sampled",) * n,
        version=versions,
        kept_mass=None,
        finish="stop",
    )


def test_only_what_the_weights_sampled_counts_and_what_goes_on_counts_whole():
    groups = [
        (rollout(3, 7, 7), rollout(3, 7)),
        (rollout(4, 6, 6), rollout(4, 6, 7, 7), None),  # done before, went on, not begun
        (rollout(5, 6), None),  # nothing in this step
        (rollout(5),),  # cut before its first token
    ]
    assert list(sampled_lengths(groups, 7)) == [(3, 2, 1), (4, 3)]

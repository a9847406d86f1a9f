"""The stopwatch of a run: what its devices can do at most, and what its rollouts take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import jax

from jaxrl_vr.metrics.chips import chip_of_kind
from jaxrl_vr.metrics.throughput import Phases
from jaxrl_vr.types import Rollout


def stopwatch(peak_flops: float | None, mesh: jax.sharding.Mesh) -> Phases:
    """A stopwatch that measures against the peak of the run's devices.

    Args:
      peak_flops: of a device, by the config; None: by its kind, if that is in the table.
      mesh: the devices.
    """
    chip = chip_of_kind(mesh.devices.flat[0].device_kind)
    if peak_flops is None and chip is not None:
        peak_flops = chip.peak_flops
    return Phases(
        peak_flops=None if peak_flops is None else peak_flops * mesh.size,
        annotate=lambda name: jax.profiler.TraceAnnotation(name),
    )


def unknown_peak(peak_flops: float | None, mesh: jax.sharding.Mesh) -> str | None:
    """What to say of an accelerator whose peak neither the config nor the table has."""
    device = mesh.devices.flat[0]
    is_known = peak_flops is not None or chip_of_kind(device.device_kind) is not None
    if is_known or device.platform == "cpu":
        return None
    return (
        f"the peak of a {device.device_kind!r} is not known, so there is no speed/…_mfu; set "
        "logging.peak_flops to its FLOP/s in bfloat16 to have it"
    )


def sampled_lengths(
    groups: Iterable[Sequence[Rollout | None]], version: int
) -> Iterator[tuple[int, ...]]:
    """Tokens of the prompt and of the completions of each group that was sampled from.

    A completion that goes on counts whole, because what it had runs again under the new weights.

    Args:
      groups: rollouts of a prompt; None where none has begun.
      version: of the weights that sampled; completions without a token of it are left out.
    """
    for rollouts in groups:
        mine = [r for r in rollouts if r is not None and r.version[-1:] == (version,)]
        if mine:
            yield len(mine[0].prompt_ids), *(len(r.token_ids) for r in mine)

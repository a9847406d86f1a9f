"""`jaxrl-vr plan` as a command: what it prints, what it writes, how it ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

import jax

from jaxrl_vr.metrics.chips import Chip
from jaxrl_vr.plan.plan import plan, planned_model, rl_stage
from jaxrl_vr.plan.report import table
from jaxrl_vr.plan.roofline import Choice
from jaxrl_vr.plan.search import (
    NothingFits,
    first_fitting,
    has_room,
    ranked,
    roofline_plan,
    with_choice,
)
from jaxrl_vr.plan.topology import check_slice, chip_of, gpu_of, num_devices
from jaxrl_vr.sampler.sizes import check_attention
from jaxrl_vr.train.config import RunConfig

NOTHING_FITS = 3
"""Exit code where no plan fits its devices."""
_SHOWN = 10
"""Layouts of a search that are listed."""


def plan_command(
    config: RunConfig,
    topology: str,
    num_slices: int,
    stage: str | None,
    *,
    search: bool,
    as_json: Path | None,
) -> int:
    """Plans, prints, and returns the exit code.

    Raises:
      ValueError: no such topology or stage, a mesh that does not fit, or no libtpu.
    """
    if num_slices < 1:
        raise ValueError(f"--num-slices {num_slices}: give at least 1")
    chip = chip_of(topology)
    check_slice(topology)
    if num_slices > 1 and chip.is_gpu:
        raise ValueError(
            f"--num-slices {num_slices}: only TPUs come in slices; of GPUs give their number, "
            f"{chip.name}:{num_devices(topology, num_slices)}"
        )
    if as_json is not None and (as_json.is_dir() or not as_json.parent.is_dir()):
        raise ValueError(f"--json {as_json}: give a file in a folder that exists")
    if as_json is not None:
        _write(as_json, "", "a")  # before the work
    if chip.is_gpu:
        # Formulas do not ask who attends, but what cannot run is said.
        gpu = gpu_of(topology)
        model = planned_model(config, gpu)
        check_attention(config.engine, model.dtype, model.arch.head_dim, gpu)
    # Devices of this machine take no part.
    jax.config.update("jax_platforms", "cpu")
    plans = (
        _searched(config, topology, num_slices, stage, chip)
        if search
        else [_planned(config, topology, num_slices, stage, chip)]
    )
    for found in plans:
        print(table(found), end="\n\n")
    if as_json is not None:
        _write(as_json, json.dumps(plans if search else plans[0], indent=1) + "\n")
    return 0 if any(found["fits"] for found in plans) else NOTHING_FITS


def _write(file: Path, text: str, mode: Literal["w", "a"] = "w") -> None:
    try:
        with file.open(mode, encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise ValueError(
            f"--json {file}: cannot be written ({error.strerror}); name another file"
        ) from error


def _planned(
    config: RunConfig, topology: str, num_slices: int, stage: str | None, chip: Chip
) -> dict[str, Any]:
    if chip.is_gpu:
        return roofline_plan(config, rl_stage(config, stage), topology)
    return plan(config, topology, num_slices=num_slices, stage=stage, say=_say)


def _searched(
    config: RunConfig, topology: str, num_slices: int, stage: str | None, chip: Chip
) -> list[dict[str, Any]]:
    """Plans of the best choices; their ranking is printed first."""
    chosen = rl_stage(config, stage)
    try:
        found = ranked(config, chosen, topology, num_slices)
    except NothingFits as error:
        print(error)
        return []
    if has_room(found[0][1], chip):
        print(f"{len(found)} layouts fit by formulas; the fastest, estimates of a step")
    else:
        print(
            f"none fits by formulas with room to spare; {len(found)} come near, the fastest "
            "first, estimates of a step"
        )
    for choice, one in found[:_SHOWN]:
        mesh = " ".join(f"{name}={size}" for name, size in choice.mesh.items()) or "one device"
        print(
            f"  {mesh:<34} rows {choice.rows:<5} remat {choice.remat:<8}"
            f"{one.step_s:>9.1f} s, update {one.update_s:.1f} s ({one.bound}), "
            f"rollout {one.rollout_s:.1f} s, {one.total_bytes / 1e9:.1f} GB"
        )
    print()

    def compiled(choice: Choice) -> dict[str, Any]:
        return _planned(with_choice(config, chosen, choice), topology, num_slices, stage, chip)

    fitting, refused = first_fitting([choice for choice, _ in found], compiled)
    if refused:
        print(
            f"{len(refused)} of the {len(fitting) + len(refused)} that were compiled do not fit\n"
        )
    # If none does, the first says why.
    return sorted(fitting, key=lambda plan: plan["step"]["step_s"]) or refused[:1]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

"""What a plan says of a run that ran out of memory on the devices that are here."""

from __future__ import annotations

from collections.abc import Callable

import jax

from jaxrl_vr.metrics.chips import Chip
from jaxrl_vr.plan.plan import planned, planned_model, rl_stage
from jaxrl_vr.plan.report import memory_table
from jaxrl_vr.sharding import device_memory, make_mesh
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.micro import NoRowFits, OutOfMemory, is_out_of_memory
from jaxrl_vr.train.rl_stage import RlStage

_LEAST = (
    'lower micro.rows (or set it to "auto"), set model.remat = "block", or split the model '
    "over more devices: mesh.fsdp, mesh.tensor"
)


def explained(config: RunConfig, error: OutOfMemory, say: Callable[[str], None]) -> str:
    """The error, with the memory that its stage takes and what would make it fit.

    Args:
      config: of the run.
      error: as the run raised it.
      say: is told what is compiled for it.
    """
    said = f"stage {error.stage!r}: out of memory: {str(error).splitlines()[0]}"
    if not any(isinstance(s, RlStage) and s.name == error.stage for s in config.stages):
        return f"{said}\n{_LEAST}"
    stage = rl_stage(config, error.stage)
    mesh = make_mesh(config.mesh)
    device, memory = mesh.devices.flat[0], device_memory(mesh)
    # Only bytes are shown, so the chip's speeds do not matter.
    rates = dict.fromkeys(
        ("peak_flops", "bandwidth", "axis_bandwidth", "dcn_bandwidth", "clock_hz"), 1.0
    )
    chip = Chip(
        name=device.device_kind,
        memory_bytes=memory,
        **rates,
        matrix_side=1,
        devices=1,
        host_devices=0,
        slices="",
        cubes=0,
        source="the device itself",
    )
    model = planned_model(config, device)
    try:
        found = planned(config, stage, model, mesh, chip, device.device_kind, say)
    except NoRowFits as no_row:
        return f"{said}\n{no_row}"
    except jax.errors.JaxRuntimeError as again:
        if not is_out_of_memory(again):
            raise
        return f"{said}\n{_LEAST}"
    lines = [said, f"what `jaxrl-vr plan` says of stage {stage.name!r} on these devices:"]
    return "\n".join([*lines, *memory_table(found), *(found["advice"] or [_LEAST])])

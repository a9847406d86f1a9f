"""`jaxrl-vr plan`: the programs of a run compiled for a topology, and what they take there."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import jax

from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.plan.chips import Chip
from jaxrl_vr.plan.known import architecture
from jaxrl_vr.plan.program import Program
from jaxrl_vr.plan.report import (
    Compiled,
    attention_flops,
    compiled,
    model_flops,
)
from jaxrl_vr.plan.roofline import check_heads, num_params
from jaxrl_vr.plan.search import roofline_plan
from jaxrl_vr.plan.steps import Lowered
from jaxrl_vr.plan.topology import chip_of, devices, mesh_of
from jaxrl_vr.sharding import local_bytes
from jaxrl_vr.train.check import check_sizes
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.micro import NoRowFits, is_out_of_memory
from jaxrl_vr.train.rl_stage import RlStage

Say = Callable[[str], None]


def plan(
    config: RunConfig,
    topology: str,
    *,
    num_slices: int = 1,
    stage: str | None = None,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Compiles the update, the prefill, the decoding and the weight sync of a run's RL stage.

    Args:
      config: of the run; its mesh is laid over the topology.
      topology: of TPUs, such as v5e:4x4.
      num_slices: of that topology each, joined by their hosts' network.
      stage: name of the stage; default: the first RL stage.
      say: called with what is being done.

    Returns:
      The plan, as JSON has it; `fits` says whether a device's memory suffices.

    Raises:
      ValueError: no such topology or stage, a mesh that does not fit the devices, or no libtpu.
    """
    chip = chip_of(topology)
    found = rl_stage(config, stage)
    model = planned_model(config)
    mesh = mesh_of(config.mesh, devices(topology, num_slices), num_slices)
    check_heads(model.arch, mesh.shape["tensor"])
    check_sizes(config, model.max_length, mesh)
    try:
        return planned(config, found, model, mesh, chip, topology, say)
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return _too_large(config, found, chip, topology, mesh, str(error))
    except NoRowFits as error:
        return _too_large(config, found, chip, topology, mesh, str(error))


def rl_stage(config: RunConfig, name: str | None) -> RlStage:
    """The stage that is planned.

    Raises:
      ValueError: there is none, or it has what a plan does not count.
    """
    stages = [s for s in config.stages if isinstance(s, RlStage)]
    for stage in stages:
        if name in (None, stage.name):
            if stage.critic is not None or stage.teacher is not None:
                what = "critic" if stage.critic is not None else "teacher"
                raise ValueError(
                    f"stages.{stage.name} has a {what}, whose memory and time a plan does not "
                    "count yet; plan a stage without it"
                )
            return stage
    named = ", ".join(s.name for s in stages) or "none"
    raise ValueError(
        f"stage {name!r}: a plan is of a stage of type 'rl'; the config's are: {named}"
        if name
        else "a plan is of a stage of type 'rl', and the config has none; add one"
    )


def planned_model(config: RunConfig) -> Transformer:
    """The model of a run on TPUs, without its weights."""
    section = config.model
    backend = "xla" if section.attention == "xla" else "splash"
    return Transformer(architecture(config), section.dtype, section.remat, backend)


def planned(
    config: RunConfig,
    stage: RlStage,
    model: Transformer,
    mesh: jax.sharding.Mesh,
    chip: Chip,
    topology: str,
    say: Say,
) -> dict[str, Any]:
    """The plan of one mesh."""
    lowered = Lowered(config, stage, model, mesh, int(chip.memory_bytes), say)
    rollouts, micro = lowered.rollouts, lowered.num_micro
    arch = model.arch
    weights = local_bytes(lowered.params)
    rows = micro * lowered.shape.rows
    length = lowered.shape.row_length

    steps = lowered.sizes.steps

    def of(program: Any, kernel_flops: float, must_read: float) -> Compiled:
        text = Program(program.as_text() or "", trips=lambda _: steps, branch=_longest)
        arguments = text, program.memory_analysis(), chip, mesh
        return compiled(*arguments, kernel_flops=kernel_flops, must_read=must_read)

    say("compiling weight sync")
    sync = lowered.view()
    made = sync.compile()
    view = jax.tree.map(
        lambda a, sharding: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding),
        sync.out_info,
        made.output_shardings,
    )
    view_bytes, cache_bytes = local_bytes(view), local_bytes(lowered.cache(view))
    parts = lowered.sizes.parts
    # Backward is twice forward, and a block is computed again where it is not kept.
    passes = 4 if model.remat == "block" else 3
    attention = passes * attention_flops(arch, rows, length) / mesh.size
    if model.attention == "xla":
        attention = 0.0
    say("compiling update")
    update = of(lowered.update().compile(), attention, 3 * weights)
    say("compiling prefill")
    prefill = of(lowered.prefill(view).compile(), 0.0, view_bytes)
    say("compiling decode")
    decode = of(lowered.decode(view).compile(), 0.0, steps * (view_bytes + cache_bytes))
    programs = {
        "update": update,
        "prefill": prefill,
        "decode": decode,
        "weight_sync": of(made, 0.0, weights + view_bytes),
    }
    memory = _memory(lowered, programs, weights, view_bytes, cache_bytes)
    waves = -(-rollouts.count // lowered.sizes.slots)
    rollout_s = waves * rollouts.new_tokens / steps * decode.seconds
    width = lowered.sizes.prefill_tokens
    prefills = -(-rollouts.prompts * rollouts.prompt_tokens // (width * parts))
    rollout_s += prefills * programs["prefill"].seconds
    updates = stage.updates_at(0) * stage.epochs
    update_s = updates * programs["update"].seconds
    step_s = rollout_s + update_s + programs["weight_sync"].seconds
    N = num_params(arch)
    useful = model_flops(N, arch, rows, length) * updates
    total = memory["total"]
    fits = total <= chip.memory_bytes
    generated = rollouts.count * rollouts.new_tokens
    return {
        "plan": "compiled",
        "model": f"{arch.family} of {N / 1e9:.2f} billion parameters",
        "topology": topology,
        "devices": mesh.size,
        "mesh": {name: size for name, size in mesh.shape.items() if size > 1},
        "micro_rows": lowered.shape.rows,
        "micro_batches": micro,
        "row_length": length,
        "remat": model.remat,
        "chip": dataclasses.asdict(chip),
        "fits": fits,
        "memory": memory,
        "programs": {
            name: {
                **dataclasses.asdict(one),
                "exchanges": [dataclasses.asdict(e) for e in one.exchanges],
                "seconds": one.seconds,
                "bound": one.bound,
            }
            for name, one in programs.items()
        },
        "step": {
            "rollout_s": rollout_s,
            "update_s": update_s,
            "weight_sync_s": programs["weight_sync"].seconds,
            "step_s": step_s,
            "sampled_tokens": generated,
            "sampled_tokens_per_s_per_chip": generated * chip.devices / rollout_s / mesh.size,
            "trained_tokens_per_s_per_chip": rows
            * length
            * updates
            * chip.devices
            / update_s
            / mesh.size,
            "update_mfu": useful / (update_s * chip.peak_flops * mesh.size),
            "update_flops_over_model": programs["update"].flops * updates * mesh.size / useful,
        },
        "advice": []
        if fits
        else _advice(config, stage, lowered.shape.rows, total, chip, memory, mesh),
    }


def _too_large(
    config: RunConfig,
    stage: RlStage,
    chip: Chip,
    topology: str,
    mesh: jax.sharding.Mesh,
    error: str,
) -> dict[str, Any]:
    """What the compiler refused: its own words, and sizes by formulas."""
    found = roofline_plan(config, stage, chip, topology, mesh.size)
    said = re.search(r"[^.\n]*(?:Exceeded|exceeds)[^.\n]*(?:\.\d[^.\n]*)*", error)
    reason = said[0].strip() if said else error.splitlines()[0]
    memory = {**dict.fromkeys(("gradients", "activations", "kv_cache"), 0), **found["memory"]}
    memory["while_updating"] = memory["gradients"] + memory["activations"]
    memory["while_sampling"] = memory["kv_cache"]
    total = int(max(memory["total"], chip.memory_bytes))
    rows = 1 if stage.micro.rows == "auto" else stage.micro.rows
    return {
        **found,
        "plan": "sizes by formulas: the compiler found that a program does not fit",
        "fits": False,
        "advice": [reason, *_advice(config, stage, rows, total, chip, memory, mesh)[1:]],
    }


def _longest(names: list[str], key: Callable[[str], Any]) -> str:
    return max(names, key=key)


def _memory(
    lowered: Lowered, programs: dict[str, Compiled], weights: int, view: int, cache: int
) -> dict[str, int]:
    """Bytes of a device, and the most that is there at once."""
    optimizer = local_bytes(lowered.state.optimizer)
    frozen = local_bytes(lowered.state.frozen)
    state = weights + optimizer + frozen
    gradients = weights
    in_update = programs["update"].temporary_bytes
    in_rollout = max(programs[name].temporary_bytes for name in ("prefill", "decode"))
    in_sync = programs["weight_sync"].temporary_bytes
    batch = programs["update"].argument_bytes - state
    return {
        "parameters": weights,
        "reference": frozen,
        "optimizer": optimizer,
        "gradients": gradients,
        "activations": max(in_update - gradients, 0),
        "batch": max(batch, 0),
        "sampler_weights": view,
        "kv_cache": cache,
        "sampler_temporaries": in_rollout,
        **(
            moments := {
                "while_updating": state + max(batch, 0) + in_update,
                "while_sampling": state + view + cache + in_rollout,
                "while_syncing": state + view + in_sync,
            }
        ),
        "total": max(moments.values()),
    }


def _advice(
    config: RunConfig,
    stage: RlStage,
    rows: int,
    total: int,
    chip: Chip,
    memory: dict[str, int],
    mesh: jax.sharding.Mesh,
) -> list[str]:
    """By how much it is too large, and what would make it smaller."""
    over = total - chip.memory_bytes
    lines = [
        f"too large by {over / 1e9:.1f} GB a device ({total / 1e9:.1f} of "
        f"{chip.memory_bytes / 1e9:.1f})"
    ]
    state = memory["parameters"] + memory["optimizer"] + memory["gradients"]
    if memory["while_updating"] >= memory["while_sampling"]:
        if config.model.remat == "none":
            lines.append('set model.remat = "minimal": no more than products are kept of a layer')
        if config.model.remat != "block":
            lines.append('set model.remat = "block": activations of one layer at a time')
        if rows > mesh.shape["data"] * mesh.shape["fsdp"] and memory["activations"] > over / 2:
            lines.append(f"lower stages.{stage.name}.micro.rows from {rows}")
        if state > chip.memory_bytes / 2:
            times = 2 ** math.ceil(math.log2(state / (chip.memory_bytes / 2)))
            lines.append(
                f"parameters, optimizer and gradients take {state / 1e9:.1f} GB of each: raise "
                f"mesh.fsdp {times} times, on as many more devices"
            )
    else:
        lines.append(
            f"the cache takes {memory['kv_cache'] / 1e9:.1f} GB: lower engine.slots, or set "
            "engine.cache_tokens"
        )
    if memory["sampler_weights"] > chip.memory_bytes / 3:
        lines.append(
            f"the sampler's weights take {memory['sampler_weights'] / 1e9:.1f} GB, which mesh.fsdp "
            "does not split: raise mesh.tensor"
        )
    return lines

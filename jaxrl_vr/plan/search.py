"""Meshes, micro-batches and remat ranked by formulas, and plans of chips that are not compiled."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxrl_vr.metrics.chips import Chip
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.flops import num_params
from jaxrl_vr.models.params import is_param
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.plan.known import architecture, teacher
from jaxrl_vr.plan.memory import advice_for
from jaxrl_vr.plan.network import Network
from jaxrl_vr.plan.report import mesh_text
from jaxrl_vr.plan.roofline import Choice, Estimate, choices, estimate
from jaxrl_vr.plan.topology import chip_of, layout, network_of, num_devices
from jaxrl_vr.sharding import MeshConfig
from jaxrl_vr.train.check import Problem, checked_mesh, problems
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.critic import Critic
from jaxrl_vr.train.limits import Rollouts
from jaxrl_vr.train.optimizer import Optimizer
from jaxrl_vr.train.rl_stage import RlStage

_HEADROOM = 0.9
"""Of a chip's memory, that formulas may fill."""
_NEAR = 1.1
"""Of it, what the compiler may still find room for where formulas do not: they are not exact."""
_WANTED, _TRIED, _REFUSALS = 3, 10, 3
"""A search ends when so many meshes have a layout that fits, or so many layouts were compiled, and
leaves a mesh after so many of its layouts did not fit."""


class NothingFits(Exception):
    """No layout fits by formulas; says which takes least, and of what."""

    def __init__(self, choice: Choice, smallest: Estimate, chip: Chip, stage: RlStage):
        parts = sorted(smallest.memory.items(), key=lambda part: -part[1])[:3]
        most = ", ".join(f"{name.replace('_', ' ')} {size / 1e9:.1f}" for name, size in parts)
        fix = "use more or larger devices, or a smaller model"
        if not stage.optimizer.state_offload:
            fix = f"set stages.{stage.name}.optimizer.state_offload = true, or {fix}"
        super().__init__(
            f"none fits by formulas: the smallest ({layout_text(choice)}) takes "
            f"{smallest.total_bytes / 1e9:.1f} GB of a device, of which {_HEADROOM:.0%} of "
            f"{chip.memory_bytes / 1e9:.1f} may be filled; most are {most}; {fix}"
        )


def ranked(
    config: RunConfig, stage: RlStage, topology: str, num_slices: int = 1
) -> list[tuple[Choice, Estimate]]:
    """Choices that fit by formulas, the fastest first; where none does, of TPUs, for which they are
    compiled, those that come near.

    Args:
      config: of the run.
      stage: that is planned.
      topology: of the devices.
      num_slices: of that topology each.

    Raises:
      ValueError: none can run, whatever memory there is.
      NothingFits: none comes near.
    """
    arch, rollouts, row_length = _sizes(config, stage)
    moments = moment_bytes(stage.optimizer, Transformer(arch).declare())
    chip, count = chip_of(topology), num_devices(topology, num_slices)
    found: list[tuple[Choice, Estimate]] = []
    refused: list[tuple[Choice, list[Problem]]] = []
    for choice in choices(count, rollouts, row_length):
        if choice.data % num_slices:
            continue  # only data goes between slices
        sizes = {"data": 1, "fsdp": 1, "context": 1, "tensor": 1, **choice.mesh}
        sizes["expert"] = max(config.mesh.expert, 1)
        wrong = problems(with_choice(config, stage, choice), arch, sizes)
        if wrong:
            refused.append((choice, wrong))
            continue
        try:
            network = network_of(topology, choice.sizes, num_slices)
        except ValueError:
            continue  # its axes find no place on the chips
        one = _estimate(config, stage, choice, network, arch, rollouts, row_length, moments)
        found.append((choice, one))
    if not found and not refused:
        raise ValueError(
            f"--num-slices {num_slices}: a step of stage {stage.name} fills "
            f"{rollouts.num_rows(row_length)} rows, which so many slices cannot share; lower it, "
            f"or raise stages.{stage.name}.prompts"
        )
    if not found:
        raise ValueError(_none_runs(refused))
    fitting = [one for one in found if has_room(one[1], chip)]
    if not fitting and not chip.is_gpu:
        most = _NEAR * chip.memory_bytes
        fitting = [one for one in found if one[1].total_bytes <= most]
    if not fitting:
        choice, smallest = min(found, key=lambda one: one[1].total_bytes)
        raise NothingFits(choice, smallest, chip, stage)
    return sorted(fitting, key=lambda one: one[1].step_s)


def has_room(found: Estimate, chip: Chip) -> bool:
    """Whether a layout fits by formulas, with some memory to spare."""
    return found.total_bytes <= _HEADROOM * chip.memory_bytes


def _none_runs(refused: Sequence[tuple[Choice, list[Problem]]]) -> str:
    """Why no layout can run: how many there are of each reason, and which is mended most simply.

    That is one that needs no other mesh, and then the fewest settings and the smallest change.
    """

    def is_of_mesh(problem: Problem) -> bool:
        return problem.setting.startswith("mesh.")

    def effort(layout: tuple[Choice, list[Problem]]) -> tuple[int, int, int]:
        _, wrong = layout
        return sum(map(is_of_mesh, wrong)), len(wrong), sum(one.off for one in wrong)

    # What else is wrong with a mesh that cannot be is of another mesh.
    refused = [(choice, list(filter(is_of_mesh, wrong)) or wrong) for choice, wrong in refused]
    reasons = Counter(one.setting for _, wrong in refused for one in wrong)
    choice, wrong = min(refused, key=effort)
    counts = ", ".join(f"{count} refused for {name}" for name, count in reasons.most_common())
    return (
        f"--search: none of the {len(refused)} layouts can run ({counts}). The simplest to mend is "
        f"{layout_text(choice)}: " + "; and ".join(one.text for one in wrong)
    )


def layout_text(choice: Choice) -> str:
    """A layout, to read."""
    return f"{mesh_text(choice.mesh)}, rows {choice.rows}, remat {choice.remat}"


def first_fitting(
    ranking: Sequence[Choice], compiled: Callable[[Choice], dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Plans of the first meshes of a ranking that fit, one a mesh, and of what did not fit.

    What needs more than a refused layout, by its rows, is passed over, and a mesh that was refused
    three times as well.

    Args:
      ranking: the best first.
      compiled: makes a choice's plan.
    """
    fitting: list[tuple[Choice, dict[str, Any]]] = []
    refused: list[tuple[Choice, dict[str, Any]]] = []
    for choice in ranking:
        like_it = [c for c, _ in refused if c.mesh == choice.mesh]
        is_larger = any(c.remat == choice.remat and c.rows <= choice.rows for c in like_it)
        has_fit = any(c.mesh == choice.mesh for c, _ in fitting)
        if has_fit or is_larger or len(like_it) == _REFUSALS:
            continue
        plan = compiled(choice)
        (fitting if plan["fits"] else refused).append((choice, plan))
        if len(fitting) == _WANTED or len(fitting) + len(refused) == _TRIED:
            break
    return [plan for _, plan in fitting], [plan for _, plan in refused]


def with_choice(config: RunConfig, stage: RlStage, choice: Choice) -> RunConfig:
    """The config, laid out as chosen."""
    mesh = MeshConfig(
        data=choice.data,
        fsdp=choice.fsdp,
        context=choice.context,
        tensor=choice.tensor,
        expert=config.mesh.expert,
    )
    model = config.model.model_copy(update={"remat": choice.remat})
    micro = stage.micro.model_copy(update={"rows": choice.rows})
    stages = tuple(
        s.model_copy(update={"micro": micro}) if s.name == stage.name else s for s in config.stages
    )
    return config.model_copy(update={"mesh": mesh, "model": model, "stages": stages})


def roofline_plan(
    config: RunConfig,
    stage: RlStage,
    topology: str,
    num_slices: int = 1,
) -> dict[str, Any]:
    """A plan by formulas alone, of the config as it is."""
    chip = chip_of(topology)
    arch, rollouts, row_length = _sizes(config, stage)
    sizes = checked_mesh(config, arch, lambda: layout(config.mesh, topology, num_slices)).shape
    choice = Choice(
        sizes["data"],
        sizes["fsdp"],
        sizes["context"],
        sizes["tensor"],
        rows=sizes["data"] * sizes["fsdp"] if stage.micro.rows == "auto" else stage.micro.rows,
        remat=config.model.remat,
    )

    def estimated(choice: Choice) -> Estimate:
        network = network_of(topology, choice.sizes, num_slices)
        return _estimate(config, stage, choice, network, arch, rollouts, row_length, moments)

    moments = moment_bytes(stage.optimizer, Transformer(arch).declare())
    found = estimated(choice)
    while stage.micro.rows == "auto" and choice.rows < rollouts.num_rows(row_length):
        larger = dataclasses.replace(choice, rows=2 * choice.rows)
        if estimated(larger).total_bytes > _HEADROOM * chip.memory_bytes:
            break
        choice, found = larger, estimated(larger)
    fits = found.total_bytes <= chip.memory_bytes
    memory = {**found.memory, **found.moments, "total": found.total_bytes}
    return {
        "plan": "roofline estimate, nothing was compiled",
        "model": arch.family,
        "topology": topology,
        "devices": math.prod(choice.sizes),
        "mesh": choice.mesh,
        "rows": choice.rows,
        "row_length": row_length,
        "remat": choice.remat,
        "chip": dataclasses.asdict(chip),
        "fits": fits,
        "memory": memory,
        "step": {
            "rollout_s": found.rollout_s,
            "update_s": found.update_s,
            "step_s": found.step_s,
        },
        "bound": found.bound,
        "advice": [] if fits else advice_for(config, stage, choice.rows, chip, memory, sizes),
    }


def _sizes(config: RunConfig, stage: RlStage) -> tuple[Architecture, Rollouts, int]:
    arch = architecture(config)
    return arch, Rollouts.of(stage, arch.max_length), stage.row_length(arch.max_length)


def moment_bytes(optimizer: Optimizer, declared: Any) -> int:
    """Of an optimizer's state in the devices' memory, over all devices."""
    if optimizer.state_offload:
        return 0
    shapes = jax.tree.map(
        lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype), declared, is_leaf=is_param
    )
    state = jax.eval_shape(optimizer.transform(declared).init, shapes)
    return sum(math.prod(a.shape) * a.dtype.itemsize for a in jax.tree.leaves(state))


def _critic_bytes(stage: RlStage, arch: Architecture) -> int:
    if stage.critic is None:
        return 0
    declared = Critic(Transformer(arch)).declare()
    return 4 * num_params(declared) + moment_bytes(stage.critic.optimizer, declared)


def _estimate(
    config: RunConfig,
    stage: RlStage,
    choice: Choice,
    network: Network,
    arch: Architecture,
    rollouts: Rollouts,
    row_length: int,
    moments: int,
) -> Estimate:
    return estimate(
        arch,
        rollouts,
        choice,
        network,
        row_length=row_length,
        slots=config.engine.slots,
        itemsize=2 if config.model.dtype == "bfloat16" else 4,
        moment_bytes=moments,
        has_reference=stage.has_reference,
        teacher=_teacher_params(config, stage, arch),
        critic_bytes=_critic_bytes(stage, arch),
        scores=stage.num_scores + (stage.critic is not None),
        epochs=stage.epochs,
        has_average=stage.ema is not None,
        cache_tokens=config.engine.cache_tokens,
    )


def _teacher_params(config: RunConfig, stage: RlStage, student: Architecture) -> int:
    if stage.teacher is None:
        return 0
    return num_params(teacher(config, Transformer(student), stage.teacher).declare())

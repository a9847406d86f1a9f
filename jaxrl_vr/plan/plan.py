"""`jaxrl-vr plan`: the programs of a run compiled for a topology, and what they take there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from jaxrl_vr.metrics.chips import Chip
from jaxrl_vr.models.attention import has_kernel
from jaxrl_vr.models.blockwise import mean_columns
from jaxrl_vr.models.flops import attention_flops, causal_pairs, num_params, update_flops
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.plan.known import architecture, teacher
from jaxrl_vr.plan.memory import advice_for, of_device
from jaxrl_vr.plan.program import Branch, Program, Trips, scope_of
from jaxrl_vr.plan.report import Compiled, compiled
from jaxrl_vr.plan.roofline import mean_share
from jaxrl_vr.plan.search import roofline_plan
from jaxrl_vr.plan.steps import Lowered
from jaxrl_vr.plan.topology import chip_of, devices, layout, places
from jaxrl_vr.sampler.plans import POOL_MEMBERS
from jaxrl_vr.sampler.sizes import Sizes, check_attention
from jaxrl_vr.sharding import local_bytes, make_mesh
from jaxrl_vr.train.check import check_optimizers, checked_mesh
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.micro import NoRowFits, is_out_of_memory
from jaxrl_vr.train.models import attention_backend
from jaxrl_vr.train.rl_stage import RlStage
from jaxrl_vr.train.stages import SamplingConfig

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
    # What is wrong with the config shows without the devices, for which libtpu is needed.
    checked_mesh(config, architecture(config), lambda: layout(config.mesh, topology, num_slices))
    device = places(topology)[0]
    model = planned_model(config, device)
    check_attention(config.engine, model.dtype, model.arch.head_dim, device)
    check_optimizers(config, model)
    if found.teacher is not None:
        teacher(config, model, found.teacher)
    mesh = make_mesh(config.mesh, devices(topology, num_slices))
    try:
        return planned(config, found, model, mesh, chip, topology, say)
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return _too_large(config, found, chip, topology, num_slices, mesh, str(error))
    except NoRowFits as error:
        return _too_large(config, found, chip, topology, num_slices, mesh, str(error))


def rl_stage(config: RunConfig, name: str | None) -> RlStage:
    """The stage that is planned.

    Raises:
      ValueError: there is none.
    """
    stages = [s for s in config.stages if isinstance(s, RlStage)]
    for stage in stages:
        if name is None or name == stage.name:
            return stage
    named = ", ".join(s.name for s in stages) or "none"
    raise ValueError(
        f"stage {name!r}: a plan is of a stage of type 'rl'; the config's are: {named}"
        if name is not None
        else "a plan is of a stage of type 'rl', and the config has none; add one"
    )


def planned_model(config: RunConfig, device: Any) -> Transformer:
    """The model of a run on such devices, without its weights."""
    section, arch = config.model, architecture(config)
    backend = attention_backend(section.attention, section.dtype, arch.head_dim, device)
    return Transformer(arch, section.dtype, section.remat, backend)


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
    # Outside of decoding the text leaves open how many blocks of keys plain XLA attends.
    columns = mean_columns(length)

    def of(
        program: Any,
        must_read: float,
        passes: int = 0,
        kernel_bytes: float = 0,
        of_model: Transformer = model,
        trips: Trips | None = None,
        branch: Branch = lambda _: max,
    ) -> Compiled:
        kernels = passes * kernel_flops(of_model, mesh, rows, length) / mesh.size
        known = trips or (lambda _: columns)
        text = Program(program.as_text() or "", trips=known, branch=branch)
        arguments = text, program.memory_analysis(), chip, mesh
        return compiled(
            *arguments, kernel_flops=kernels, kernel_bytes=kernel_bytes, must_read=must_read
        )

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
    programs: dict[str, Compiled] = {}
    say("compiling update")
    moments = local_bytes(lowered.state.optimizer)
    moments += local_bytes(lowered.state.optimizer, on_host=True)
    programs["update"] = of(lowered.update().compile(), weights + moments, passes)
    critic = local_bytes(lowered.state.critic)
    critic += local_bytes(lowered.state.critic, on_host=True)
    critic_update = lowered.critic_update()
    if critic_update is not None:
        say("compiling the critic's update")
        programs["critic_update"] = of(critic_update.compile(), critic, passes)
    updates = stage.updates_at(0) * stage.epochs
    runs = dict.fromkeys(programs, updates)
    for name, program, times in lowered.scores():
        say(f"compiling {name.replace('_', ' ')}")
        of_model, read = model, weights
        if name == "teacher_score" and lowered.teacher is not None:
            of_model, read = lowered.teacher, local_bytes(lowered.state.frozen["teacher"])
        programs[name] = of(program.compile(), read, stage.updates_at(0), of_model=of_model)
        runs[name] = times
    say("compiling prefill")
    before = pages_before(rollouts.prompt_tokens, lowered.sizes)
    of_chunk = mean_columns(lowered.prefill_width())

    def prefill_trips(line: str) -> float:
        return of_chunk if "/chunk/" in line else before

    programs["prefill"] = of(lowered.prefill(view).compile(), view_bytes, trips=prefill_trips)
    say("compiling decode")
    must_read = steps * (view_bytes + cache_bytes)
    # Where kernels attend the cache, the rest waits for what they read.
    by_kernels = steps * cache_bytes if lowered.sizes.item_pages is not None else 0
    programs["decode"] = decode = of(
        lowered.decode(view).compile(),
        must_read,
        kernel_bytes=by_kernels,
        trips=lambda _: steps,
        branch=branch_of(stage.sampling, rollouts.samples),
    )
    programs["weight_sync"] = of(made, weights + view_bytes)
    memory = of_device(lowered, programs, weights, view_bytes, cache_bytes)
    waves = -(-rollouts.count // lowered.sizes.slots)
    # The program is of completions at their limits, to which they grow.
    unread = by_kernels * (1 - mean_share(rollouts, lowered.sizes.slots)) / chip.bandwidth
    chunk_s = max(
        decode.compiled_s - unread, decode.memory_s - unread, decode.network_s, decode.compute_s
    )
    rollout_s = waves * rollouts.new_tokens / steps * chunk_s
    width = lowered.sizes.prefill_tokens
    prefills = -(-rollouts.prompts * rollouts.prompt_tokens // (width * parts))
    rollout_s += prefills * programs["prefill"].seconds
    learning = {name: times * programs[name].seconds for name, times in runs.items()}
    update_s = learning["update"]
    step_s = rollout_s + sum(learning.values()) + programs["weight_sync"].seconds
    N = num_params(model.declare())
    useful = update_flops(N, arch, rows * length, rows * causal_pairs(length)) * updates
    total = memory["total"]
    fits = total <= chip.memory_bytes
    generated = rollouts.count * rollouts.new_tokens
    return {
        "plan": "compiled",
        "model": f"{arch.family} of {N / 1e9:.2f} billion parameters",
        "topology": topology,
        "devices": mesh.size,
        "mesh": {name: size for name, size in mesh.shape.items() if size > 1},
        "rows": lowered.shape.rows,
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
            **{f"{name}_s": seconds for name, seconds in learning.items()},
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
        else advice_for(config, stage, lowered.shape.rows, chip, memory, mesh.shape),
    }


def _too_large(
    config: RunConfig,
    stage: RlStage,
    chip: Chip,
    topology: str,
    num_slices: int,
    mesh: jax.sharding.Mesh,
    error: str,
) -> dict[str, Any]:
    """What the compiler refused: its own words, and sizes by formulas."""
    found = roofline_plan(config, stage, topology, num_slices)
    reason = error.removeprefix("RESOURCE_EXHAUSTED:").strip().splitlines()[0]
    # The formulas may say that it fits.
    memory = {**found["memory"], "total": max(found["memory"]["total"], chip.memory_bytes)}
    rows = 1 if stage.micro.rows == "auto" else stage.micro.rows
    return {
        **found,
        "plan": "sizes by formulas: the compiler found that a program does not fit",
        "fits": False,
        "advice": [reason, *advice_for(config, stage, rows, chip, memory, mesh.shape)[1:]],
    }


def pages_before(prompt_tokens: int, sizes: Sizes) -> int:
    """Pages of the cache that a chunk of a prompt comes behind, on average; each is a turn of the
    prefill's loop."""
    chunks = -(-prompt_tokens // sizes.prefill_tokens)
    return (chunks - 1) * sizes.prefill_tokens // (2 * sizes.page_tokens)


def kernel_flops(model: Transformer, mesh: jax.sharding.Mesh, rows: int, length: int) -> float:
    """Of a forward pass, what a program's text does not show: attention by kernels, of all rows."""
    if not has_kernel(model.attention, length // mesh.shape["context"], length):
        return 0.0
    return attention_flops(model.arch, rows * causal_pairs(length))


def branch_of(sampling: SamplingConfig, samples: int) -> Branch:
    """Of each conditional of a decode step the branch that runs.

    Args:
      sampling: of the stage; the vocabulary is searched only to cut it.
      samples: of a prompt; plain XLA attends it in entries, whose second half may be empty.
    """
    runs = {
        "cut": bool(sampling.cuts),
        "top_k": sampling.top_k > 0,
        "top_p": sampling.top_p < 1,
        "greedy": sampling.temperature == 0,
        "shared": samples > POOL_MEMBERS // 2,
    }

    def branch(line: str) -> Callable[..., str]:
        scopes = [scope for scope in scope_of(line).split("/") if scope in runs]
        return max if not scopes or runs[scopes[-1]] else min

    return branch

"""What is in a device's memory, and what would make it fit."""

from __future__ import annotations

import math
from collections.abc import Mapping

from jaxrl_vr.metrics.chips import Chip
from jaxrl_vr.plan.report import Compiled
from jaxrl_vr.plan.steps import Lowered
from jaxrl_vr.sharding import local_bytes
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.rl_stage import RlStage


def of_device(
    lowered: Lowered, programs: dict[str, Compiled], weights: int, view: int, cache: int
) -> dict[str, int]:
    """Bytes of a device, and the most that is there at once."""
    optimizer = local_bytes(lowered.state.optimizer)
    on_host = local_bytes(lowered.state.optimizer, on_host=True)
    on_host += local_bytes(lowered.state.critic, on_host=True)
    frozen = {name: local_bytes(tree) for name, tree in lowered.state.frozen.items()}
    critic, average = local_bytes(lowered.state.critic), local_bytes(lowered.state.ema)
    state = weights + optimizer + sum(frozen.values()) + average
    gradients = local_bytes(lowered.trained)
    in_update = programs["update"].temporary_bytes
    in_critic = programs["critic_update"].temporary_bytes if critic else 0
    in_scores = [one.temporary_bytes for name, one in programs.items() if name.endswith("score")]
    in_rollout = max(programs[name].temporary_bytes for name in ("prefill", "decode"))
    in_sync = programs["weight_sync"].temporary_bytes
    batch = programs["update"].argument_bytes - state
    return {
        "parameters": weights,
        "reference": 0,
        **frozen,
        "critic": critic,
        "average": average,
        "optimizer": optimizer,
        "optimizer_on_host": on_host,
        "gradients": gradients,
        "activations": max(in_update - gradients, 0),
        "batch": max(batch, 0),
        "sampler_weights": view,
        "kv_cache": cache,
        "sampler_temporaries": in_rollout,
        **(
            moments := {
                "while_updating": state + critic + max(batch, 0) + max(in_update, in_critic),
                "while_scoring": state + critic + max(batch, 0) + max(in_scores, default=0),
                "while_sampling": state + critic + view + cache + in_rollout,
                "while_syncing": state + critic + view + in_sync,
            }
        ),
        "total": max(moments.values()),
    }


def advice_for(
    config: RunConfig,
    stage: RlStage,
    rows: int,
    chip: Chip,
    memory: Mapping[str, float],
    mesh: Mapping[str, int],
) -> list[str]:
    """By how much it is too large, and what would make it smaller.

    Args:
      config: of the run.
      stage: that is planned.
      rows: of a micro-batch.
      chip: of the devices.
      memory: bytes of a device by what they hold, with its moments and their total.
      mesh: sizes of its axes.
    """
    total = memory["total"]
    over = total - chip.memory_bytes
    lines = [
        f"too large by {over / 1e9:.1f} GB a device ({total / 1e9:.1f} of "
        f"{chip.memory_bytes / 1e9:.1f})"
    ]
    state = memory["parameters"] + memory["optimizer"] + memory["gradients"]
    moments = "while_updating", "while_scoring", "while_sampling", "while_syncing"
    worst = max(moments, key=lambda name: memory.get(name, 0))
    if worst in ("while_updating", "while_scoring"):
        if config.model.remat == "none":
            lines.append('set model.remat = "minimal": no more than products are kept of a layer')
        if config.model.remat != "block":
            lines.append('set model.remat = "block": activations of one layer at a time')
        if rows > mesh["data"] * mesh["fsdp"] and memory["activations"] > over / 2:
            lines.append(f"lower stages.{stage.name}.micro.rows from {rows}")
        if memory["optimizer"] > over / 2:
            lines.append(
                f"set stages.{stage.name}.optimizer.state_offload = true: its "
                f"{memory['optimizer'] / 1e9:.1f} GB lie in the host's memory between updates"
            )
        if state > chip.memory_bytes / 2:
            times = 2 ** math.ceil(math.log2(state / (chip.memory_bytes / 2)))
            lines.append(
                f"parameters, optimizer and gradients take {state / 1e9:.1f} GB of each: raise "
                f"mesh.fsdp {times} times, on as many more devices"
            )
    elif worst == "while_sampling":
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

"""Tokens per second and memory of a device against the number of chips, from compiled plans.

    python -m benchmarks.scaling [--config CONFIG] [--topologies v5p:2x2x2 v5p:4x4x4 ...]
        [--out scaling.svg]

plans the run for each topology, with work that grows with the chips: prompts, rows of a
micro-batch and slots of a chip stay those of the config on its smallest topology, and so does its
mesh, of which the larger ones have several along `data`. Prints a JSON line for each, and draws
them (needs matplotlib). Every time is an estimate of the compiler; nothing runs. Needs libtpu.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxrl_vr.config import load
from jaxrl_vr.plan.plan import plan, rl_stage
from jaxrl_vr.plan.topology import NO_LIBTPU, has_libtpu, num_devices
from jaxrl_vr.sharding import axis_sizes
from jaxrl_vr.train.config import RunConfig

CONFIG = Path(__file__).parents[1] / "configs" / "tpu" / "qwen2.5_7b_v5p-2x2x2_grpo.toml"
TOPOLOGIES = "v5p:2x2x2", "v5p:4x4x4", "v5p:8x8x8", "v5p:8x8x16"


def grown(path: Path, devices: int, least: int) -> RunConfig:
    """The config for so many devices, whose work it has for the least number of them."""
    config = load(RunConfig, [path], [])
    stage = rl_stage(config, None)
    rows = stage.micro.rows
    if rows == "auto":
        raise ValueError(f"stages.{stage.name}.micro.rows = 'auto': give a number, which can grow")
    times = devices // least
    sizes = axis_sizes(config.mesh, least)
    wanted = (
        f"mesh.fsdp={sizes['fsdp']}",
        f"mesh.data={sizes['data'] * times}",
        f"engine.slots={config.engine.slots * times}",
        f"stages.{stage.name}.prompts={stage.prompts * times}",
        f"stages.{stage.name}.micro.rows={rows * times}",
    )
    return load(RunConfig, [path], wanted)


def line(found: dict[str, Any]) -> dict[str, Any]:
    """What is printed of a plan; of one that does not fit, why."""
    if not found["fits"]:
        names = "topology", "devices", "mesh", "fits", "advice"
        return {"benchmark": "scaling", **{name: found[name] for name in names}}
    step = found["step"]
    tokens = found["micro_batches"] * found["rows"] * found["row_length"]
    return {
        "benchmark": "scaling",
        "model": found["model"],
        "topology": found["topology"],
        "devices": found["devices"],
        "mesh": found["mesh"],
        "fits": found["fits"],
        "memory_bytes": found["memory"]["total"],
        "chip_bytes": found["chip"]["memory_bytes"],
        "step_s": step["step_s"],
        "rollout_s": step["rollout_s"],
        "update_s": step["update_s"],
        "weight_sync_s": step["weight_sync_s"],
        "sampled_tokens": step["sampled_tokens"],
        "tokens": tokens,
        "tokens_per_s": tokens / step["step_s"],
        "update_mfu": step["update_mfu"],
        "network_s": {name: one["network_s"] for name, one in found["programs"].items()},
    }


def measured(path: Path, topologies: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A line a topology, as soon as it is compiled."""
    least = min(map(num_devices, topologies))
    for topology in topologies:
        config = grown(path, num_devices(topology), least)
        yield line(plan(config, topology, say=lambda text: print(text, file=sys.stderr)))


def draw(lines: Sequence[dict[str, Any]], out: Path) -> None:
    """Tokens/s beside what the smallest would give times the chips, and memory of a device."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines = sorted((one for one in lines if one["fits"]), key=lambda one: one["devices"])
    if not lines:
        raise ValueError("no topology fits, so there is nothing to draw; name larger ones")
    x = [one["devices"] for one in lines]
    # Text stays text, and without random ids and a date: small, and the same when drawn again.
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "scaling"}):
        figure, (speed, memory) = plt.subplots(1, 2, figsize=(8.2, 3.2))
        even = [lines[0]["tokens_per_s"] / x[0] * n for n in x]
        speed.plot(x, even, "--", color="C7", label="even growth", linewidth=1.3)
        speed.plot(x, [one["tokens_per_s"] for one in lines], "o-", color="C0", label="compiled")
        speed.set_yscale("log")
        speed.set_title("tokens/s of a step, estimate", fontsize=10)
        speed.legend(fontsize=8, frameon=False)
        chip = lines[0]["chip_bytes"] / 1e9
        memory.axhline(chip, linestyle="--", color="C7", linewidth=1.3)
        memory.plot(x, [one["memory_bytes"] / 1e9 for one in lines], "o-", color="C1")
        memory.set_ylim(0, 1.1 * chip)
        memory.set_title("GB of a device (dashed: there are)", fontsize=10)
        for axis in (speed, memory):
            axis.set_xscale("log", base=2)
            axis.set_xticks(x, [str(n) for n in x])
            axis.set_xlabel("chips", fontsize=9)
            axis.tick_params(labelsize=8)
            axis.grid(alpha=0.3)
        figure.tight_layout()
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)
        plt.close(figure)


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--config", type=Path, default=CONFIG, help="of a run with an RL stage")
    parser.add_argument("--topologies", nargs="+", default=TOPOLOGIES, help="of one chip")
    parser.add_argument("--out", type=Path, help="picture")
    args = parser.parse_args(argv)
    if not has_libtpu():
        print(json.dumps({"benchmark": "scaling", "skipped": NO_LIBTPU}))
        return
    jax.config.update("jax_platforms", "cpu")
    lines = []
    for found in measured(args.config, args.topologies):
        print(json.dumps(found), flush=True)
        lines.append(found)
    if args.out is not None:
        draw(lines, args.out)


if __name__ == "__main__":
    main()

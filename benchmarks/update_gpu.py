"""What an update takes of GPUs by their compiler, beside the formulas of `plan`; no GPU is needed.

    python -m benchmarks.update_gpu [--config CONFIG] [--gpus 8]

compiles the run's optimizer step for H100 by XLA's plugin for CUDA (`pip install -e ".[cuda]"`) and
prints a JSON line: memory of a device, by the compiler and by the formulas of `plan`, how often
cuDNN is called for attention in its text, and arrays that hold all scores of a row. Nothing runs;
what cuDNN itself takes as a workspace is not in the numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jax._src.cudnn import fused_attention_stablehlo as fused
from jax.experimental import topologies

from benchmarks.rollout_and_update import positive
from jaxrl_vr.config import load
from jaxrl_vr.plan.plan import planned_model, rl_stage
from jaxrl_vr.plan.search import roofline_plan
from jaxrl_vr.rollout.batch import Shape
from jaxrl_vr.sharding import make_mesh
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.micro import bytes_of
from jaxrl_vr.train.policy import learner_of, update_of

CONFIG = Path(__file__).parents[1] / "configs" / "gpu" / "qwen2.5_7b_h100-8_grpo.toml"
NO_PLUGIN = 'XLA\'s plugin for CUDA is not installed: pip install "jax[cuda13]"'
# NVIDIA's H100 SXM, as XLA describes a target: threads, registers and memories of its 132 cores.
_H100 = """
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  device_memory_size: 84929347584
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  threads_per_warp: 32
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 12 minor: 8 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def has_plugin() -> bool:
    """Whether programs can be compiled for GPUs."""
    return any(importlib.util.find_spec(f"jax_cuda{major}_plugin") for major in (12, 13))


@contextlib.contextmanager
def described_gpus(count: int) -> Iterator[list[Any]]:
    """H100 to compile for, of which none has to be there."""
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # it asks the driver
    name = f"1x1x{count}"
    found = topologies.get_topology_desc(
        topology_name=name, platform="cuda", target_config=_H100, topology=name
    )
    # jax asks the GPU of this machine.
    asked = {
        "check_cudnn_version": lambda: 91000,
        "check_compute_capability": lambda _: True,
        "is_cuda_compute_capability_equal": lambda _: False,
    }
    before = {question: getattr(fused, question) for question in asked}
    for question, answer in asked.items():
        setattr(fused, question, answer)
    try:
        yield list(found.devices)
    finally:
        for question, answer in before.items():
            setattr(fused, question, answer)


def measured(config: RunConfig, gpus: int) -> dict[str, Any]:
    """The line."""
    stage = rl_stage(config, None)
    with described_gpus(gpus) as devices:
        mesh = make_mesh(config.mesh, devices)
        model = planned_model(config, devices[0])
        rows = stage.micro.rows
        assert rows != "auto", "the config names its rows"
        of_device = mesh.shape["data"] * mesh.shape["fsdp"]
        length = stage.row_length(model.max_length)
        shape = Shape(length, rows, of_device)
        update = update_of(stage, model, mesh, learner_of(stage, model, mesh))
        program = update.lower(shape).compile()
    text = program.as_text() or ""
    memory = roofline_plan(config, stage, f"h100:{gpus}")["memory"]
    return {
        "benchmark": "update_gpu",
        "gpus": gpus,
        "mesh": {name: size for name, size in mesh.shape.items() if size > 1},
        "attention": model.attention,
        "rows": rows,
        "row_length": length,
        "device_bytes": bytes_of(program.memory_analysis()),
        "device_bytes_by_formulas": memory["while_updating"],
        "cudnn_calls": Counter(re.findall(r'custom_call_target="__cudnn\$(\w+)"', text)),
        "squares": sorted(set(re.findall(rf"\[(?:\d+,)*{length},{length}\]", text))),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.update_gpu", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--config", type=Path, default=CONFIG, help="of a run with an RL stage")
    parser.add_argument("--gpus", type=positive, default=8, help="of one host")
    args = parser.parse_args(argv)
    if not has_plugin():
        print(json.dumps({"benchmark": "update_gpu", "skipped": NO_PLUGIN}))
        return
    print(json.dumps(measured(load(RunConfig, [args.config], []), args.gpus)))


if __name__ == "__main__":
    main()

"""Tokens per second of an update beside torch's forward, backward and AdamW of the same model.

    python -m benchmarks.update --model DIR [--rows 64 --length 256 --micro 8]
        [--peers --torch-python PYTHON]

prints a JSON line: one optimizer step (clipped policy gradient with AdamW, float32) on rows of
random tokens that all train, warm, the median of the repeats. With --peers, torch does the same
products with the plain policy gradient, in turn with ours, in a process and an environment of its
own. `limit_tokens_per_s` is what the same process reaches with nothing but the products;
`planned_bytes` is what a plan counts for the step, beside the peak of the process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.machine import load_average, machine, peak_memory_bytes, versions
from benchmarks.peers import LEARNERS, Updates, started
from benchmarks.rollout_and_update import positive, update_limit
from benchmarks.sampler_limits import Lazily, take_turns
from benchmarks.sampler_settings import against_peers
from benchmarks.update_step import Step
from jaxrl_vr.models import hf
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.rollout.batch import Batch, Shape, Trajectory, build
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh


def rows_of(vocab: int, rows: int, length: int, micro: int) -> Batch:
    """Rows of random tokens, with advantages of both signs; the first token of a row cannot
    train."""
    rng = np.random.default_rng(0)
    mask = np.arange(length) > 0
    trajectories = [
        Trajectory(
            token_ids=rng.integers(0, vocab, length),
            mask=mask,
            logp=np.full(length, -np.log(vocab), np.float32),
            adv=1.0 if i % 2 else -1.0,
            group=i,
        )
        for i in range(rows)
    ]
    weight = np.full(rows, 1 / (rows * (length - 1)), np.float32)
    return build(trajectories, weight, Shape(length, micro))


def measured(folder: Path, job: Updates, repeats: int, pythons: Mapping[str, str]) -> Any:
    """The line."""
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    arch, params = hf.load(folder, rules=TRAIN_RULES, mesh=mesh)
    model = Transformer(arch, job.dtype)
    batch = rows_of(arch.vocab_size, job.rows, job.length, job.micro)
    trained = job.rows * (job.length - 1)

    def limit() -> Callable[[], float]:
        return update_limit(arch, job.tokens, trained, job.rows // job.micro)

    load_before = load_average()
    with started(pythons, job) as (peers, skipped):
        step = Step(model, params, mesh, batch)
        of_step = step(0), peak_memory_bytes()
        calls = {"ours": step, "limit": Lazily(limit)}
        seconds = take_turns({**calls, **peers}, repeats)
        of_peers = against_peers(peers, skipped, seconds, job.tokens)
    ours, at_best = (statistics.median(seconds[name]) for name in ("ours", "limit"))
    return {
        "benchmark": "update",
        "tokens": job.tokens,
        "tokens_per_s": job.tokens / ours,
        "limit_tokens_per_s": job.tokens / at_best,
        "ratio_to_limit": at_best / ours,
        "seconds": seconds["ours"],
        "limit_seconds": seconds["limit"],
        "settings": {**job._asdict(), "model": folder.resolve().name},
        "first_call_s": of_step[0],
        "peak_memory_bytes": of_step[1],
        "planned_bytes": step.planned_bytes,
        **of_peers,
        "machine": machine(),
        "versions": versions(),
        "load_average": load_before,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.update", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face model folder")
    for name, default, meaning in (
        ("rows", 64, "of an optimizer step"),
        ("length", 256, "tokens of a row"),
        ("micro", 8, "rows of a micro-batch"),
        ("repeats", 3, "timed steps; their median counts"),
    ):
        parser.add_argument(f"--{name}", type=positive, default=default, help=meaning)
    parser.add_argument("--peers", action="store_true", help="in turn with torch")
    for name in LEARNERS:
        parser.add_argument(
            f"--{name}-python", default=sys.executable, help=f"interpreter that has {name}"
        )
    args = parser.parse_args(argv)
    if args.rows % args.micro:
        parser.error(f"--rows {args.rows} is no multiple of --micro {args.micro}; choose one")
    folder = hf.locate(args.model)
    cores = machine()["cores"]
    job = Updates(str(folder), args.rows, args.length, args.micro, "float32", cores)
    pythons = {name: getattr(args, f"{name}_python") for name in LEARNERS} if args.peers else {}
    print(json.dumps(measured(folder, job, args.repeats, pythons)), flush=True)


if __name__ == "__main__":
    main()

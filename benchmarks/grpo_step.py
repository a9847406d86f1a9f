"""Seconds of a whole GRPO step, ours and those of other trainers, in turn.

    python -m benchmarks.grpo_step --model DIR
        [--peers --tunix-python PYTHON --trl-python PYTHON]

prints a JSON line: a step samples every answer to its limit, gives it its reward and takes one
optimizer step, in float32. Each turn of a trainer is a process of its own, because together they
need more memory than a laptop has; its first step is discarded: it compiles.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import load_average, machine, versions
from benchmarks.peers import TRAINERS, Peer, Steps, started
from benchmarks.rollout_and_update import positive, texts_of
from benchmarks.sampler_settings import against_peers
from jaxrl_vr.data.tokenizer import HFTokenizer
from jaxrl_vr.models import hf

# Sequences of a micro-batch. Not searched for the fastest.
_MICRO = {"ours": 8, "tunix": 8, "trl": 16}


def measured(job: Steps, repeats: int, pythons: Mapping[str, str]) -> dict[str, Any]:
    """The line.

    Raises:
      RuntimeError: our own process did not start.
    """
    load_before = load_average()
    seconds: dict[str, list[float]] = {name: [] for name in pythons}
    ran: dict[str, Peer] = {}
    skipped: dict[str, str] = {}
    for _, name in itertools.product(range(repeats), pythons):
        if name in skipped:
            continue
        with started({name: pythons[name]}, job) as (ready, reasons):
            skipped |= reasons
            if "ours" in skipped:
                raise RuntimeError(f"our own trainer: {skipped['ours']}; its error stands above")
            for trainer in ready.values():
                trainer(1)
                seconds[name].append(trainer(2))
        ran |= ready
    ours = ran.pop("ours")
    of_peers = against_peers(ran, skipped, seconds, job.tokens)
    return {
        "benchmark": "grpo_step",
        "tokens": job.tokens,
        "tokens_per_s": job.tokens / statistics.median(seconds["ours"]),
        "seconds": seconds["ours"],
        "peak_memory_bytes": ours.peak_memory_bytes,
        "settings": {
            **job._asdict(),
            "prompts": len(job.prompts),
            "model": Path(job.model).resolve().name,
        },
        **of_peers,
        "machine": machine(),
        "versions": versions(),
        "load_average": load_before,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.grpo_step", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face model folder")
    for name, default, meaning in (
        ("prompts", 8, "different prompts of a step"),
        ("samples", 8, "answers of each"),
        ("new", 128, "tokens of each answer"),
        ("repeats", 3, "timed steps; their median counts"),
    ):
        parser.add_argument(f"--{name}", type=positive, default=default, help=meaning)
    parser.add_argument("--peers", action="store_true", help="in turn with Tunix and TRL")
    for name in TRAINERS:
        meaning = f"interpreter that has {name}"
        parser.add_argument(f"--{name}-python", default=sys.executable, help=meaning)
    args = parser.parse_args(argv)
    if args.samples < 2:
        parser.error("--samples 1: GRPO compares the answers to a prompt; give 2 or more")
    try:
        folder = hf.locate(args.model)
        context = hf.architecture_from_config(hf.read_config(folder)).max_length
        tokenizer = HFTokenizer(folder)
    except ValueError as error:
        parser.error(f"--model {args.model}: {error}")
    texts = texts_of(tokenizer, args.prompts)
    longest = max(len(tokenizer.prompt_ids(text)) for text in texts)
    if longest + args.new > context:
        parser.error(
            f"--new {args.new} behind prompts of {longest} tokens exceeds the model's context of "
            f"{context}; lower it, or choose another --model"
        )
    job = Steps(
        model=str(folder),
        prompts=texts,
        longest_prompt=longest,
        samples=args.samples,
        new=args.new,
        micro=_MICRO,
        dtype="float32",
        threads=machine()["cores"],
    )
    pythons = {"ours": sys.executable}
    if args.peers:
        pythons |= {name: getattr(args, f"{name}_python") for name in TRAINERS}
    print(json.dumps(measured(job, args.repeats, pythons)), flush=True)


if __name__ == "__main__":
    main()

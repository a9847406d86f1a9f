"""Tokens per second of the sampler beside the machine's limit, training, and other samplers.

    python -m benchmarks.sampler --model DIR [--setting N] [--peers] [--compare OLD.jsonl]

prints a JSON line for each setting; all are warm (programs compiled, one run discarded, the median
of five) and sample at T = 1 from the whole vocabulary:

1. 8 prompts x 8 samples of exactly 128 new tokens, all side by side;
2. 128 rollouts of 16 prompts in 32 slots, their lengths geometric with mean 40 and unknown to the
   scheduler, beside the same slots with all lengths 40;
3. 8 prompts of 1,500 tokens x 16 samples of 64 new tokens, beside one prefill a prompt and decoding
   at its limit, and beside samples that prefill each by itself;
4. rollout phases of a real RL stage with its updates, beside the same phases alone.

The limit is what the same process reaches with nothing but the products with the weights, in turn
with the measurement. On an accelerator a line also has the share of the chip's peak in bytes or
products, whichever binds. With --peers, transformers' `generate` and vLLM sample the same in turn
with ours, each in a process of its own: --transformers-python and --vllm-python name the
interpreters of their environments. --compare holds the ratios to the limit against those of lines
that were printed before: exit code 1 says that one of them is lower by more than the noise, 2 that
nothing could be compared. --sweep measures tokens/s against slots and answer length instead, and
draws them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import SAMPLERS
from benchmarks.rollout_and_update import positive
from benchmarks.sampler_compare import compare
from benchmarks.sampler_runs import Loaded, load
from benchmarks.sampler_settings import Drawn, Full, Long, drawn, full, long
from benchmarks.sampler_sweep import draw, sweep
from benchmarks.sampler_training import Training, training
from jaxrl_vr.models import hf

SETTINGS: dict[int, tuple[Callable[..., dict[str, Any]], Any]] = {
    1: (full, Full()),
    2: (drawn, Drawn()),
    3: (long, Long()),
    4: (training, Training()),
}
"""Number -> what measures it, and its sizes."""


def measured(
    loaded: Loaded, numbers: Sequence[int], repeats: int, pythons: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """The line of each setting, as soon as it is known."""
    for number in numbers:
        measure, setting = SETTINGS[number]
        yield measure(loaded, setting, repeats, pythons)


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sampler", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face model folder")
    parser.add_argument(
        "--setting", type=int, choices=SETTINGS, nargs="+", default=list(SETTINGS), help="which"
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of the products"
    )
    parser.add_argument(
        "--repeats", type=positive, default=5, help="timed runs; their median counts"
    )
    parser.add_argument("--peers", action="store_true", help="in turn with other samplers")
    for name in SAMPLERS:
        parser.add_argument(
            f"--{name}-python", default=sys.executable, help=f"interpreter that has {name}"
        )
    parser.add_argument("--compare", type=Path, metavar="OLD.jsonl", help="lines of an earlier run")
    parser.add_argument(
        "--noise", type=float, default=0.1, help="how much lower a ratio may be by chance"
    )
    parser.add_argument("--sweep", type=Path, metavar="OUT.svg", help="measure and draw sweeps")
    args = parser.parse_args(argv)
    if args.sweep is not None and (args.peers or args.compare is not None):
        parser.error("--sweep has neither peers nor a comparison; leave one of them out")
    old = None
    if args.compare is not None:
        old = [json.loads(line) for line in args.compare.read_text(encoding="utf-8").splitlines()]
    loaded = load(hf.locate(args.model), args.dtype)
    if args.sweep is not None:
        draw(_print(sweep(loaded, args.repeats)), args.sweep)
        return
    pythons = {name: getattr(args, f"{name}_python") for name in SAMPLERS} if args.peers else {}
    lines = _print(measured(loaded, args.setting, args.repeats, pythons))
    if old is not None:
        found, code = compare(old, lines, args.noise)
        _print(found)
        sys.exit(code)


def _print(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Prints each line as soon as it is known; returns them all."""
    found = []
    for line in lines:
        print(json.dumps(line), flush=True)
        found.append(line)
    return found


if __name__ == "__main__":
    main()

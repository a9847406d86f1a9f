"""A decode step on TPUs by their compiler: its cycles, its memory, and what the memory allows.

    python -m benchmarks.decode_tpu

prints one JSON line for each model, chip and backend of attention. The program is the sampler's own
chunk of decode steps with all that is drawn, in bfloat16, for 8 prompts of 256 tokens with 8
samples of 1,792 own tokens each. The bound is the time in which the chip reads what it must: the
weights of a step, and the keys and values that live, those of a prompt once for its samples. It
needs no TPU but libtpu; without it a line says how to get it.

A Pallas kernel has no estimate of its own. There the others' cycles are held against the weights'
time, and the bytes that the kernel reads, counted from its grid and its blocks, against the keys
and values that live.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.machine import versions
from jaxrl_vr.metrics.chips import CHIPS
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.paged import DecodePlan, ListReads
from jaxrl_vr.models.paged_kernel import own_grid, prompt_grid
from jaxrl_vr.models.params import abstract, is_param
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.plan.known import KNOWN
from jaxrl_vr.plan.program import Program, memory_of
from jaxrl_vr.plan.steps import full_plan
from jaxrl_vr.plan.topology import NO_LIBTPU, devices, has_libtpu
from jaxrl_vr.sampler.programs import Programs
from jaxrl_vr.sampler.sizes import EngineConfig, Sizes, cache_sizes
from jaxrl_vr.sampler.token import padded_vocabulary
from jaxrl_vr.sharding import SAMPLE_RULES, MeshConfig, make_mesh, sharding_of
from jaxrl_vr.train.limits import Rollouts

PROMPTS, SAMPLES = 8, 8
PROMPT_TOKENS, OWN_TOKENS = 256, 1792
STEPS = 16
ROLLOUTS = Rollouts(PROMPTS, SAMPLES, PROMPT_TOKENS, OWN_TOKENS)


@dataclasses.dataclass(frozen=True)
class Case:
    """A model on chips.

    Attributes:
      model: its name.
      arch: its sizes.
      chip: a name in `CHIPS`.
      tensor: chips that split its heads; all of the topology or one.
    """

    model: str
    arch: Architecture
    chip: str
    tensor: int


CASES = [
    Case(model, arch, chip, tensor)
    for model, arch, tensor in (
        ("Qwen2.5-1.5B", KNOWN["Qwen/Qwen2.5-1.5B"], 1),
        ("Qwen3-8B", KNOWN["Qwen/Qwen3-8B"], 4),
    )
    for chip in ("v5e", "v6e")
]


def compiled_for_tpu(case: Case, attention: str) -> dict[str, Any]:
    """Compiles the sampler's decode program for a case; its line."""
    mesh = make_mesh(MeshConfig(tensor=case.tensor), devices(f"{case.chip}:2x2")[: case.tensor])
    model = Transformer(case.arch, "bfloat16")
    slots = PROMPTS * SAMPLES
    config = EngineConfig(
        slots=slots,
        steps_per_call=STEPS,
        cache_tokens=slots * OWN_TOKENS + PROMPTS * PROMPT_TOKENS,
        attention=attention,
    )
    sizes = cache_sizes(model, config, mesh)
    view = abstract_view(model, mesh)
    rows, plan = full_plan(sizes, ROLLOUTS, case.arch.max_length)
    enough = np.int32(slots)
    lowered = Programs(model, sizes, mesh).lower_decode(view, rows, plan, enough)
    compiled = lowered.compile()
    text = compiled.as_text() or ""
    return {
        "benchmark": "decode_tpu",
        "model": case.model,
        "chips": f"{case.tensor} x {case.chip}",
        "attention": attention,
        **report(case, sizes, plan, view, text),
        **memory_of(compiled),
        "settings": {
            "prompts": PROMPTS,
            "prompt_tokens": PROMPT_TOKENS,
            "samples": SAMPLES,
            "own_tokens": OWN_TOKENS,
            "steps": STEPS,
            "dtype": "bfloat16",
        },
        "chip": dataclasses.asdict(CHIPS[case.chip]),
        "versions": versions(),
    }


def report(case: Case, sizes: Sizes, plan: DecodePlan, view: Any, text: str) -> dict[str, Any]:
    """Bytes and cycles of a step, of one chip."""
    chip, arch = CHIPS[case.chip], case.arch
    program = Program(text, trips_of(sizes, plan), lambda _: min)
    body = max(program.loops(), key=program.cycles)
    per_byte = chip.clock_hz / chip.bandwidth
    weights = weight_bytes(view)
    page = 2 * sizes.page_tokens * arch.kv_heads // case.tensor * arch.head_dim * 2
    tokens = PROMPTS * (PROMPT_TOKENS + SAMPLES * OWN_TOKENS)
    live = tokens * page // sizes.page_tokens * arch.layers
    cycles = program.cycles(body)
    line = {
        "weight_bytes": weights,
        "live_bytes": live,
        "cache_bytes": sizes.pages * page * arch.layers,
        "bound_cycles": (weights + live) * per_byte,
        "weight_cycles": weights * per_byte,
        "cycles": cycles,
        "by_scope": by_scope(program, body),
        "cache_copies": cache_copies(program, body, sizes, case),
    }
    if isinstance(plan.reads, ListReads):
        read = arch.layers * kernel_bytes(plan.reads, sizes, case)
        line["kernel_bytes"] = read
        line["kernel_ratio"] = read / live
        line["ratio"] = cycles / line["weight_cycles"]
    else:
        line["ratio"] = cycles / line["bound_cycles"]
    return line


def abstract_view(model: Transformer, mesh: jax.sharding.Mesh) -> Any:
    """The sampler's weights without their values, split as the sampler splits them."""
    declared = model.declare()
    axes: dict[str, Any] = {name: p.axes for name, p in declared.items() if is_param(p)}
    layer = {name: p.axes[1:] for name, p in declared["layers"].items()}
    for name in ("q", "k", "v"):
        embed, *rest = layer.pop(name)
        layer[f"{name}_rows"] = (*rest, embed)

    def one(a: Any, axes: Any) -> Any:
        sharding = sharding_of(axes, SAMPLE_RULES, mesh, a.shape)
        return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding)

    rows = padded_vocabulary(model.vocab_size, mesh.shape["tensor"])
    view_of = functools.partial(model.sampler_view, as_rows=True, vocab_rows=rows)
    view = jax.eval_shape(view_of, abstract(declared, SAMPLE_RULES, mesh))
    return jax.tree.map(one, view, {**axes, "layers": [layer] * model.arch.layers})


def weight_bytes(view: Any) -> int:
    """Bytes of the weights that one chip reads in a step: of an embedding that is no head, rows."""
    read = {name: a for name, a in view.items() if name != "embed" or "head" not in view}
    return sum(
        int(np.prod(a.sharding.shard_shape(a.shape))) * a.dtype.itemsize
        for a in jax.tree.leaves(read)
    )


def trips_of(sizes: Sizes, plan: DecodePlan) -> Any:
    """How often each loop of the program is run."""

    def trips(line: str) -> int:
        name = re.search(r'op_name="([^"]*)"', line)
        inside = (name[1] if name else "").split("shared/")[1:]
        if not inside:
            return sizes.steps
        return int(
            plan.reads.num_tiles[0]
            if inside[0].count("while") == 1
            else plan.reads.num_columns.max()
        )

    return trips


def by_scope(program: Program, body: str) -> dict[str, int]:
    """Cycles of a step by the part of the program."""
    found = Counter[str]()
    for line, cycles in program.instructions(body):
        name = re.search(r'op_name="([^"]*)"', line)
        scopes = (name[1] if name else "").split("/")
        known = [s for s in ("draw", "attention", "ffn", "own", "shared") if s in scopes]
        found[known[-1] if known else "rest"] += cycles
    return dict(found)


def cache_copies(program: Program, body: str, sizes: Sizes, case: Case) -> int:
    """Instructions of a step that copy all keys or values of a layer, whatever their shape."""
    K = case.arch.kv_heads // case.tensor
    size = sizes.pages * K * sizes.page_tokens * case.arch.head_dim

    def is_copy(line: str) -> bool:
        found = re.search(r"= \(?bf16\[([\d,]+)\].* (copy|copy-start|transpose)\(", line)
        return found is not None and math.prod(map(int, found[1].split(","))) >= size

    return sum(is_copy(line) for line, _ in program.instructions(body))


def kernel_bytes(reads: ListReads, sizes: Sizes, case: Case) -> int:
    """Bytes that the kernels read and write in one layer of a step."""
    K, Q = case.arch.kv_heads // case.tensor, case.arch.head_dim
    W, G = reads.members.shape[1], reads.own.page.shape[1]
    q = sizes.slots, case.arch.heads // case.tensor, Q
    pool = sizes.pages, K, sizes.page_tokens, Q
    lists = [(p.page.reshape(-1), p.owner, p.start) for p in (reads.shared, reads.own)]
    members = np.minimum(reads.members, sizes.slots - 1).reshape(-1)
    prompts = prompt_grid(q, pool, W, reads.shared, G)
    own = own_grid(q, pool, W, reads.own, G)
    return _moved(prompts, G, (*lists[0], None, members)) + _moved(
        own, G, (*lists[1], None, None, reads.place)
    )


def _moved(spec: Any, G: int, scalars: Sequence[Any]) -> int:
    """Bytes of all blocks; one is moved where its index is another than at the step before."""
    outs = spec.out_specs if isinstance(spec.out_specs, Sequence) else [spec.out_specs]
    others, pages = spec.in_specs[: -2 * G], spec.in_specs[-2 * G :]
    sized = [(block, 4) for block in (*others, *outs)] + [(block, 2) for block in pages]
    moved = 0
    for block, itemsize in sized:
        indices = [tuple(map(int, block.index_map(i, *scalars))) for i in range(int(spec.grid[0]))]
        changes = 1 + sum(a != b for a, b in itertools.pairwise(indices))
        moved += changes * math.prod(block.block_shape) * itemsize
    return moved


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decode_tpu", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--model", help="only this one")
    parser.add_argument("--chip", choices=list(CHIPS), help="only this one")
    parser.add_argument("--attention", choices=("xla", "pallas"), help="only this one")
    args = parser.parse_args(argv)
    if not has_libtpu():
        print(json.dumps({"benchmark": "decode_tpu", "skipped": NO_LIBTPU}))
        return
    for case in CASES:
        if args.model not in (None, case.model) or args.chip not in (None, case.chip):
            continue
        for attention in ("xla", "pallas"):
            if args.attention in (None, attention):
                print(json.dumps(compiled_for_tpu(case, attention)), flush=True)


if __name__ == "__main__":
    main()

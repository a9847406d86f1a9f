"""An optimizer step by the TPU's compiler: memory, products, exchanges; nothing runs.

    python -m benchmarks.update_tpu [--config CONFIG] [--topology v5e:4x4] [--remat block]
        [--lengths 8192 16384 32768] [--distinct 12 8]

prints a JSON line for the update of a config's RL stage with all its rows, one for the same where
so many sixteenths of the tokens are distinct and the others are computed once, and one for a
micro-batch of each of the lengths. A line has the bytes of a device (arguments, temporaries, in
all), the products and their ratio to the model's own (6 N a token, and attention three times), what
goes between devices along `fsdp` in a micro-batch beside one copy of the gathered weights, and the
arrays, if any, that hold all scores of a row or all logits of its tokens. What the compiler refuses
because it does not fit has its reason instead. Needs libtpu.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import jax

from benchmarks.rollout_and_update import positive
from jaxrl_vr.config import load
from jaxrl_vr.models.flops import causal_pairs, num_params, update_flops
from jaxrl_vr.models.transformer import Remat, Transformer
from jaxrl_vr.plan.plan import kernel_flops, planned_model, rl_stage
from jaxrl_vr.plan.program import Program, memory_of
from jaxrl_vr.plan.report import exchanges_of
from jaxrl_vr.plan.topology import NO_LIBTPU, chip_of, devices, has_libtpu
from jaxrl_vr.rollout.batch import Shape
from jaxrl_vr.sharding import make_mesh
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.micro import Update, bytes_of, is_out_of_memory
from jaxrl_vr.train.policy import learner_of, update_of

CONFIG = Path(__file__).parents[1] / "configs" / "tpu" / "qwen2.5_7b_v5e-4x4_grpo.toml"
_MOVES = ("all-gather", "collective-permute", "reduce-scatter", "all-reduce")


def forbidden(text: str, length: int, rows: int, vocab: int, tensor: int) -> list[str]:
    """Shapes in a program's text that hold all scores of a row, or all logits of its tokens.

    Args:
      text: of the compiled program.
      length: tokens of a row.
      rows: of a device.
      vocab: rows of the head.
      tensor: devices that split it.
    """
    tokens, words = {length, length * rows}, {vocab, vocab // tensor}
    found = set()
    for dims in re.findall(r"\b(?:bf16|f32|s32|pred)\[([\d,]+)\]", text):
        sizes = [int(n) for n in dims.split(",")]
        has_logits = tokens & set(sizes) and words & set(sizes)
        if has_logits or sizes.count(length) > 1:
            found.add(dims)
    return sorted(found)


def measured(
    update: Update, shape: Shape, sixteenths: int, model: Transformer, mesh: Any, topology: str
) -> Any:
    """The line of one shape; with all its sixteenths of the tokens, no distinct ones are looked
    for."""
    chip = chip_of(topology)
    distinct = shape.tokens // (shape.parts or 1) * sixteenths // 16 if sixteenths < 16 else 0
    program = update.lower(shape, distinct).compile()
    text = program.as_text()
    read = Program(text)
    arch, N = model.arch, num_params(model.declare())
    num_micro = update.num_micro(shape)
    rows = num_micro * shape.rows
    pairs = rows * causal_pairs(shape.row_length)
    useful = update_flops(N, arch, rows * shape.row_length, pairs)
    # Those of the kernels are not in the text: forward, twice back, and once more where a block is
    # computed again.
    passes = 4 if model.remat == "block" else 3
    products = read.flops() * mesh.size
    products += passes * kernel_flops(model, mesh, rows, shape.row_length)
    itemsize = 2 if model.dtype == "bfloat16" else 4
    gathered = itemsize * N / mesh.shape["tensor"]
    moved = sum(
        e.bytes
        for e in exchanges_of(read.collectives(), chip, mesh)
        if e.axes == "fsdp" and e.kind in _MOVES
    )
    of_device = shape.rows // (mesh.shape["data"] * mesh.shape["fsdp"])
    return {
        "benchmark": "update_tpu",
        "topology": topology,
        "mesh": {name: size for name, size in mesh.shape.items() if size > 1},
        "remat": model.remat,
        "row_length": shape.row_length,
        "rows": shape.rows,
        "micro_batches": num_micro,
        "distinct_sixteenths": sixteenths,
        **memory_of(program),
        "device_bytes": bytes_of(program.memory_analysis()),
        "chip_bytes": chip.memory_bytes,
        "flops": products,
        "flops_over_model": products / useful,
        "cycles": read.cycles(),
        "moved_over_weights": moved / num_micro / gathered,
        "forbidden": forbidden(
            text, shape.row_length, of_device, arch.vocab_size, mesh.shape["tensor"]
        ),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.update_tpu", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--config", type=Path, default=CONFIG, help="of a run with an RL stage")
    parser.add_argument("--topology", default="v5e:4x4", help="of TPUs")
    parser.add_argument(
        "--remat", nargs="+", choices=get_args(Remat), help="instead of the config's"
    )
    parser.add_argument("--lengths", type=positive, nargs="*", default=[], help="of rows")
    parser.add_argument(
        "--distinct",
        type=int,
        choices=range(1, 16),
        nargs="*",
        default=[],
        help="sixteenths of the tokens that repeat no other",
    )
    args = parser.parse_args(argv)
    if not has_libtpu():
        print(json.dumps({"benchmark": "update_tpu", "skipped": NO_LIBTPU}))
        return
    jax.config.update("jax_platforms", "cpu")
    config = load(RunConfig, [args.config], [])
    stage = rl_stage(config, None)
    mesh = make_mesh(config.mesh, devices(args.topology))
    for remat in args.remat or [config.model.remat]:
        model = dataclasses.replace(planned_model(config, mesh.devices.flat[0]), remat=remat)
        update = update_of(stage, model, mesh, learner_of(stage, model, mesh))
        rows = stage.micro.rows
        assert rows != "auto", "the config names its rows"
        least = mesh.shape["data"] * mesh.shape["fsdp"]
        whole = Shape(stage.row_length(model.max_length), rows, least)
        one = dataclasses.replace(update, num_rows=least)
        shapes = [(update, whole, sixteenths) for sixteenths in (16, *args.distinct)]
        shapes += [(one, Shape(length, least, least), 16) for length in args.lengths]
        for of_shape, shape, sixteenths in shapes:
            try:
                line = measured(of_shape, shape, sixteenths, model, mesh, args.topology)
            except jax.errors.JaxRuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                line = {
                    "benchmark": "update_tpu",
                    "topology": args.topology,
                    "remat": remat,
                    "row_length": shape.row_length,
                    "rows": shape.rows,
                    "distinct_sixteenths": sixteenths,
                    "refused": str(error).splitlines()[0],
                }
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

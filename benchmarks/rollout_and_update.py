"""Tokens per second of rollout and of update, and what share of this machine's limit they are.

    python -m benchmarks.rollout_and_update --model DIR

prints one JSON line for the rollout (prefill, then a fixed number of sampled tokens) and one for
the update (one optimizer step on those rollouts, packed), both in float32 on the first device. The
limit is what the same process reaches when it does nothing but the products with the model's
weights, for the same number of rows: one decode step's for the rollout; for the update those of
the forward pass and the two of the backward pass, with the head for the trained tokens only. What
lies between them and the measurement is attention over the cache, norms, drawing, recomputation,
the optimizer and the host. Limit and measurement take turns, so that a slow minute slows both.

S sampler slots, N tokens, D model width, H query heads, K kv heads, Q head dim, F ffn width,
V vocabulary, L layers, I inputs and O outputs of a product.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.machine import load_average, machine, peak_memory_bytes, versions
from benchmarks.update_step import Step
from jaxrl_vr.data.tokenizer import HFTokenizer
from jaxrl_vr.losses.weights import token_mean
from jaxrl_vr.models import hf
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.rollout.batch import Batch, Shape, Trajectory, build
from jaxrl_vr.sampler.engine import SlotEngine
from jaxrl_vr.sampler.generate import generate
from jaxrl_vr.sampler.sizes import EngineConfig
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh
from jaxrl_vr.types import Message, Rollout, Sampling

# Rows of a micro-batch, as a run has them when its config does not say.
_ROWS = 8
# A timing of the limit repeats one in so many of the rollout's decode steps, to save time.
_LIMIT_SHARE = 4

QUESTIONS = (
    "A baker sells 14 loaves in the morning and twice as many in the afternoon. Each loaf costs "
    "3 coins. How many coins does she take in that day? Explain each step.",
    "Two trains leave the same station in opposite directions, one at 60 and one at 85 kilometres "
    "an hour. How far apart are they after three hours? Show how you found it.",
    "A rectangular garden is 12 metres long and 7 metres wide. A path of one metre surrounds it. "
    "What is the area of the path alone? Write down each calculation.",
    "Mira has read 45 pages of a book of 210 pages. She reads 15 pages every evening from now on. "
    "On which evening does she finish the book? Think aloud.",
    "A tank holds 480 litres. One pipe fills it in six hours, another empties it in eight hours. "
    "How long does it take to fill when both are open? Reason slowly.",
    "The sum of three consecutive whole numbers is 114. Which are the three numbers, and what is "
    "the product of the smallest and the largest? Show all of your work.",
    "A shop lowers the price of a coat from 80 to 60 coins and later raises it by a fifth. What is "
    "the price now, and by what share is it below the first one?",
    "In a class of 30 pupils 18 play football, 15 play chess and 7 play both. How many of them "
    "play neither of the two? Draw the sets in words, then count.",
)


class Timing(NamedTuple):
    """Seconds of a measurement and of its limit, turn by turn, for as many tokens each."""

    tokens: int
    seconds: list[float]
    limit_seconds: list[float]
    first_call_s: float
    peak_memory_bytes: int
    load_average: float

    def line(self, benchmark: str) -> dict[str, Any]:
        """What is printed, without what both lines share."""
        speed = self.tokens / statistics.median(self.seconds)
        limit = self.tokens / statistics.median(self.limit_seconds)
        return {
            "benchmark": benchmark,
            "tokens_per_s": speed,
            "limit_tokens_per_s": limit,
            "ratio_to_limit": speed / limit,
            **self._asdict(),
        }


def measure(
    tokens: int,
    run: Callable[[int], Any],
    limit: Callable[[], Callable[[], float]],
    repeats: int,
) -> tuple[Timing, Any]:
    """Times `run` and its limit in turns, after a call of each that compiles.

    Args:
      tokens: that one call of `run` processes.
      run: called with the number of the call, 0 being the one that compiles.
      limit: makes the function that measures the limit, in seconds for `tokens`; called after the
        first `run`, so that the memory it takes is not counted.
      repeats: timed calls.

    Returns:
      The times, and what the last call of `run` returned.
    """
    load = load_average()
    first, result = seconds_of(lambda: run(0))
    peak = peak_memory_bytes()
    limit_seconds_of = limit()
    limit_seconds_of()
    seconds, limit_seconds = [], []
    for i in range(repeats):
        spent, result = seconds_of(lambda i=i: run(i + 1))
        seconds.append(spent)
        limit_seconds.append(limit_seconds_of())
    return Timing(tokens, seconds, limit_seconds, first, peak, load), result


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds until the result of `call` is there, and the result."""
    start = time.perf_counter()
    result = jax.block_until_ready(call())
    return time.perf_counter() - start, result


def texts_of(tokenizer: HFTokenizer, count: int) -> list[str]:
    """`count` different prompts, in the model's chat template if it has one."""
    texts = []
    for i, question in zip(range(count), itertools.cycle(QUESTIONS), strict=False):
        text = question if i < len(QUESTIONS) else f"{i + 1}. {question}"
        if tokenizer.has_chat_template:
            text = tokenizer.chat([Message("user", text)])
        texts.append(text)
    return texts


def prompts_of(tokenizer: HFTokenizer, count: int) -> list[list[int]]:
    """Token ids of those prompts."""
    return [tokenizer.prompt_ids(text) for text in texts_of(tokenizer, count)]


def product_shapes(arch: Architecture) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of each product of one layer."""
    D, F, H, K, Q = arch.width, arch.ffn, arch.heads, arch.kv_heads, arch.head_dim
    return {
        "q": (D, H * Q),
        "k": (D, K * Q),
        "v": (D, K * Q),
        "o": (H * Q, D),
        "gate": (D, F),
        "up": (D, F),
        "down": (F, D),
    }


def random_matrix(*shape: int) -> jax.Array:
    """A matrix of standard normals over the root of the last dimension."""
    key = jax.random.key(shape[0])
    return jax.random.normal(key, shape, jnp.float32) * shape[-1] ** -0.5


def product(equation: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """A product within a layer, with the precision that the model's layers have."""
    return jnp.einsum(equation, x, y, preferred_element_type=jnp.float32)


def head_product(equation: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """A product with the LM head, which the model asks for in full float32."""
    return jnp.einsum(
        equation,
        x,
        y,
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


@jax.jit
def decode_products(x: jax.Array, layers: list[dict[str, jax.Array]], head: jax.Array) -> Any:
    """A decode step of which only the products are left, [S, D] -> [S, V] and what branches off."""
    unused = []
    for weights in layers:
        q, k, v = (product("NI,IO->NO", x, weights[name]) for name in ("q", "k", "v"))
        x = product("NI,IO->NO", q.astype(x.dtype), weights["o"]).astype(x.dtype)
        gate, up = (product("NI,IO->NO", x, weights[name]) for name in ("gate", "up"))
        x = product("NI,IO->NO", gate.astype(x.dtype), weights["down"]).astype(x.dtype)
        unused += [k, v, up]  # returned, or the compiler would leave their products out
    return head_product("NI,OI->NO", x, head), unused


@jax.jit
def layer_products(inputs: Any, weights: Any, grads: Any) -> Any:
    """A layer's products forward and backward: output, input's gradient, weight's gradient."""
    return [
        (
            product("NI,IO->NO", inputs[name], weights[name]),
            product("NO,IO->NI", grads[name], weights[name]),
            product("NI,NO->IO", inputs[name], grads[name]),
        )
        for name in weights
    ]


@jax.jit
def head_products(x: jax.Array, head: jax.Array, grad: jax.Array) -> Any:
    """The head's products forward and backward."""
    return (
        head_product("NI,OI->NO", x, head),
        head_product("NO,OI->NI", grad, head),
        head_product("NO,NI->OI", grad, x),
    )


def rollout_limit(
    arch: Architecture, slots: int, steps: int, dtype: str = "float32"
) -> Callable[[], float]:
    """Makes a function that measures the seconds of `steps` decode steps' products."""

    def matrix(*shape: int) -> jax.Array:
        return random_matrix(*shape).astype(dtype)

    layers = [
        {name: matrix(*shape) for name, shape in product_shapes(arch).items()}
        for _ in range(arch.layers)
    ]
    head = matrix(arch.vocab_size, arch.width)
    x = matrix(slots, arch.width)
    timed = max(1, steps // _LIMIT_SHARE)

    def measure_limit() -> float:
        def work() -> None:
            for _ in range(timed):
                jax.block_until_ready(decode_products(x, layers, head))

        return seconds_of(work)[0] * steps / timed

    return measure_limit


def update_limit(
    arch: Architecture, tokens: int, trained: int, micro_batches: int
) -> Callable[[], float]:
    """Makes a function that measures the seconds of an update's products.

    One micro-batch is timed, of the average number of tokens; padding counts as nothing.
    """
    rows, head_rows = -(-tokens // micro_batches), -(-trained // micro_batches)
    shapes = product_shapes(arch)
    weights = {name: random_matrix(*shape) for name, shape in shapes.items()}
    inputs = {name: random_matrix(rows, shape[0]) for name, shape in shapes.items()}
    grads = {name: random_matrix(rows, shape[1]) for name, shape in shapes.items()}
    head = random_matrix(arch.vocab_size, arch.width)
    x, grad = random_matrix(head_rows, arch.width), random_matrix(head_rows, arch.vocab_size)

    def measure_limit() -> float:
        def layers() -> None:
            for _ in range(arch.layers):  # one at a time, or the results of all would be held
                jax.block_until_ready(layer_products(inputs, weights, grads))

        in_layers = seconds_of(layers)[0] * tokens / rows
        in_head = seconds_of(lambda: head_products(x, head, grad))[0] * trained / head_rows
        return in_layers + in_head

    return measure_limit


def time_rollout(
    model: Transformer,
    params: Any,
    mesh: jax.sharding.Mesh,
    prompts: Sequence[Sequence[int]],
    *,
    samples: int,
    new: int,
    repeats: int,
) -> tuple[Timing, list[tuple[int, Rollout]]]:
    """The sampler's speed, and its last rollouts, each with its prompt's index."""
    slots = len(prompts) * samples
    engine = SlotEngine(model, params, EngineConfig(slots=slots), mesh)
    sampling = Sampling(max_new_tokens=new)  # no stop ids: every answer is as long

    def run(call: int) -> list[tuple[int, Rollout]]:
        engine.free()  # or the prompts of the call before would still be cached
        groups = generate(engine, prompts, samples, sampling, (0, call))
        return [(p, rollout) for p, rollouts in groups for rollout in rollouts]

    timing, rollouts = measure(
        slots * new, run, lambda: rollout_limit(model.arch, slots, new), repeats
    )
    assert all(len(r.token_ids) == new for _, r in rollouts), "no answer stops early"
    return timing, rollouts


def pack_rollouts(rollouts: Sequence[tuple[int, Rollout]]) -> Batch:
    """The rollouts as one optimizer step, with advantages of both signs."""
    trajectories = []
    for i, (group, rollout) in enumerate(rollouts):
        before = len(rollout.prompt_ids)
        trajectories.append(
            Trajectory(
                token_ids=np.array(rollout.prompt_ids + rollout.token_ids),
                mask=np.arange(before + len(rollout.token_ids)) >= before,
                logp=np.array([0.0] * before + list(rollout.logp), np.float32),
                adv=1.0 if i % 2 else -1.0,
                group=group,
            )
        )
    lengths = jnp.array([t.num_trained for t in trajectories])
    longest = max(len(t.token_ids) for t in trajectories)
    shape = Shape(longest, min(_ROWS, len(trajectories)), parts=1)
    return build(trajectories, np.asarray(token_mean(lengths)), shape)


def time_update(
    model: Transformer, params: Any, mesh: jax.sharding.Mesh, batch: Batch, *, repeats: int
) -> Timing:
    """The learner's speed; `params` are given up to it."""
    step = Step(model, params, mesh, batch)
    tokens, trained = int((batch.segment_ids > 0).sum()), int(batch.mask.sum())
    micro_batches = int(batch.mask.any(axis=(1, 2)).sum())
    timing, _ = measure(
        tokens, step, lambda: update_limit(model.arch, tokens, trained, micro_batches), repeats
    )
    return timing


def run(
    folder: Path, *, prompts: int, samples: int, new: int, repeats: int
) -> Iterator[dict[str, Any]]:
    """Measures both; yields the two lines, each as soon as it is known."""
    tokenizer = HFTokenizer(folder)
    prompt_ids = prompts_of(tokenizer, prompts)
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    arch, params = hf.load(folder, rules=TRAIN_RULES, mesh=mesh)
    model = Transformer(arch)
    lengths = [len(ids) for ids in prompt_ids]
    shared = {
        "settings": {
            "model": folder.resolve().name,
            "parameters": sum(p.size for p in jax.tree.leaves(params)),
            "dtype": model.dtype,
            "prompts": prompts,
            "prompt_tokens": [min(lengths), max(lengths)],
            "samples": samples,
            "new": new,
            "repeats": repeats,
        },
        "machine": machine(),
        "versions": versions(),
    }
    timing, rollouts = time_rollout(
        model, params, mesh, prompt_ids, samples=samples, new=new, repeats=repeats
    )
    yield timing.line("rollout") | shared
    batch = pack_rollouts(rollouts)
    _, rows, row_length = batch.tokens.shape
    shared["settings"] |= {"rows": rows, "row_length": row_length, "remat": model.remat}
    yield time_update(model, params, mesh, batch, repeats=repeats).line("update") | shared


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rollout_and_update", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face model folder")
    for name, default, meaning in (
        ("prompts", 8, "different prompts"),
        ("samples", 8, "completions of each prompt; all are sampled side by side"),
        ("new", 128, "tokens of each completion"),
        ("repeats", 3, "timed calls; their median counts"),
    ):
        parser.add_argument(f"--{name}", type=positive, default=default, help=meaning)
    args = parser.parse_args(argv)
    for line in run(
        hf.locate(args.model),
        prompts=args.prompts,
        samples=args.samples,
        new=args.new,
        repeats=args.repeats,
    ):
        print(json.dumps(line), flush=True)


def positive(text: str) -> int:
    """A number of things, at least one."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: give at least 1")
    return value


if __name__ == "__main__":
    main()

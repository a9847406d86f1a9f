"""Time and memory of log-prob, loss and gradient: chunk by chunk, and with all logits at once.

    JAX_PLATFORMS=cpu python -m benchmarks.losses

prints one JSON line for each way. Two are measured here, in float32 and at a small size, where the
limit is what the same process reaches with the three products with the head alone: the logits and
the gradients of hidden states and head. The others are compiled for one chip of a TPU v5e at the
size of a real update, bfloat16 hidden states and head, which needs no TPU but libtpu: their
memory is what the compiler allots, their seconds are its estimate, and the limit is the chip's peak
for the three products. Without libtpu a line says how to get it.

N tokens, D model width, V vocabulary.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.machine import machine, versions
from benchmarks.rollout_and_update import (
    head_products,
    measure,
    positive,
    random_matrix,
    seconds_of,
)
from jaxrl_vr.losses import ppo_clip, scaled_logits, token_logprob, token_logprobs
from jaxrl_vr.metrics.chips import CHIPS
from jaxrl_vr.plan.program import Program, memory_of
from jaxrl_vr.plan.topology import NO_LIBTPU, devices, has_libtpu

LARGE = {"tokens": 8192, "vocab": 151_936, "width": 1536}
"""An update of Qwen2.5-1.5B."""
CHUNKS = (None, 110, 256)
"""Tokens at a time; None is the default."""

TOPOLOGY = "v5e:2x2"


def plain_logp(hidden: jax.Array, head: jax.Array, token: jax.Array) -> jax.Array:
    """[N] log-probs from all logits at once."""
    return token_logprob(scaled_logits(hidden, head, jnp.ones(token.shape)), token)


def chunked_logp(
    hidden: jax.Array, head: jax.Array, token: jax.Array, *, chunk: int | None = None
) -> jax.Array:
    """[N] log-probs, a chunk of tokens at a time."""
    return token_logprobs(hidden, head, token, jnp.ones(token.shape), chunk=chunk)[0]


def step(logp_of: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Loss and its gradients by hidden states and head, of (hidden, head, token, old_logp, adv)."""

    def loss(
        hidden: jax.Array, head: jax.Array, token: jax.Array, old_logp: jax.Array, adv: jax.Array
    ) -> jax.Array:
        row = (logp_of(hidden, head, token)[None], old_logp[None], adv[None])  # N -> 1, N
        per_token, _ = ppo_clip(*row, jnp.ones((1, token.size), bool))
        return jnp.sum(per_token) / token.size

    return jax.value_and_grad(loss, (0, 1))


def shapes(tokens: int, vocab: int, width: int, dtype: Any, sharding: Any = None) -> list[Any]:
    """The arguments of a step, without their values."""
    make = functools.partial(jax.ShapeDtypeStruct, sharding=sharding)
    floats = [make((tokens,), jnp.float32)] * 2
    return [
        make((tokens, width), dtype),
        make((vocab, width), dtype),
        make((tokens,), jnp.int32),
        *floats,
    ]


def measured(tokens: int, vocab: int, width: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Measures both ways on the first device."""
    hidden, head = random_matrix(tokens, width), random_matrix(vocab, width)
    token = jnp.arange(tokens) % vocab
    old_logp = jnp.full(tokens, -jnp.log(vocab))
    adv = jnp.where(token % 2 == 0, 1.0, -1.0)
    grad = random_matrix(tokens, vocab)

    def limit() -> Callable[[], float]:
        return lambda: seconds_of(lambda: head_products(hidden, head, grad))[0]

    for way, logp_of in (("plain", plain_logp), ("chunked", chunked_logp)):
        lowered = jax.jit(step(logp_of)).lower(hidden, head, token, old_logp, adv)
        compiled = lowered.compile()

        def run(_: int, compiled: Any = compiled) -> Any:
            return compiled(hidden, head, token, old_logp, adv)

        timing, _ = measure(tokens, run, limit, repeats)
        yield {
            **timing.line("losses_measured"),
            "way": way,
            **memory_of(compiled),
            "settings": {"tokens": tokens, "vocab": vocab, "width": width, "dtype": "float32"},
            "machine": machine(),
            "versions": versions(),
        }


def compiled_for_tpu(tokens: int, vocab: int, width: int) -> Iterator[dict[str, Any]]:
    """Compiles both ways for one chip of a TPU; without libtpu, one line that says what lacks."""
    if not has_libtpu():
        yield {"benchmark": "losses_compiled", "skipped": NO_LIBTPU}
        return
    chip, limits = devices(TOPOLOGY)[0], CHIPS["v5e"]
    sharding = jax.sharding.SingleDeviceSharding(chip)
    arguments = shapes(tokens, vocab, width, jnp.bfloat16, sharding)
    limit_s = 3 * 2 * tokens * vocab * width / limits.peak_flops
    ways = [("plain", None, plain_logp)] + [
        ("chunked", chunk, functools.partial(chunked_logp, chunk=chunk)) for chunk in CHUNKS
    ]
    for way, chunk, logp_of in ways:
        lowered = jax.jit(step(logp_of)).lower(*arguments)
        compiled = lowered.compile()
        program = Program(compiled.as_text() or "")
        seconds = program.cycles() / limits.clock_hz
        yield {
            "benchmark": "losses_compiled",
            "way": way,
            "chunk": chunk,
            **memory_of(compiled),
            "estimated_s": seconds,
            "limit_s": limit_s,
            "ratio_to_limit": limit_s / seconds,
            "settings": {"tokens": tokens, "vocab": vocab, "width": width, "dtype": "bfloat16"},
            "device": chip.device_kind,
            "versions": versions(),
        }


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.losses", description=(__doc__ or "").split("\n")[0]
    )
    for name, default, meaning in (
        ("tokens", 1024, "tokens of the measured step"),
        ("vocab", 65_536, "its vocabulary"),
        ("width", 256, "its width"),
        ("repeats", 5, "timed calls; their median counts"),
    ):
        parser.add_argument(f"--{name}", type=positive, default=default, help=meaning)
    args = parser.parse_args(argv)
    for line in measured(args.tokens, args.vocab, args.width, args.repeats):
        print(json.dumps(line), flush=True)
    for line in compiled_for_tpu(**LARGE):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

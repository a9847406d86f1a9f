"""What bounds a decode step: the machine's own products, and the peaks of known accelerators.

S slots, P prompts, G samples of a prompt, C cached tokens, K kv heads, R query heads of a kv head,
M rows that attend one prompt (G times R), Q head dim.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.rollout_and_update import (
    product,
    product_shapes,
    random_matrix,
    rollout_limit,
    seconds_of,
)
from jaxrl_vr.metrics.chips import chip_of_kind
from jaxrl_vr.models.architecture import Architecture

# Decode steps of a timing of attention's products.
_TIMED_STEPS = 4


class Cached(NamedTuple):
    """What slots have in the cache, on average over a rollout; counts of tokens."""

    prompts: int  # that lie there once for all their samples
    prompt_tokens: int  # of each
    own_tokens: float  # of each slot behind its prompt


@jax.jit
def attention_products(layers: list[dict[str, jax.Array]]) -> Any:
    """The products of one decode step's attention, over shared prompts and own tokens."""
    found = []
    for a in layers:
        for kind in ("shared", "own"):
            scores = product("NKMQ,NKCQ->NKMC", a[f"{kind}_q"], a[f"{kind}_k"])
            found.append(
                product("NKMC,NKCQ->NKMQ", scores.astype(a["own_q"].dtype), a[f"{kind}_v"])
            )
    return found


def attention_limit(
    arch: Architecture, slots: int, steps: int, cached: Cached, dtype: str
) -> Callable[[], float]:
    """Makes a function that measures the seconds of `steps` decode steps' attention products.

    A prompt's keys and values are read once for all its samples; a slot's own once for its heads.
    """
    K, Q = arch.kv_heads, arch.head_dim
    R, own = arch.heads // K, max(1, round(cached.own_tokens))
    rows = slots // cached.prompts * R

    def layer() -> dict[str, jax.Array]:
        shapes = {
            "shared_q": (cached.prompts, K, rows, Q),
            "shared_k": (cached.prompts, K, cached.prompt_tokens, Q),
            "shared_v": (cached.prompts, K, cached.prompt_tokens, Q),
            "own_q": (slots, K, R, Q),
            "own_k": (slots, K, own, Q),
            "own_v": (slots, K, own, Q),
        }
        return {name: random_matrix(*shape).astype(dtype) for name, shape in shapes.items()}

    layers = [layer() for _ in range(arch.layers)]
    timed = min(_TIMED_STEPS, steps)

    def measure() -> float:
        def work() -> None:
            for _ in range(timed):
                jax.block_until_ready(attention_products(layers))

        return seconds_of(work)[0] * steps / timed

    return measure


class Lazily:
    """Makes a limit when it is first asked for: what is measured before it has the memory."""

    def __init__(self, make: Callable[[], Callable[[], float]], scale: float = 1.0):
        self._make = make
        self._measure: Callable[[], float] | None = None
        self._scale = scale

    def __call__(self, number: int) -> float:
        """Seconds, times `scale`; the number of the turn does not matter."""
        self._measure = self._measure or self._make()
        return self._measure() * self._scale


def weights_limit(arch: Architecture, slots: int, steps: float, dtype: str) -> Lazily:
    """The seconds of so many decode steps' products with the weights, measured when called."""
    whole = max(1, round(steps))
    return Lazily(lambda: rollout_limit(arch, slots, whole, dtype), steps / whole)


def chip_limit(
    kind: str, arch: Architecture, slots: int, cached: Cached, dtype: str
) -> tuple[float, str] | None:
    """Seconds of a decode step at a chip's peaks and what binds, "bytes" or "products".

    Read are the weights, each prompt once and the slots' own tokens; multiplied are all rows with
    the weights and the queries with what they attend. The peak is that of bfloat16, also for
    float32: a TPU multiplies it in bfloat16 unless told. None: the chip is not in the table.
    """
    chip = chip_of_kind(kind)
    if chip is None:
        return None
    weights = arch.layers * sum(i * o for i, o in product_shapes(arch).values())
    weights += arch.vocab_size * arch.width
    attended = slots * (cached.prompt_tokens + cached.own_tokens)
    flops = 2 * slots * weights + 4 * attended * arch.layers * arch.heads * arch.head_dim
    lying = cached.prompts * cached.prompt_tokens + slots * cached.own_tokens
    numbers = weights + 2 * lying * arch.layers * arch.kv_heads * arch.head_dim
    of_products = flops / chip.peak_flops
    of_bytes = numbers * jnp.dtype(dtype).itemsize / chip.bandwidth
    return max((of_bytes, "bytes"), (of_products, "products"))


def take_turns(calls: dict[str, Callable[[int], float]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each call, A B A B, so that a slow minute slows all.

    Every call is made twice before: number 0 compiles, number 1 is warm and discarded too.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    for number, (name, call) in itertools.product(range(repeats + 2), calls.items()):
        seconds = call(number)
        if number > 1:
            found[name].append(seconds)
    return found


def medians(seconds: dict[str, list[float]]) -> Iterator[float]:
    """The median of each list, in order."""
    return (statistics.median(of_one) for of_one in seconds.values())

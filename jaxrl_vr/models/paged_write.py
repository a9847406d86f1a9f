"""New tokens of a decode step on their way into the pages, as one Pallas kernel of the TPU.

Heads are normalised and rotated, and keys and values put where they belong. As operations of their
own that costs more than the products of a small model's heads, and XLA's scatter may move all keys
of a layer into VMEM and back. The oracle is `rms_norm`, `rotate` and `paged.write`.

S slots, D parts of them on devices of their own, P pages of the pool, C tokens of a page, H query
heads, K kv heads, Q head dim.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxrl_vr.arrays import check
from jaxrl_vr.models.paged import Layer

_SUBLANES = 8  # of a vector register of float32
_BLOCK_ROWS = 16  # that a block of bfloat16 has a multiple of
_WRITE_BYTES = 2**20  # of VMEM for the rows around new tokens


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["cos", "sin", "norms"],
    meta_fields=["eps"],
)
@dataclasses.dataclass(frozen=True)
class Turn:
    """What the heads of new tokens go through.

    Attributes:
      cos: [S, Q] float32, both halves.
      sin: [S, Q] float32, the first half negated: what a head's other half is multiplied with.
      norms: scales of the normalised queries and keys, each [D, Q], the same in every part; empty:
        they are not normalised.
      eps: of the norms.
    """

    cos: jax.Array
    sin: jax.Array
    norms: tuple[jax.Array, ...] = ()
    eps: float = 0.0

    def normalised(self, norms: Sequence[jax.Array], parts: int, eps: float) -> Turn:
        """That of one layer, from the scales of its queries and keys, each [Q]."""
        of_parts = tuple(jnp.broadcast_to(scale[None], (parts, len(scale))) for scale in norms)
        return dataclasses.replace(self, norms=of_parts, eps=eps)


def rotation(rotary: tuple[jax.Array, jax.Array]) -> Turn:
    """What the heads of every layer go through, from cos and sin of each slot's position, each
    [S, Q / 2] float32."""
    cos, sin = rotary
    check("SR, SR", cos=cos, sin=sin)
    return Turn(jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1))


def write_tokens(
    layer: Layer,
    page: jax.Array,
    offset: jax.Array,
    new: tuple[jax.Array, jax.Array, jax.Array],
    turn: Turn,
) -> tuple[jax.Array, Layer]:
    """Turns the heads of one token a slot, and puts its key and value into one layer's pages.

    Compiled on TPU; elsewhere interpreted, which is slow and for tests.

    Args:
      layer: keys and values of all pages, both [P, K, C, Q].
      page: [S]; a page beyond the pool drops the token. No two slots name one page.
      offset: [S] place in the page.
      new: queries [S, H, Q], keys and values [S, K, Q], as the products gave them.
      turn: of one part.

    Returns:
      Queries, [S, H, Q] float32, rounded to the dtype they came in (the kernels that attend take
      them in float32, of which a single head can be written); the layer's pages after.
    """
    q, k, v = new
    check(
        "PKCQ, PKCQ, S, S, SHQ, SKQ, SKQ, SQ, SQ",
        keys=layer[0],
        values=layer[1],
        page=page,
        offset=offset,
        q=q,
        k=k,
        v=v,
        cos=turn.cos,
        sin=turn.sin,
    )
    return jax.lax.platform_dependent(
        *(page, offset, new, turn, layer),
        tpu=functools.partial(_write, interpret=False),
        default=functools.partial(_write, interpret=True),
    )


def _write(
    page: jax.Array,
    offset: jax.Array,
    new: tuple[jax.Array, jax.Array, jax.Array],
    turn: Turn,
    layer: Layer,
    *,
    interpret: bool,
) -> tuple[jax.Array, Layer]:
    S, (P, K, C, Q), dtype = len(page), layer[1].shape, layer[1].dtype
    H = new[0].shape[1]
    # A copy cannot write less than the rows that share a register, a power of two.
    rows = math.gcd(C, _SUBLANES * 4 // dtype.itemsize)
    tile = K, rows, Q
    fit = _WRITE_BYTES // (2 * math.prod(tile) * dtype.itemsize)
    at_once = min(S, max(1, fit // _BLOCK_ROWS) * _BLOCK_ROWS)
    whole = pl.BlockSpec(memory_space=pltpu.HBM)
    of_slots = pl.BlockSpec((at_once, Q), lambda i, *_: (i, 0))
    # Products leave a head's tokens side by side, and so fill registers.
    heads = [a.swapaxes(0, 1) for a in new]
    inputs = [*heads, turn.cos, turn.sin, *turn.norms, *layer]
    q, *pages = pl.pallas_call(
        functools.partial(_write_slots, S, P, turn.eps),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(pl.cdiv(S, at_once),),
            in_specs=[
                *[pl.BlockSpec((len(a), at_once, Q), lambda i, *_: (0, i, 0)) for a in heads],
                *[of_slots] * 2,
                *[pl.BlockSpec((1, Q), lambda *_: (0, 0)) for _ in turn.norms],
                *[whole] * 2,
            ],
            out_specs=[pl.BlockSpec((at_once, H, Q), lambda i, *_: (i, 0, 0)), *[whole] * 2],
            scratch_shapes=[
                pltpu.VMEM((2, K, at_once, Q), jnp.float32),
                pltpu.VMEM((2, at_once, *tile), dtype),
                pltpu.SemaphoreType.DMA((2,)),
            ],
        ),
        out_shape=[
            jax.ShapeDtypeStruct((S, H, Q), jnp.float32),
            *[pltpu.HBM(layer[1].shape, dtype)] * 2,
        ],
        input_output_aliases={len(inputs): 1, len(inputs) + 1: 2},
        interpret=interpret,
        name="write_tokens",
    )(page, offset, *inputs)
    return q, (pages[0], pages[1])


def _write_slots(num_slots: int, num_pages: int, eps: float, *refs: Any) -> None:
    """Fetches the rows around the new tokens of some slots, puts those in, and sends all back."""
    (page, offset, q, k, v, cos, sin), refs = refs[:7], refs[7:]
    *norms, _, _, turned, keys, values, tokens, tiles, done = refs
    q_norm, k_norm = norms or (None, None)
    _, at_once, _, rows, _ = tiles.shape
    first = pl.program_id(0) * at_once

    def of_slots(act: Callable[[Any, Any], None]) -> None:
        def one(i: Any, _: None) -> None:
            slot = first + i
            is_there = slot < num_slots
            slot = jnp.minimum(slot, num_slots - 1)
            pl.when(is_there & (page[slot] < num_pages))(lambda: act(i, slot))

        jax.lax.fori_loop(0, at_once, one, None)

    def copies(i: Any, slot: Any, is_back: bool) -> list[Any]:
        begin = pl.multiple_of(offset[slot] & -rows, rows)
        made = []
        for n, pool in enumerate((keys, values)):
            there, here = pool.at[page[slot], :, pl.ds(begin, rows)], tiles.at[n, i]
            source, target = (here, there) if is_back else (there, here)
            made.append(pltpu.make_async_copy(source, target, done.at[int(is_back)]))
        return made

    def start(is_back: bool) -> Callable[[Any, Any], None]:
        def act(i: Any, slot: Any) -> None:
            for copy in copies(i, slot, is_back):
                copy.start()

        return act

    def wait(is_back: bool) -> Callable[[Any, Any], None]:
        def act(i: Any, slot: Any) -> None:
            for copy in copies(i, slot, is_back):
                copy.wait()

        return act

    def put(i: Any, slot: Any) -> None:
        for n in range(2):
            for head in range(tokens.shape[1]):
                token = tokens[n, head, pl.ds(i, 1)]
                tile = tiles[n, i, head].astype(jnp.float32)
                row = jax.lax.broadcasted_iota(jnp.int32, tile.shape, 0)
                tile = jnp.where(row == (offset[slot] & (rows - 1)), token, tile)
                tiles[n, i, head] = tile.astype(tiles.dtype)

    of_slots(start(False))
    angles = cos[...], sin[...]
    for head in range(len(k)):
        tokens[0, head] = _turned(k[head], k_norm, angles, eps)
        tokens[1, head] = v[head].astype(jnp.float32)
    for head in range(len(q)):
        turned[:, head] = _turned(q[head], q_norm, angles, eps)
    for act in (wait(False), put, start(True), wait(True)):
        of_slots(act)


def _turned(x: jax.Array, scale: Any, angles: tuple[jax.Array, jax.Array], eps: float) -> jax.Array:
    """One head of some slots, [n, Q]: normalised and rotated, in float32, each rounded to its
    dtype."""
    dtype, (cos, sin) = x.dtype, angles
    x = x.astype(jnp.float32)
    if scale is not None:
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + eps)
        x = (x * scale[...].astype(jnp.float32)).astype(dtype).astype(jnp.float32)
    x = x * cos + pltpu.roll(x, x.shape[1] // 2, 1) * sin
    return x.astype(dtype).astype(jnp.float32)

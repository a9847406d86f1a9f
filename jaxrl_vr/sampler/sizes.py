"""How large the sampler's arrays are: from the config, the model, the mesh and the memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
from pydantic import Field

from jaxrl_vr.config import Config
from jaxrl_vr.models.cudnn import why_not
from jaxrl_vr.models.paged import ChunkAttention, Pages
from jaxrl_vr.models.transformer import Model
from jaxrl_vr.sampler.page_pool import PagePool
from jaxrl_vr.sampler.residents import Residents, shared_prompts
from jaxrl_vr.sharding import SAMPLE_RULES, device_memory, entry
from jaxrl_vr.types import Request

# Pages of a block, over which attention goes in one step on CPU.
_BLOCK_PAGES = 32
# Share of the memory that the cache takes at most when its size is not given.
_MEMORY_SHARE = 0.25
# Of an item of the kernel's lists, keys and values. Two lie in VMEM, of which a kernel has 16 MiB.
_ITEM_PAGES = 8
_ROWS, _LANES = 16, 128  # of bfloat16 in a register
_ITEM_BYTES = 2 * 2**20


class EngineConfig(Config):
    """Sizes of the sampler; only `weights` changes what is sampled."""

    slots: int = Field(default=64, ge=1, le=2**20)
    """Completions decoded side by side. More is faster until memory or products are the limit."""
    steps_per_call: int = Field(default=16, ge=1, le=2**20)
    """Decode steps between two looks of the host: fewer refill sooner, more cost less overhead."""
    cache_tokens: int = Field(default=0, ge=0)
    """Tokens whose keys and values are kept at once, a group's prompt counted once. When they do
    not suffice, the youngest completions wait. 0: room for what is asked, in at most a quarter of
    the memory."""
    weights: Literal["model", "int8"] = "model"
    """int8 keeps the layers' weights as integers: half the bytes of bfloat16, and a policy a little
    apart from the learner's, which `offpolicy` corrections weigh (see `mismatch/…`)."""
    entropy: bool = False
    """Keep the entropy of the distribution that each token was drawn from: two passes over the
    logits more."""
    page_tokens: int = Field(default=0, ge=0, le=2**20)
    """Tokens of a page of the cache; 0: 64 on CPU with plain XLA, else 128."""
    attention: Literal["auto", "xla", "pallas", "cudnn"] = "auto"
    """Who attends: plain XLA; "pallas", the TPU's kernels (on CPU they are interpreted, which is
    for tests); "cudnn", the GPU's, for prompts, and plain XLA while decoding. auto: pallas on TPU
    where heads are a multiple of 128, cudnn on Hopper and later in 16 bits, else xla."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the sampler's arrays.

    Attributes:
      parts: D, sets of devices that hold slots of their own.
      slots: of all parts.
      pages: of all parts.
      page_tokens: C.
      block_pages: B, divides the pages of a part.
      kept: hidden states that a part keeps.
      steps: of a chunk.
      keys_across: how keys lie in a page.
      entropy: whether the entropy of each token's distribution is kept.
      item_pages: G, pages that the kernel reads at a time; None without it.
      chunk_attention: who attends the tokens of a prefill among each other.
      prefill_tokens: of a part's prefill program. An accelerator wants many; on CPU more rows bring
        nothing.
      run_tokens: padding that costs no more than one run more: where reading the weights takes
        as long as their products.
    """

    parts: int
    slots: int
    pages: int
    page_tokens: int
    block_pages: int
    kept: int
    steps: int
    keys_across: bool
    entropy: bool
    item_pages: int | None
    chunk_attention: ChunkAttention
    prefill_tokens: int
    run_tokens: int


def cache_sizes(
    model: Model, config: EngineConfig, mesh: jax.sharding.Mesh, requests: Sequence[Request] = ()
) -> Sizes:
    """The sizes for a mesh.

    Args:
      model: says what a token takes.
      config: what the user chose.
      mesh: its devices.
      requests: what the cache is to have room for where the config gives no size: for all slots of
        them at their limits, or as many as a share of the memory holds, but for the largest anyway.
    """
    device = mesh.devices.flat[0]
    platform = device.platform
    token = jax.eval_shape(lambda: model.empty_pages(1, 1, False))
    dtype, head_dim = token.v[0].dtype, token.v[0].shape[-1]
    has_kernel = _has_kernel(config, platform, head_dim)
    # What suits the vector units of a CPU.
    is_cpu = platform == "cpu" and not has_kernel
    page_tokens = config.page_tokens or (64 if is_cpu else 128)
    if has_kernel and platform == "tpu" and page_tokens % _ROWS:
        raise ValueError(
            f"engine.page_tokens = {page_tokens}: the kernel wants a multiple of {_ROWS} on TPU; "
            'choose one, or engine.attention = "xla"'
        )
    parts = num_parts(config.slots, mesh)
    slots = config.slots // parts
    if config.cache_tokens:
        pages = -(-config.cache_tokens // (parts * page_tokens))
    else:
        room = device_memory(mesh) * _MEMORY_SHARE / (page_tokens * _token_bytes(token, mesh))
        largest = max((most_pages(page_tokens, r) for r in requests), default=1)
        pages = max(largest, min(_few(_room_for(requests, slots, page_tokens)), int(room)))
    block = min(_BLOCK_PAGES, pages) if is_cpu else pages
    return Sizes(
        parts=parts,
        slots=config.slots,
        pages=parts * block * -(-pages // block),
        page_tokens=page_tokens,
        block_pages=block,
        kept=3 * slots,
        steps=config.steps_per_call,
        keys_across=is_cpu,
        entropy=config.entropy,
        item_pages=_item_pages(token, page_tokens, mesh) if has_kernel else None,
        chunk_attention=(
            "splash" if has_kernel else _chunk_attention(config, dtype, head_dim, device)
        ),
        prefill_tokens=128 if platform == "cpu" else 2048,
        run_tokens=64 if platform == "cpu" else 0,
    )


def check_memory(model: Model, config: EngineConfig, mesh: jax.sharding.Mesh) -> None:
    """Raises ValueError if the cache that the config asks for is larger than a device's memory."""
    token = jax.eval_shape(lambda: model.empty_pages(1, 1, False))
    of_part = config.cache_tokens / num_parts(config.slots, mesh)
    needed, there = of_part * _token_bytes(token, mesh), device_memory(mesh)
    if needed > there:
        most = int(config.cache_tokens * there / needed)
        raise ValueError(
            f"engine.cache_tokens = {config.cache_tokens} takes {needed / 1e9:.3g} GB of a "
            f"device's {there / 1e9:.3g}; lower it ({most} would take all), or leave it out"
        )


def _has_kernel(config: EngineConfig, platform: str, head_dim: int) -> bool:
    """Whether the kernels attend the cache."""
    # In a narrower page the TPU pads each row, for which it would copy the cache.
    fits = platform == "cpu" or (platform == "tpu" and head_dim % _LANES == 0)
    if config.attention == "pallas" and not fits:
        raise ValueError(
            f'engine.attention = "pallas" on {platform} with heads of {head_dim}: the kernels are '
            f'for TPU and heads of a multiple of {_LANES}; use "auto" or "xla"'
        )
    return config.attention == "pallas" or (
        config.attention == "auto" and platform == "tpu" and fits
    )


def check_attention(config: EngineConfig, dtype: Any, head_dim: int, device: Any) -> None:
    """Raises ValueError if who is asked to attend cannot do so on such devices.

    Args:
      config: asks.
      dtype: of keys and values.
      head_dim: of them.
      device: as jax describes it.
    """
    if not _has_kernel(config, device.platform, head_dim):
        _chunk_attention(config, dtype, head_dim, device)


def _chunk_attention(
    config: EngineConfig, dtype: Any, head_dim: int, device: Any
) -> ChunkAttention:
    """Who attends a prefill where the TPU's kernels do not."""
    why = why_not(dtype, head_dim, device)
    if config.attention == "cudnn" and why is not None:
        raise ValueError(f'engine.attention = "cudnn": {why}; use "auto" or "xla"')
    return "xla" if config.attention == "xla" or why is not None else "cudnn"


def most_pages(page_tokens: int, request: Request) -> int:
    """Pages that a request takes when it is complete and its prompt lies apart."""
    lengths = len(request.prompt_ids), request.sampling.max_new_tokens
    return sum(-(-length // page_tokens) for length in lengths)


def _room_for(requests: Sequence[Request], slots: int, page_tokens: int) -> int:
    """Pages for as many of the requests as there are slots, each at its limit."""
    if not requests:
        return 1
    counts = shared_prompts(requests)
    own, shared = 1, []
    for request in requests:
        length = request.sampling.max_new_tokens
        if counts[request.prompt_ids] == 1:
            length += len(request.prompt_ids)
        own = max(own, -(-length // page_tokens))
    for ids, count in counts.items():
        shared += [-(-len(ids) // page_tokens)] if count > 1 else []
    slots = min(slots, len(requests))
    # Those that begin while others of the group before still run.
    at_once = -(-slots * len(shared) // len(requests)) + 1
    # A page for each slot more: it is what a request must leave free to be let in.
    return slots * (own + 1) + sum(sorted(shared, reverse=True)[:at_once])


def _few(pages: int) -> int:
    """The next of few sizes, for each of which programs are compiled."""
    power = 1 << max(pages - 1, 0).bit_length()
    return 3 * power // 4 if pages <= 3 * power // 4 else power


def empty_parts(sizes: Sizes) -> list[Residents]:
    """What lies in the cache of each part: nothing."""
    return [
        Residents(
            PagePool(sizes.pages // sizes.parts, sizes.page_tokens, sizes.block_pages),
            sizes.slots // sizes.parts,
            sizes.kept,
        )
        for _ in range(sizes.parts)
    ]


def num_parts(slots: int, mesh: jax.sharding.Mesh) -> int:
    """Over how many sets of devices the slots are spread."""
    axes = entry("slots", slots, SAMPLE_RULES, mesh)
    return math.prod(
        mesh.shape[name] for name in ((axes,) if isinstance(axes, str) else axes or ())
    )


def _token_bytes(token: Pages, mesh: jax.sharding.Mesh) -> float:
    """Bytes of a token on one device, or a little more where heads do not divide."""
    size = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(token))
    return size / math.gcd(mesh.shape["tensor"], token.k[0].shape[1])


def _item_pages(token: Pages, page_tokens: int, mesh: jax.sharding.Mesh) -> int:
    """Pages of an item: so many that its bytes outweigh the start of a step."""
    of_layer = page_tokens * _token_bytes(token, mesh) / len(token.k)
    return max(1, min(_ITEM_PAGES, int(_ITEM_BYTES / of_layer)))

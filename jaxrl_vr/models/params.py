"""Parameters, declared once: initialisation, sharding and the Hugging Face names derive from it.

L layers, D model width, H query heads, K kv heads, Q head dim, F ffn width, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.sharding import Rules, sharding_of

Params = Mapping[str, Any]  # name -> array, or a nested mapping


@dataclasses.dataclass(frozen=True)
class Param:
    """One parameter; those with a leading "layers" axis stack all layers."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]  # logical axis of each dimension, for the rules table
    scale: float | None  # standard deviation of a normal initialiser; 0 zeros, None ones
    hf_name: str  # tensor in a Hugging Face file; "{layer}" stands for the layer's index
    is_transposed: bool = False  # the file holds [out, in], we hold [in, out]
    dtype: str = "float32"

    @property
    def is_stacked(self) -> bool:
        """Whether the file holds one tensor a layer."""
        return self.axes[0] == "layers"

    @property
    def sides(self) -> tuple[tuple[int, ...], ...]:
        """Its dimensions but that of the layers, by what they are in each layer's tensor.

        A matrix has two sides, its rows [in] and its columns [out]; a vector has one. The dimension
        inside a head belongs to that of the heads: [L, D, H, Q] is L matrices of [D, H x Q].
        """
        found: list[tuple[int, ...]] = []
        for dim, axis in enumerate(self.axes):
            if axis == "head_dim" and found:
                found[-1] += (dim,)
            elif axis != "layers":
                found.append((dim,))
        return tuple(found)

    @property
    def is_matrix(self) -> bool:
        """Whether it is a matrix, or one in each layer."""
        return len(self.sides) == 2


def declare(arch: Architecture) -> dict[str, Any]:
    """The parameters of `arch`: a nested dict of `Param`, in the model's own layout."""
    L, D, H, K = arch.layers, arch.width, arch.heads, arch.kv_heads
    Q, F, V = arch.head_dim, arch.ffn, arch.vocab_size
    # Each block adds two outputs to the residual stream; this keeps its variance near 1.
    residual = (2 * L) ** -0.5

    def layer(shape, axes, scale, name, is_transposed=False) -> Param:
        name = "model.layers.{layer}." + name
        return Param((L, *shape), ("layers", *axes), scale, name, is_transposed)

    def heads(n: int, axis: str, name: str) -> Param:
        return layer((D, n, Q), ("embed", axis, "head_dim"), D**-0.5, f"self_attn.{name}", True)

    layers = {
        "attn_norm": layer((D,), ("embed",), None, "input_layernorm.weight"),
        "q": heads(H, "heads", "q_proj.weight"),
        "k": heads(K, "kv_heads", "k_proj.weight"),
        "v": heads(K, "kv_heads", "v_proj.weight"),
        "o": layer(
            (H, Q, D),
            ("heads", "head_dim", "embed"),
            residual * (H * Q) ** -0.5,
            "self_attn.o_proj.weight",
            True,
        ),
        "ffn_norm": layer((D,), ("embed",), None, "post_attention_layernorm.weight"),
        "gate": layer((D, F), ("embed", "ffn"), D**-0.5, "mlp.gate_proj.weight", True),
        "up": layer((D, F), ("embed", "ffn"), D**-0.5, "mlp.up_proj.weight", True),
        "down": layer((F, D), ("ffn", "embed"), residual * F**-0.5, "mlp.down_proj.weight", True),
    }
    if arch.has_qkv_bias:
        for name, n, axis in (("q", H, "heads"), ("k", K, "kv_heads"), ("v", K, "kv_heads")):
            layers[f"{name}_bias"] = layer(
                (n, Q), (axis, "head_dim"), 0.0, f"self_attn.{name}_proj.bias"
            )
    if arch.has_qk_norm:
        for name in ("q", "k"):
            layers[f"{name}_norm"] = layer(
                (Q,), ("head_dim",), None, f"self_attn.{name}_norm.weight"
            )
    tree = {
        "embed": Param((V, D), ("vocab", "embed"), D**-0.5, "model.embed_tokens.weight"),
        "layers": layers,
        "norm": Param((D,), ("embed",), None, "model.norm.weight"),
    }
    if not arch.tied:
        tree["head"] = Param((V, D), ("vocab", "embed"), D**-0.5, "lm_head.weight")
    return tree


def is_param(x: object) -> bool:
    """Leaf test for trees of `Param`."""
    return isinstance(x, Param)


def shardings(declared: Mapping[str, Any], rules: Rules, mesh: jax.sharding.Mesh) -> Any:
    """The sharding of each parameter under a rules table."""
    return jax.tree.map(
        lambda p: sharding_of(p.axes, rules, mesh, p.shape), declared, is_leaf=is_param
    )


def abstract(declared: Mapping[str, Any], rules: Rules, mesh: jax.sharding.Mesh) -> Any:
    """Shape, dtype and sharding of each parameter: the target of a restore."""
    return jax.tree.map(
        lambda p: jax.ShapeDtypeStruct(
            p.shape, jnp.dtype(p.dtype), sharding=sharding_of(p.axes, rules, mesh, p.shape)
        ),
        declared,
        is_leaf=is_param,
    )


def init(declared: Mapping[str, Any], key: jax.Array, rules: Rules, mesh: jax.sharding.Mesh) -> Any:
    """Random parameters, created in their sharding (never whole on one device).

    Each parameter has its own stream, derived from its path: adding one changes no other.
    """

    leaves, tree = jax.tree_util.tree_flatten_with_path(declared, is_leaf=is_param)
    named = tuple((jax.tree_util.keystr(path), p) for path, p in leaves)
    placed = tuple(jax.tree.leaves(shardings(declared, rules, mesh)))
    return jax.tree.unflatten(tree, _maker(named, placed)(key))


@functools.lru_cache(maxsize=16)
def _maker(named: tuple[tuple[str, Param], ...], placed: tuple[jax.sharding.Sharding, ...]) -> Any:
    """The compiled initialiser; kept, because jit knows a program by the function it came from."""

    def one(key: jax.Array, name: str, p: Param) -> jax.Array:
        if p.scale is None:
            return jnp.ones(p.shape, p.dtype)
        if p.scale == 0.0:
            return jnp.zeros(p.shape, p.dtype)
        own = jax.random.fold_in(key, zlib.crc32(name.encode()))
        return p.scale * jax.random.normal(own, p.shape, p.dtype)

    def make(key: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(one(key, name, p) for name, p in named)

    return jax.jit(make, out_shardings=placed)

"""Weights in int8 for sampling: half the bytes of bfloat16, which decoding is bound by.

One scale an output channel, symmetric. The head and the embedding stay as they are: log-probs are
those of a float32 head whatever the weights.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import pytree_dataclass
from jaxrl_vr.sharding import current_mesh

_CONTRACTED = {
    "q": (0,),
    "k": (0,),
    "v": (0,),
    "q_rows": (2,),
    "k_rows": (2,),
    "v_rows": (2,),
    "o": (0, 1),
    "gate": (0,),
    "up": (0,),
    "down": (0,),
}
"""Axes of a layer's weights that a product sums over; the others are its output channels."""


@pytree_dataclass
class Quantized:
    """A weight as integers times the scale of their output channel."""

    values: jax.Array  # int8, of the weight's shape
    scale: jax.Array  # float32, of the output channels' shape


def quantize(weight: jax.Array, contracted: tuple[int, ...]) -> Quantized:
    """The nearest integers in [-127, 127], by output channel.

    Args:
      weight: any float dtype.
      contracted: axes that a product with it sums over.

    >>> quantize(jnp.array([[1.0, 0.0], [-0.5, 0.0]]), (0,)).values.tolist()
    [[127, 0], [-64, 0]]
    """
    weight = weight.astype(jnp.float32)
    largest = jnp.max(jnp.abs(weight), axis=contracted, keepdims=True)
    scale = jnp.where(largest > 0, largest, 1.0) / 127
    values = jnp.round(weight / scale).astype(jnp.int8)
    return Quantized(values, jnp.squeeze(scale, axis=contracted))


def quantized_layer(weights: dict[str, jax.Array]) -> dict[str, jax.Array | Quantized]:
    """A layer with its projections in int8; norms and biases stay."""
    return {
        name: quantize(w, _CONTRACTED[name]) if name in _CONTRACTED else w
        for name, w in weights.items()
    }


def product(
    equation: str, x: jax.Array, weight: jax.Array | Quantized, dtype: Any = None
) -> jax.Array:
    """`einsum` with a weight whose output channels are the last axes of the result.

    Args:
      equation: of the einsum, B and T in front of what it contracts and of the result.
      x: activations, [B, T, ...].
      weight: in x's dtype, or quantized.
      dtype: of the result; default: x's.
    """
    dtype = dtype or x.dtype
    if not isinstance(weight, Quantized):
        mesh = current_mesh()
        if mesh is not None and mesh.size > 1:
            return jnp.einsum(equation, x, weight, preferred_element_type=dtype)
        return _of_tokens(equation, x, weight, dtype)
    out = jnp.einsum(equation, x, weight.values.astype(x.dtype), preferred_element_type=jnp.float32)
    scale = jnp.expand_dims(weight.scale, range(out.ndim - weight.scale.ndim))
    return (out * scale).astype(dtype)


# Several products of one x keep x itself, and not each a flat copy.
@functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=(0, 3))
def _of_tokens(equation: str, x: jax.Array, weight: jax.Array, dtype: Any) -> jax.Array:
    """As one axis of tokens: the weight's gradient sums over it, and a sum over two makes XLA write
    the activations' gradients a second time, transposed, for a sixth of an update on CPU. Several
    devices may split both axes, and TPU's compiler gains nothing from it."""
    tokens = x.reshape(-1, *x.shape[2:])  # B, T -> N
    out = jnp.einsum(equation.replace("BT", "N"), tokens, weight, preferred_element_type=dtype)
    return out.reshape(*x.shape[:2], *out.shape[1:])  # N -> B, T

"""Rotary position embedding: angles of tokens, and the rotation of heads by them.

B rows, T tokens of a row, Q head dim.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_vr.models.architecture import Architecture


def rotary_angles(arch: Architecture, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """cos and sin of each token's rotation, each [B, T, Q / 2] float32, as long as the scaling
    makes them."""
    frequency = jnp.asarray(rotary_frequencies(arch), jnp.float32)
    angle = positions.astype(jnp.float32)[..., None] * frequency[None, None]
    magnitude = 1.0 if arch.rope_scaling is None else arch.rope_scaling.magnitude
    return magnitude * jnp.cos(angle), magnitude * jnp.sin(angle)


def rotary_frequencies(arch: Architecture) -> np.ndarray:
    """Radians a token for each pair of a head, [Q / 2] float64, scaled if that is set."""
    pair = np.arange(0, arch.head_dim, 2, dtype=np.float64)
    frequency = arch.rope_theta ** (-pair / arch.head_dim)
    if arch.rope_scaling is None:
        return frequency
    return arch.rope_scaling.scaled(frequency, arch.rope_theta)


@jax.named_scope("rotary")
def rotate(x: jax.Array, rotary: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotary embedding of [B, T, heads, Q]; a pair is (i, i + Q / 2), as Hugging Face has it."""
    cos, sin = (a[:, :, None] for a in rotary)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)

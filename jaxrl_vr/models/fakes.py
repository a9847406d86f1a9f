"""A fake model for tests: every token is equally likely, nothing is computed.

V vocabulary, D = 1.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_vr.models.params import Param, Params
from jaxrl_vr.models.transformer import Cache


@dataclasses.dataclass(frozen=True)
class UniformModel:
    """A `Model` whose logits are all zero, so that each log-prob is -log V."""

    vocab_size: int
    max_length: int = 1024

    def declare(self) -> dict[str, Any]:
        """One parameter, the head, of zeros."""
        return {"head": Param((self.vocab_size, 1), ("vocab", "embed"), 0.0, "head")}

    def hidden(
        self, params: Params, tokens: jax.Array, positions: jax.Array, segment_ids: jax.Array
    ) -> jax.Array:
        """[B, T] -> [B, T, 1] ones."""
        return jnp.ones((*tokens.shape, 1))

    def head(self, params: Params) -> jax.Array:
        """[V, 1]."""
        return params["head"]

    def sampler_view(self, params: Params) -> Any:
        """The parameters themselves."""
        return params

    def view_head(self, view: Any) -> jax.Array:
        """[V, 1]."""
        return view["head"]

    def empty_cache(self, slots: int, length: int) -> Cache:
        """One layer of keys and values that nobody reads."""
        return Cache(k=[jnp.zeros((slots, 1, length, 1))], v=[jnp.zeros((slots, 1, length, 1))])

    def prefill(self, view: Any, tokens: jax.Array, length: jax.Array) -> tuple[jax.Array, Cache]:
        """[P, C] -> [P, 1] ones and an empty cache."""
        return jnp.ones((tokens.shape[0], 1)), self.empty_cache(*tokens.shape)

    def decode(
        self, view: Any, token: jax.Array, position: jax.Array, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        """[S] -> [S, 1] ones; the cache as it is."""
        return jnp.ones((token.shape[0], 1)), cache

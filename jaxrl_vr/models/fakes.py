"""A fake model for tests: every token is equally likely, nothing is computed.

V vocabulary, D = 1.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_vr.models.distinct import Distinct
from jaxrl_vr.models.paged import DecodePlan, ExtendPlan, Pages, empty_pages
from jaxrl_vr.models.params import Param, Params


@dataclasses.dataclass(frozen=True)
class UniformModel:
    """A `Model` whose logits are all zero, so that each log-prob is -log V."""

    vocab_size: int
    max_length: int = 1024

    def declare(self) -> dict[str, Any]:
        """One parameter, the head, of zeros."""
        return {"head": Param((self.vocab_size, 1), ("vocab", "embed"), 0.0, "head")}

    def hidden(
        self,
        params: Params,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        distinct: Distinct | None = None,
    ) -> jax.Array:
        """[B, T] -> [B, T, 1] ones."""
        return jnp.ones((*tokens.shape, 1))

    def head(self, params: Params) -> jax.Array:
        """[V, 1]."""
        return params["head"]

    def sampler_view(
        self,
        params: Params,
        int8: bool = False,
        as_rows: bool = False,
        vocab_rows: int | None = None,
    ) -> Any:
        """The parameters, with the rows of the head that are asked for."""
        behind = (vocab_rows or self.vocab_size) - self.vocab_size
        return {"head": jnp.pad(params["head"], ((0, behind), (0, 0)))}

    def view_head(self, view: Any) -> jax.Array:
        """[V, 1]."""
        return view["head"]

    def empty_pages(self, num_pages: int, page_tokens: int, keys_across: bool) -> Pages:
        """One layer of keys and values that nobody reads."""
        return empty_pages(1, (num_pages, 1, page_tokens, 1), jnp.float32, keys_across)

    def extend(
        self, view: Any, tokens: jax.Array, pages: Pages, plan: ExtendPlan
    ) -> tuple[jax.Array, Pages]:
        """[N, T] -> [N, 1] ones; the pages as they are."""
        return jnp.ones((tokens.shape[0], 1)), pages

    def decode(
        self, view: Any, token: jax.Array, position: jax.Array, pages: Pages, plan: DecodePlan
    ) -> tuple[jax.Array, Pages]:
        """[S] -> [S, 1] ones; the pages as they are."""
        return jnp.ones((token.shape[0], 1)), pages

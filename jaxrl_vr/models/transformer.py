"""One dense transformer for the Llama, Qwen2 and Qwen3 families: learner, prefill and decode.

The three share one block; they differ only in where its keys and values come from. Not here:
parameters' declaration (params.py), attention backends (attention.py), weights on disk (hf.py).

B rows, T tokens of a row, S sampler slots, N rows of a prefill, P pages, C tokens of a page, D
model width, H query heads, K kv heads, Q head dim, F ffn width, L layers, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import check
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.attention import Backend, attention, takes_dealt
from jaxrl_vr.models.blockwise import ATTENDED
from jaxrl_vr.models.cudnn import MOST_SEGMENTS
from jaxrl_vr.models.dealt import collect, deal
from jaxrl_vr.models.distinct import Distinct, in_rows, of_tokens
from jaxrl_vr.models.paged import DecodePlan, ExtendPlan, ListReads, Pages, empty_pages
from jaxrl_vr.models.paged_write import Turn, rotation
from jaxrl_vr.models.params import Params, declare
from jaxrl_vr.models.quantized import product, quantized_layer
from jaxrl_vr.models.rotary import rotary_angles, rotate
from jaxrl_vr.models.serve import decode_attention, extend_attention
from jaxrl_vr.sharding import SAMPLE_RULES, constrain

Remat = Literal["none", "minimal", "block"]
Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

# Axes of the residual stream. Said in the learner's pass because, left alone with parameters that
# are split over `fsdp`, the compiler replicates the stream: every device then computes every row
# (seen in the compiled products, which had all rows).
_STREAM = ("batch", "length", None)


class Model(Protocol):
    """What a model must offer to be trained and sampled."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_length(self) -> int: ...

    def declare(self) -> dict[str, Any]:
        """The parameters, as a tree of `Param`."""
        ...

    def hidden(
        self,
        params: Params,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        distinct: Distinct | None = None,
    ) -> jax.Array:
        """[B, T] packed rows -> [B, T, D] final hidden states; of `distinct` tokens each once."""
        ...

    def head(self, params: Params) -> jax.Array:
        """The LM head, [V, D], in the compute dtype."""
        ...

    def sampler_view(
        self,
        params: Params,
        int8: bool = False,
        as_rows: bool = False,
        vocab_rows: int | None = None,
    ) -> Any:
        """Parameters as the sampler reads them: the larger ones in int8, those of q, k and v as
        rows, the head with rows behind the vocabulary, on demand."""
        ...

    def empty_pages(self, num_pages: int, page_tokens: int, keys_across: bool) -> Pages:
        """A pool of zeros, P pages of C tokens."""
        ...

    def extend(
        self, view: Any, tokens: jax.Array, pages: Pages, plan: ExtendPlan
    ) -> tuple[jax.Array, Pages]:
        """[N, T] tokens behind what the pages hold -> [N, D] hidden state of each last token."""
        ...

    def decode(
        self, view: Any, token: jax.Array, position: jax.Array, pages: Pages, plan: DecodePlan
    ) -> tuple[jax.Array, Pages]:
        """One token a slot, [S], at `position` -> [S, D] hidden states, the pages with it."""
        ...

    def view_head(self, view: Any) -> jax.Array:
        """The LM head out of a sampler view, [V, D]."""
        ...


@dataclasses.dataclass(frozen=True)
class Transformer:
    """A `Model`; hashable, so it can be a static argument of `jit`.

    Attributes:
      arch: sizes and family.
      dtype: compute dtype of blocks and head; log-probs are float32 whatever it is.
      remat: what the backward pass computes again of each block: "block" all from its input, for
        about a third more products and L times less memory; "minimal" all but products and
        attention; "none" norms and the activation, which cost little.
      attention: what the learner's pass attends with.
    """

    arch: Architecture
    dtype: str = "float32"
    remat: Remat = "none"
    attention: Backend = "xla"

    @property
    def vocab_size(self) -> int:
        return self.arch.vocab_size

    @property
    def max_length(self) -> int:
        return self.arch.max_length

    @property
    def most_sequences(self) -> int | None:
        """Of a packed row, which the attention of the learner's pass takes; None: any number."""
        return MOST_SEGMENTS if self.attention == "cudnn" else None

    def declare(self) -> dict[str, Any]:
        """The parameters, as a tree of `Param`."""
        return declare(self.arch)

    def hidden(
        self,
        params: Params,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        distinct: Distinct | None = None,
    ) -> jax.Array:
        """Final hidden states of packed rows.

        Args:
          params: as `declare` describes, layers stacked.
          tokens: [B, T] int32.
          positions: [B, T] int32, place of each token in its own segment.
          segment_ids: [B, T] int32; 0 is padding. Segments do not see each other.
          distinct: which tokens repeat others, and are then computed once; rows may not be split
            over `context`. None: none is looked for.

        Returns:
          [B, T, D] in the compute dtype.
        """
        check("BT, BT, BT", tokens=tokens, positions=positions, segment_ids=segment_ids)
        is_dealt = takes_dealt(tokens.shape[1], self.attention)
        if is_dealt:
            assert distinct is None, "tokens of dealt rows are not looked at"
            tokens, positions, segment_ids = map(deal, (tokens, positions, segment_ids))
        if distinct is not None:  # [B, T] -> [R, U], as all of the stream
            tokens, positions = (of_tokens(a, distinct) for a in (tokens, positions))
        rotary = rotary_angles(self.arch, positions)

        def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            if distinct is not None:
                q = in_rows(q, distinct, only_place=True)
                k, v = (in_rows(a, distinct) for a in (k, v))
            out = attention(q, k, v, segment_ids, self.attention, is_dealt=is_dealt)
            return out if distinct is None else of_tokens(out, distinct)

        def step(x: jax.Array, weights: Params) -> tuple[jax.Array, None]:
            x = block(self.arch, self._cast(weights), x, rotary, attend)
            return constrain(x, _STREAM), None

        step = _rematerialised(step, self.remat)
        # Whole rows of the table first: a lookup in one split over `fsdp` replicates its result.
        with jax.named_scope("embed"):
            table = constrain(params["embed"].astype(self.dtype), ("vocab", None))
            x = constrain(table[tokens], _STREAM)
        with jax.named_scope("layers"):
            x, _ = jax.lax.scan(step, x, params["layers"])
        if is_dealt:
            x = collect(x)
        x = rms_norm(x, self._cast(params["norm"]), self.arch.norm_eps)
        return x if distinct is None else in_rows(x, distinct)

    def head(self, params: Params) -> jax.Array:
        """The LM head, [V, D], in the compute dtype."""
        return params["embed" if self.arch.tied else "head"].astype(self.dtype)

    def sampler_view(
        self,
        params: Params,
        int8: bool = False,
        as_rows: bool = False,
        vocab_rows: int | None = None,
    ) -> Any:
        """The same weights cast and unstacked: decoding with scanned layers copies them.

        Args:
          params: as `declare` describes.
          int8: whether the layers' projections are kept as integers.
          as_rows: whether those of q, k and v lie as [H, Q, D]. TPU wants it: with few heads in the
            axes that it tiles, it moves them into another layout. On CPU their products then take
            more than twice the time.
          vocab_rows: rows of the head, zeros behind the vocabulary; default: none.
        """
        cast = self._cast(params)

        def used(path: Any, w: jax.Array) -> jax.Array:
            # As they are used: casting one is an operation of its own on TPU.
            return w.astype(jnp.float32) if path[-1].key.endswith(("norm", "bias")) else w

        cast = jax.tree_util.tree_map_with_path(used, cast)
        stacked = dict(cast["layers"])
        for name in ("q", "k", "v") if as_rows else ():
            stacked[f"{name}_rows"] = stacked.pop(name).transpose(0, 2, 3, 1)
        layers = [jax.tree.map(lambda w, i=i: w[i], stacked) for i in range(self.arch.layers)]
        if int8:
            layers = [quantized_layer(weights) for weights in layers]
        view = {"embed": cast["embed"], "norm": cast["norm"], "layers": layers}
        if not self.arch.tied:
            view["head"] = cast["head"]
        behind = (vocab_rows or self.vocab_size) - self.vocab_size
        head = jnp.pad(self.view_head(view), ((0, behind), (0, 0)))
        view["embed" if self.arch.tied else "head"] = constrain(head, ("vocab", None), SAMPLE_RULES)
        return view

    def view_head(self, view: Any) -> jax.Array:
        """The LM head out of a sampler view, [V, D]."""
        return view["embed" if self.arch.tied else "head"]

    def empty_pages(self, num_pages: int, page_tokens: int, keys_across: bool) -> Pages:
        """A pool of zeros, P pages of C tokens."""
        arch = self.arch
        shape = num_pages, arch.kv_heads, page_tokens, arch.head_dim
        return empty_pages(arch.layers, shape, self.dtype, keys_across)

    def extend(
        self, view: Any, tokens: jax.Array, pages: Pages, plan: ExtendPlan
    ) -> tuple[jax.Array, Pages]:
        """Runs a chunk of each of several prompts and writes its keys and values.

        Args:
          view: from `sampler_view`.
          tokens: [N, T] int32, each row from column 0, padded behind.
          pages: hold what comes before.
          plan: where the chunk goes and what comes before.

        Returns:
          [N, D] hidden state of each row's last token; the pages after.
        """
        N, T, K, Q = *tokens.shape, self.arch.kv_heads, self.arch.head_dim
        keys, values = list(pages.k), list(pages.v)

        def attend_in(layer: int) -> Attend:
            def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
                grouped = q.reshape(N, T, K, -1, Q).transpose(0, 2, 3, 1, 4)  # H -> K, R
                new = grouped, k.swapaxes(1, 2), v.swapaxes(1, 2)
                layer_pages = keys[layer], values[layer]
                out, (keys[layer], values[layer]) = extend_attention(
                    new, layer_pages, pages.keys_across, plan
                )
                return out.transpose(0, 3, 1, 2, 4).reshape(q.shape)  # K, R -> H

            return attend

        positions = plan.start[:, None] + jnp.arange(T)[None]
        attends = [attend_in(layer) for layer in range(self.arch.layers)]
        x = self._run(view, tokens, rotary_angles(self.arch, positions), attends)
        last = jnp.maximum(plan.length - 1, 0)[:, None, None]
        hidden = jnp.take_along_axis(x, last, axis=1)[:, 0]
        return hidden, dataclasses.replace(pages, k=keys, v=values)

    def decode(
        self, view: Any, token: jax.Array, position: jax.Array, pages: Pages, plan: DecodePlan
    ) -> tuple[jax.Array, Pages]:
        """Runs one token a slot and writes its key and value.

        Args:
          view: from `sampler_view`.
          token: [S] int32.
          position: [S] int32, tokens of the slot before this one.
          pages: hold them.
          plan: which page holds what.

        Returns:
          [S, D] hidden state of each token; the pages with the token in them.
        """
        check("S, S", token=token, position=position)
        S, K, Q = len(token), self.arch.kv_heads, self.arch.head_dim
        keys, values = list(pages.k), list(pages.v)
        rotary = rotary_angles(self.arch, position[:, None])
        with_kernels = isinstance(plan.reads, ListReads)

        turn = rotation((rotary[0][:, 0], rotary[1][:, 0])) if with_kernels else None

        def turn_in(layer: int) -> Turn | None:
            if turn is None or not self.arch.has_qk_norm:
                return turn
            norms = [view["layers"][layer][name] for name in ("q_norm", "k_norm")]
            return turn.normalised(norms, plan.num_parts, self.arch.norm_eps)

        def attend_in(layer: int) -> Attend:
            def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
                new = q.reshape(S, K, -1, Q), k[:, 0], v[:, 0]  # H -> K, R
                layer_pages = keys[layer], values[layer]
                out, (keys[layer], values[layer]) = decode_attention(
                    new, layer_pages, pages.keys_across, position, plan, turn_in(layer)
                )
                return out.reshape(q.shape)  # K, R -> H

            return attend

        attends = [attend_in(layer) for layer in range(self.arch.layers)]
        x = self._run(view, token[:, None], None if with_kernels else rotary, attends)
        return x[:, 0], dataclasses.replace(pages, k=keys, v=values)

    def _run(
        self,
        view: Any,
        tokens: jax.Array,
        rotary: tuple[jax.Array, jax.Array] | None,
        attends: Sequence[Attend],
    ) -> jax.Array:
        with jax.named_scope("embed"):
            x = view["embed"][tokens]
        for i, (weights, attend) in enumerate(zip(view["layers"], attends, strict=True)):
            with jax.named_scope(f"layers/{i}"):
                x = block(self.arch, weights, x, rotary, attend)
        return rms_norm(x, view["norm"], self.arch.norm_eps)

    def _cast(self, weights: Any) -> Any:
        return jax.tree.map(lambda w: w.astype(self.dtype), weights)


def _rematerialised(step: Callable[..., Any], remat: Remat) -> Callable[..., Any]:
    """The step of a layer, of which the backward pass keeps what `remat` says."""
    if remat == "none":
        return step
    policies = jax.checkpoint_policies
    policy = policies.nothing_saveable
    if remat == "minimal":
        policy = policies.save_from_both_policies(
            policies.dots_with_no_batch_dims_saveable, policies.save_only_these_names(ATTENDED)
        )
    return jax.checkpoint(step, policy=policy)


def block(
    arch: Architecture,
    weights: Params,
    x: jax.Array,
    rotary: tuple[jax.Array, jax.Array] | None,
    attend: Attend,
) -> jax.Array:
    """One layer: attention and a gated feed-forward layer, each on the normalised stream.

    Args:
      arch: sizes and family.
      weights: one layer's parameters in the compute dtype, as `declare` or `sampler_view` has them.
      x: [B, T, D].
      rotary: cos and sin, each [B, T, Q / 2] float32; None: `attend` normalises and rotates heads.
      attend: (q [B, T, H, Q], k [B, T, K, Q], v [B, T, K, Q]) -> [B, T, H, Q].

    Returns:
      [B, T, D].
    """
    with jax.named_scope("attention"):
        h = rms_norm(x, weights["attn_norm"], arch.norm_eps)
        # Biases are added before the products are rounded.
        dtype = jnp.float32 if arch.has_qkv_bias else x.dtype
        q, k, v = (_heads(h, weights, name, dtype) for name in ("q", "k", "v"))
        if arch.has_qkv_bias:
            q, k, v = (
                (a + weights[f"{name}_bias"][None, None].astype(dtype)).astype(x.dtype)
                for name, a in (("q", q), ("k", k), ("v", v))
            )
        if rotary is not None:
            if arch.has_qk_norm:
                q = rms_norm(q, weights["q_norm"], arch.norm_eps)
                k = rms_norm(k, weights["k_norm"], arch.norm_eps)
            q, k = rotate(q, rotary), rotate(k, rotary)
        with jax.named_scope("attend"):
            out = attend(q, k, v)
        with jax.named_scope("output"):
            x = x + product("BTHQ,HQD->BTD", out, weights["o"])
    with jax.named_scope("ffn"):
        h = rms_norm(x, weights["ffn_norm"], arch.norm_eps)
        with jax.named_scope("gate"):
            gate = product("BTD,DF->BTF", h, weights["gate"])
        with jax.named_scope("up"):
            up = product("BTD,DF->BTF", h, weights["up"])
        with jax.named_scope("down"):
            return x + _down(gate, up, weights["down"])


@functools.partial(jax.checkpoint, prevent_cse=False)
def _down(gate: jax.Array, up: jax.Array, weight: Any) -> jax.Array:
    """Keeps gate and up alone for the backward pass; silu and the product would keep four more
    arrays of F numbers a token. Within the scan over layers nothing is merged with what it makes
    again, so that `prevent_cse` is not needed."""
    return product("BTF,FD->BTD", jax.nn.silu(gate) * up, weight)


def _heads(h: jax.Array, weights: Params, name: str, dtype: Any) -> jax.Array:
    """[B, T, D] -> [B, T, H, Q], by weights as `declare` or as `sampler_view` has them."""
    with jax.named_scope({"q": "query", "k": "key", "v": "value"}[name]):
        if name in weights:
            return product("BTD,DHQ->BTHQ", h, weights[name], dtype)
        return product("BTD,HQD->BTHQ", h, weights[f"{name}_rows"], dtype)


# The scope is the outer one, so that profiles have it right below its layer.
@jax.named_scope("norm")
@functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=2)
def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """x / rms(x) * scale over the last axis, in float32, back in x's dtype."""
    x32 = x.astype(jnp.float32)
    x32 = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return (x32 * jnp.expand_dims(scale.astype(jnp.float32), range(x.ndim - 1))).astype(x.dtype)

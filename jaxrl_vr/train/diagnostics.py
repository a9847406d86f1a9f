"""What an update says of its gradients on request: their noise scale, and norms by layer.

docs/diagnostics.md derives the estimators. Not here: what every update says (update.py).

M micro-batches, b rows, T tokens of a row, L layers.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import Mean, Metrics
from jaxrl_vr.config import Config
from jaxrl_vr.models.params import Param, is_param
from jaxrl_vr.rollout.batch import Batch
from jaxrl_vr.sharding import TRAIN_RULES, current_mesh, spec

_SQUARE = "noise/micro_square"  # squared norms of micro-batches' gradients, summed up on the way
# Of 1 - sum of squared shares, where one micro-batch has all but nothing of the weight: there the
# estimate would be rounding alone.
_LEAST_APART = 1e-5


class Diagnostics(Config):
    """What else a stage measures of its policy's updates; each costs time, and is off."""

    gradient_noise_scale: bool = False
    """`noise/…`: by how much the noise of the gradient exceeds it, and so up to which batch size
    larger batches save optimizer steps. Needs two micro-batches an update, better many; rows are
    then dealt to them at random."""
    layer_norms: bool = False
    """`norms/…`: norms of gradient, weights and update of each layer, and of each parameter outside
    of layers."""

    def deal(self, *seed: int) -> tuple[int, ...] | None:
        """The seed by which rows are dealt to micro-batches; None: they stay as they are packed."""
        return seed if self.gradient_noise_scale else None

    def probe(self, declared: Any) -> Probe:
        """For a model whose parameters are `declared`, a tree of `Param`."""
        if not (self.gradient_noise_scale or self.layer_norms):
            return NO_PROBE
        named: list[Any] = jax.tree_util.tree_leaves_with_path(declared, is_leaf=is_param)
        names = tuple(str(path[0].key) for path, _ in named)
        params = tuple(param for _, param in named)
        return Probe(self.gradient_noise_scale, self.layer_norms, params, names)


@dataclasses.dataclass(frozen=True)
class Probe:
    """What an update measures beside its loss; static.

    Attributes:
      has_noise_scale: whether the gradient of each micro-batch is looked at.
      has_layer_norms: whether norms by layer are taken.
      params: the leaves of the parameters, in the order of their tree.
      names: of each, what its norm counts under where it stacks no layers.
    """

    has_noise_scale: bool = False
    has_layer_norms: bool = False
    params: tuple[Param, ...] = ()
    names: tuple[str, ...] = ()

    def of_micro(self, grad: Any) -> Metrics:
        """What one micro-batch adds, from its own gradient."""
        if not self.has_noise_scale:
            return {}
        square = sum(jnp.sum(of_leaf) for of_leaf in _squares(grad, self.params))
        return {_SQUARE: Mean(square, jnp.int32(1))}

    def of_gradient(self, metrics: Metrics, norm: jax.Array, batch: Batch) -> Metrics:
        """The metrics of all micro-batches with the noise scale in the place of its parts.

        Args:
          metrics: merged over micro-batches.
          norm: [] of the whole gradient, before clipping.
          batch: [M, b, T] arrays.
        """
        if not self.has_noise_scale:
            return metrics
        square = metrics[_SQUARE]
        assert isinstance(square, Mean)
        weight = jnp.where(batch.mask, batch.weight, 0.0)
        has_gradient = batch.mask & (batch.weight != 0.0)
        if batch.imitation is not None:
            weight += jnp.maximum(batch.imitation, 0.0)
            has_gradient |= batch.imitation > 0
        share = jnp.sum(weight, axis=(1, 2))
        found = noise_scale(square.sum, jnp.square(norm), share, jnp.sum(has_gradient))
        return {name: m for name, m in metrics.items() if name != _SQUARE} | found

    def of_step(
        self,
        grad: Any,
        weights: Any,
        steps: Any,
        rate: float | jax.Array,
        is_taken: jax.Array,
    ) -> Metrics:
        """Norms by layer; the trees are like the parameters.

        Args:
          grad: before clipping.
          weights: before the step.
          steps: what the optimizer made of the gradient, for a rate of 1.
          rate: learning rate.
          is_taken: [] bool; a step that is skipped has norm 0.
        """
        if not self.has_layer_norms:
            return {}
        found = iter(_squares((grad, weights, steps), 3 * self.params))
        metrics: Metrics = {}
        for kind, factor in (
            ("grad", 1.0),
            ("weight", 1.0),
            ("update", jnp.where(is_taken, rate, 0.0)),
        ):
            for name, square in self._by_name([next(found) for _ in self.params]).items():
                norm = factor * jnp.sqrt(square)
                metrics[f"norms/{kind}/{name}"] = Mean(norm, jnp.int32(1))
        return metrics

    def _by_name(self, squares: list[jax.Array]) -> dict[str, jax.Array]:
        """Squared norms of the leaves added up by layer, and by name outside of layers."""
        found: dict[str, jax.Array] = {}
        for param, name, square in zip(self.params, self.names, squares, strict=True):
            digits = max(2, len(str(len(square) - 1)))
            for i in range(len(square)):
                key = f"layer_{i:0{digits}}" if param.is_stacked else name
                found[key] = found[key] + square[i] if key in found else square[i]
        return found


NO_PROBE = Probe()


def noise_scale(
    micro_square: jax.Array, square: jax.Array, share: jax.Array, num_tokens: jax.Array
) -> Metrics:
    """The gradient noise scale and its parts, from one update's micro-batches.

    McCandlish et al. 2018 (https://arxiv.org/abs/1812.06162, appendix A.1), for micro-batches of
    any shares p of the weight, which sum to 1. With G the expected gradient and N the noise of this
    one, tr(Cov), the micro-batches' own gradients g_m and their sum g have

        E sum_m |g_m|^2 = (sum_m p_m^2) |G|^2 + N      E |g|^2 = |G|^2 + N

    from which both are estimated without bias. The paper's tr(Sigma) is n N for a batch of n, here
    in tokens. Signal and scale may come out below 0, as what is unbiased around 0 has to; averages
    over updates and steps are to be taken of `noise/trace` and `noise/signal`, and then divided.

    Args:
      micro_square: [], sum over micro-batches of |g_m|^2.
      square: [], |g|^2.
      share: [M], weight of each micro-batch in any unit, 0 where it holds nothing.
      num_tokens: [], tokens that have a gradient.

    Returns:
      `noise/signal`, `noise/trace`, `noise/scale`, `noise/tokens`; of nothing (count 0) where fewer
      than two micro-batches have weight, or a norm is not finite.
    """
    p = share / jnp.maximum(jnp.sum(share), jnp.finfo(share.dtype).tiny)
    apart = jnp.sum(p * (1.0 - p))
    is_known = (apart > _LEAST_APART) & jnp.isfinite(square) & jnp.isfinite(micro_square)
    # where on both sides of the quotient: what is not known must not become NaN times 0.
    signal = (square - micro_square) / jnp.where(is_known, apart, 1.0)
    tokens = num_tokens.astype(jnp.float32)
    signal, trace = (jnp.where(is_known, x, 0.0) for x in (signal, tokens * (square - signal)))
    count = is_known.astype(jnp.int32)
    return {
        "noise/signal": Mean(signal, count),
        "noise/trace": Mean(trace, count),
        "noise/scale": Mean(trace, signal),
        "noise/tokens": Mean(jnp.where(is_known, tokens, 0.0), count),
    }


def _squares(tree: Any, params: tuple[Param, ...]) -> list[jax.Array]:
    """Squared norms of the leaves of a tree, placed like these parameters: [L] float32 of a leaf
    that stacks layers, [1] of another.

    Devices exchange one array; left to the compiler, it would be one a leaf.
    """

    def local(*leaves: jax.Array) -> list[jax.Array]:
        rows = [a if p.is_stacked else a[None] for a, p in zip(leaves, params, strict=True)]
        rows = [jnp.square(a.astype(jnp.float32)) for a in rows]
        return [jnp.sum(a, axis=tuple(range(1, a.ndim))) for a in rows]

    leaves = jax.tree.leaves(tree)
    mesh = current_mesh()
    if mesh is None or mesh.size == 1:
        return local(*leaves)
    specs = tuple(spec(p.axes, TRAIN_RULES, mesh, p.shape) for p in params)
    sharding = [jax.NamedSharding(mesh, one) for one in specs]
    # So many devices hold the same part of a leaf.
    copies = [
        mesh.size * math.prod(s.shard_shape(p.shape)) / math.prod(p.shape)
        for s, p in zip(sharding, params, strict=True)
    ]

    def summed(*leaves: jax.Array) -> jax.Array:
        own = [a / n for a, n in zip(local(*leaves), copies, strict=True)]
        return jax.lax.psum(jnp.concatenate(own), mesh.axis_names)

    together = jax.shard_map(summed, mesh=mesh, in_specs=specs, out_specs=jax.P(), check_vma=False)(
        *leaves
    )
    sizes = [p.shape[0] if p.is_stacked else 1 for p in params]
    return jnp.split(together, list(itertools.accumulate(sizes))[:-1])

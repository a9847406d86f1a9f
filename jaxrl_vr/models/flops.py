"""Model FLOPs: what a model's products take by the field's formula, nothing counted twice.

A token takes 2 FLOPs a parameter forward and 4 more backward, and attention 4 for each pair of a
query with a key it sees (scores and values), over all layers, heads and their size: appendix B of
PaLM, https://arxiv.org/abs/2204.02311, but for its pairs, which are those that are seen: half of a
causal segment's, none between segments, none of padding. Every parameter counts, also those of an
embedding that is only looked up, and of a head at tokens whose log-prob nobody wants.
Rematerialisation is not counted. What a compiled program really does is read in plan.program.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.params import declare, is_param


def num_params(declared: Mapping[str, Any]) -> int:
    """Of a tree of `Param`."""
    leaves: list[Any] = jax.tree.leaves(declared, is_leaf=is_param)
    return sum(math.prod(p.shape) for p in leaves)


def causal_pairs(count: int, before: int = 0) -> int:
    """Pairs of a query with a key it sees, of `count` tokens behind `before` others.

    >>> causal_pairs(3), causal_pairs(2, before=3)
    (6, 9)
    """
    return count * before + count * (count + 1) // 2


def attention_flops(arch: Architecture, pairs: float) -> float:
    """Of one pass forward over all layers."""
    return 4 * arch.layers * arch.heads * arch.head_dim * pairs


def forward_flops(num_params: int, arch: Architecture, tokens: float, pairs: float) -> float:
    """Of one pass forward."""
    return 2 * num_params * tokens + attention_flops(arch, pairs)


def update_flops(num_params: int, arch: Architecture, tokens: float, pairs: float) -> float:
    """Of an optimizer step: forward, and twice that backward."""
    return 3 * forward_flops(num_params, arch, tokens, pairs)


@dataclasses.dataclass(frozen=True)
class Flops:
    """Model FLOPs of passes over whole sequences, by their lengths in tokens.

    Attributes:
      num_params: of the model.
      arch: of its blocks.
    """

    num_params: int
    arch: Architecture

    @classmethod
    def of(cls, arch: Architecture) -> Flops:
        """Those of a language model."""
        return cls(num_params(declare(arch)), arch)

    def score(self, lengths: Iterable[int]) -> float:
        """Of one pass forward over these sequences."""
        return self.sampling((n,) for n in lengths)

    def update(self, lengths: Iterable[int]) -> float:
        """Of an optimizer step on these sequences."""
        return 3 * self.score(lengths)

    def sampling(self, groups: Iterable[Iterable[int]]) -> float:
        """Of sampling groups, each a prompt and its completions: the prompt once, for all of them,
        and every token of the completions behind it."""
        tokens = pairs = 0
        for group in groups:
            prompt, *completions = group
            tokens += prompt + sum(completions)
            pairs += causal_pairs(prompt)
            pairs += sum(causal_pairs(n, before=prompt) for n in completions)
        return forward_flops(self.num_params, self.arch, tokens, pairs)

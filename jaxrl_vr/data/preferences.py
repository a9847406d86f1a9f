"""Preference pairs: a better and a worse completion of one prompt, tokenised."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxrl_vr.data.demonstrations import Demonstration, demonstration
from jaxrl_vr.data.mixture import Mixture
from jaxrl_vr.data.sources import Source, load
from jaxrl_vr.data.streams import Stream, converted
from jaxrl_vr.data.template import Template
from jaxrl_vr.data.tokenizer import Tokenizer
from jaxrl_vr.types import Example


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two completions of one prompt."""

    chosen: Demonstration
    rejected: Demonstration

    @property
    def longest(self) -> int:
        """Tokens of the longer one, prompt and end included."""
        return max(len(self.chosen.ids), len(self.rejected.ids))


def pair(example: Example, template: Template, tokenizer: Tokenizer) -> Pair:
    """Token ids and masks of both completions; prompts are masked, the end tokens train."""
    if example.completion is None or example.rejected is None:
        missing = "completion" if example.completion is None else "rejected"
        raise ValueError(
            f"example {example.source}:{example.id} has no {missing}, and a pair needs both: name "
            f"the field that holds it as fields.{missing}, or take the source out of this stage"
        )
    if example.completion == example.rejected:
        raise ValueError(
            f"example {example.source}:{example.id} prefers {example.completion[:40]!r} to itself, "
            "which teaches nothing; correct or delete the record"
        )
    chosen = demonstration(example, template, tokenizer, loss_on="completion")
    other = dataclasses.replace(example, completion=example.rejected)
    return Pair(chosen, demonstration(other, template, tokenizer, loss_on="completion"))


def pairs(
    stream: Stream[Example], template: Template, tokenizer: Tokenizer, *, max_tokens: int
) -> Stream[Pair]:
    """The stream's pairs of at most `max_tokens` ids each side; `dropped` counts the others."""
    return converted(
        stream,
        lambda example: pair(example, template, tokenizer),
        length=lambda item: item.longest,
        limit=max_tokens,
        limit_name="max_tokens",
        convert_key=f"pair {template.model_dump_json()} {tokenizer.fingerprint}",
    )


def load_pairs(
    sources: Sequence[Source], tokenizer: Tokenizer, *, max_tokens: int, seed: int
) -> Mixture[Pair]:
    """The mixture of all sources' pairs, each under its own template.

    Args:
      sources: their configs.
      tokenizer: of the model.
      max_tokens: pairs with a longer side are left out and counted in `dropped`.
      seed: of the run: the order of draws.
    """
    streams = [
        pairs(load(source, seed=seed), source.template, tokenizer, max_tokens=max_tokens)
        for source in sources
    ]
    return Mixture(streams, seed=seed)

"""Demonstrations: tokens and loss masks for supervised training. Packing is elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from jaxrl_vr.data.mixture import Mixture
from jaxrl_vr.data.sources import Source, load
from jaxrl_vr.data.streams import Stream, converted
from jaxrl_vr.data.template import Template
from jaxrl_vr.data.tokenizer import Tokenizer
from jaxrl_vr.types import Example

LossOn = Literal["completion", "all"]


@dataclasses.dataclass(frozen=True)
class Demonstration:
    """A prompt and the completion to imitate."""

    example: Example  # its `prompt` is the rendered text
    ids: tuple[int, ...]  # prompt, completion, end
    mask: tuple[bool, ...]  # [len(ids)], true where the token trains


def demonstration(
    example: Example, template: Template, tokenizer: Tokenizer, *, loss_on: LossOn
) -> Demonstration:
    """Token ids and loss mask of a demonstration.

    Prompt and completion are tokenised apart and their ids joined, because that is what the sampler
    sees: a prompt, then tokens that never merge with it. The end token trains as well.
    """
    if example.completion is None:
        raise ValueError(
            f"example {example.source}:{example.id} has no completion to imitate: name the field "
            "that holds it (fields.completion, fields.text, or a chat that ends with the "
            "assistant), or take the source out of this stage"
        )
    text, prompt = template.render(example, tokenizer)
    completion = (*tokenizer.encode(example.completion), template.end_id(tokenizer))
    mask = (loss_on == "all",) * len(prompt) + (True,) * len(completion)
    return Demonstration(dataclasses.replace(example, prompt=text), prompt + completion, mask)


def demonstrations(
    stream: Stream[Example],
    template: Template,
    tokenizer: Tokenizer,
    *,
    loss_on: LossOn,
    max_tokens: int,
) -> Stream[Demonstration]:
    """The stream's demonstrations of at most `max_tokens` ids; `dropped` counts the others."""
    return converted(
        stream,
        lambda example: demonstration(example, template, tokenizer, loss_on=loss_on),
        length=lambda item: len(item.ids),
        limit=max_tokens,
        limit_name="max_tokens",
        convert_key=f"demonstration {loss_on} {template.model_dump_json()} {tokenizer.fingerprint}",
    )


def load_demonstrations(
    sources: Sequence[Source], tokenizer: Tokenizer, *, loss_on: LossOn, max_tokens: int, seed: int
) -> Mixture[Demonstration]:
    """The mixture of all sources' demonstrations, each under its own template.

    Args:
      sources: their configs.
      tokenizer: of the model.
      loss_on: `completion` masks the prompt, `all` trains on it too.
      max_tokens: longer demonstrations are left out and counted in `dropped`.
      seed: of the run: the order of draws, and the problems of procedural tasks.
    """
    streams = [
        demonstrations(
            load(source, seed=seed),
            source.template,
            tokenizer,
            loss_on=loss_on,
            max_tokens=max_tokens,
        )
        for source in sources
    ]
    return Mixture(streams, seed=seed)

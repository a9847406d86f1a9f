"""Tokenised prompts: what a rollout starts from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxrl_vr.data.mixture import Mixture
from jaxrl_vr.data.sources import Source, load
from jaxrl_vr.data.streams import Stream, converted
from jaxrl_vr.data.template import Template
from jaxrl_vr.data.tokenizer import Tokenizer
from jaxrl_vr.types import Example


@dataclasses.dataclass(frozen=True)
class Prompt:
    """An example as the model is asked it."""

    example: Example  # its `prompt` is the rendered text, which verifiers look at
    ids: tuple[int, ...]


def prompt(example: Example, template: Template, tokenizer: Tokenizer) -> Prompt:
    """The example rendered and tokenised."""
    text, ids = template.render(example, tokenizer)
    return Prompt(dataclasses.replace(example, prompt=text), ids)


def prompts(
    stream: Stream[Example], template: Template, tokenizer: Tokenizer, *, max_prompt_tokens: int
) -> Stream[Prompt]:
    """The stream's prompts of at most `max_prompt_tokens` ids; `dropped` counts the others."""
    return converted(
        stream,
        lambda example: prompt(example, template, tokenizer),
        length=lambda item: len(item.ids),
        limit=max_prompt_tokens,
        limit_name="max_prompt_tokens",
        convert_key=f"prompt {template.model_dump_json()} {tokenizer.fingerprint}",
    )


def load_prompts(
    sources: Sequence[Source], tokenizer: Tokenizer, *, max_prompt_tokens: int, seed: int
) -> Mixture[Prompt]:
    """The mixture of all sources' prompts, each under its own template.

    Args:
      sources: their configs.
      tokenizer: of the model.
      max_prompt_tokens: longer prompts are left out and counted in `dropped`.
      seed: of the run: the order of draws, and the problems of procedural tasks.
    """
    streams = [
        prompts(
            load(source, seed=seed),
            source.template,
            tokenizer,
            max_prompt_tokens=max_prompt_tokens,
        )
        for source in sources
    ]
    return Mixture(streams, seed=seed)

"""Collecting rollouts: sample and verify at the same time, then hand over whole groups."""

from __future__ import annotations

import dataclasses
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from jaxrl_vr.data.prompts import Prompt
from jaxrl_vr.sampler.engine import Engine
from jaxrl_vr.types import Example, Group, Request, Rollout, Sampling, Score


class Scorer(Protocol):
    """What verifies responses in the background; `verifiers.pool.Pool` is one."""

    @property
    def pending(self) -> int: ...

    def submit(self, job: int, example: Example, response: str) -> None: ...

    def poll(self, timeout: float = 0.0) -> list[tuple[int, Score]]: ...


Progress = Callable[[int, int], None]
"""Called with (rollouts sampled, rollouts verified) whenever either may have changed."""

# Seconds to wait for a verdict once nothing is left to decode.
_PATIENCE = 0.2


def collect(
    engine: Engine,
    scorer: Scorer,
    prompts: Sequence[Prompt],
    n: int,
    sampling: Sampling,
    *,
    key: tuple[int, int],
    decode: Callable[[Sequence[int]], str],
    progress: Progress = lambda sampled, verified: None,
) -> list[Group]:
    """Samples `n` completions of each prompt and verifies each as soon as it is finished.

    Args:
      engine: with nothing in progress.
      scorer: with nothing in progress.
      prompts: rendered and tokenised.
      n: completions of a prompt, G.
      sampling: sampling values and limits.
      key: (seed, step); with the prompt's source and id and the sample's index it decides what is
        sampled, wherever the prompt stands in the batch.
      decode: token ids -> text, for the verifiers only.
      progress: for display.

    Returns:
      A group a prompt, in the order of `prompts`, samples in order.
    """
    words = prompt_words(prompts)
    engine.submit(
        Request(p * n + g, prompt.ids, (*key, words[p], g), sampling)
        for p, prompt in enumerate(prompts)
        for g in range(n)
    )
    rollouts: dict[int, Rollout] = {}
    scores: dict[int, Score] = {}
    while engine.num_unfinished or scorer.pending:
        is_decoding = engine.num_unfinished > 0
        for rollout in engine.step() if is_decoding else ():
            rollouts[rollout.id] = rollout
            example = prompts[rollout.id // n].example
            scorer.submit(rollout.id, example, decode(rollout.token_ids))
        scores |= scorer.poll(0.0 if is_decoding else _PATIENCE)
        progress(len(rollouts), len(scores))
    return [
        Group(
            prompt.example,
            tuple(
                dataclasses.replace(rollouts[i], score=scores[i]) for i in range(p * n, (p + 1) * n)
            ),
        )
        for p, prompt in enumerate(prompts)
    ]


def prompt_words(prompts: Sequence[Prompt]) -> list[int]:
    """The prompt's part of a sampling key: source, id, and which time it stands in this batch."""
    seen: Counter[str] = Counter()
    words = []
    for prompt in prompts:
        name = f"{prompt.example.source}/{prompt.example.id}"
        words.append(zlib.crc32(f"{name}#{seen[name]}".encode()))
        seen[name] += 1
    return words

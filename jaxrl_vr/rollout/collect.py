"""Collecting rollouts: sample and verify at the same time, then hand over whole groups."""

from __future__ import annotations

import contextlib
import dataclasses
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from jaxrl_vr.data.prompts import Prompt
from jaxrl_vr.sampler.contract import Engine
from jaxrl_vr.types import Example, Group, Prefix, Request, Rollout, Sampling, Score


class Scorer(Protocol):
    """What verifies responses in the background; `verifiers.pool.Pool` is one."""

    @property
    def pending(self) -> int: ...

    def submit(self, job: int, example: Example, response: str) -> None: ...

    def poll(self, timeout: float = 0.0) -> list[tuple[int, Score]]: ...


Progress = Callable[[int, int], None]
"""Called with (rollouts sampled, rollouts verified) whenever either may have changed."""

IsOver = Callable[[int, int], bool]
"""Asked with (tokens sampled by this call, groups that are sampled to the end) whether to cut all
that is not finished."""

Waiting = Callable[[], AbstractContextManager[Any]]
"""Makes a context that is open while the host may stand still for verifiers: where it hands over a
response, whose queue may be full, and where it waits for verdicts with nothing left to decode."""

# Seconds to wait for a verdict once nothing is left to decode.
_PATIENCE = 0.2


@dataclasses.dataclass(frozen=True)
class Started:
    """A prompt whose completions are sampled, some of them since an earlier step."""

    prompt: Prompt
    key: tuple[int, int, int]  # (seed, step, prompt) of the step in which it began
    rollouts: tuple[Rollout | None, ...]  # [n]; with a score if finished, None if not begun

    @property
    def is_complete(self) -> bool:
        """Whether all its rollouts are finished and scored."""
        return all(r is not None and r.score is not None for r in self.rollouts)


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
    waiting: Waiting = contextlib.nullcontext,
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
      waiting: to measure waits.

    Returns:
      A group a prompt, in the order of `prompts`, samples in order.
    """
    groups, _ = go_on(
        engine,
        scorer,
        begin(prompts, n, key),
        sampling,
        decode=decode,
        progress=progress,
        waiting=waiting,
        is_over=never,
    )
    return groups


def never(tokens: int, complete: int) -> bool:
    """Samples all to their end."""
    return False


def begin(prompts: Sequence[Prompt], n: int, key: tuple[int, int]) -> list[Started]:
    """Prompts of which nothing is sampled yet, `n` completions each."""
    words = prompt_words(prompts)
    return [Started(p, (*key, word), (None,) * n) for p, word in zip(prompts, words, strict=True)]


def go_on(
    engine: Engine,
    scorer: Scorer,
    started: Sequence[Started],
    sampling: Sampling,
    *,
    decode: Callable[[Sequence[int]], str],
    progress: Progress,
    waiting: Waiting,
    is_over: IsOver,
) -> tuple[list[Group], list[Started]]:
    """Samples what is missing of started prompts, to the end or until it is cut.

    Args:
      engine: with nothing in progress.
      scorer: with nothing in progress.
      started: what there is of each.
      sampling: sampling values and limits.
      decode: token ids -> text, for the verifiers only.
      progress: for display.
      waiting: to measure waits.
      is_over: when to cut.

    Returns:
      The complete groups, and the prompts that are to go on later (Kimi's partial rollouts,
      arXiv:2501.12599), both in the order of `started`.
    """
    n = max((len(s.rollouts) for s in started), default=1)
    rollouts: dict[int, Rollout] = {}
    scores: dict[int, Score] = {}
    missing: Counter[int] = Counter()
    requests = []
    for p, one in enumerate(started):
        for g, rollout in enumerate(one.rollouts):
            if rollout is not None:
                rollouts[p * n + g] = rollout
            if rollout is not None and rollout.score is not None:
                scores[p * n + g] = rollout.score
            else:
                requests.append(_request(p * n + g, one, g, sampling))
                missing[p] += 1
    engine.submit(requests)
    before, is_cut = engine.num_sampled, False
    while engine.num_unfinished or scorer.pending:
        is_decoding = engine.num_unfinished > 0
        for rollout in engine.step() if is_decoding else ():
            rollouts[rollout.id] = rollout
            if rollout.finish == "aborted":
                continue
            missing[rollout.id // n] -= 1
            example = started[rollout.id // n].prompt.example
            response = decode(rollout.token_ids)
            with waiting():
                scorer.submit(rollout.id, example, response)
        if is_decoding:
            scores |= scorer.poll()
        else:
            with waiting():
                scores |= scorer.poll(_PATIENCE)
        progress(sum(r.finish != "aborted" for r in rollouts.values()), len(scores))
        complete = sum(missing[p] == 0 for p in range(len(started)))
        if is_decoding and not is_cut and is_over(engine.num_sampled - before, complete):
            engine.abort(range(n * len(started)))
            is_cut = True
    ended = [
        dataclasses.replace(
            one,
            rollouts=tuple(
                _scored(rollouts.get(p * n + g), scores.get(p * n + g))
                for g in range(len(one.rollouts))
            ),
        )
        for p, one in enumerate(started)
    ]
    groups = [
        Group(one.prompt.example, tuple(r for r in one.rollouts if r is not None))
        for one in ended
        if one.is_complete
    ]
    return groups, [one for one in ended if not one.is_complete]


def _request(id: int, started: Started, sample: int, sampling: Sampling) -> Request:
    before = started.rollouts[sample]
    prefix = Prefix() if before is None else before.as_prefix()
    return Request(id, started.prompt.ids, (*started.key, sample), sampling, prefix)


def _scored(rollout: Rollout | None, score: Score | None) -> Rollout | None:
    return None if rollout is None else dataclasses.replace(rollout, score=score)


def prompt_words(prompts: Sequence[Prompt]) -> list[int]:
    """The prompt's part of a sampling key: source, id, and which time it stands in this batch."""
    seen: Counter[str] = Counter()
    words = []
    for prompt in prompts:
        name = f"{prompt.example.source}/{prompt.example.id}"
        words.append(zlib.crc32(f"{name}#{seen[name]}".encode()))
        seen[name] += 1
    return words

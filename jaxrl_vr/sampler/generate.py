"""`generate`: groups of completions over any engine, for those who need no more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxrl_vr.sampler.contract import Engine
from jaxrl_vr.types import Request, Rollout, Sampling


def generate(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    n: int,
    sampling: Sampling,
    key: tuple[int, int],
) -> Iterator[tuple[int, tuple[Rollout, ...]]]:
    """Samples `n` completions of each prompt.

    Args:
      engine: with nothing else in progress.
      prompts: token ids of each prompt.
      n: completions of a prompt.
      sampling: sampling values and limits.
      key: (seed, step); what is sampled depends on it, the prompt's index and the sample's.

    Yields:
      (index of the prompt, its `n` rollouts in sample order), in the order they finish.

    Raises:
      ValueError: no prompts, n < 1, or a prompt that the engine refuses.
    """
    if not prompts or n < 1:
        raise ValueError(f"generate: {len(prompts)} prompts x n = {n}; give at least one of each")
    engine.submit(
        Request(p * n + g, tuple(prompt), (*key, p, g), sampling)
        for p, prompt in enumerate(prompts)
        for g in range(n)
    )
    groups: dict[int, dict[int, Rollout]] = {}
    try:
        while engine.num_unfinished:
            for rollout in engine.step():
                p, g = divmod(rollout.id, n)
                group = groups.setdefault(p, {})
                group[g] = rollout
                if len(group) == n:
                    yield p, tuple(group[g] for g in range(n))
                    del groups[p]
    finally:
        if engine.num_unfinished:  # the caller has had enough: leave the engine empty
            engine.abort(range(len(prompts) * n))
            engine.step()

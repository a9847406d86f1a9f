"""Sampled rollouts as JSON Lines: what was asked, what came, how it was judged and why."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_vr.metrics.sinks import strict
from jaxrl_vr.types import Group, Rollout


class RolloutLog:
    """Writes one file a step: `FOLDER/step-000012.jsonl`, one line a rollout."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def write(
        self,
        step: int,
        groups: Sequence[Group],
        decode: Callable[[Sequence[int]], str],
        adv: np.ndarray | None = None,
    ) -> Path:
        """Writes the rollouts of one step; a step that is done again is written over.

        Args:
          step: of the stage.
          groups: the rollouts, scored.
          decode: token ids -> text.
          adv: [P, G], or [P, G, T] of each token; None leaves it out of the lines.

        Returns:
          The file.
        """
        path = self._folder / f"step-{step:06d}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        with part.open("w", encoding="utf-8") as file:
            for row, group in enumerate(groups):
                for sample, rollout in enumerate(group.rollouts):
                    line = _line(group, sample, rollout, decode)
                    if adv is not None:
                        # One number, or one for each token; what is behind those is padding.
                        found = adv[row, sample].tolist()
                        is_one = isinstance(found, float)
                        line["advantage"] = found if is_one else found[: len(rollout.token_ids)]
                    file.write(json.dumps(strict(line), ensure_ascii=False) + "\n")
        os.replace(part, path)
        return path


def _line(
    group: Group, sample: int, rollout: Rollout, decode: Callable[[Sequence[int]], str]
) -> dict[str, Any]:
    logp = [v for v, s in zip(rollout.logp, rollout.source, strict=True) if s == "sampled"]
    line: dict[str, Any] = {
        "example": group.example.id,
        "source": group.example.source,
        "sample": sample,
        "prompt": decode(rollout.prompt_ids),
        "text": decode(rollout.token_ids),
        "reference": group.example.reference,
        "finish": rollout.finish,
        "num_tokens": len(rollout.token_ids),
        "logp_mean": sum(logp) / len(logp) if logp else None,
        "tokens": rollout.token_ids,
        "versions": sorted(set(rollout.version)),
    }
    if rollout.score is not None:
        score = rollout.score
        line["score"] = {
            "value": score.value,
            "verdict": score.verdict,
            "components": dict(score.components),
            "reason": score.reason,
        }
    return line

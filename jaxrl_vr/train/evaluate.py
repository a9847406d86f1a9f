"""Evaluation: answers to held-out problems, and what they are worth."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxrl_vr.data.prompts import Prompt
from jaxrl_vr.rollout.collect import collect
from jaxrl_vr.rollout.groups import score_of
from jaxrl_vr.train.context import Context
from jaxrl_vr.train.stages import Task
from jaxrl_vr.types import Group
from jaxrl_vr.verifiers.passk import maj_at_k, pass_at_k
from jaxrl_vr.verifiers.spec import build

# Sampling keys of evaluations are apart from those of every training step.
_EVALUATION_STEP = 2**32 - 1


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Result of one task; rates are means over its problems."""

    stage: str
    step: int | None  # None: not during training
    task: str
    n: int  # problems with at least one scorable answer
    samples: int
    accuracy: float  # avg@k: share of right answers
    pass_at_k: dict[str, float]  # k -> unbiased pass@k
    maj_at_k: float | None  # right by majority vote; None: one sample, or answers have no vote
    truncated_rate: float
    mean_length: float  # tokens
    unscorable: int  # answers left out


@dataclasses.dataclass(frozen=True)
class Answers:
    """An evaluation with the answers it is about."""

    evaluation: Evaluation
    groups: list[Group]


def evaluate(ctx: Context, task: Task, params: Any, stage: str, step: int | None = None) -> Answers:
    """Answers a task's problems with `params` and scores the answers."""
    prompts = task_prompts(ctx, task)
    total = len(prompts) * task.samples

    def progress(sampled: int, verified: int) -> None:
        ctx.interrupt.check()
        ctx.console.phase(f"eval {task.name}", verified, total)

    with ctx.sampling_phase("eval", params, 0) as engine:
        groups = collect(
            engine,
            ctx.pool,
            prompts,
            task.samples,
            ctx.sampling(task.sampling),
            key=(ctx.config.seed, _EVALUATION_STEP),
            decode=ctx.decode,
            progress=progress,
            waiting=ctx.wait_for_rewards,
        )
        tokens = sum(len(r.token_ids) for g in groups for r in g.rollouts)
        ctx.phases.tokens("eval", tokens)
    ctx.pool.metrics()  # of a training step are only its own
    evaluation = summarise(groups, task.name, stage, step, ctx)
    name = f"eval/{task.name}"
    ctx.writer.write(
        stage,
        step or 0,
        {
            f"{name}/accuracy": evaluation.accuracy,
            f"{name}/truncated_rate": evaluation.truncated_rate,
            f"{name}/length": evaluation.mean_length,
            **{f"{name}/pass@{k}": v for k, v in evaluation.pass_at_k.items()},
        },
    )
    at = "" if step is None else f" at step {step}"
    ctx.console.message(
        f"{stage}{at}: {task.name} accuracy {evaluation.accuracy:.4f} over {evaluation.n} "
        f"problems, {evaluation.mean_length:.1f} tokens an answer"
    )
    if evaluation.unscorable:
        reasons = [score_of(r) for g in groups for r in g.rollouts]
        first = next(s.reason for s in reasons if s.verdict == "unscorable")
        ctx.console.warn(
            f"{stage}{at}: {evaluation.unscorable} of {total} answers to {task.name} could not be "
            f"scored and do not count; the first reason: {first}"
        )
    return Answers(evaluation, groups)


def task_prompts(ctx: Context, task: Task) -> list[Prompt]:
    """All prompts of a task, in their own order."""
    mixture = ctx.mixtures.problems(task)
    longest = task.longest_prompt(ctx.model.max_length)
    ctx.report_dropped(f"task {task.name}", mixture.dropped, longest)
    return mixture.everything()


def summarise(
    groups: Sequence[Group], task: str, stage: str, step: int | None, ctx: Context
) -> Evaluation:
    """The numbers of a task from its answers; unscorable answers are left out."""
    right: list[list[bool]] = []
    votes: list[list[str | None]] = []
    rollouts = [r for g in groups for r in g.rollouts]
    scored = [r for r in rollouts if score_of(r).verdict != "unscorable"]
    for group in groups:
        mine = [r for r in group.rollouts if score_of(r).verdict != "unscorable"]
        if mine:
            right.append([score_of(r).verdict == "right" for r in mine])
            if len(group.rollouts) > 1:
                answer = build(group.example.verifier).answer
                votes.append([answer(group.example, ctx.decode(r.token_ids)) for r in mine])
    n = len(right)
    samples = max((len(g.rollouts) for g in groups), default=0)
    powers = [k for k in (1, 2, 4, 8, 16, 32, 64, 128, 256) if k < samples] + [samples]
    return Evaluation(
        stage=stage,
        step=step,
        task=task,
        n=n,
        samples=samples,
        accuracy=_mean([sum(x) / len(x) for x in right]),
        pass_at_k={
            str(k): _mean([pass_at_k(len(x), sum(x), min(k, len(x))) for x in right])
            for k in powers
        },
        maj_at_k=_mean([maj_at_k(a, x) for a, x in zip(votes, right, strict=True)])
        if samples > 1 and any(a is not None for v in votes for a in v)
        else None,
        truncated_rate=_mean([float(r.finish == "length") for r in scored]),
        mean_length=_mean([float(len(r.token_ids)) for r in scored]),
        unscorable=len(rollouts) - len(scored),
    )


def write_answers(ctx: Context, folder: Path, groups: Sequence[Group]) -> None:
    """Writes every answer, the right ones, and pairs.

    `output.jsonl` has every answer, `right.jsonl` the distinct right ones of each problem, and
    `pairs.jsonl`, for each problem with both, the first right and the first wrong answer. Their
    records are what the jsonl source reads: a later stage can train on them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (
        (folder / "output.jsonl").open("w", encoding="utf-8") as every,
        (folder / "right.jsonl").open("w", encoding="utf-8") as right,
        (folder / "pairs.jsonl").open("w", encoding="utf-8") as pairs,
    ):
        for group in groups:
            first: dict[str, dict[str, Any]] = {}  # by verdict
            seen: set[str] = set()
            for g, rollout in enumerate(group.rollouts):
                score = score_of(rollout)
                record = {
                    "id": f"{group.example.source}/{group.example.id}/{g}",
                    "prompt": group.example.prompt,
                    "completion": ctx.decode(rollout.token_ids),
                    "reference": group.example.reference,
                    "finish": rollout.finish,
                    "value": score.value,
                    "verdict": score.verdict,
                    "reason": score.reason,
                }
                line = json.dumps(record, ensure_ascii=False) + "\n"
                every.write(line)
                if score.verdict == "right" and record["completion"] not in seen:
                    seen.add(record["completion"])
                    right.write(line)
                # An empty text is no answer that could be learned from.
                if record["completion"].strip():
                    first.setdefault(score.verdict, record)
            if {"right", "wrong"} <= first.keys():
                pair = {
                    **{key: first["right"][key] for key in ("id", "prompt", "completion")},
                    "rejected": first["wrong"]["completion"],
                    "reference": first["right"]["reference"],
                }
                pairs.write(json.dumps(pair, ensure_ascii=False) + "\n")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0

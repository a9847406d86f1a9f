"""What a config amounts to, in numbers: shown by `--dry-run`. Needs no model and no device."""

from __future__ import annotations

import math

from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.limits import packed_rows
from jaxrl_vr.train.rl_stage import RlStage
from jaxrl_vr.train.stages import DpoStage, SftStage, TrainStage


def arithmetic(config: RunConfig) -> str:
    """One line of numbers a fact, stage by stage."""
    return "\n".join(filter(None, (_stage(config, stage) for stage in config.stages)))


def _stage(config: RunConfig, stage: object) -> str:
    if isinstance(stage, RlStage):
        return _rl(config, stage)
    if isinstance(stage, SftStage):
        return _supervised(config, stage, "demonstrations", 1)
    if isinstance(stage, DpoStage):
        return _supervised(config, stage, "pairs", 2)
    return ""


def _rl(config: RunConfig, stage: RlStage) -> str:
    new = stage.sampling.max_new_tokens
    context = config.model.max_length
    prompt = stage.max_prompt_tokens
    if context is not None:
        prompt = min(prompt or context, context - new)
    rollouts = stage.prompts * stage.samples
    lines = [
        f"stage {stage.name} (rl), {stage.steps} steps",
        f"  rollouts per step      {stage.prompts} prompts x {stage.samples} samples = {rollouts}",
    ]
    dynamic = stage.dynamic_sampling
    if dynamic is not None:
        asked = math.ceil(stage.prompts * dynamic.oversample)
        rollouts = dynamic.max_rounds * asked * stage.samples
        lines.append(
            f"  dynamic sampling       at most {dynamic.max_rounds} rounds x {asked} prompts x "
            f"{stage.samples} samples = {rollouts}"
        )
    lines += [
        f"  completion tokens      at most {rollouts} x {new} = {rollouts * new} per step",
        f"  optimizer steps        {_updates(stage)} per rollout batch, "
        f"{stage.total_updates} in all",
    ]
    if stage.lm_mix is not None:
        lines.append(f"  texts mixed in         {stage.lm_mix.batch} per optimizer step")
    together = stage.sequences_together
    row = stage.micro.row_length or (together * (prompt + new) if prompt else None)
    if row is None or prompt is None:
        lines.append("  micro-batches          depend on the model's context: set model.max_length")
        return "\n".join(lines)
    tokens = rollouts * (prompt + new)
    lines += [
        f"  tokens per step        at most {rollouts} x ({prompt} + {new}) = {tokens}",
        *_micro(
            stage,
            packed_rows(rollouts, prompt + new, row),
            row,
            " (shorter answers pack into fewer)",
        ),
    ]
    return "\n".join(lines)


def _micro(stage: TrainStage, num_rows: int, row: int, behind: str = "") -> list[str]:
    """How a step's rows are cut."""
    if stage.micro.rows == "auto":
        return [f"  micro-batch            as many rows as the memory holds, x {row} tokens"]
    micro = math.ceil(num_rows / stage.micro.rows)
    return [
        f"  micro-batch            {stage.micro.rows} rows x {row} tokens",
        f"  micro-batches          at most {micro} per step{behind}",
    ]


def _updates(stage: RlStage) -> str:
    if isinstance(stage.updates, int):
        return str(stage.epochs * stage.updates)
    return ", ".join(f"{stage.epochs * u.updates} from step {u.step}" for u in stage.updates)


def _supervised(config: RunConfig, stage: SftStage | DpoStage, what: str, together: int) -> str:
    """Of a stage that samples nothing; so many sequences are an item and lie in one row."""
    longest = stage.max_tokens or config.model.max_length
    lines = [
        f"stage {stage.name} ({stage.type}), {stage.steps} steps",
        f"  {what:<22} {stage.batch} per step, {stage.batch * stage.steps} in all",
        f"  optimizer steps        1 per step, {stage.steps} in all",
    ]
    if longest is not None:
        longest *= together
        row = stage.micro.row_length or longest
        lines.append(f"  tokens per step        at most {stage.batch} x {longest}")
        lines += _micro(stage, packed_rows(stage.batch, longest, row), row)
    return "\n".join(lines)

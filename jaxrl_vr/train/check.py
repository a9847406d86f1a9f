"""What is wrong or odd about a config, said before a run begins."""

from __future__ import annotations

import jax

from jaxrl_vr.train.config import RlStage, RunConfig, SftStage, TrainStage


def check_sizes(config: RunConfig, context: int, mesh: jax.sharding.Mesh) -> None:
    """Raises ValueError if a stage or task could fail on its sizes at some later step.

    Args:
      config: of the run.
      context: most tokens that the model takes.
      mesh: devices of the run.
    """
    if mesh.shape["expert"] > 1:
        raise ValueError(
            f"mesh.expert = {mesh.shape['expert']}: the model has no experts to split, so these "
            "devices would all do the same; set it to 1, and give them to data or fsdp"
        )
    for task in config.tasks:
        _check_room(f"tasks.{task.name}", task.sampling.max_new_tokens, context)
    for stage in config.stages:
        if isinstance(stage, TrainStage):
            _check_rows(stage, mesh)
        if isinstance(stage, RlStage):
            new = stage.sampling.max_new_tokens
            _check_room(f"stages.{stage.name}", new, context)
            prompt = min(stage.max_prompt_tokens or context, context - new)
            _check_row_length(
                stage, prompt + new, f"max_prompt_tokens = {prompt} + max_new_tokens = {new}"
            )
        if isinstance(stage, SftStage):
            longest = min(stage.max_tokens or context, context)
            _check_row_length(stage, longest, f"max_tokens = {longest}")


def oddities(config: RunConfig) -> list[str]:
    """What a config asks for that can run but hardly means what it says."""
    found = []
    for stage in config.stages:
        if not isinstance(stage, RlStage):
            continue
        where = f"stages.{stage.name}"
        chosen = sorted(stage.objective.model_fields_set - {"type"})
        if chosen and stage.total_updates == stage.steps:
            found.append(
                f"{where}.objective.{chosen[0]}: with one update per rollout batch the ratio is "
                "1 and nothing is clipped; raise updates, or leave the clip range alone"
            )
        cut = [n for n in ("top_k", "min_p") if getattr(stage.sampling, n)]
        cut += ["top_p"] if stage.sampling.top_p < 1 else []
        if cut:
            found.append(
                f"{where}.sampling.{cut[0]}: rollouts come from a cut distribution, log-probs "
                "and gradient are those of the whole one (policy/kept_mass says how much is left); "
                "leave it out unless you mean that"
            )
        if stage.samples < 4:
            found.append(
                f"{where}.samples = {stage.samples}: few samples make a noisy baseline; 8 is usual"
            )
    return found


def _check_room(where: str, new: int, context: int) -> None:
    if new >= context:
        raise ValueError(
            f"{where}.sampling.max_new_tokens = {new} leaves no room for a prompt in the model's "
            f"context of {context}; lower it"
        )


def _check_rows(stage: TrainStage, mesh: jax.sharding.Mesh) -> None:
    split = mesh.shape["data"] * mesh.shape["fsdp"]
    if stage.micro.rows % split:
        raise ValueError(
            f"stages.{stage.name}.micro.rows = {stage.micro.rows} cannot be split over "
            f"data x fsdp = {split} devices; use {-(-stage.micro.rows // split) * split}"
        )


def _check_row_length(stage: TrainStage, longest: int, sum_of: str) -> None:
    row = stage.micro.row_length
    if row is not None and row < longest:
        raise ValueError(
            f"stages.{stage.name}.micro.row_length = {row}, but a sequence may have {longest} "
            f"tokens ({sum_of}, where what is not set is what the context leaves); raise "
            f"row_length to {longest}, or lower these limits"
        )

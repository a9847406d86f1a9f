"""What is wrong or odd about a config, said before a run begins."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax

from jaxrl_vr.data.tokenizer import Tokenizer
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.sampler.endings import Endings
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.critic import Critic
from jaxrl_vr.train.rl_stage import RlStage
from jaxrl_vr.train.stages import DpoStage, SftStage, TrainStage, tasks_of
from jaxrl_vr.verifiers.pool import Pool


def check_sizes(
    config: RunConfig, arch: Architecture, mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh
) -> None:
    """Raises ValueError if a stage or task could fail on its sizes at some later step, or if an
    axis of the mesh would split nothing.

    Args:
      config: of the run.
      arch: of its model.
      mesh: devices of the run.
    """
    context = arch.max_length
    if mesh.shape["expert"] > 1:
        raise ValueError(
            f"mesh.expert = {mesh.shape['expert']}: the model has no experts to split, so these "
            "devices would all do the same; set it to 1, and give them to data or fsdp"
        )
    _check_model(arch, mesh)
    if any(isinstance(stage, RlStage) or tasks_of(stage) for stage in config.stages):
        _check_slots(config.engine.slots, mesh)
    for task in config.tasks:
        _check_room(f"tasks.{task.name}", task.sampling.max_new_tokens, context)
    for stage in config.stages:
        if isinstance(stage, TrainStage):
            _check_rows(stage, mesh)
            _check_noise_scale(stage, mesh)
        if isinstance(stage, RlStage | DpoStage | SftStage):
            _check_split(stage.name, stage.row_length(context), mesh)
        if isinstance(stage, RlStage):
            new = stage.sampling.max_new_tokens
            _check_room(f"stages.{stage.name}", new, context)
            prompt = stage.longest_prompt(context)
            sum_of = f"max_prompt_tokens = {prompt} + max_new_tokens = {new}"
            if stage.sequences_together > 1:
                sum_of = f"{stage.sequences_together} x ({sum_of}), for a pair lies in one row"
            _check_row_length(stage, stage.sequences_together * (prompt + new), sum_of)
        if isinstance(stage, DpoStage):
            longest = stage.longest(context)
            sum_of = f"2 x (max_tokens = {longest}), for a pair lies in one row"
            _check_row_length(stage, 2 * longest, sum_of)
        if isinstance(stage, SftStage):
            longest = stage.longest(context)
            _check_row_length(stage, longest, f"max_tokens = {longest}")


def check_optimizers(config: RunConfig, model: Transformer) -> None:
    """Raises ValueError if an option of a stage's optimizer cannot act on its parameters."""
    for stage in config.stages:
        if not isinstance(stage, TrainStage):
            continue
        found = [(f"stages.{stage.name}.optimizer", stage.optimizer, model.declare())]
        if isinstance(stage, RlStage) and stage.critic is not None:
            where = f"stages.{stage.name}.critic.optimizer"
            found.append((where, stage.critic.optimizer, Critic(model).declare()))
        for where, optimizer, declared in found:
            try:
                optimizer.transform(declared)
            except ValueError as error:
                raise ValueError(f"{where}.{error}") from None


def check_texts(config: RunConfig, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raises ValueError if a stop string or a forced text of a stage or task cannot act."""
    endings = Endings(tokenizer.decode, vocab_size)
    asked = [(f"stages.{s.name}", s.sampling) for s in config.stages if isinstance(s, RlStage)]
    for where, sampling in [*asked, *((f"tasks.{t.name}", t.sampling) for t in config.tasks)]:
        try:
            values = sampling.values(tokenizer)
        except ValueError as error:
            raise ValueError(f"{where}.{error}") from None
        endings.check(f"{where}.sampling", values)


def check_verifiers(
    config: RunConfig, pool: Pool, waiting: Callable[[], object] = lambda: None
) -> None:
    """Raises ValueError if a verifier of a source does not load: its module, package or sandbox."""
    specs = {
        f"data.{source.name}.verifier": source.verifier
        for source in config.data
        if source.verifier is not None
    }
    pool.check(specs, waiting=waiting)


def oddities(config: RunConfig) -> list[str]:
    """What a config asks for that can run but hardly means what it says."""
    found = []
    for stage in config.stages:
        if not isinstance(stage, TrainStage):
            continue
        where = f"stages.{stage.name}"
        if stage.eval is not None and stage.eval.every > stage.steps:
            found.append(
                f"{where}.eval.every = {stage.eval.every}: the stage has {stage.steps} steps, so "
                "nothing is evaluated along the way; lower it, or leave eval out"
            )
        ema = stage.ema
        if ema is not None and ema.decay**stage.total_updates > 0.5:
            found.append(
                f"{where}.ema.decay = {ema.decay} looks back over some {1 / (1 - ema.decay):.0f} "
                f"optimizer steps, and the stage has {stage.total_updates}, so the average stays "
                f"near the weights it starts from; lower it"
            )
        schedule = stage.optimizer.schedule
        if schedule.warmup_steps >= stage.total_updates > 0:
            found.append(
                f"{where}.optimizer.schedule.warmup_steps = {schedule.warmup_steps}: the stage has "
                f"{stage.total_updates} optimizer steps, so it ends before the full learning rate; "
                "lower it, or raise steps"
            )
        if not isinstance(stage, RlStage):
            continue
        chosen = sorted(stage.objective.model_fields_set & set(stage.objective.clip_fields))
        if chosen and stage.total_updates == stage.steps and stage.objective.has_ratio:
            found.append(
                f"{where}.objective.{chosen[0]}: with one update per rollout batch the ratio is "
                "1 and nothing is clipped; raise updates, or leave the clip range alone"
            )
        if stage.total_updates == stage.steps and any(c.type == "opsm" for c in stage.offpolicy):
            found.append(
                f"{where}.offpolicy: with one update per rollout batch the policy is the one that "
                "sampled, and 'opsm' leaves nothing out; raise updates, or leave it out"
            )
        cut = stage.sampling.cuts
        if cut:
            found.append(
                f"{where}.sampling.{cut[0]}: rollouts come from a cut distribution, log-probs "
                "and gradient are those of the whole one (policy/kept_mass says how much is left); "
                "leave it out unless you mean that"
            )
        if config.engine.weights == "int8" and not stage.offpolicy:
            found.append(
                f"engine.weights = 'int8' with {where}.offpolicy = []: rollouts come from weights "
                "that are rounded, and nothing corrects for it; add { type = 'tis' } and set "
                f"{where}.old_logp = 'recomputed'"
            )
        if stage.objective.is_sequence and not stage.weights.counts_sequences:
            found.append(
                f"{where}.weights = '{stage.weights.type}': objective '{stage.objective.type}' has "
                "the value of the whole rollout at each of its tokens, so that long ones count "
                "more; use { type = 'sequence_mean' } unless you mean that"
            )
        if stage.samples < 4 and stage.advantage.has_group_baseline:
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


def _check_model(arch: Architecture, mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh) -> None:
    """Refuses devices that would each hold a whole parameter, which the rules replicate where its
    size does not divide."""
    sizes = {
        "tensor": {
            "{} query heads": arch.heads,
            "ffn of {}": arch.ffn,
            "{} rows of the embedding": arch.vocab_size,
        },
        "fsdp": {"width of {}": arch.width},
    }
    for axis, of_axis in sizes.items():
        split = mesh.shape[axis]
        for what, size in of_axis.items():
            if size % split:
                works = math.gcd(split, *of_axis.values())
                raise ValueError(
                    f"mesh.{axis} = {split} does not divide the model's {what.format(size)}, so "
                    f"each of its devices would hold all of them; mesh.{axis} = {works} works, "
                    "with the other devices in data"
                )


def _check_slots(slots: int, mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh) -> None:
    split = mesh.shape["data"] * mesh.shape["fsdp"] * mesh.shape["context"]
    if slots % split:
        raise ValueError(
            f"engine.slots = {slots} cannot be split over data x fsdp x context = {split} devices, "
            f"so that several would sample the same; use {-(-slots // split) * split}"
        )


def _check_split(stage: str, row: int, mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh) -> None:
    """Refuses rows that `context` does not divide, of updates and of the scores before them."""
    split = mesh.shape["context"]
    if row % split:
        raise ValueError(
            f"stages.{stage}: mesh.context = {split} cannot split rows of {row} tokens "
            f"(micro.row_length, by default the longest that may come); set micro.row_length = "
            f"{-(-row // split) * split}, or mesh.context = {math.gcd(row, split)}"
        )


def _check_rows(stage: TrainStage, mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh) -> None:
    split = mesh.shape["data"] * mesh.shape["fsdp"]
    if stage.micro.rows != "auto" and stage.micro.rows % split:
        raise ValueError(
            f"stages.{stage.name}.micro.rows = {stage.micro.rows} cannot be split over "
            f"data x fsdp = {split} devices; use {-(-stage.micro.rows // split) * split}"
        )


def _check_noise_scale(
    stage: TrainStage, mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh
) -> None:
    """Refuses the noise scale where an update can never have two micro-batches."""
    if not stage.diagnostics.gradient_noise_scale:
        return
    rows = stage.micro.rows
    if rows == "auto":
        raise ValueError(
            f"stages.{stage.name}.diagnostics.gradient_noise_scale compares micro-batches, and "
            "micro.rows = 'auto' makes as few as the memory allows; give micro.rows a number"
        )
    if isinstance(stage, RlStage):
        if stage.dynamic_sampling is not None:
            return  # as many groups train as have contrast
        groups = -(-stage.prompts // stage.fewest_updates)
        is_pairs = stage.sequences_together > 1
        most = groups * (1 if is_pairs else stage.samples)
        of_each = "a pair" if is_pairs else f"samples = {stage.samples}"
        given = f"prompts = {stage.prompts} in updates = {stage.fewest_updates} with {of_each} each"
        more = "prompts"
        if stage.lm_mix is not None:
            most += stage.lm_mix.batch
            given += f", and lm_mix.batch = {stage.lm_mix.batch}"
    else:
        assert isinstance(stage, SftStage | DpoStage), stage
        most, given, more = stage.batch, f"batch = {stage.batch}", "batch"
    if most > rows:
        return
    split = mesh.shape["data"] * mesh.shape["fsdp"]
    works = split * (max(-(-most // 2), split) // split)
    where = f"stages.{stage.name}"
    fix = f"set {where}.micro.rows = {works}"
    if works >= most:
        fix = (
            f"raise {where}.{more} until an update has more than {split} rows, the fewest of a "
            f"micro-batch over data x fsdp = {split} devices"
        )
    raise ValueError(
        f"{where}.diagnostics.gradient_noise_scale compares micro-batches, and an update would "
        f"never have two: {given} fills at most {most} rows, and micro.rows = {rows}; {fix}"
    )


def _check_row_length(stage: TrainStage, longest: int, sum_of: str) -> None:
    row = stage.micro.row_length
    if row is not None and row < longest:
        raise ValueError(
            f"stages.{stage.name}.micro.row_length = {row}, but a sequence may have {longest} "
            f"tokens ({sum_of}, where what is not set is what the context leaves); raise "
            f"row_length to {longest}, or lower these limits"
        )

"""What is wrong or odd about a config, said before a run begins."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import jax
from jax.sharding import AbstractMesh, Mesh

from jaxrl_vr.data.tokenizer import Tokenizer
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.sampler.endings import Endings
from jaxrl_vr.sharding import MeshMismatch
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.critic import Critic
from jaxrl_vr.train.rl_stage import RlStage
from jaxrl_vr.train.stages import DpoStage, SftStage, TrainStage, tasks_of
from jaxrl_vr.verifiers.pool import Pool

M = TypeVar("M", Mesh, AbstractMesh)


@dataclasses.dataclass(frozen=True)
class Problem:
    """What a run could not do on its devices.

    Attributes:
      setting: that would have to change, such as engine.slots.
      text: the error; names the value and one that works.
      off: how far the value is from the one that works, where that is a number.
    """

    setting: str
    text: str
    off: int = 0


def checked_mesh(config: RunConfig, arch: Architecture, make: Callable[[], M]) -> M:
    """The mesh of a run, by which all its sizes can be split.

    Args:
      config: of the run.
      arch: of its model.
      make: makes the mesh.

    Raises:
      ValueError: a stage or task could fail on its sizes at some later step, an axis of the mesh
        would split nothing, or the axes do not make up the devices. Lists all that is found, a
        line each; with the values that the lines name together the run works.
    """
    try:
        mesh = make()
    except MeshMismatch as error:
        others = problems(config, arch, error.works)
        raise ValueError("\n".join([str(error), *map(_with_that, others)])) from None
    found = problems(config, arch, mesh.shape)
    if found:
        raise ValueError("\n".join(problem.text for problem in found))
    return mesh


def problems(config: RunConfig, arch: Architecture, mesh: Mapping[str, int]) -> list[Problem]:
    """What keeps a run from a mesh, given by the sizes of its axes.

    Where the model cannot be split, the rest is of the mesh that the first lines say works.
    """
    of_mesh, works = _mesh_problems(arch, mesh)
    rest = list(_problems_on(config, arch.max_length, works))
    if of_mesh:
        rest = [dataclasses.replace(one, text=_with_that(one)) for one in rest]
    return [*of_mesh, *rest]


def _with_that(problem: Problem) -> str:
    return f"with that, {problem.text.removeprefix('with that, ')}"


def _problems_on(config: RunConfig, context: int, mesh: Mapping[str, int]) -> Iterator[Problem]:
    """Of stages and tasks, on a mesh that splits the model."""
    if any(isinstance(stage, RlStage) or tasks_of(stage) for stage in config.stages):
        yield from _slots_problem(config.engine.slots, mesh)
    for task in config.tasks:
        yield from _room_problem(f"tasks.{task.name}", task.sampling.max_new_tokens, context)
    for stage in config.stages:
        of_rows = list(_rows_problem(stage, mesh)) if isinstance(stage, TrainStage) else []
        yield from of_rows
        if isinstance(stage, RlStage):
            new = stage.sampling.max_new_tokens
            of_room = list(_room_problem(f"stages.{stage.name}", new, context))
            if of_room:
                yield from of_room
                continue  # without a prompt there is no row
            prompt = stage.longest_prompt(context)
            longest = stage.sequences_together * (prompt + new)
            sum_of = f"max_prompt_tokens = {prompt} + max_new_tokens = {new}"
            if stage.sequences_together > 1:
                sum_of = f"{stage.sequences_together} x ({sum_of}), for a pair lies in one row"
        elif isinstance(stage, DpoStage):
            longest = 2 * stage.longest(context)
            sum_of = f"2 x (max_tokens = {stage.longest(context)}), for a pair lies in one row"
        elif isinstance(stage, SftStage):
            longest = stage.longest(context)
            sum_of = f"max_tokens = {longest}"
        else:
            continue
        of_length = list(_row_length_problem(stage, context, longest, sum_of, mesh))
        yield from of_length
        if not of_rows and not of_length:
            yield from _noise_scale_problem(stage, stage.row_length(context) // longest, mesh)


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
    if config.engine.attention == "pallas" and jax.default_backend() == "cpu":
        found.append(
            'engine.attention = "pallas": on CPU the kernels are interpreted, which is slow and '
            'for tests; use "auto"'
        )
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
        micro, split = stage.micro, config.mesh.context
        if micro.share_prefixes and "share_prefixes" in micro.model_fields_set and split > 1:
            found.append(
                f"{where}.micro.share_prefixes = true: with mesh.context = {split} rows are split, "
                "and what they begin with alike is computed in each of them; leave it out, or set "
                "mesh.context = 1"
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


def _room_problem(where: str, new: int, context: int) -> Iterator[Problem]:
    if new >= context:
        setting = f"{where}.sampling.max_new_tokens"
        yield Problem(
            setting,
            f"{setting} = {new} leaves no room for a prompt in the model's context of {context}; "
            "lower it",
        )


def _mesh_problems(
    arch: Architecture, mesh: Mapping[str, int]
) -> tuple[list[Problem], dict[str, int]]:
    """Axes that split nothing, or whose devices would each hold a whole parameter, as the rules
    replicate where its size does not divide; and the sizes of axes that work."""
    of_axis = {
        "tensor": {
            f"{arch.heads} query heads": arch.heads,
            f"ffn of {arch.ffn}": arch.ffn,
            f"{arch.vocab_size} rows of the embedding": arch.vocab_size,
        },
        "fsdp": {f"width of {arch.width}": arch.width},
    }
    found, works = [], dict(mesh)
    if mesh["expert"] > 1:
        works["expert"] = 1
        found.append(
            Problem(
                "mesh.expert",
                f"mesh.expert = {mesh['expert']}: the model has no experts to split, so these "
                "devices would all do the same; set it to 1, and give them to data or fsdp",
            )
        )
    for axis, sizes in of_axis.items():
        split = mesh[axis]
        whole = [what for what, size in sizes.items() if size % split]
        if whole:
            works[axis] = math.gcd(split, *sizes.values())
            found.append(
                Problem(
                    f"mesh.{axis}",
                    f"mesh.{axis} = {split} does not divide the model's {_listed(whole)}, so each "
                    f"of its devices would hold all of them; mesh.{axis} = {works[axis]} works, "
                    "with the other devices in data",
                )
            )
    works["data"] = math.prod(mesh.values()) // math.prod({**works, "data": 1}.values())
    return found, works


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _slots_problem(slots: int, mesh: Mapping[str, int]) -> Iterator[Problem]:
    split = mesh["data"] * mesh["fsdp"] * mesh["context"]
    if slots % split:
        works = -(-slots // split) * split
        yield Problem(
            "engine.slots",
            f"engine.slots = {slots} cannot be split over data x fsdp x context = {split} devices, "
            f"so that several would sample the same; use {works}",
            works - slots,
        )


def _rows_problem(stage: TrainStage, mesh: Mapping[str, int]) -> Iterator[Problem]:
    split = mesh["data"] * mesh["fsdp"]
    if stage.micro.rows != "auto" and stage.micro.rows % split:
        works = -(-stage.micro.rows // split) * split
        yield Problem(
            f"stages.{stage.name}.micro.rows",
            f"stages.{stage.name}.micro.rows = {stage.micro.rows} cannot be split over "
            f"data x fsdp = {split} devices; use {works}",
            works - stage.micro.rows,
        )


def _noise_scale_problem(
    stage: RlStage | DpoStage | SftStage, of_row: int, mesh: Mapping[str, int]
) -> Iterator[Problem]:
    """A noise scale of updates that can never have two micro-batches; a row holds at least so many
    sequences (or pairs), however long."""
    if not stage.diagnostics.gradient_noise_scale:
        return
    rows = stage.micro.rows
    setting = f"stages.{stage.name}.diagnostics.gradient_noise_scale"
    if rows == "auto":
        yield Problem(
            setting,
            f"{setting} compares micro-batches, and micro.rows = 'auto' makes as few as the memory "
            "allows; give micro.rows a number",
        )
        return
    if isinstance(stage, RlStage):
        if stage.dynamic_sampling is not None:
            return  # as many groups train as have contrast
        groups = -(-stage.prompts // stage.fewest_updates)
        is_pairs = stage.sequences_together > 1
        most = -(-groups * (1 if is_pairs else stage.samples) // of_row)
        of_each = "a pair" if is_pairs else f"samples = {stage.samples}"
        given = f"prompts = {stage.prompts} in updates = {stage.fewest_updates} with {of_each} each"
        more = "prompts"
        if stage.lm_mix is not None:
            most += stage.lm_mix.batch
            given += f", and lm_mix.batch = {stage.lm_mix.batch}"
    else:
        most, given, more = -(-stage.batch // of_row), f"batch = {stage.batch}", "batch"
    if most > rows:
        return
    split = mesh["data"] * mesh["fsdp"]
    works = split * (max(-(-most // 2), split) // split)
    where = f"stages.{stage.name}"
    fix = f"set {where}.micro.rows = {works}"
    if works >= most:
        fix = (
            f"raise {where}.{more} until an update has more than {split} rows, the fewest of a "
            f"micro-batch over data x fsdp = {split} devices"
        )
    yield Problem(
        setting,
        f"{setting} compares micro-batches, and an update would never have two: {given} fills at "
        f"most {most} rows, and micro.rows = {rows}; {fix}",
    )


def _row_length_problem(
    stage: RlStage | DpoStage | SftStage,
    context: int,
    longest: int,
    sum_of: str,
    mesh: Mapping[str, int],
) -> Iterator[Problem]:
    """Rows that are too short, or that `context` does not divide, of updates and of the scores
    before them."""
    setting, split = f"stages.{stage.name}.micro.row_length", mesh["context"]
    row, given = stage.row_length(context), stage.micro.row_length
    if given is not None and given < longest:
        works = -(-longest // split) * split
        yield Problem(
            setting,
            f"{setting} = {given}, but a sequence may have {longest} tokens ({sum_of}, where what "
            f"is not set is what the context leaves); raise row_length to {works}, or lower these "
            "limits",
            works - given,
        )
    elif row % split:
        works = -(-row // split) * split
        yield Problem(
            setting,
            f"stages.{stage.name}: mesh.context = {split} cannot split rows of {row} tokens "
            "(micro.row_length, by default the longest that may come); set micro.row_length = "
            f"{works}, or mesh.context = {math.gcd(row, split)}",
            works - row,
        )

"""The policy's compiled update, as every stage that trains makes it, and what it is compiled of."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jax

from jaxrl_vr.models.params import abstract
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.rollout.batch import Shape
from jaxrl_vr.sharding import TRAIN_RULES
from jaxrl_vr.train.carried import Carried
from jaxrl_vr.train.context import Context
from jaxrl_vr.train.critic import Critic, CriticConfig, critic_learner
from jaxrl_vr.train.folder import write_json
from jaxrl_vr.train.limits import Rollouts, packed_rows
from jaxrl_vr.train.micro import Update, micro_shape, shape_of
from jaxrl_vr.train.objectives import Objective, policy_objective, preferences, supervised
from jaxrl_vr.train.rl_stage import RlStage
from jaxrl_vr.train.stages import DpoStage, SftStage
from jaxrl_vr.train.state import TrainState, abstract_state
from jaxrl_vr.train.update import Learner, policy_loss, policy_score

_FOUND = "micro.json"  # in a stage's folder: the rows that were found for it


def learner_of(
    stage: SftStage | DpoStage | RlStage, model: Transformer, mesh: jax.sharding.Mesh
) -> Learner:
    """The compiled update of a stage's policy."""
    transform = stage.optimizer.transform(model.declare())
    loss = policy_loss(model, _objective(stage))
    probe = stage.diagnostics.probe(model.declare())
    return Learner(loss, policy_score(model), transform, mesh, probe)


def _objective(stage: SftStage | DpoStage | RlStage) -> Objective:
    if isinstance(stage, RlStage):
        parts = stage.kl, stage.entropy_bonus, stage.offpolicy
        return policy_objective(stage.objective, *parts)
    return preferences if isinstance(stage, DpoStage) else supervised


def update_of(
    stage: SftStage | DpoStage | RlStage,
    model: Transformer,
    mesh: jax.sharding.Mesh,
    learner: Learner,
    teacher: Transformer | None = None,
) -> Update:
    """What an optimizer step of a stage is compiled of, every sequence at its longest.

    Args:
      stage: that trains.
      model: of the policy.
      mesh: where it lives.
      learner: from `learner_of`.
      teacher: the model of an RL stage's teacher.
    """
    if isinstance(stage, RlStage):
        rollouts = Rollouts.of(stage, model.max_length)
        row_length = stage.row_length(model.max_length)
        num_rows = rollouts.num_rows(row_length, stage.updates_at(0), model.most_sequences)
        numbers = Carried.of(stage, {}).numbers(stage)
        reference = stage.has_reference
    else:
        together = 2 if isinstance(stage, DpoStage) else 1
        longest = together * stage.longest(model.max_length)
        most = model.most_sequences and model.most_sequences // together
        num_rows = packed_rows(stage.batch, longest, stage.row_length(model.max_length), most)
        numbers = {"beta": stage.beta} if isinstance(stage, DpoStage) else {}
        reference = isinstance(stage, DpoStage)
    params = abstract(model.declare(), TRAIN_RULES, mesh)
    frozen: dict[str, Any] = {"reference": params} if reference else {}
    if teacher is not None:
        frozen["teacher"] = abstract(teacher.declare(), TRAIN_RULES, mesh)
    state = abstract_state(params, frozen, learner.transform, has_ema=stage.ema is not None)
    if isinstance(stage, RlStage) and stage.critic is not None:
        state = dataclasses.replace(state, critic=_critic_state(stage.critic, model, mesh))
    return Update(learner, state, numbers, _optional(stage), num_rows, model.remat)


def critic_update_of(
    stage: RlStage, critic: CriticConfig, model: Transformer, mesh: jax.sharding.Mesh
) -> Update:
    """What the critic's optimizer step is compiled of."""
    rollouts, row_length = Rollouts.of(stage, model.max_length), stage.row_length(model.max_length)
    return Update(
        critic_learner(critic, model, mesh),
        _critic_state(critic, model, mesh),
        critic.numbers,
        _optional(stage),
        rollouts.num_rows(row_length, stage.updates_at(0), model.most_sequences),
        model.remat,
    )


def _critic_state(critic: CriticConfig, model: Transformer, mesh: jax.sharding.Mesh) -> TrainState:
    declared = Critic(model).declare()
    transform = critic.optimizer.transform(declared)
    return abstract_state(abstract(declared, TRAIN_RULES, mesh), {}, transform)


def stage_shape(
    ctx: Context,
    stage: SftStage | DpoStage | RlStage,
    learner: Learner,
    teacher: Transformer | None = None,
) -> Shape:
    """The shape of a stage's micro-batches; compiles where the config leaves it to us, and keeps
    what it found in the stage's folder."""
    model, mesh = ctx.model, ctx.mesh

    def update() -> Update:
        return update_of(stage, model, mesh, learner, teacher)

    row_length = stage.row_length(model.max_length)
    rows = _kept_rows(ctx, stage, row_length) if stage.micro.rows == "auto" else None
    if rows is not None:
        shape = shape_of(stage, row_length, rows, mesh)
    else:
        shape = micro_shape(stage, row_length, mesh, update, ctx.console.message)
        if stage.micro.rows == "auto":
            found = {"rows": shape.rows, "row_length": row_length}
            write_json(ctx.stage_folder(stage.name) / _FOUND, found)
    return dataclasses.replace(shape, sequences=model.most_sequences)


def _kept_rows(ctx: Context, stage: SftStage | DpoStage | RlStage, row_length: int) -> int | None:
    """Those that were found when the stage began: a resumed run cuts its updates as before,
    whatever memory it has now. None: there are none, or none for these rows and this mesh."""
    file, mesh = ctx.stage_folder(stage.name) / _FOUND, ctx.mesh
    if not file.is_file():
        return None
    kept = json.loads(file.read_text(encoding="utf-8"))
    splits = kept["rows"] % (mesh.shape["data"] * mesh.shape["fsdp"]) == 0
    return kept["rows"] if kept["row_length"] == row_length and splits else None


def _optional(stage: SftStage | DpoStage | RlStage) -> tuple[str, ...]:
    """Names of the optional arrays of a stage's batches."""
    if isinstance(stage, DpoStage):
        return ("ref_logp",)
    if not isinstance(stage, RlStage):
        return ()
    has = {
        "ref_logp": stage.has_ref_logp,
        "old_value": stage.critic is not None,
        "returns": stage.critic is not None,
        "imitation": stage.positive_nll is not None or stage.lm_mix is not None,
        "selected": stage.objective.selects,
    }
    return tuple(name for name, is_there in has.items() if is_there)

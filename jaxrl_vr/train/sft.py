"""The supervised stage: maximum likelihood of demonstrations, packed."""

from __future__ import annotations

import jax
import numpy as np

from jaxrl_vr.metrics.accumulate import Accumulator
from jaxrl_vr.models.flops import Flops
from jaxrl_vr.rollout.batch import Trajectory, build
from jaxrl_vr.train.context import Context
from jaxrl_vr.train.evaluate import Evaluation
from jaxrl_vr.train.loop import Cursor, run_stage, take
from jaxrl_vr.train.policy import learner_of, stage_shape
from jaxrl_vr.train.stages import SftStage
from jaxrl_vr.train.state import TrainState
from jaxrl_vr.train.update import Rates


def run_sft(ctx: Context, stage: SftStage) -> tuple[object, list[Evaluation]]:
    """Runs the stage; returns the final parameters and its evaluations."""
    max_tokens = stage.longest(ctx.model.max_length)
    mixture = ctx.mixtures.demonstrations(stage)
    ctx.report_dropped(stage.name, mixture.dropped, max_tokens)
    learner = learner_of(stage, ctx.model, ctx.mesh)
    shape = stage_shape(ctx, stage, learner)
    flops = Flops.of(ctx.model.arch)

    def advance(
        state: TrainState, step: int, cursor: Cursor, metrics: Accumulator
    ) -> tuple[TrainState, Cursor]:
        demonstrations, cursor, dropped = take(mixture, stage.batch, cursor)
        metrics.add(dropped)
        trajectories = []
        for demonstration in demonstrations:
            mask = np.array(demonstration.mask)
            mask[0] = False  # nothing predicts the first token
            trajectories.append(Trajectory(np.array(demonstration.ids), mask))
        lengths = np.array([t.num_trained for t in trajectories])
        with ctx.phases("update"):
            weight = stage.weights(lengths, np.arange(len(lengths)), max_tokens)
            deal = stage.diagnostics.deal(ctx.config.stage_seed(stage), step)
            batch = learner.place(build(trajectories, weight, shape, deal=deal))
            rate = stage.optimizer.rate(step, stage.steps)
            rates = Rates(rate, stage.optimizer.max_grad_norm, stage.ema_decay)
            state, found = learner.update(state, batch, {}, rates)
            with ctx.phases.fetching():
                found = jax.device_get(found)
            metrics.add(found)
            tokens = [len(t.token_ids) for t in trajectories]
            ctx.phases.tokens("update", sum(tokens))
            ctx.phases.flops("update", flops.update(tokens))
        return state, cursor

    return run_stage(ctx, stage, mixture.start(), advance)

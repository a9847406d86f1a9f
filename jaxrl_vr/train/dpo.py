"""The preference stage: DPO on pairs of completions, packed; a pair lies in one row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from jaxrl_vr.data.demonstrations import Demonstration
from jaxrl_vr.data.preferences import Pair
from jaxrl_vr.metrics.accumulate import Accumulator
from jaxrl_vr.models.flops import Flops
from jaxrl_vr.rollout.batch import Batch, Shape, Trajectory, build, unpack
from jaxrl_vr.sharding import to_host
from jaxrl_vr.train.context import Context
from jaxrl_vr.train.evaluate import Evaluation
from jaxrl_vr.train.loop import Cursor, run_stage, starting_weights, take
from jaxrl_vr.train.policy import learner_of, stage_shape
from jaxrl_vr.train.stages import DpoStage
from jaxrl_vr.train.state import TrainState
from jaxrl_vr.train.update import Rates
from jaxrl_vr.train.weights import SequenceMean

_PAIR = 2  # sequences of a row that belong together


def run_dpo(ctx: Context, stage: DpoStage) -> tuple[object, list[Evaluation]]:
    """Runs the stage; returns the final parameters and its evaluations."""
    mixture = ctx.mixtures.pairs(stage)
    ctx.report_dropped(stage.name, mixture.dropped, stage.longest(ctx.model.max_length))
    learner = learner_of(stage, ctx.model, ctx.mesh)
    shape = stage_shape(ctx, stage, learner)
    flops = Flops.of(ctx.model.arch)

    def advance(
        state: TrainState, step: int, cursor: Cursor, metrics: Accumulator
    ) -> tuple[TrainState, Cursor]:
        pairs, cursor, dropped = take(mixture, stage.batch, cursor)
        metrics.add(dropped)
        every = _trajectories(pairs)
        lengths = [len(t.token_ids) for t in every]
        with ctx.phases("score"):
            batch = learner.place(build(every, np.zeros(len(every)), shape))
            asked = learner.score(state.frozen["reference"], batch)
            with ctx.phases.fetching():
                ref_logp = to_host(asked)["logp"]
            ctx.phases.tokens("score", sum(lengths))
            ctx.phases.flops("score", flops.score(lengths))
        with ctx.phases("update"):
            deal = stage.diagnostics.deal(ctx.config.stage_seed(stage), step)
            batch = _batch(every, unpack(ref_logp, every, shape), shape, deal)
            batch = learner.place(batch)
            rate = stage.optimizer.rate(step, stage.steps)
            rates = Rates(rate, stage.optimizer.max_grad_norm, stage.ema_decay)
            state, found = learner.update(state, batch, {"beta": stage.beta}, rates)
            with ctx.phases.fetching():
                found = jax.device_get(found)
            metrics.add(found)
            ctx.phases.tokens("update", sum(lengths))
            ctx.phases.flops("update", flops.update(lengths))
        return state, cursor

    frozen = {"reference": starting_weights}
    return run_stage(ctx, stage, mixture.start(), advance, frozen=frozen)


def _trajectories(pairs: Sequence[Pair]) -> list[Trajectory]:
    """The preferred and the other answer of each pair, one behind the other."""
    return [
        _trajectory(side, preference, i)
        for i, pair in enumerate(pairs)
        for side, preference in ((pair.chosen, 1.0), (pair.rejected, -1.0))
    ]


def _batch(
    every: Sequence[Trajectory],
    ref_logp: Sequence[np.ndarray],
    shape: Shape,
    deal: Sequence[int] | None,
) -> Batch:
    """The batch of one optimizer step, in which each pair counts once; `deal` is `build`'s."""
    scored = [
        dataclasses.replace(t, ref_logp=array) for t, array in zip(every, ref_logp, strict=True)
    ]
    tokens = np.array([t.num_trained for t in scored]).reshape(-1, _PAIR).sum(1)
    weight = np.repeat(SequenceMean()(tokens, np.arange(len(tokens)), shape.row_length), _PAIR)
    return build(scored, weight, shape, together=_PAIR, deal=deal)


def _trajectory(side: Demonstration, preference: float, group: int) -> Trajectory:
    mask = np.array(side.mask)
    mask[0] = False  # nothing predicts the first token
    return Trajectory(np.array(side.ids), mask, adv=preference, group=group)

"""The loop that every training stage shares: resume, step, log, evaluate, save, end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp

from jaxrl_vr.checkpoint import Checkpoints, SaveFailed, parameter_hash
from jaxrl_vr.data.mixture import Mixture
from jaxrl_vr.metrics.accumulate import Accumulator
from jaxrl_vr.train.context import Context
from jaxrl_vr.train.evaluate import Evaluation, evaluate
from jaxrl_vr.train.interrupt import Interrupted
from jaxrl_vr.train.profile import missed, traced
from jaxrl_vr.train.stages import TrainStage
from jaxrl_vr.train.state import TrainState, create
from jaxrl_vr.types import Mean, Metrics
from jaxrl_vr.verifiers.tally import TooManyUnscorable

Cursor = dict[str, Any]
_PHASES = ("rollout", "score", "advantage", "update")  # of a step
T = TypeVar("T")


class Advance(Protocol):
    """One step of a stage.

    It may raise `Interrupted` and `TooManyUnscorable`, but only before it has touched the state,
    which it donates.
    """

    def __call__(
        self, state: TrainState, step: int, cursor: Cursor, metrics: Accumulator
    ) -> tuple[TrainState, Cursor]: ...


@dataclasses.dataclass
class _Progress:
    """Where a stage is, between two steps."""

    state: TrainState
    step: int
    cursor: Cursor
    evaluations: list[Evaluation]
    frozen: dict[str, str]  # name -> hash of the parameters that never change


def take(mixture: Mixture[T], n: int, cursor: Cursor) -> tuple[list[T], Cursor, Metrics]:
    """The next items of a mixture, the cursor behind them, and what was too long to be one."""
    before = mixture.dropped_draws
    items, cursor = mixture.take(n, cursor)
    dropped = mixture.dropped_draws - before
    is_endless = any(stream.size is None for stream in mixture.streams)
    metrics: Metrics = {"data/dropped": Mean(dropped, dropped + n)} if is_endless else {}
    return items, cursor, metrics


def run_stage(
    ctx: Context,
    stage: TrainStage,
    start: Cursor,
    advance: Advance,
    *,
    frozen: Mapping[str, Callable[[Any], Any]] | None = None,
    make_critic: Callable[[Any], TrainState] | None = None,
) -> tuple[Any, list[Evaluation]]:
    """Trains a stage to its end, from its checkpoint if it has one.

    Args:
      ctx: the run.
      stage: its config.
      start: the data cursor before the first step.
      advance: one step.
      frozen: name -> from the starting weights to parameters that the state keeps and that never
        change; they are not saved, because they can be made again.
      make_critic: from the starting weights to a critic's state; None: no critic.

    Returns:
      The final parameters (their average, where the stage ends with that), and the evaluations
      along the way.

    Raises:
      Interrupted, TooManyUnscorable: after everything was saved.
    """
    transform = stage.optimizer.transform(ctx.model.declare())
    folder = ctx.stage_folder(stage.name) / "checkpoints"
    settings = ctx.config.checkpoint
    with Checkpoints(folder, keep=settings.keep, asynchronous=settings.asynchronous) as saved:
        at = _restore(ctx, stage, saved, transform, frozen or {}, make_critic, start)
        ctx.console.stage(stage.name, stage.steps, at.step)
        restored = at.step
        noise = _NoiseWatch(ctx, stage)
        _say_missed(ctx, stage, restored)
        while True:
            try:
                ctx.interrupt.check()
                _evaluate_due(ctx, stage, at)
                # After the evaluation, so that what is resumed from step s has all that s has.
                if at.step > restored and at.step % settings.every == 0:
                    _save(ctx, saved, at)
                if at.step >= stage.steps:
                    break
                metrics = Accumulator()
                with traced(
                    stage.profile,
                    at.step + 1,
                    name=stage.name,
                    folder=ctx.stage_folder(stage.name),
                    console=ctx.console,
                ):
                    began = time.perf_counter()
                    state, cursor = advance(at.state, at.step, at.cursor, metrics)
                    spent = time.perf_counter() - began
            except (Interrupted, TooManyUnscorable):
                _save(ctx, saved, at)
                _settle(ctx, saved)
                if saved.latest() == at.step:
                    ctx.console.message(f"saved {stage.name} at step {at.step}")
                raise
            at = dataclasses.replace(at, state=state, step=at.step + 1, cursor=cursor)
            speed = ctx.phases.step()
            result = metrics.result() | speed
            in_phases = sum(speed.get(f"speed/{name}_s", 0.0) for name in _PHASES)
            result |= {"time/step_s": spent, "time/other_s": spent - in_phases}
            ctx.writer.write(stage.name, at.step, result)
            ctx.console.step(at.step, result)
            noise(at.step, result)
            for of, name in (("", "optimizer/skipped"), (" of the critic", "critic/skipped")):
                if result.get(name):
                    ctx.console.warn(
                        f"{stage.name} step {at.step}: loss or gradient{of} was not finite; "
                        f"{100 * result[name]:.0f} % of its updates were skipped"
                    )
        _settle(ctx, saved)
    ends_with_average = stage.ema is not None and stage.ema.final
    return at.state.ema if ends_with_average else at.state.trainable, at.evaluations


def starting_weights(init: Any) -> Any:
    """A copy of them: those that train are donated at the first update."""
    return jax.tree.map(jnp.copy, init)


def _say_missed(ctx: Context, stage: TrainStage, restored: int) -> None:
    """Of the steps that were to be traced, those that were done before."""
    profile = stage.profile
    if profile is not None and (steps := missed(profile, ctx.stage_folder(stage.name), restored)):
        ctx.console.warn(
            f"stages.{stage.name}.profile.steps = {list(profile.steps)}: steps {steps} were done "
            f"before and are not traced; name some between {restored + 1} and {stage.steps}"
        )


def _evaluate_due(ctx: Context, stage: TrainStage, at: _Progress) -> None:
    if stage.eval is None or at.step == 0 or at.step % stage.eval.every:
        return
    done = {e.task for e in at.evaluations if e.step == at.step}
    is_of_average = stage.ema is not None and stage.ema.evaluate
    weights = at.state.ema if is_of_average else at.state.trainable
    for name in stage.eval.tasks:
        if name not in done:
            answers = evaluate(ctx, ctx.config.task(name), weights, stage.name, at.step)
            at.evaluations.append(answers.evaluation)


class _NoiseWatch:
    """Says, once a stage, that a step had too few micro-batches for the noise scale."""

    def __init__(self, ctx: Context, stage: TrainStage):
        self._ctx = ctx
        self._stage = stage
        self._is_due = stage.diagnostics.gradient_noise_scale

    def __call__(self, step: int, result: Mapping[str, float]) -> None:
        # 0 where the policy was updated, each time by something finite.
        if not self._is_due or result.get("optimizer/skipped") != 0 or "noise/signal" in result:
            return
        self._is_due = False
        name, rows = self._stage.name, self._stage.micro.rows
        self._ctx.console.warn(
            f"{name} step {step}: no gradient noise scale, because what an update trains on fits "
            f"into one micro-batch of {rows} rows; lower stages.{name}.micro.rows or "
            f"micro.row_length, or let an update train on more"
        )


def _save(ctx: Context, saved: Checkpoints, at: _Progress) -> None:
    # What is frozen can be made again.
    arrays = dataclasses.replace(at.state, frozen={})
    host = {
        "cursor": at.cursor,
        "evaluations": [dataclasses.asdict(e) for e in at.evaluations],
        "frozen": at.frozen,
    }
    _settle(ctx, saved)
    try:
        saved.save(at.step, arrays, host)
    except SaveFailed as error:
        _lost(ctx, error)


def _settle(ctx: Context, saved: Checkpoints) -> None:
    """Waits for the save in the background; a failed one costs neither the run nor the next."""
    try:
        saved.wait()
    except SaveFailed as error:
        _lost(ctx, error)


def _lost(ctx: Context, error: SaveFailed) -> None:
    ctx.console.warn(f"{error}; the run goes on with the checkpoints before it")


def _restore(
    ctx: Context,
    stage: TrainStage,
    saved: Checkpoints,
    transform: Any,
    make_frozen: Mapping[str, Callable[[Any], Any]],
    make_critic: Callable[[Any], TrainState] | None,
    start: Cursor,
) -> _Progress:
    init = ctx.load_init(stage)
    frozen = {name: make(init) for name, make in make_frozen.items()}
    hashes = {name: parameter_hash(params) for name, params in frozen.items()}
    critic = None if make_critic is None else make_critic(init)
    state = create(init, {}, transform, has_ema=stage.ema is not None)
    state = dataclasses.replace(state, critic=critic)
    step = saved.latest()
    if step is not None and step > stage.steps:
        raise ValueError(
            f"stages.{stage.name}.steps = {stage.steps}, but the run has a checkpoint of step "
            f"{step}; set it to {step} or more, or choose another run_dir"
        )
    # What was written behind the checkpoint is done again.
    ctx.writer.truncate(stage.name, -1 if step is None else step)
    if step is None:
        return _Progress(dataclasses.replace(state, frozen=frozen), 0, start, [], hashes)
    host = saved.host(step)
    for name, now in hashes.items():
        if host["frozen"][name] != now:
            where = f"init = {stage.init!r}" if name == "reference" else f"its {name}"
            raise ValueError(
                f"stages.{stage.name}: the weights of {where}, its {name}, are no longer those of "
                f"step {step} (hash {host['frozen'][name]}, now {now}); put them back, or choose "
                "another run_dir"
            )
    target = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), state
    )
    del state, init, critic
    state = saved.restore(step, target)
    ctx.console.message(f"resuming {stage.name} at step {step} of {stage.steps}")
    return _Progress(
        dataclasses.replace(state, frozen=frozen),
        step,
        host["cursor"],
        [Evaluation(**e) for e in host["evaluations"]],
        hashes,
    )

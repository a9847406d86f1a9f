"""The jitted update: one optimizer step over the micro-batches of a packed batch.

M micro-batches, b rows, T tokens of a row, D model width.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl_vr import losses
from jaxrl_vr.arrays import Max, Mean, Metric, Metrics, Min, merge_metrics
from jaxrl_vr.losses.logprobs import token_logprobs
from jaxrl_vr.models.distinct import Distinct
from jaxrl_vr.models.params import Params
from jaxrl_vr.models.transformer import Model
from jaxrl_vr.rollout.batch import Batch
from jaxrl_vr.sharding import TRAIN_RULES, num_shards, place, sharding_of
from jaxrl_vr.train import ema
from jaxrl_vr.train.diagnostics import NO_PROBE, Probe
from jaxrl_vr.train.objectives import Numbers, Objective
from jaxrl_vr.train.state import TrainState
from jaxrl_vr.train.transform import Transform, kept_as, to_devices

# Of the tokens of a device, as float32: half a GB at most. More are computed again in the backward
# pass.
_KEPT_LOGITS = 2**27


class Rates(NamedTuple):
    """Numbers of the optimizer step, traced."""

    learning_rate: float | jax.Array
    max_grad_norm: float | jax.Array
    ema_decay: float | jax.Array | None = None  # None: the state keeps no average


def row_logprobs(model: Model, params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Log-prob and entropy of every token of one micro-batch, at the token itself.

    Args:
      model: static.
      params: parameters.
      batch: [b, T] arrays.

    Returns:
      logp and entropy, each [b, T] float32; 0 where a token neither trains nor is imitated.
    """
    wanted = _has_gradient(batch)
    hidden = hidden_states(model, params, batch)
    # hidden[:, t] gives the token at t + 1; the last of a row gives none.
    of_next = jax.tree.map(
        lambda a: jnp.pad(a[:, 1:], ((0, 0), (0, 1)), constant_values=0),
        (batch.tokens, batch.temperature, wanted),
    )
    rows, length = num_shards(("batch", "length"), batch.tokens.shape)
    b, T = batch.tokens.shape
    with jax.named_scope("head"):
        arrays = [_to_shards(a, rows, length) for a in (hidden, *of_next)]
        found = token_logprobs(
            arrays[0],
            model.head(params),
            *arrays[1:],
            shards=rows * length,
            kept_logits=_KEPT_LOGITS,
        )
    logp, entropy = (_from_shards(a, b, T, rows, length) for a in found)
    return jnp.roll(logp, 1, axis=1), jnp.roll(entropy, 1, axis=1)


def hidden_states(model: Model, params: Params, batch: Batch) -> jax.Array:
    """[b, T, D] final hidden states of one micro-batch."""
    distinct = None
    if batch.distinct_place is not None and batch.distinct_token is not None:
        distinct = Distinct(place=batch.distinct_place, token=batch.distinct_token)
    return model.hidden(params, batch.tokens, batch.positions, batch.segment_ids, distinct)


def _has_gradient(batch: Batch) -> jax.Array:
    """[...] bool, tokens that train or are imitated."""
    return batch.mask if batch.imitation is None else batch.mask | (batch.imitation > 0)


def _to_shards(a: jax.Array, rows: int, length: int) -> jax.Array:
    """[b, T, ...] -> [N, ...], the tokens of a device next to each other."""
    b, T, *rest = a.shape
    a = a.reshape(rows, b // rows, length, T // length, *rest)
    return a.swapaxes(1, 2).reshape(b * T, *rest)


def _from_shards(a: jax.Array, b: int, T: int, rows: int, length: int) -> jax.Array:
    """[N] -> [b, T]."""
    return a.reshape(rows, length, b // rows, T // length).swapaxes(1, 2).reshape(b, T)


def imitation_metrics(logp: jax.Array, batch: Batch) -> Metrics:
    """Likelihood of what is imitated: right rollouts, and texts that were mixed in."""
    assert batch.imitation is not None, "the batch has something to imitate"
    is_imitated = batch.imitation > 0
    _, of_rollouts = losses.positive_nll(logp, is_imitated, batch.mask)
    _, of_texts = losses.pretraining_mix(logp, is_imitated & ~batch.mask)
    return jax.lax.stop_gradient(of_rollouts | of_texts)


MicroLoss = Callable[[Params, Batch, Numbers], tuple[jax.Array, Metrics]]
"""(parameters, micro-batch, numbers) -> weighted sum of the loss, and metrics."""


def policy_loss(model: Model, objective: Objective) -> MicroLoss:
    """The objective over one micro-batch."""

    def loss(params: Params, batch: Batch, numbers: Numbers) -> tuple[jax.Array, Metrics]:
        logp, entropy = row_logprobs(model, params, batch)
        with jax.named_scope("loss"):
            of_tokens, metrics = objective(logp, entropy, batch, numbers)
            value = jnp.sum(jnp.where(batch.mask, batch.weight * of_tokens, 0.0))
        if batch.imitation is not None:
            value = value - jnp.sum(jnp.where(batch.imitation > 0, batch.imitation * logp, 0.0))
            metrics = metrics | imitation_metrics(logp, batch)
        return value, metrics

    return loss


def gradients(
    params: Params,
    batch: Batch,
    numbers: Numbers,
    *,
    loss: MicroLoss,
    probe: Probe = NO_PROBE,
    frozen: Any = None,
) -> tuple[jax.Array, Params, Metrics]:
    """Loss, gradient (float32) and metrics of a whole batch, micro-batch by micro-batch.

    What is `frozen` (bool by parameter; None: nothing) has a gradient of 0, which is not computed.
    """

    def of_trained(trained: Any, micro: Batch) -> tuple[jax.Array, Metrics]:
        return loss(_with_frozen(trained, params, frozen), micro, numbers)

    compute = jax.value_and_grad(of_trained, has_aux=True)

    def one(trained: Any, micro: Batch) -> tuple[jax.Array, Any, Metrics]:
        (value, metrics), grad = compute(trained, micro)
        return value, grad, metrics | probe.of_micro(_with_zeros(grad, params, frozen))

    trained = without_frozen(params, frozen)
    first = jax.tree.map(lambda a: a[0], batch)
    value, grad, metrics = jax.eval_shape(one, trained, first)
    nothing = (_zeros(value), _zeros(grad), {k: _neutral(m) for k, m in metrics.items()})

    def add(carry: tuple[jax.Array, Params, Metrics], micro: Batch) -> tuple[Any, None]:
        def work() -> tuple[jax.Array, Params, Metrics]:
            value, grad, metrics = one(trained, micro)
            return (
                carry[0] + value,
                jax.tree.map(jnp.add, carry[1], grad),
                merge_metrics(carry[2], metrics),
            )

        # Batches are padded to few sizes with micro-batches of nothing; those cost nothing.
        return jax.lax.cond(jnp.any(_has_gradient(micro)), work, lambda: carry), None

    value, grad, metrics = jax.lax.scan(add, nothing, batch)[0]
    return value, _with_zeros(grad, params, frozen), metrics


def without_frozen(params: Any, frozen: Any) -> Any:
    """The parameters with None in the place of those that are frozen (bool by parameter)."""
    if frozen is None:
        return params
    return jax.tree.map(lambda is_frozen, p: None if is_frozen else p, frozen, params)


def _with_frozen(trained: Any, params: Params, frozen: Any) -> Params:
    """What `without_frozen` left, with the frozen parameters back in their places."""
    if frozen is None:
        return trained
    return jax.tree.map(lambda is_frozen, p, t: p if is_frozen else t, frozen, params, trained)


def _with_zeros(grad: Any, params: Params, frozen: Any) -> Params:
    """The gradient of what is trained, with zeros in the place of what is frozen."""
    if frozen is None:
        return grad
    return _with_frozen(grad, jax.tree.map(jnp.zeros_like, params), frozen)


def _zeros(tree: Any) -> Any:
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), tree)


def _neutral(metric: Metric) -> Metric:
    """What merging leaves the other side of as it is."""
    match metric:
        case Mean():
            return _zeros(metric)
        case Min():
            return Min(jnp.full(metric.value.shape, jnp.inf, metric.value.dtype))
        case Max():
            return Max(jnp.full(metric.value.shape, -jnp.inf, metric.value.dtype))


def update(
    state: TrainState,
    batch: Batch,
    numbers: Numbers,
    rates: Rates,
    *,
    loss: MicroLoss,
    transform: Transform,
    probe: Probe = NO_PROBE,
) -> tuple[TrainState, Metrics]:
    """One optimizer step.

    A step whose loss or gradient is not finite changes no weight, no average of them and no
    optimizer state, and is counted in `optimizer/skipped`; the step counter, and with it every
    schedule, still advances.

    Args:
      state: donated.
      batch: [M, b, T] arrays.
      numbers: the objective's numbers, traced.
      rates: learning rate, gradient clip and, where the state keeps one, decay of the average;
        traced.
      loss, transform: static.
      probe: what else is measured, static.

    Returns:
      The state after, and metrics.
    """
    value, grad, metrics = gradients(
        state.trainable, batch, numbers, loss=loss, probe=probe, frozen=transform.frozen
    )
    norm, unclipped = optax.tree.norm(grad), grad
    metrics = probe.of_gradient(metrics, norm, batch)
    is_finite = jnp.isfinite(value) & jnp.isfinite(norm)
    scale = jnp.minimum(1.0, rates.max_grad_norm / jnp.maximum(norm, 1e-12))
    # where, not times zero: 0 * inf is NaN, and the moments would keep it.
    grad = jax.tree.map(lambda g: jnp.where(is_finite, g * scale, 0.0), grad)
    with jax.named_scope("optimizer"):
        steps, optimizer = transform.update(grad, state.optimizer, state.trainable)
        trainable = jax.tree.map(lambda p, s: p - rates.learning_rate * s, state.trainable, steps)
    metrics |= probe.of_step(unclipped, state.trainable, steps, rates.learning_rate, is_finite)
    keep = functools.partial(jnp.where, is_finite)
    average = state.ema
    if average is not None:
        assert rates.ema_decay is not None, "a state with an average is updated with its decay"
        average = ema.moved(average, trainable, rates.ema_decay)
        average = jax.tree.map(keep, average, state.ema)
    state = TrainState(
        trainable=jax.tree.map(keep, trainable, state.trainable),
        frozen=state.frozen,
        optimizer=jax.tree.map(keep, optimizer, state.optimizer),
        step=state.step + 1,
        ema=average,
    )
    return state, metrics | {
        "loss/total": Mean(value, jnp.int32(1)),
        "optimizer/grad_norm": Mean(norm, jnp.int32(1)),
        "optimizer/grad_norm_max": Max(norm),
        "optimizer/skipped": Mean(jnp.int32(~is_finite), jnp.int32(1)),
        "optimizer/learning_rate": Mean(jnp.float32(rates.learning_rate), jnp.int32(1)),
    }


def _placed_shapes(batch: Batch, mesh: jax.sharding.Mesh) -> Batch:
    """The shapes of a batch, with where its arrays lie."""

    def placed(a: Any, sharding: jax.sharding.Sharding) -> Any:
        return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding)

    found: Batch = jax.tree.map(placed, batch, _batch_shardings(batch, mesh))
    return found


def _batch_shardings(batch: Batch, mesh: jax.sharding.Mesh) -> Any:
    axes = ("micro", "batch", "length")
    return jax.tree.map(lambda a: sharding_of(axes, TRAIN_RULES, mesh, a.shape), batch)


Score = Callable[[Params, Batch], dict[str, jax.Array]]
"""(parameters, micro-batch) -> [b, T] float32 arrays by name, a number for every token."""


def policy_score(model: Model) -> Score:
    """The log-prob of every token of one micro-batch, and the entropy of its choice."""

    def score(params: Params, batch: Batch) -> dict[str, jax.Array]:
        logp, entropy = row_logprobs(model, params, batch)
        return {"logp": logp, "entropy": entropy}

    return score


class Scorer:
    """The compiled scoring pass of one kind of model.

    Args:
      score: what is asked of every token, without a gradient.
      mesh: where parameters live; rows are split over `data` and `fsdp`.
    """

    def __init__(self, score: Score, mesh: jax.sharding.Mesh):
        self._mesh = mesh

        def score_all(params: Params, batch: Batch) -> dict[str, jax.Array]:
            def one(_: None, micro: Batch) -> tuple[None, dict[str, jax.Array]]:
                def work() -> dict[str, jax.Array]:
                    return score(params, micro)

                nothing = _zeros(jax.eval_shape(work))
                return None, jax.lax.cond(jnp.any(micro.mask), work, lambda: nothing)

            with jax.named_scope("score"):
                return jax.lax.scan(one, None, batch)[1]

        self._score = jax.jit(score_all)

    def __call__(self, params: Params, batch: Batch) -> dict[str, jax.Array]:
        """The scores of every token, [M, b, T] float32, 0 in micro-batches that hold nothing."""
        with jax.set_mesh(self._mesh):
            return self._score(params, batch)

    def lower(self, params: Params, batch: Batch) -> Any:
        """What a call runs, lowered for parameters' shapes with shardings and a batch's shapes."""
        with jax.set_mesh(self._mesh):
            return self._score.lower(params, _placed_shapes(batch, self._mesh))


class Learner:
    """The compiled update of one set of parameters, and the scoring pass over them.

    Args:
      loss: what is minimised.
      score: what is asked of every token, without a gradient.
      transform: optimizer, for a learning rate of 1 downhill.
      mesh: where parameters live; rows are split over `data` and `fsdp`.
      probe: what else is measured.
    """

    def __init__(
        self,
        loss: MicroLoss,
        score: Score,
        transform: Transform,
        mesh: jax.sharding.Mesh,
        probe: Probe = NO_PROBE,
    ):
        self.score = Scorer(score, mesh)
        self.transform = transform
        self._mesh = mesh
        step = functools.partial(update, loss=loss, transform=transform, probe=probe)

        def keep_sharding(state: TrainState, *rest: Any) -> tuple[TrainState, Metrics]:
            shardings = self._shardings
            with jax.named_scope("update"):
                after, metrics = step(to_devices(state, shardings), *rest)
            return kept_as(after, shardings), metrics

        self._shardings: Any = None
        self._update = jax.jit(keep_sharding, donate_argnums=0)

    def place(self, batch: Batch) -> Batch:
        """The batch on the devices, rows and length split by the rules table."""
        return place(batch, _batch_shardings(batch, self._mesh))

    def update(
        self, state: TrainState, batch: Batch, numbers: Numbers, rates: Rates
    ) -> tuple[TrainState, Metrics]:
        """One optimizer step; `state` is donated."""
        self._keep_shardings(state)
        with jax.set_mesh(self._mesh):
            return self._update(state, batch, dict(numbers), rates)

    def lower(self, state: TrainState, batch: Batch, numbers: Numbers, rates: Rates) -> Any:
        """What `update` runs, lowered for a state's shapes with shardings and a batch's shapes."""
        self._keep_shardings(state)
        batch = _placed_shapes(batch, self._mesh)
        with jax.set_mesh(self._mesh):
            return self._update.lower(state, batch, dict(numbers), rates)

    def _keep_shardings(self, state: TrainState) -> None:
        if self._shardings is None:
            self._shardings = jax.tree.map(lambda a: a.sharding, state)

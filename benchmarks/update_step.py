"""An optimizer step of the learner, to be timed: clipped policy gradient with AdamW."""

from __future__ import annotations

import time
from typing import Any

import jax

from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.rollout.batch import Batch
from jaxrl_vr.train import state as train_state
from jaxrl_vr.train.micro import bytes_of
from jaxrl_vr.train.objectives import PpoClip, policy_objective
from jaxrl_vr.train.optimizer import AdamW
from jaxrl_vr.train.update import Learner, Rates, policy_loss, policy_score


class Step:
    """An optimizer step; called with the turn's number, it returns its seconds.

    Attributes:
      planned_bytes: what the compiled step takes of the device, as a plan counts it.
    """

    def __init__(self, model: Transformer, params: Any, mesh: Any, batch: Batch):
        """Gives up `params` to the state."""
        objective, optimizer = PpoClip(), AdamW(learning_rate=1e-6)
        transform = optimizer.transform(model.declare())
        loss = policy_loss(model, policy_objective(objective, None, None, ()))
        self._learner = Learner(loss, policy_score(model), transform, mesh)
        self._numbers = {"objective": objective.numbers, "offpolicy": []}
        self._rates = Rates(optimizer.learning_rate, optimizer.max_grad_norm)
        self._state = train_state.create(params, {}, transform)
        self._batch = self._learner.place(batch)
        arguments = self._state, self._batch, self._numbers, self._rates
        memory = self._learner.lower(*arguments).compile().memory_analysis()
        self.planned_bytes = bytes_of(memory)

    def __call__(self, _: int) -> float:
        """Seconds of the step."""
        arguments = self._batch, self._numbers, self._rates
        start = time.perf_counter()
        self._state, metrics = jax.block_until_ready(self._learner.update(self._state, *arguments))
        seconds = time.perf_counter() - start
        assert not metrics["optimizer/skipped"].sum, "a skipped update does not count"
        return seconds

"""AdamW and its schedule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from jaxrl_vr.models.params import Param
from jaxrl_vr.train.optimizer import AdamW, Schedule

DECLARED = {
    "matrix": Param((2, 3), ("embed", "ffn"), 0.5, "matrix"),
    "norm": Param((3,), ("embed",), None, "norm"),
    "bias": Param((3,), ("embed",), 0.0, "bias"),
}


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adamw_by_hand(decay):
    config = AdamW(learning_rate=0.02, b1=0.8, b2=0.9, eps=1e-6, weight_decay=decay)
    rng = np.random.default_rng(0)
    params, *grads = (
        {n: rng.normal(size=p.shape).astype(np.float32) for n, p in DECLARED.items()}
        for _ in range(4)
    )
    transform = config.transform(DECLARED)
    found, state = params, transform.init(params)
    for grad in grads:
        steps, state = transform.update(grad, state, found)
        found = jax.tree.map(lambda p, s: p - config.learning_rate * s, found, steps)
    for name in DECLARED:
        expected = reference.adamw(
            params[name],
            [grad[name] for grad in grads],
            rate=0.02,
            b1=0.8,
            b2=0.9,
            eps=1e-6,
            decay=decay if name == "matrix" else 0.0,  # norms and biases do not decay
        )
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6)


def test_first_step_of_adamw_is_the_sign_of_the_gradient():
    transform = AdamW(learning_rate=1.0).transform({"norm": DECLARED["norm"]})
    params = {"norm": jnp.ones(3)}
    steps, _ = transform.update(
        {"norm": jnp.array([3.0, -0.01, 0.0])}, transform.init(params), params
    )
    np.testing.assert_allclose(steps["norm"], [1, -1, 0], rtol=1e-5)


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({}, {0: 1.0, 50: 1.0, 1000: 1.0}),
        # 3 steps of warmup: 1/4, 2/4, 3/4, then the full rate
        ({"warmup_steps": 3}, {0: 0.25, 1: 0.5, 2: 0.75, 3: 1.0, 99: 1.0}),
        ({"type": "linear"}, {0: 1.0, 25: 0.75, 50: 0.5, 100: 0.0, 200: 0.0}),
        ({"type": "linear", "end_fraction": 0.1}, {0: 1.0, 50: 0.55, 100: 0.1, 200: 0.1}),
        # falls from step 20 to 100: the middle is 60
        ({"type": "linear", "warmup_steps": 20}, {19: 20 / 21, 20: 1.0, 60: 0.5, 100: 0.0}),
        ({"type": "linear", "total_steps": 10}, {0: 1.0, 5: 0.5, 10: 0.0, 50: 0.0}),
        # (1 + cos(pi / 4)) / 2 = 0.853553
        ({"type": "cosine"}, {0: 1.0, 25: 0.853553, 50: 0.5, 75: 0.146447, 100: 0.0, 101: 0.0}),
        ({"type": "cosine", "end_fraction": 0.2}, {0: 1.0, 50: 0.6, 100: 0.2}),
        ({"type": "cosine", "warmup_steps": 50, "total_steps": 150}, {100: 0.5, 150: 0.0}),
        # a warmup as long as the stage: full rate, then the end
        ({"type": "linear", "warmup_steps": 100}, {99: 100 / 101, 100: 1.0, 101: 0.0}),
    ],
)
def test_schedule(fields, expected):
    schedule = Schedule(**fields)
    for step, factor in expected.items():
        assert schedule(step, 100) == pytest.approx(factor, abs=1e-6), step
        rate = AdamW(learning_rate=2e-3, schedule=schedule).rate(step, 100)
        assert rate == pytest.approx(2e-3 * factor, abs=1e-9)


@given(
    st.sampled_from(["linear", "cosine"]),
    st.integers(0, 30),
    st.integers(1, 60),
    st.floats(0, 1),
    st.one_of(st.none(), st.integers(1, 60)),
)
def test_schedule_rises_then_falls(kind, warmup, stage, end, total):
    warmup = warmup if total is None else min(warmup, total)
    schedule = Schedule(type=kind, warmup_steps=warmup, end_fraction=end, total_steps=total)
    factors = [schedule(step, stage) for step in range(100)]
    assert factors[:warmup] == sorted(factors[:warmup])
    assert all(0 < f < 1 for f in factors[:warmup])
    assert factors[warmup:] == sorted(factors[warmup:], reverse=True)
    assert factors[warmup] == 1.0
    assert factors[-1] == pytest.approx(end)


def test_a_total_of_its_own_keeps_the_schedule_when_the_stage_grows():
    schedule = Schedule(type="cosine", warmup_steps=5, total_steps=50)
    assert [schedule(s, 50) for s in range(60)] == [schedule(s, 500) for s in range(60)]


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"end_fraction": 0.1}, "end_fraction = 0.1 cannot act with type = 'constant'"),
        ({"total_steps": 10}, "total_steps = 10 cannot act with type = 'constant'"),
        ({"type": "step"}, "'constant', 'linear' or 'cosine'"),
        ({"type": "linear", "end_fraction": 1.5}, "end_fraction"),
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"warmup": 1}, "warmup"),
    ],
)
def test_schedules_that_cannot_act(fields, says):
    with pytest.raises(ValidationError) as error:
        Schedule(**fields)
    assert says in str(error.value)


@pytest.mark.parametrize(
    "fields",
    [{"learning_rate": 0}, {"b1": 1.0}, {"eps": 0.0}, {"weight_decay": -0.1}, {"max_grad_norm": 0}],
    ids=lambda f: next(iter(f)),
)
def test_adamw_refuses_what_cannot_be(fields):
    with pytest.raises(ValidationError, match=next(iter(fields))):
        AdamW(**{"learning_rate": 1e-3, **fields})

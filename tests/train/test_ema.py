"""The moving average of the weights: one update after another, by hand and on a mesh."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from pydantic import ValidationError

from jaxrl_vr.models.fakes import UniformModel
from jaxrl_vr.models.params import init
from jaxrl_vr.rollout.batch import Shape, Trajectory, build
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh
from jaxrl_vr.train.ema import Ema, moved
from jaxrl_vr.train.objectives import Reinforce, policy_objective
from jaxrl_vr.train.state import abstract_state, create
from jaxrl_vr.train.transform import Transform
from jaxrl_vr.train.update import Learner, Rates, policy_loss, policy_score

MODEL = UniformModel(8)
LOSS = policy_loss(MODEL, policy_objective(Reinforce(), None, None, ()))
NUMBERS = {"objective": {}, "offpolicy": []}


@functools.cache
def mesh_of(devices, **sizes):
    return make_mesh(MeshConfig(**sizes), jax.devices()[:devices])


def batch_of(adv=1.0):
    """Eight answers of one token, 0 to 7, of which the last counts `adv`."""
    every = [
        Trajectory(np.array([0, v]), np.array([False, True]), adv=1.0 if v < 7 else adv)
        for v in (1, 1, 1, 2, 3, 3, 6, 7)
    ]
    return build(every, np.full(8, 1 / 8, np.float32), Shape(row_length=2, rows=8))


def learner_on(mesh):
    return Learner(LOSS, policy_score(MODEL), Transform(*optax.identity()), mesh)


def state_on(mesh, *, has_ema=True):
    params = init(MODEL.declare(), jax.random.key(0), TRAIN_RULES, mesh)
    return create(params, {}, Transform(*optax.identity()), has_ema=has_ema)


MESHES = {"one": (1, {}), "eight": (8, dict(data=2, fsdp=2, tensor=2))}


@pytest.mark.parametrize("devices, sizes", MESHES.values(), ids=MESHES.keys())
def test_the_average_by_hand(devices, sizes):
    mesh = mesh_of(devices, **sizes)
    learner, state = learner_on(mesh), state_on(mesh)
    plain = state_on(mesh, has_ema=False)
    place = state.trainable["head"].sharding
    assert state.ema["head"].sharding == place
    expected = np.zeros((8, 1))
    others = learner_on(mesh)
    for decay, adv in ((0.5, 1.0), (0.9, 2.0), (0.25, -3.0)):
        batch = learner.place(batch_of(adv))
        state, _ = learner.update(state, batch, NUMBERS, Rates(0.5, 10.0, decay))
        plain, _ = others.update(plain, batch, NUMBERS, Rates(0.5, 10.0))
        weights = np.asarray(state.trainable["head"], np.float64)
        assert np.abs(weights).max() > 0.05
        expected = decay * expected + (1 - decay) * weights
        np.testing.assert_allclose(state.ema["head"], expected, atol=1e-7)
        # What trains does not know of it.
        np.testing.assert_array_equal(state.trainable["head"], plain.trainable["head"])
    assert plain.ema is None
    assert state.ema["head"].sharding == place
    assert state.ema["head"].dtype == jnp.float32
    # Decays are traced.
    assert learner._update._cache_size() == 1


def test_a_skipped_update_leaves_the_average():
    learner, state = learner_on(mesh_of(1)), state_on(mesh_of(1))
    rates = Rates(0.5, 10.0, 0.5)
    state, _ = learner.update(state, learner.place(batch_of()), NUMBERS, rates)
    before = jax.device_get(state)
    state, metrics = learner.update(state, learner.place(batch_of(np.nan)), NUMBERS, rates)
    assert int(metrics["optimizer/skipped"].sum) == 1
    # Weights and average differ, so an update with unchanged weights would show.
    assert np.abs(before.ema["head"] - before.trainable["head"]).max() > 0.01
    np.testing.assert_array_equal(state.ema["head"], before.ema["head"])


def test_it_begins_as_a_copy_of_the_weights_and_is_donated():
    state = state_on(mesh_of(1))
    np.testing.assert_array_equal(state.ema["head"], state.trainable["head"])
    assert state.ema["head"] is not state.trainable["head"]
    learner = learner_on(mesh_of(1))
    learner.update(state, learner.place(batch_of()), NUMBERS, Rates(0.5, 10.0, 0.5))
    assert state.ema["head"].is_deleted()


def test_shapes_of_a_state_are_those_of_the_state():
    mesh = mesh_of(8, data=2, fsdp=2, tensor=2)
    state = state_on(mesh)
    shapes = abstract_state(state.trainable, {}, Transform(*optax.identity()), has_ema=True)
    same = jax.tree.map(
        lambda a, s: (a.shape, a.dtype, a.sharding) == (s.shape, s.dtype, s.sharding),
        dataclasses.replace(state, step=None),
        dataclasses.replace(shapes, step=None),
    )
    assert len(jax.tree.leaves(same)) == 2 and all(jax.tree.leaves(same))


def test_an_average_of_equal_weights_stays():
    weights = {"a": jnp.asarray(np.random.default_rng(0).normal(size=1000), jnp.float32)}
    after = jax.jit(moved)(weights, weights, 0.9999)
    np.testing.assert_array_equal(after["a"], weights["a"])


@pytest.mark.parametrize(
    "given, said",
    [
        ({"decay": 1.0}, "less than or equal to 0.999999"),
        ({"decay": 0.0}, "greater than 0"),
        ({"decay": 0.9, "evaluate": False, "final": False}, "leave ema out"),
    ],
    ids=["never-moves", "is-the-weights", "unread"],
)
def test_an_average_that_cannot_act_is_refused(given, said):
    with pytest.raises(ValidationError, match=said):
        Ema(**given)

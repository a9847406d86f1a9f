"""The optimizer step: what an update does to its state, and when it does nothing."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from updates import (
    MODEL,
    NUMBERS,
    RATES,
    REINFORCE,
    ROLLOUTS,
    ROW_LOGPROBS,
    SHAPE,
    baseline,
    batch_of,
    host_params,
    learner_and_batch,
    learner_on,
    loss_of,
    mesh_of,
    norm,
    params_on,
    state_on,
)

from jaxrl_vr.models.fakes import UniformModel
from jaxrl_vr.models.params import abstract, init
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.rollout.batch import Shape, abstract_batch
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh
from jaxrl_vr.train.groups import Group
from jaxrl_vr.train.objectives import supervised
from jaxrl_vr.train.optimizer import AdamW
from jaxrl_vr.train.state import abstract_state, create
from jaxrl_vr.train.transform import Transform
from jaxrl_vr.train.update import (
    Learner,
    Rates,
    policy_loss,
    policy_score,
)


def test_score_is_the_log_prob_that_update_takes():
    learner, batch = learner_and_batch()
    score = learner.score(params_on(mesh_of()), batch)["logp"]
    micro = jax.tree.map(lambda a: a[0], batch)
    logp, _ = ROW_LOGPROBS(MODEL, params_on(mesh_of()), micro)
    np.testing.assert_allclose(score[0], logp, atol=1e-6)
    # With it as the old log-prob every ratio is exactly 1.
    batch = dataclasses.replace(batch, old_logp=score)
    _, metrics = learner.update(state_on(mesh_of()), batch, NUMBERS, RATES)
    assert float(metrics["policy/ratio_max"].value) == pytest.approx(1, abs=1e-6)
    assert int(metrics["policy/clip_frac"].sum) == 0
    assert float(metrics["policy/approx_kl"].sum) == pytest.approx(0, abs=1e-6)


def test_one_compilation_for_all_numbers_and_rates():
    learner, batch = learner_and_batch()
    state = state_on(mesh_of())
    state, _ = learner.update(state, batch, NUMBERS, RATES)
    before = learner._update._cache_size()
    for i in range(1, 4):
        numbers = jax.tree.map(lambda value, i=i: value * (1 + i), NUMBERS)
        other = learner.place(jax.device_get(batch))
        state, metrics = learner.update(state, other, numbers, Rates(1e-3 * i, 0.1 * i))
        assert float(metrics["optimizer/learning_rate"].sum) == pytest.approx(1e-3 * i)
    assert learner._update._cache_size() == before == 1
    assert int(state.step) == 4


def test_the_state_is_donated():
    learner, batch = learner_and_batch()
    state = state_on(mesh_of())
    after, _ = learner.update(state, batch, NUMBERS, RATES)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((after, batch)))


def test_the_step_counts():
    learner, batch = learner_and_batch()
    after, _ = learner.update(state_on(mesh_of()), batch, NUMBERS, RATES)
    assert int(after.step) == 1


@pytest.mark.parametrize("poison", [np.nan, np.inf], ids=str)
def test_an_update_that_is_not_finite_is_skipped(poison):
    learner, batch = learner_and_batch()
    state, metrics = learner.update(state_on(mesh_of()), batch, NUMBERS, RATES)
    assert int(metrics["optimizer/skipped"].sum) == 0
    before = jax.device_get(state)
    adv = np.array(batch.adv)
    adv[tuple(np.argwhere(batch.mask)[5])] = poison
    bad = learner.place(dataclasses.replace(jax.device_get(batch), adv=adv))
    state, metrics = learner.update(state, bad, NUMBERS, RATES)
    after = jax.device_get(state)
    jax.tree.map(np.testing.assert_array_equal, after.trainable, before.trainable)
    jax.tree.map(np.testing.assert_array_equal, after.optimizer, before.optimizer)
    assert (int(before.step), int(after.step)) == (1, 2)
    assert (int(metrics["optimizer/skipped"].sum), int(metrics["optimizer/skipped"].count)) == (
        1,
        1,
    )
    # And the next one goes on as if it had not been.
    state, _ = learner.update(state, batch, NUMBERS, RATES)
    expected = state_on(mesh_of())
    for _ in range(2):
        expected, _ = learner.update(expected, batch, NUMBERS, RATES)
    jax.tree.map(np.testing.assert_array_equal, state.trainable, expected.trainable)


def test_a_gradient_that_is_not_finite_is_skipped_where_the_loss_is():
    def objective(logp, entropy, batch, numbers):
        return jnp.sqrt(0.0 * logp), {}  # 0, with the slope of a root at 0

    model = UniformModel(32)
    params = init(model.declare(), jax.random.key(0), TRAIN_RULES, mesh_of())
    identity = Transform(*optax.identity())
    learner = Learner(loss_of(objective, model), policy_score(model), identity, mesh_of())
    state = create(params, {}, identity)
    state, metrics = learner.update(state, learner_and_batch()[1], {}, RATES)
    assert float(metrics["loss/total"].sum) == 0
    assert not np.isfinite(metrics["optimizer/grad_norm"].sum)
    assert int(metrics["optimizer/skipped"].sum) == 1
    np.testing.assert_array_equal(state.trainable["head"], np.zeros((32, 1)))


def test_clip_by_global_norm_and_placement_on_a_mesh():
    mesh = mesh_of(8, data=1, fsdp=2, context=2, tensor=2)
    learner = learner_on(mesh, transform=Transform(*optax.identity()))
    batch = learner.place(batch_of(ROLLOUTS, SHAPE))
    size = norm(baseline()[1])
    for limit in (0.5 * size, 2 * size):
        state = state_on(mesh, Transform(*optax.identity()))
        places = jax.tree.map(lambda a: a.sharding, state)
        state, metrics = learner.update(state, batch, NUMBERS, Rates(3.0, limit))
        assert jax.tree.map(lambda a: a.sharding, state) == places
        assert float(metrics["optimizer/grad_norm"].sum) == pytest.approx(size, rel=1e-5)
        assert float(metrics["optimizer/grad_norm_max"].value) == pytest.approx(size, rel=1e-5)
        factor = 3.0 * min(1.0, limit / size)
        moved = jax.tree.map(np.subtract, host_params(), jax.device_get(state.trainable))
        error = norm(jax.tree.map(lambda m, g, f=factor: m - f * g, moved, baseline()[1]))
        # The second part is what rounding a parameter takes off the step.
        assert error < 1e-5 * factor * size + 1e-7 * norm(host_params())
    assert learner._update._cache_size() == 1


def test_moments_lie_like_their_parameters():
    state = state_on(mesh_of(8, fsdp=8))
    adam = state.optimizer[0]
    places = jax.tree.map(lambda a: a.sharding, state.trainable)
    for moments in (adam.mu, adam.nu):
        assert jax.tree.map(lambda a: a.sharding, moments) == places
    assert state.trainable["layers"]["q"].sharding.spec == jax.P(None, "fsdp")
    assert adam.count.sharding.is_fully_replicated


def test_supervised_steps_lower_the_loss():
    learner = learner_on(mesh_of(), supervised)
    batch = learner.place(batch_of(ROLLOUTS, SHAPE))
    state, losses = state_on(mesh_of()), []
    for _ in range(10):
        state, metrics = learner.update(state, batch, {}, Rates(3e-2, 1.0))
        losses.append(float(metrics["loss/total"].sum))
        nll = metrics["sft/nll"]
        assert losses[-1] == pytest.approx(float(nll.sum) / int(nll.count), rel=1e-5)
    assert losses[-1] < 0.6 * losses[0]


def test_frozen_parameters_take_no_memory_for_gradients():
    arch = MODEL.arch.model_copy(update={"vocab_size": 4096, "width": 64, "tied": False})
    model = Transformer(arch)
    mesh = make_mesh(MeshConfig(data=1), jax.devices()[:1])
    loss = policy_loss(model, REINFORCE)
    batch = abstract_batch(2, Shape(row_length=24, rows=2))
    numbers = {"objective": {}, "offpolicy": []}

    def bytes_with(*groups):
        transform = AdamW(learning_rate=1e-3, groups=groups).transform(model.declare())
        params = abstract(model.declare(), TRAIN_RULES, mesh)
        state = abstract_state(params, {}, transform)
        learner = Learner(loss, policy_score(model), transform, mesh)
        memory = learner.lower(state, batch, numbers, RATES).compile().memory_analysis()
        return memory.temp_size_in_bytes

    of_embed = 4 * arch.vocab_size * arch.width
    frozen = bytes_with(Group(match="embed", frozen=True))
    assert frozen < bytes_with() - 0.9 * of_embed

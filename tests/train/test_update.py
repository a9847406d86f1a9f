"""The gradient: one loss and one gradient, however rollouts are cut, placed or ordered."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from updates import (
    GRADIENTS,
    MODEL,
    NUMBERS,
    PPO_CLIP,
    REINFORCE,
    ROLLOUTS,
    ROW_LOGPROBS,
    SHAPE,
    assert_same,
    baseline,
    batch_of,
    found_on,
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
from jaxrl_vr.models.params import abstract
from jaxrl_vr.rollout.batch import Shape, Trajectory
from jaxrl_vr.sharding import TRAIN_RULES
from jaxrl_vr.train import update as update_module
from jaxrl_vr.train.objectives import supervised
from jaxrl_vr.train.update import (
    Rates,
    policy_loss,
)
from jaxrl_vr.train.weights import ConstantLength, SequenceMean
from jaxrl_vr.types import Max, Mean


def test_metrics_of_the_step():
    _, _, metrics = baseline()
    trained = sum(t.num_trained for t in ROLLOUTS)
    clipped = metrics["policy/clip_frac"]
    assert clipped.count == trained == metrics["policy/entropy"].count
    assert 0 < clipped.sum < trained  # so that the tests below compare clipped tokens too
    assert metrics["policy/ratio_max"].value > 1.28
    assert metrics["policy/kl"].sum > 0


LAYOUTS = {
    "8_x_1": (Shape(24, 2), 8),  # micro-batches of 2 rows; 16 rollouts, packed where they fit
    "packed": (Shape(48, 4), 2),
    "padded": (Shape(40, 24), 1),
    "prefixes": (Shape(24, 4, parts=1), 4),
    "prefixes_packed": (Shape(48, 4, parts=2), 2),
}


@pytest.mark.parametrize("shape, most", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_cutting_and_packing_do_not_matter(shape, most):
    batch = batch_of(ROLLOUTS, shape)
    assert len(batch.tokens) <= most
    assert_same(found_on(mesh_of(), batch), baseline(), batch)


def test_a_prompt_that_a_group_shares_is_computed_once():
    shape = Shape(24, 16)

    def flops(shape, factor):
        model = dataclasses.replace(MODEL, arch=MODEL.arch.model_copy(update={"ffn": 24 * factor}))
        learner = learner_on(mesh_of())
        batch, loss = learner.place(batch_of(ROLLOUTS, shape)), loss_of(PPO_CLIP, model)
        params = abstract(model.declare(), TRAIN_RULES, mesh_of())
        with jax.set_mesh(mesh_of()):
            return (
                GRADIENTS.lower(params, batch, NUMBERS, loss=loss)
                .compile()
                .cost_analysis()["flops"]
            )

    shared = dataclasses.replace(shape, parts=1)
    batch = batch_of(ROLLOUTS, shared)
    share = batch.distinct_place.shape[2] / (24 * 16)
    prefixes = {tuple(t.token_ids[: i + 1]) for t in ROLLOUTS for i in range(len(t.token_ids))}
    assert len(prefixes) + 1 <= share * 24 * 16 < len(prefixes) + 1 + 24
    assert share < 0.6
    # What the feed-forward layers add is counted by tokens.
    added = [flops(s, 9) - flops(s, 1) for s in (shared, shape)]
    assert added[0] / added[1] == pytest.approx(share, abs=0.02)


def test_what_is_shared_takes_no_more_memory_than_was_planned():
    # Plans and automatic rows compile an update in which nothing is shared.
    def temporaries(parts, remat):
        model = dataclasses.replace(MODEL, remat=remat)
        learner = learner_on(mesh_of())
        batch = learner.place(batch_of(ROLLOUTS, Shape(24, 16, parts)))
        params = abstract(model.declare(), TRAIN_RULES, mesh_of())
        loss = loss_of(PPO_CLIP, model)
        with jax.set_mesh(mesh_of()):
            lowered = GRADIENTS.lower(params, batch, NUMBERS, loss=loss)
        return lowered.compile().memory_analysis().temp_size_in_bytes

    for remat in ("none", "minimal", "block"):
        assert temporaries(1, remat) < temporaries(None, remat)


def test_order_does_not_matter():
    order = np.random.default_rng(1).permutation(len(ROLLOUTS))
    batch = batch_of([ROLLOUTS[i] for i in order], SHAPE)
    assert_same(found_on(mesh_of(), batch), baseline(), batch)


@pytest.mark.parametrize("weights", [SequenceMean(), ConstantLength()], ids=lambda w: w.type)
def test_cutting_does_not_matter_for_any_weights(weights):
    batch = batch_of(ROLLOUTS, LAYOUTS["8_x_1"][0], weights)
    assert_same(found_on(mesh_of(), batch), baseline(weights), batch)


def test_cutting_does_not_matter_for_supervised_steps():
    batch = batch_of(ROLLOUTS, LAYOUTS["8_x_1"][0])
    found = found_on(mesh_of(), batch, supervised)
    assert_same(found, baseline(objective=supervised), batch)


def test_weights_change_the_gradient():
    # Else the tests above would show nothing.
    token, sequence = baseline(), baseline(SequenceMean())
    difference = norm(jax.tree.map(np.subtract, token[1], sequence[1]))
    assert difference > 0.05 * norm(token[1])


MESHES = {
    "data": (dict(data=8), SHAPE),
    "fsdp": (dict(fsdp=8), SHAPE),
    "tensor_data": (dict(tensor=2, data=4), Shape(24, 4)),
    "context_data": (dict(context=4, data=2), Shape(24, 4)),
    "mixture": (dict(data=1, fsdp=2, context=2, tensor=2), Shape(24, 4)),
    "fsdp_prefixes": (dict(fsdp=4, data=2), Shape(24, 16, parts=8)),
    "tensor_prefixes": (dict(tensor=2, data=2, fsdp=2), Shape(24, 8, parts=4)),
}


@pytest.mark.parametrize("sizes, shape", MESHES.values(), ids=MESHES.keys())
def test_sharding_does_not_matter(sizes, shape):
    batch = batch_of(ROLLOUTS, shape)
    assert_same(found_on(mesh_of(8, **sizes), batch), baseline(), batch)


@pytest.mark.parametrize("sizes, shape", MESHES.values(), ids=MESHES.keys())
def test_logits_may_be_kept_or_computed_again(sizes, shape, monkeypatch):
    # So few are kept, as `baseline` does it.
    monkeypatch.setattr(update_module, "_KEPT_LOGITS", 0)
    mesh, batch = mesh_of(8, **sizes), batch_of(ROLLOUTS, shape)
    loss = policy_loss(MODEL, PPO_CLIP)
    with jax.set_mesh(mesh):
        placed = learner_on(mesh).place(batch)
        found = GRADIENTS(params_on(mesh), placed, NUMBERS, loss=loss)
    assert_same(jax.device_get(found), baseline(), batch)


def thirty_updates(mesh, shape):
    """Losses and weights of thirty updates on the same rollouts."""
    learner, state = learner_on(mesh), state_on(mesh)
    batch = learner.place(batch_of(ROLLOUTS, shape))
    losses = []
    for _ in range(30):
        state, metrics = learner.update(state, batch, NUMBERS, Rates(1e-3, 1.0))
        losses.append(metrics["loss/total"].sum)
    return jax.device_get((losses, state.trainable))


@functools.cache
def thirty_on_one():
    return thirty_updates(mesh_of(), SHAPE)


@pytest.mark.parametrize("sizes, shape", MESHES.values(), ids=MESHES.keys())
def test_thirty_updates_end_at_the_same_weights(sizes, shape):
    losses, weights = thirty_updates(mesh_of(8, **sizes), shape)
    expected_losses, expected = thirty_on_one()
    batch = batch_of(ROLLOUTS, SHAPE)
    scale = np.sum(np.abs(batch.weight * batch.adv))
    assert abs(expected_losses[0] - expected_losses[-1]) > 0.01 * scale
    np.testing.assert_allclose(losses, expected_losses, atol=1e-5 * scale, rtol=0)
    moved = norm(jax.tree.map(np.subtract, expected, host_params()))
    assert norm(jax.tree.map(np.subtract, weights, expected)) < 1e-3 * moved


@pytest.mark.parametrize("sizes, shape", MESHES.values(), ids=MESHES.keys())
def test_devices_share_the_work(sizes, shape):
    # Each device computes its part and no more: else a larger mesh would only use more power.
    def flops(mesh):
        batch = learner_on(mesh).place(batch_of(ROLLOUTS, shape))
        arguments = (params_on(mesh), batch, NUMBERS)
        with jax.set_mesh(mesh):
            lowered = GRADIENTS.lower(*arguments, loss=loss_of(PPO_CLIP))
            return lowered.compile().cost_analysis()["flops"]

    # Norms and softmaxes are not split over `tensor`.
    assert 8 * flops(mesh_of(8, **sizes)) < 1.15 * flops(mesh_of())


def test_micro_batches_of_padding_change_nothing():
    # The first two groups fill at most 4 of 8 micro-batches.
    few, shape = ROLLOUTS[:8], LAYOUTS["8_x_1"][0]
    batch = batch_of(few, shape)

    def padded(a):
        return np.concatenate([a, np.zeros((8 - len(a), *a.shape[1:]), a.dtype)])

    found = found_on(mesh_of(), jax.tree.map(padded, batch))
    assert_same(found, found_on(mesh_of(), batch_of(few, SHAPE)), batch)


@pytest.mark.parametrize("poison", [np.nan, np.inf], ids=str)
def test_what_stands_outside_the_mask_does_not_matter(poison):
    batch = batch_of(ROLLOUTS, SHAPE)
    names = ("weight", "adv", "old_logp", "sampler_logp", "ref_logp")
    poisoned = {n: np.where(batch.mask, getattr(batch, n), np.float32(poison)) for n in names}
    poisoned["temperature"] = np.where(batch.mask, batch.temperature, 0)
    found = found_on(mesh_of(), dataclasses.replace(batch, **poisoned))
    jax.tree.map(np.testing.assert_array_equal, found, baseline())


def with_imitation():
    """The rollouts, of which every third is imitated, and two texts that only are."""
    rng = np.random.default_rng(2)
    rollouts = [
        dataclasses.replace(t, imitation=np.where(t.mask, 0.01 * (i % 3 == 0), 0.0))
        for i, t in enumerate(ROLLOUTS)
    ]
    texts = [
        Trajectory(
            token_ids=rng.integers(0, 32, n),
            mask=np.zeros(n, bool),
            imitation=np.where(np.arange(n) > 0, 0.02, 0.0),
            group=9,
        )
        for n in (7, 12)
    ]
    return rollouts + texts


def test_imitation_adds_the_likelihood_with_its_weights():
    batch = batch_of(with_imitation(), Shape(24, 18))
    loss, _, metrics = found_on(mesh_of(), batch)
    plain, _, plain_metrics = baseline()
    assert len(batch.tokens) == 1
    params = params_on(mesh_of())
    micro = jax.tree.map(lambda a: a[0], batch)
    logp = np.asarray(ROW_LOGPROBS(MODEL, params, micro)[0], np.float64)
    added = -np.sum(micro.imitation * logp)
    assert added > 0.5
    assert loss - plain == pytest.approx(added, rel=1e-5)
    # What is only imitated counts in no metric of the policy.
    for name in ("policy/entropy", "policy/kl", "mismatch/mean"):
        assert metrics[name].count == plain_metrics[name].count
        assert metrics[name].sum == pytest.approx(plain_metrics[name].sum, rel=1e-5)
    imitated = micro.imitation > 0
    for name, of_it in (("policy/positive_nll", micro.mask), ("lm/nll", ~micro.mask)):
        assert metrics[name].count == np.sum(imitated & of_it)
        assert metrics[name].sum == pytest.approx(-np.sum(logp[imitated & of_it]), rel=1e-5)


@pytest.mark.parametrize("shape", [Shape(24, 1), Shape(48, 4)], ids=["apart", "packed"])
def test_cutting_does_not_matter_for_imitation(shape):
    # Apart, the texts are micro-batches of their own, in which nothing trains by reward.
    whole, batch = batch_of(with_imitation(), SHAPE), batch_of(with_imitation(), shape)
    assert_same(found_on(mesh_of(), batch), found_on(mesh_of(), whole), batch)


def test_imitation_of_what_is_sharded():
    batch = batch_of(with_imitation(), Shape(24, 8))
    found = found_on(mesh_of(8, fsdp=2, data=4), batch)
    assert_same(found, found_on(mesh_of(), batch), batch)


def test_nothing_to_train():
    batch = batch_of(ROLLOUTS, SHAPE)
    batch = dataclasses.replace(batch, mask=np.zeros_like(batch.mask))
    loss, grad, metrics = found_on(mesh_of(), batch)
    assert loss == 0
    means = {k: m for k, m in metrics.items() if isinstance(m, Mean)}
    largest = {k: m for k, m in metrics.items() if isinstance(m, Max)}
    assert not any(leaf.any() for leaf in jax.tree.leaves((grad, means)))
    assert means and largest and all(m.value == -np.inf for m in largest.values())


def test_a_group_without_contrast_has_no_gradient():
    batch = batch_of([t for t in ROLLOUTS if t.group == 2], SHAPE)
    loss, grad, _ = found_on(mesh_of(), batch, kl=0.0)
    assert loss == 0
    assert not any(leaf.any() for leaf in jax.tree.leaves(grad))


def test_loss_and_gradient_by_hand():
    # Every token has probability 1/4. Two rollouts of 1 and 3 tokens, advantages 2 and -1, token
    # mean: loss = -(2 x log(1/4) - 3 x log(1/4)) / 4 = log(1/4) / 4.
    model = UniformModel(4)
    rollouts = [
        Trajectory(np.array([0, 1]), np.array([False, True]), adv=2.0),
        Trajectory(np.array([0, 1, 2, 2]), np.array([False, True, True, True]), adv=-1.0),
    ]
    batch = dataclasses.replace(batch_of(rollouts, Shape(4, 1)), ref_logp=None)
    params = {"head": jnp.zeros((4, 1))}
    loss, grad, _ = GRADIENTS(
        params, batch, {"objective": {}, "offpolicy": []}, loss=loss_of(REINFORCE, model)
    )
    assert float(loss) == pytest.approx(np.log(1 / 4) / 4)
    # d loss / d head_v = -1/4 sum_t A_t (onehot_t - 1/4); hidden is 1:
    # A by token: 2 - 1 = 1 for token 1, -2 for token 2, in all -1
    np.testing.assert_allclose(
        grad["head"][:, 0], [-(0 + 0.25) / 4, -(1 + 0.25) / 4, -(-2 + 0.25) / 4, -0.25 / 4]
    )


def test_log_probs_stand_at_their_token():
    micro = jax.tree.map(lambda a: a[0], learner_and_batch()[1])
    temperature = np.random.default_rng(0).uniform(0.5, 2, micro.tokens.shape)
    micro = dataclasses.replace(micro, temperature=jnp.asarray(temperature, jnp.float32))
    params = params_on(mesh_of())
    logp, entropy = ROW_LOGPROBS(MODEL, params, micro)
    hidden = jax.jit(MODEL.hidden)(params, micro.tokens, micro.positions, micro.segment_ids)
    logits = np.asarray(hidden, np.float64) @ np.asarray(MODEL.head(params), np.float64).T
    micro = jax.device_get(micro)
    for row, t in np.ndindex(micro.tokens.shape):
        if not micro.mask[row, t]:
            assert (logp[row, t], entropy[row, t]) == (0, 0)
            continue
        z = logits[row, t - 1] / micro.temperature[row, t]
        log_probs = z - np.log(np.sum(np.exp(z)))
        assert logp[row, t] == pytest.approx(log_probs[micro.tokens[row, t]], abs=1e-5)
        assert entropy[row, t] == pytest.approx(-np.sum(np.exp(log_probs) * log_probs), abs=1e-5)

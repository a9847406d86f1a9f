"""The update: one loss and one gradient, however the step's rollouts are cut, placed or ordered."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_vr.losses import group_norm
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.fakes import UniformModel
from jaxrl_vr.models.params import abstract, init, shardings
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.rollout.batch import Shape, Trajectory, abstract_batch, build
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh, place
from jaxrl_vr.train import update as update_module
from jaxrl_vr.train.groups import Group
from jaxrl_vr.train.objectives import PpoClip, Reinforce, policy_objective, supervised
from jaxrl_vr.train.optimizer import AdamW
from jaxrl_vr.train.penalty import Kl
from jaxrl_vr.train.state import abstract_state, create
from jaxrl_vr.train.transform import Transform
from jaxrl_vr.train.update import (
    Learner,
    Rates,
    gradients,
    policy_loss,
    policy_score,
    row_logprobs,
)
from jaxrl_vr.train.weights import ConstantLength, SequenceMean, TokenMean
from jaxrl_vr.types import Max, Mean

MODEL = Transformer(
    Architecture(
        vocab_size=32, width=16, layers=2, heads=4, kv_heads=2, head_dim=4, ffn=24, max_length=64
    )
)
TOKEN_MEAN = TokenMean()
PPO_CLIP = policy_objective(PpoClip(), Kl(coef=0.1), None, ())
REINFORCE = policy_objective(Reinforce(), None, None, ())
NUMBERS = {"objective": {"clip_low": 0.2, "clip_high": 0.28}, "offpolicy": [], "kl": 0.1}
RATES = Rates(1e-2, 1.0)
SHAPE = Shape(row_length=24, rows=16)  # one micro-batch for all 16 rollouts

GRADIENTS = jax.jit(gradients, static_argnames="loss")
ROW_LOGPROBS = jax.jit(row_logprobs, static_argnums=0)


def make_rollouts():
    """Four groups of four: prompts, completions, a mask with holes, advantages, log-probs."""
    rng = np.random.default_rng(0)
    reward = np.array([[1, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0], [0.3, 1, 1, 0]], np.float32)
    valid = np.ones((4, 4), bool)
    valid[3, 2] = False  # could not be scored: trains no token
    adv = np.asarray(group_norm(reward, valid))
    prompts = np.random.default_rng(1).integers(0, 32, (4, 12))
    rollouts = []
    for group, g in np.ndindex(4, 4):
        prompt, completion = rng.integers(10, 13), rng.integers(1, 12)
        mask = np.array([False] * prompt + [True] * completion) & valid[group, g]
        mask[prompt + completion // 2] = False  # a token that was forced
        n = len(mask)
        token_ids = rng.integers(0, 32, n)
        token_ids[:prompt] = prompts[group, :prompt]
        rollouts.append(
            Trajectory(
                token_ids=token_ids,
                mask=mask,
                # Near what the model gives, so that some ratios are clipped and others are not.
                logp=(-3.5 + 0.3 * rng.normal(size=n)).astype(np.float32),
                version=np.zeros(n, int),
                adv=float(adv[group, g]),
                temperature=(0.7, 1.0, 1.3, 1.0)[group],
                group=group,
            )
        )
    return rollouts


ROLLOUTS = make_rollouts()


def batch_of(rollouts, shape, weights=TOKEN_MEAN):
    """A packed step with a reference; its log-prob is the token's, wherever that stands."""
    lengths = np.array([t.num_trained for t in rollouts])
    batch = build(rollouts, weights(lengths, np.array([t.group for t in rollouts]), 20), shape)
    assert (shape.parts is None) == (batch.distinct_place is None)
    ref_logp = np.where(batch.mask, -3.4 + 0.02 * batch.tokens, 0.0).astype(np.float32)
    return dataclasses.replace(batch, ref_logp=ref_logp)


@functools.cache
def mesh_of(devices=1, **sizes):
    return make_mesh(MeshConfig(**sizes), jax.devices()[:devices])


@functools.cache
def host_params():
    """The same parameters for every mesh."""
    return jax.device_get(init(MODEL.declare(), jax.random.key(0), TRAIN_RULES, mesh_of()))


def params_on(mesh):
    return place(host_params(), shardings(MODEL.declare(), TRAIN_RULES, mesh))


def state_on(mesh, transform=None):
    transform = transform or AdamW(learning_rate=1e-2).transform(MODEL.declare())
    return create(params_on(mesh), {}, transform)


@functools.cache
def loss_of(objective, model=MODEL):
    return policy_loss(model, objective)


def learner_on(mesh, objective=PPO_CLIP, transform=None):
    transform = transform or AdamW(learning_rate=1e-2).transform(MODEL.declare())
    return Learner(loss_of(objective), policy_score(MODEL), transform, mesh)


def found_on(mesh, batch, objective=PPO_CLIP, **numbers):
    """Loss, gradient and metrics of a whole batch."""
    placed, params = learner_on(mesh).place(batch), params_on(mesh)
    numbers = NUMBERS | numbers
    with jax.set_mesh(mesh):
        found = GRADIENTS(params, placed, numbers, loss=loss_of(objective))
    return jax.device_get(found)


@functools.cache
def baseline(weights=TOKEN_MEAN, objective=PPO_CLIP):
    """The same of all rollouts in one micro-batch on one device."""
    return found_on(mesh_of(), batch_of(ROLLOUTS, SHAPE, weights), objective)


def norm(tree):
    squares = (np.sum(np.square(x, dtype=np.float64)) for x in jax.tree.leaves(tree))
    return float(np.sqrt(sum(squares)))


def assert_same(found, expected, batch):
    """To rounding: the loss by sum |weight x advantage|, the gradient by its norm."""
    scale = np.sum(np.abs(batch.weight * batch.adv))
    assert scale > 0
    assert abs(found[0] - expected[0]) < 1e-5 * scale
    assert norm(expected[1]) > 1e-3
    difference = jax.tree.map(np.subtract, found[1], expected[1])
    assert norm(difference) < 1e-5 * norm(expected[1])
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), found[2], expected[2]
    )


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
    micro = jax.tree.map(lambda a: a[0], shared()[1])
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


@functools.cache
def shared():
    """A learner on one device, its batch, and what one update gives."""
    learner = learner_on(mesh_of())
    return learner, learner.place(batch_of(ROLLOUTS, SHAPE))


def test_score_is_the_log_prob_that_update_takes():
    learner, batch = shared()
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
    learner, batch = shared()
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
    learner, batch = shared()
    state = state_on(mesh_of())
    after, _ = learner.update(state, batch, NUMBERS, RATES)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((after, batch)))


def test_the_step_counts():
    learner, batch = shared()
    after, _ = learner.update(state_on(mesh_of()), batch, NUMBERS, RATES)
    assert int(after.step) == 1


@pytest.mark.parametrize("poison", [np.nan, np.inf], ids=str)
def test_an_update_that_is_not_finite_is_skipped(poison):
    learner, batch = shared()
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
    state, metrics = learner.update(state, shared()[1], {}, RATES)
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

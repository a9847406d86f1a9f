"""The gradient noise scale and norms by layer, against float64 and closed forms."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_vr.metrics.accumulate import Accumulator
from jaxrl_vr.metrics.names import METRICS
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.fakes import UniformModel
from jaxrl_vr.models.params import init, shardings
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.rollout.batch import Shape, Trajectory, build
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh, place
from jaxrl_vr.train.diagnostics import NO_PROBE, Diagnostics, noise_scale
from jaxrl_vr.train.objectives import Reinforce, policy_objective
from jaxrl_vr.train.optimizer import AdamW
from jaxrl_vr.train.state import create
from jaxrl_vr.train.transform import Transform
from jaxrl_vr.train.update import Learner, Rates, gradients, policy_loss, policy_score

MODEL = Transformer(
    Architecture(
        vocab_size=32,
        width=16,
        layers=3,
        heads=4,
        kv_heads=2,
        head_dim=4,
        ffn=24,
        max_length=64,
        tied=False,
    )
)
REINFORCE = policy_objective(Reinforce(), None, None, ())
LOSS = policy_loss(MODEL, REINFORCE)
NUMBERS = {"objective": {}, "offpolicy": []}
BOTH = Diagnostics(gradient_noise_scale=True, layer_norms=True)
NOISE = ("noise/signal", "noise/trace", "noise/scale", "noise/tokens")

GRADIENTS = jax.jit(gradients, static_argnames="loss")
NOISE_SCALE = jax.jit(noise_scale)


@functools.cache
def mesh_of(devices, **sizes):
    return make_mesh(MeshConfig(**sizes), jax.devices()[:devices])


def estimates(metrics):
    """Noise metrics as a run writes them."""
    accumulator = Accumulator()
    accumulator.add({k: m for k, m in metrics.items() if k.startswith("noise/")})
    return accumulator.result()


# The estimators


@pytest.mark.parametrize(
    "share",
    [[1, 1, 1, 1], [3, 3, 3, 1], [0, 5, 0, 0.5], [7, 1, 2, 0]],
    ids=["equal", "last-is-small", "two", "unequal"],
)
def test_expected_squares_give_exactly_what_they_are_made_of(share):
    # The estimators are linear in both squares, so this is that they have no bias: |G|^2 = 2 and a
    # noise of 3 for a batch of one token; 50 tokens in micro-batches of these shares.
    p = np.array(share) / np.sum(share)
    noise = 3 / 50
    micro_square = np.sum(p**2 * 2 + p * noise)
    found = NOISE_SCALE(
        jnp.float32(micro_square), jnp.float32(2 + noise), jnp.float32(share), jnp.int32(50)
    )
    found = estimates(found)
    assert found["noise/signal"] == pytest.approx(2, rel=1e-5)
    assert found["noise/trace"] == pytest.approx(3, rel=1e-4)
    assert found["noise/scale"] == pytest.approx(1.5, rel=1e-4)
    assert found["noise/tokens"] == 50


def test_equal_micro_batches_are_the_case_of_the_paper():
    # Appendix A.1 with B_big = 32 and B_small = 8: 4 micro-batches, whose mean is the gradient.
    rng = np.random.default_rng(0)
    means = rng.normal(size=(4, 9)) + 0.5
    small, big = np.mean(np.sum(means**2, 1)), np.sum(np.mean(means, 0) ** 2)
    signal = (32 * big - 8 * small) / (32 - 8)
    trace = (small - big) / (1 / 8 - 1 / 32)
    micro_square = np.sum((means / 4) ** 2)
    found = NOISE_SCALE(
        jnp.float32(micro_square), jnp.float32(big), jnp.full(4, 0.25), jnp.int32(32)
    )
    found = estimates(found)
    assert found["noise/signal"] == pytest.approx(signal, rel=1e-4)
    assert found["noise/trace"] == pytest.approx(trace, rel=1e-4)


@pytest.mark.parametrize("share", [[1, 0, 0], [0, 0, 0], [1, 1e-7, 0]], ids=["one", "none", "dust"])
def test_without_a_second_micro_batch_there_is_no_estimate(share):
    arguments = jnp.float32(1.0), jnp.float32(1.0), jnp.float32(share), jnp.int32(5)
    assert estimates(NOISE_SCALE(*arguments)) == {}


def test_updates_are_averaged_before_they_are_divided():
    shares = jnp.float32([1, 1])
    accumulator, parts = Accumulator(), []
    for micro_square, square in ((1.0, 1.5), (3.0, 2.9), (2.0, 3.5)):
        found = NOISE_SCALE(jnp.float32(micro_square), jnp.float32(square), shares, jnp.int32(10))
        accumulator.add(found)
        signal = 2 * (square - micro_square)
        parts.append((signal, 10 * (square - signal)))
    assert parts[1][0] < 0  # as an unbiased estimate of something small is at times
    signal, trace = np.mean(parts, axis=0)
    found = accumulator.result()
    assert found["noise/signal"] == pytest.approx(signal, rel=1e-5)
    assert found["noise/trace"] == pytest.approx(trace, rel=1e-5)
    assert found["noise/scale"] == pytest.approx(trace / signal, rel=1e-5)


def test_a_gradient_of_known_covariance():
    # A linear model: each token v, drawn from pi, has the gradient -(onehot_v - 1/4), whose mean
    # has the square |pi - 1/4|^2 = 0.05 and whose covariance the trace 1 - |pi|^2 = 0.7.
    model, pi = UniformModel(4), np.array([0.1, 0.2, 0.3, 0.4])
    probe = Diagnostics(gradient_noise_scale=True).probe(model.declare())
    mesh = mesh_of(1)
    learner = Learner(
        policy_loss(model, REINFORCE),
        policy_score(model),
        Transform(*optax.identity()),
        mesh,
        probe,
    )
    state = create(
        init(model.declare(), jax.random.key(0), TRAIN_RULES, mesh),
        {},
        Transform(*optax.identity()),
    )
    rng = np.random.default_rng(0)
    mask, weight, shape = np.array([False, True]), np.full(22, 1 / 22, np.float32), Shape(2, 5)
    found = []
    for _ in range(800):
        tokens = rng.choice(4, size=22, p=pi)
        every = [Trajectory(np.array([0, v]), mask, adv=1.0) for v in tokens]
        # Micro-batches of 5, 5, 5, 5 and 2 tokens, and three of none.
        batch = learner.place(build(every, weight, shape))
        state, metrics = learner.update(state, batch, NUMBERS, Rates(0.0, 1.0))
        found.append([float(metrics[name].sum) for name in ("noise/signal", "noise/trace")])
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(len(found))
    expected = np.array([0.05, 0.7])
    assert np.all(error < 0.05 * expected)
    assert np.all(np.abs(mean - expected) < 4 * error)
    assert float(metrics["noise/tokens"].sum) == 22


# In the update


def rollouts():
    rng = np.random.default_rng(0)
    found = []
    for group in range(16):
        n = rng.integers(4, 24)
        found.append(
            Trajectory(
                token_ids=rng.integers(0, 32, n),
                mask=np.arange(n) >= 2,
                logp=np.full(n, -3.4, np.float32),
                adv=float(rng.normal()),
                group=group,
            )
        )
    return found


def batch_of(every):
    total = sum(t.num_trained for t in every)
    return build(every, np.full(len(every), 1 / total, np.float32), Shape(24, 4), deal=(1, 2))


@functools.cache
def host_params():
    return jax.device_get(init(MODEL.declare(), jax.random.key(0), TRAIN_RULES, mesh_of(1)))


@functools.cache
def learner_on(mesh, diagnostics=BOTH):
    transform = AdamW(learning_rate=1e-2).transform(MODEL.declare())
    probe = diagnostics.probe(MODEL.declare())
    return Learner(LOSS, policy_score(MODEL), transform, mesh, probe)


def state_on(mesh):
    params = place(host_params(), shardings(MODEL.declare(), TRAIN_RULES, mesh))
    return create(params, {}, AdamW(learning_rate=1e-2).transform(MODEL.declare()))


def squares(tree):
    """Squared norms by the names of metrics, in float64."""
    found = {n: np.sum(np.square(tree[n], dtype=np.float64)) for n in ("embed", "norm", "head")}
    for i in range(3):
        found[f"layer_{i:02}"] = sum(
            np.sum(np.square(a[i], dtype=np.float64)) for a in tree["layers"].values()
        )
    return found


@functools.cache
def expected():
    """Metrics of the first update, from the gradient of each micro-batch alone."""
    batch = batch_of(rollouts())
    with jax.set_mesh(mesh_of(1)):
        of_each = [
            jax.device_get(
                GRADIENTS(
                    host_params(),
                    jax.tree.map(lambda a, m=m: a[m : m + 1], batch),
                    NUMBERS,
                    loss=LOSS,
                )[1]
            )
            for m in range(len(batch.mask))
        ]
    parts = [sum(squares(grad).values()) for grad in of_each]
    share = np.where(batch.mask, batch.weight, 0).sum((1, 2), dtype=np.float64)
    whole = jax.tree.map(lambda *a: np.sum(a, axis=0, dtype=np.float64), *of_each)
    square = sum(squares(whole).values())
    apart = 1 - np.sum(share**2)
    signal = (square - np.sum(parts)) / apart
    tokens = batch.mask.sum()
    return (
        whole,
        share,
        {
            "noise/signal": signal,
            "noise/trace": tokens * (square - signal),
            "noise/scale": tokens * (square - signal) / signal,
            "noise/tokens": tokens,
        },
    )


MESHES = {"one": (1, {}), "eight": (8, dict(data=2, fsdp=2, tensor=2))}


@pytest.mark.parametrize("devices, sizes", MESHES.values(), ids=MESHES.keys())
def test_an_update_says_what_its_micro_batches_say_alone(devices, sizes):
    mesh = mesh_of(devices, **sizes)
    learner, state = learner_on(mesh), state_on(mesh)
    batch = learner.place(batch_of(rollouts()))
    state, metrics = learner.update(state, batch, NUMBERS, Rates(1e-2, 1e-3))
    whole, share, noise = expected()
    # As it should be: micro-batches of unequal weight, and of none.
    assert np.sum(share > 0) >= 3 and np.sum(share == 0) >= 1
    assert np.ptp(share[share > 0]) > 0.05
    assert estimates(metrics) == pytest.approx(noise, rel=1e-3)
    assert set(NOISE) <= set(METRICS)
    # The clip acted, and is in neither.
    assert float(metrics["optimizer/grad_norm"].sum) > 1e-2
    after = jax.device_get(state.trainable)
    change = jax.tree.map(lambda a, b: np.float64(a) - b, after, host_params())
    for kind, tree in (("grad", whole), ("weight", host_params()), ("update", change)):
        found = {k: float(m.sum) for k, m in metrics.items() if k.startswith(f"norms/{kind}/")}
        of_tree = {f"norms/{kind}/{n}": np.sqrt(s) for n, s in squares(tree).items()}
        assert found == pytest.approx(of_tree, rel=1e-3)
        assert min(found.values()) > 0
    assert all(int(m.count) == 1 for k, m in metrics.items() if k.startswith("norms/"))


def test_a_skipped_update_says_where_its_gradient_is_not_finite():
    learner = learner_on(mesh_of(1))
    batch = batch_of(rollouts())
    adv = np.array(batch.adv)
    adv[tuple(np.argwhere(batch.mask)[0])] = np.nan
    bad = learner.place(dataclasses.replace(batch, adv=adv))
    _, metrics = learner.update(state_on(mesh_of(1)), bad, NUMBERS, Rates(1e-2, 1.0))
    assert int(metrics["optimizer/skipped"].sum) == 1
    # A step's other updates still count.
    assert estimates(metrics) == {}
    assert all(float(metrics[name].sum) == 0 for name in NOISE)
    assert np.isnan(metrics["norms/grad/layer_01"].sum)
    assert float(metrics["norms/update/layer_01"].sum) == 0
    assert float(metrics["norms/weight/layer_01"].sum) > 1


def test_what_is_off_is_not_in_the_program():
    batch = batch_of(rollouts())
    mesh = mesh_of(1)

    def text(diagnostics):
        learner = learner_on(mesh, diagnostics)
        arguments = state_on(mesh), learner.place(batch), NUMBERS, Rates(1e-2, 1.0)
        return learner.lower(*arguments).as_text()

    off = Diagnostics().probe(MODEL.declare())
    assert off == NO_PROBE
    plain = Learner(
        LOSS,
        policy_score(MODEL),
        AdamW(learning_rate=1e-2).transform(MODEL.declare()),
        mesh,
    )
    arguments = state_on(mesh), plain.place(batch), NUMBERS, Rates(1e-2, 1.0)
    expected_text = plain.lower(*arguments).as_text()
    assert text(Diagnostics()) == expected_text
    for name in ("gradient_noise_scale", "layer_norms"):
        assert text(Diagnostics(**{name: True})) != expected_text


def test_one_program_for_all_updates():
    learner, state = learner_on(mesh_of(1)), state_on(mesh_of(1))
    batch = learner.place(batch_of(rollouts()))
    for i in range(3):
        state, _ = learner.update(state, batch, NUMBERS, Rates(1e-3 * (i + 1), 1.0))
    assert learner._update._cache_size() == 1  # of all tests on this mesh

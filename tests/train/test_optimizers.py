"""Every optimizer: its steps by hand, on a mesh, in bfloat16 and in the memory of the host."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
import reference
from pydantic import TypeAdapter, ValidationError

from jaxrl_vr.checkpoint import Checkpoints
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.params import Param, declare, init, shardings
from jaxrl_vr.rollout.batch import Shape, Trajectory, build
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh, place
from jaxrl_vr.train.optimizer import Adafactor, AdamW, Lion, Muon, Optimizer
from jaxrl_vr.train.state import abstract_state, create
from jaxrl_vr.train.transform import HOST
from jaxrl_vr.train.update import Learner, Rates

DECLARED = {
    "embed": Param((5, 6), ("vocab", "embed"), 0.5, "embed"),
    "layers": {
        "q": Param((2, 6, 2, 4), ("layers", "embed", "heads", "head_dim"), 0.5, "q"),
        "o": Param((2, 2, 4, 6), ("layers", "heads", "head_dim", "embed"), 0.5, "o"),
        "bias": Param((2, 2, 4), ("layers", "heads", "head_dim"), 0.0, "bias"),
        "norm": Param((2, 6), ("layers", "embed"), None, "norm"),
    },
    "norm": Param((6,), ("embed",), None, "norm"),
}
# [rows, columns] of each layer's tensor: heads and what is in them are one side of a matrix.
TENSORS = {"q": (6, 8), "o": (8, 6), "bias": (8,), "norm": (6,)}
RATE = 0.03


def is_param(x):
    return isinstance(x, Param)


def values(seed, declared=DECLARED, scale=1.0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda p: (scale * rng.normal(size=p.shape)).astype(np.float32), declared, is_leaf=is_param
    )


PARAMS, GRADS = values(0), [values(seed, scale=0.1 * seed) for seed in (1, 2, 3)]


def stepped(config, params=PARAMS, grads=GRADS, declared=DECLARED):
    """The parameters after a step on each gradient in turn."""
    transform = config.transform(declared)
    state, update = transform.init(params), jax.jit(transform.update)
    for grad in grads:
        steps, state = update(grad, state, params)
        params = jax.tree.map(lambda p, s: p - np.float32(config.learning_rate) * s, params, steps)
    return params


def tensors(tree):
    """Each layer's tensor as the matrix or vector that it is, by path and layer."""
    found = {("embed",): tree["embed"], ("norm",): tree["norm"]}
    for name, array in tree["layers"].items():
        for layer in range(2):
            found["layers", name, layer] = np.reshape(array[layer], TENSORS[name])
    return found


def assert_stepped(config, one, rtol=2e-5):
    """Compares with `one(path, parameter, gradients)` of each layer's tensor on its own."""
    found, before = tensors(stepped(config)), tensors(PARAMS)
    grads = [tensors(grad) for grad in GRADS]
    for path, param in before.items():
        expected = one(path, param, [grad[path] for grad in grads])
        np.testing.assert_allclose(found[path], expected, rtol=rtol, atol=1e-6, err_msg=str(path))


# Steps by hand


def test_lion_is_a_loop():
    config = Lion(learning_rate=RATE, b1=0.8, b2=0.9, weight_decay=0.2)

    def one(path, param, grads):
        param, mean = np.array(param, np.float64), 0.0
        for grad in np.asarray(grads, np.float64):
            step = np.sign(0.8 * mean + 0.2 * grad)
            param = param - RATE * (step + 0.2 * (param.ndim == 2) * param)
            mean = 0.9 * mean + 0.1 * grad
        return param

    assert_stepped(config, one)


@pytest.mark.parametrize(
    "fields",
    [{}, {"scale_by_parameter": False, "clip_rms": 0.3}, {"momentum": 0.7, "decay_exponent": 0.5}],
    ids=["plain", "clipped", "momentum"],
)
def test_adafactor_is_optax_on_each_layers_matrix(fields):
    # 5 rows are too few to factor the embedding: it keeps its whole mean.
    config = Adafactor(learning_rate=RATE, min_factored_size=6, **fields)
    theirs = optax.adafactor(
        RATE,
        min_dim_size_to_factor=6,
        decay_rate=config.decay_exponent,
        multiply_by_parameter_scale=config.scale_by_parameter,
        clipping_threshold=config.clip_rms,
        momentum=config.momentum,
    )

    def one(path, param, grads):
        state = theirs.init(param)
        for grad in grads:
            steps, state = theirs.update(grad, state, param)
            param = optax.apply_updates(param, steps)
        return param

    assert_stepped(config, one)


def orthogonalised(matrix, steps=5):
    """Newton-Schulz of https://kellerjordan.github.io/posts/muon on one matrix, in float64."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / (np.linalg.norm(matrix) + 1e-8)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


@pytest.mark.parametrize("consistent_rms", [None, 0.2])
@pytest.mark.parametrize("nesterov", [False, True])
def test_muon_is_a_loop_over_each_layers_matrix(nesterov, consistent_rms):
    config = Muon(
        learning_rate=RATE,
        adam_learning_rate=0.01,
        beta=0.9,
        nesterov=nesterov,
        consistent_rms=consistent_rms,
        weight_decay=0.1,
        adam_b1=0.8,
        adam_b2=0.95,
        adam_eps=1e-6,
    )

    def one(path, param, grads):
        if path[0] != "layers" or param.ndim == 1:
            decay = 0.1 if param.ndim == 2 else 0.0
            return reference.adamw(param, grads, rate=0.01, b1=0.8, b2=0.95, eps=1e-6, decay=decay)
        rows, columns = param.shape
        scale = max(1, columns / rows) ** 0.5
        if consistent_rms is not None:
            scale = 0.2 * max(rows, columns) ** 0.5
        param, mean = np.array(param, np.float64), 0.0
        for n, grad in enumerate(np.asarray(grads, np.float64), start=1):
            mean = 0.9 * mean + 0.1 * grad
            ahead = mean / (1 - 0.9**n)
            if nesterov:
                ahead = 0.9 * mean / (1 - 0.9 ** (n + 1)) + 0.1 * grad / (1 - 0.9**n)
            param = param - RATE * (scale * orthogonalised(ahead) + 0.1 * param)
        return param

    # Iterations that are steep at 0 make more of float32's rounding.
    assert_stepped(config, one, rtol=1e-3)


def test_steps_of_consistent_rms_are_alike_whatever_the_shape():
    config = Muon(learning_rate=1.0, adam_learning_rate=1.0, consistent_rms=0.2)
    after = stepped(config, grads=GRADS[:1])
    for name in ("q", "o"):
        moved = after["layers"][name] - PARAMS["layers"][name]
        assert np.sqrt(np.mean(moved**2)) == pytest.approx(0.2, rel=0.25)


# Groups and decay


def test_groups_by_hand():
    groups = [
        {"match": "layers/o", "learning_rate_factor": 0.5, "weight_decay": 0.4},
        {"match": "layers/*", "learning_rate_factor": 2.0},
        {"match": "embed", "frozen": True},
    ]
    config = AdamW(
        learning_rate=RATE,
        b2=0.9,
        weight_decay=0.1,
        decay=["norm"],
        no_decay=["*/q"],
        groups=groups,
    )
    found = stepped(config)

    def expected(param, grads, factor, decay):
        at = {"rate": factor * RATE, "b1": 0.9, "b2": 0.9, "eps": 1e-8, "decay": decay}
        return reference.adamw(param, grads, **at)

    for name, factor, decay in (("o", 0.5, 0.4), ("q", 2, 0), ("norm", 2, 0), ("bias", 2, 0)):
        grads = [grad["layers"][name] for grad in GRADS]
        by_hand = expected(PARAMS["layers"][name], grads, factor, decay)
        np.testing.assert_allclose(found["layers"][name], by_hand, rtol=1e-5, atol=1e-6)
    norm = expected(PARAMS["norm"], [grad["norm"] for grad in GRADS], 1, 0.1)
    np.testing.assert_allclose(found["norm"], norm, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found["embed"], PARAMS["embed"])


@pytest.mark.parametrize("kind", [AdamW, Adafactor, Lion, Muon])
def test_what_is_frozen_has_no_state(kind):
    more = {Muon: {"adam_learning_rate": 1.0}, Adafactor: {"min_factored_size": 2}}
    groups = [{"match": "*norm", "frozen": True}, {"match": "layers/o", "frozen": True}]
    config = kind(learning_rate=RATE, groups=groups, **more.get(kind, {}))
    state = config.transform(DECLARED).init(PARAMS)
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(state)]
    assert not any("'norm'" in path or "'o'" in path for path in paths)
    assert any("'q'" in path for path in paths) and any("'embed'" in path for path in paths)
    found = stepped(config)
    for at in (lambda t: t["norm"], lambda t: t["layers"]["norm"], lambda t: t["layers"]["o"]):
        np.testing.assert_array_equal(at(found), at(PARAMS))
    assert np.all(found["layers"]["q"] != PARAMS["layers"]["q"])


NAMES = "embed, layers/bias, layers/norm, layers/o, layers/q, norm"


@pytest.mark.parametrize(
    "fields, says",
    [
        (
            {"groups": [{"match": "embedd", "frozen": True}]},
            "groups.0.match = 'embedd' matches no parameter; did you mean 'embed'? there are "
            + NAMES,
        ),
        (
            {
                "groups": [
                    {"match": "*norm", "frozen": True},
                    {"match": "norm", "learning_rate_factor": 2.0},
                ]
            },
            "groups.1.match = 'norm' cannot act: earlier groups have all that it matches (norm)",
        ),
        (
            {"groups": [{"match": "*norm", "weight_decay": 0.1}]},
            "groups.0.weight_decay = 0.1 cannot act: of the parameters of '*norm' (layers/norm, "
            "norm) none decays; leave it out, or set decay = ['*norm']",
        ),
        ({"groups": [{"match": "*", "frozen": True}]}, f"groups freeze all of {NAMES}"),
        ({"weight_decay": 0.1, "decay": ["head"]}, "decay = 'head' matches no parameter; there"),
        (
            {"weight_decay": 0.1, "decay": ["embed"]},
            "decay = 'embed' cannot act: what it matches (embed) decays already; leave it out",
        ),
        (
            {"weight_decay": 0.1, "no_decay": ["norm"]},
            "no_decay = 'norm' cannot act: what it matches (norm) does not decay; leave it out",
        ),
    ],
)
def test_patterns_that_cannot_act(fields, says):
    config = AdamW(learning_rate=RATE, **fields)
    with pytest.raises(ValueError) as error:
        config.transform(DECLARED)
    assert says in str(error.value)


def test_rules_that_cannot_act_on_these_parameters():
    with pytest.raises(ValueError) as error:
        Adafactor(learning_rate=RATE).transform(DECLARED)
    assert (
        "min_factored_size = 128 cannot act: of the matrices that train none has so many rows and "
        "columns (at most 6), so nothing would be factored; set it to 6 or less"
    ) in str(error.value)
    Adafactor(learning_rate=RATE, min_factored_size=6).transform(DECLARED)
    frozen = [{"match": "layers/?", "frozen": True}]
    with pytest.raises(ValueError, match="type = 'muon' with learning_rate = 0.03 cannot act"):
        Muon(learning_rate=RATE, adam_learning_rate=RATE, groups=frozen).transform(DECLARED)


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"decay": ["norm"]}, "decay = ['norm'] cannot act with weight_decay = 0"),
        ({"groups": [{"match": "norm"}]}, "the group of 'norm' says nothing of its parameters"),
        (
            {"groups": [{"match": "norm", "frozen": True, "weight_decay": 0.1}]},
            "weight_decay = 0.1 cannot act with frozen = true",
        ),
        (
            {"state_dtype": "bfloat16"},
            "b2 = 0.999 cannot act with state_dtype = 'bfloat16': the moment would have to fall by "
            "0.001 of itself, which rounds to nothing; set b2 = 0.99",
        ),
        (
            {"type": "adafactor", "state_dtype": "bfloat16"},
            "state_dtype = 'bfloat16' cannot act without momentum",
        ),
        (
            {"type": "adafactor", "state_dtype": "bfloat16", "momentum": 0.999},
            "momentum = 0.999 cannot act with state_dtype = 'bfloat16'",
        ),
        ({"type": "muon"}, "adam_learning_rate"),
        ({"type": "lion", "eps": 1e-8}, "eps"),
        ({"type": "sgd"}, "'adamw', 'adafactor', 'lion', 'muon'"),
    ],
)
def test_optimizers_that_cannot_act(fields, says):
    with pytest.raises(ValidationError) as error:
        TypeAdapter(Optimizer).validate_python({"learning_rate": 1e-3, **fields})
    assert says in str(error.value)


def test_an_optimizer_is_adamw_unless_said():
    found = TypeAdapter(Optimizer).validate_python({"learning_rate": 1e-3, "b2": 0.95})
    assert found == AdamW(learning_rate=1e-3, b2=0.95)


# Moments in bfloat16


def test_moments_in_bfloat16_are_a_loop_that_rounds_them():
    config = AdamW(learning_rate=RATE, b1=0.9, b2=0.95, eps=1e-6, state_dtype="bfloat16")
    transform = config.transform(DECLARED)
    state = transform.init(PARAMS)
    moments = jax.tree.leaves((state[0].mu, state[0].nu))
    assert {m.dtype.name for m in moments} == {"bfloat16"}
    found = stepped(config)
    exact = stepped(config.model_copy(update={"state_dtype": "float32"}))

    def stored(a):
        return np.float32(ml_dtypes.bfloat16(np.float32(a)))

    for path in (("embed",), ("layers", "q"), ("norm",)):
        param, *grads = (functools.reduce(lambda t, k: t[k], path, t) for t in (PARAMS, *GRADS))
        param, mean, square = np.array(param, np.float64), 0.0, 0.0
        for n, grad in enumerate(np.asarray(grads, np.float64), start=1):
            mean = 0.9 * mean + 0.1 * grad
            square = 0.95 * square + 0.05 * grad**2
            param -= RATE * (mean / (1 - 0.9**n)) / (np.sqrt(square / (1 - 0.95**n)) + 1e-6)
            mean, square = stored(mean).astype(np.float64), stored(square).astype(np.float64)
        mine = functools.reduce(lambda t, k: t[k], path, found)
        np.testing.assert_allclose(mine, param, rtol=1e-5, atol=1e-6)
        whole = functools.reduce(lambda t, k: t[k], path, exact)
        assert 1e-5 < np.max(np.abs(mine - whole)) < 1e-3  # and the dtype is what differs


@pytest.mark.parametrize("b2, falls", [(0.99, True), (0.996, True), (0.999, False)])
def test_what_a_bfloat16_moment_forgets(b2, falls):
    # Why 0.999 is refused: without a gradient a mean of 1 stays 1.
    mean = np.ones(64, ml_dtypes.bfloat16) * np.linspace(1, 1.99, 64).astype(ml_dtypes.bfloat16)
    after = (np.float32(b2) * mean.astype(np.float32)).astype(ml_dtypes.bfloat16)
    assert np.all(after < mean) == falls and (falls or np.all(after == mean))


@pytest.mark.parametrize(
    "config",
    [
        Lion(learning_rate=RATE, state_dtype="bfloat16"),
        Muon(learning_rate=RATE, adam_learning_rate=0.01, adam_b2=0.95, state_dtype="bfloat16"),
        Adafactor(learning_rate=RATE, min_factored_size=6, momentum=0.9, state_dtype="bfloat16"),
    ],
    ids=lambda c: c.type,
)
def test_moments_of_others_in_bfloat16(config):
    state = config.transform(DECLARED).init(PARAMS)
    stored = [a for a in jax.tree.leaves(state) if a.dtype == jnp.bfloat16]
    sizes = sum(a.size for a in stored)
    of_params = sum(a.size for a in jax.tree.leaves(PARAMS))
    of_matrices = sum(PARAMS["layers"][name].size for name in ("q", "o"))
    # Muon's matrices have one moment, what has Adam two.
    assert sizes == (2 * of_params - of_matrices if config.type == "muon" else of_params)
    exact = stepped(config.model_copy(update={"state_dtype": "float32"}))
    apart = jax.tree.map(lambda a, b: np.max(np.abs(a - b)), stepped(config), exact)
    assert max(jax.tree.leaves(apart)) < 3 * RATE
    assert min(apart["layers"]["q"], apart["embed"]) > 0 or config.type == "lion"


# On a mesh

ARCH = Architecture(
    vocab_size=32, width=16, layers=2, heads=4, kv_heads=2, head_dim=4, ffn=24, max_length=64
)
MODEL = declare(ARCH)
KINDS = {
    "adamw": AdamW(learning_rate=1e-2, weight_decay=0.1),
    "adafactor": Adafactor(learning_rate=1e-2, min_factored_size=8, momentum=0.9),
    "lion": Lion(learning_rate=1e-2, weight_decay=0.1),
    "muon": Muon(learning_rate=1e-2, adam_learning_rate=1e-3, weight_decay=0.1),
}
MESH = {"data": 2, "fsdp": 2, "tensor": 2}


@functools.cache
def mesh_of(devices=1, **sizes):
    return make_mesh(MeshConfig(**sizes), jax.devices()[:devices])


def bowl(params, batch, numbers):
    """A loss whose gradient is known: half the square of the distance to targets."""
    apart = jax.tree.map(lambda p: p - numbers["at"] * jnp.cos(7 * p), params)
    return 0.5 * sum(jnp.sum(a**2) for a in jax.tree.leaves(apart)), {}


def batch_on(learner):
    one = Trajectory(np.array([1, 2]), np.array([False, True]), adv=1.0)
    return learner.place(build([one], np.ones(1), Shape(4, 8)))


@functools.cache
def learner_of(config, mesh):
    return Learner(bowl, lambda params, batch: {}, config.transform(MODEL), mesh)


def state_of(config, mesh):
    host = jax.device_get(init(MODEL, jax.random.key(0), TRAIN_RULES, mesh_of()))
    params = place(host, shardings(MODEL, TRAIN_RULES, mesh))
    return create(params, {}, config.transform(MODEL))


def after_steps(config, mesh, rates=(1e-2, 5e-3, 1e-3)):
    learner, state = learner_of(config, mesh), state_of(config, mesh)
    for i, rate in enumerate(rates):
        numbers = {"at": np.float32(1 + i)}
        state, _ = learner.update(state, batch_on(learner), numbers, Rates(rate, 5.0))
    return state


@pytest.mark.parametrize("kind", KINDS)
def test_sharded_is_unsharded(kind):
    config, mesh = KINDS[kind], mesh_of(8, **MESH)
    one, split = after_steps(config, mesh_of()), after_steps(config, mesh)
    places = shardings(MODEL, TRAIN_RULES, mesh)
    assert jax.tree.map(lambda a: a.sharding, split.trainable) == places
    # One program for all rates, and the state stays where it was created.
    assert learner_of(config, mesh)._update._cache_size() == 1
    created = state_of(config, mesh)
    assert jax.tree.map(lambda a: a.sharding, split) == jax.tree.map(lambda a: a.sharding, created)
    one, split = jax.device_get((one, split))
    compare = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=2e-6)
    jax.tree.map(compare, split.trainable, one.trainable)
    jax.tree.map(compare, split.optimizer, one.optimizer)


def specs(kind):
    """Of the moments of q, by the names on their paths."""
    state = state_of(KINDS[kind], mesh_of(8, **MESH)).optimizer
    found = {}
    for path, a in jax.tree_util.tree_leaves_with_path(state):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name.endswith("layers/q"):
            found[name.split("/")[-3]] = (a.shape, a.sharding.spec)
    return found


def test_moments_lie_like_their_parameters():
    q = (2, 16, 4, 4), jax.P(None, "fsdp", "tensor")
    assert specs("adamw") == {"mu": q, "nu": q}
    assert specs("lion") == {"mu": q}
    assert specs("muon") == {"mu": q}
    rows, columns = ((2, 16), jax.P(None, "fsdp")), ((2, 4, 4), jax.P(None, "tensor"))
    assert specs("adafactor") == {"ema": q, "rows": rows, "columns": columns}


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_that_is_skipped_changes_nothing(kind):
    config = KINDS[kind]
    learner, state = learner_of(config, mesh_of()), after_steps(config, mesh_of())
    before = jax.device_get(state)
    numbers = {"at": np.float32(np.nan)}
    state, metrics = learner.update(state, batch_on(learner), numbers, Rates(1e-2, 5.0))
    assert int(metrics["optimizer/skipped"].sum) == 1
    after = jax.device_get(state)
    jax.tree.map(np.testing.assert_array_equal, after.trainable, before.trainable)
    jax.tree.map(np.testing.assert_array_equal, after.optimizer, before.optimizer)


def test_the_norm_of_what_is_frozen_clips_nothing():
    config = AdamW(learning_rate=1e-2, groups=[{"match": "layers/*", "frozen": True}])
    mesh = mesh_of()
    learner, state = learner_of(config, mesh), state_of(config, mesh)
    params = jax.device_get(state.trainable)
    _, metrics = learner.update(state, batch_on(learner), {"at": np.float32(1)}, Rates(0.1, 1.0))
    trained = {name: params[name] for name in ("embed", "norm")}
    grad = jax.grad(lambda p: bowl(p, None, {"at": 1.0})[0])(trained)
    assert float(metrics["optimizer/grad_norm"].sum) == pytest.approx(
        float(optax.tree.norm(grad)), rel=1e-5
    )


# Moments beside the devices


def with_offload(config):
    return config.model_copy(update={"state_offload": True})


@pytest.mark.parametrize("kind", ["adamw", "adafactor"])
def test_moments_on_the_host_are_the_same_bit_for_bit(kind):
    config, mesh = KINDS[kind], mesh_of(8, **MESH)
    here, there = after_steps(config, mesh), after_steps(with_offload(config), mesh)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(here), jax.device_get(there))
    kinds = {}
    for path, a in jax.tree_util.tree_leaves_with_path(there.optimizer):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        kinds.setdefault(a.sharding.memory_kind, []).append(name)
    assert {name.split("/")[-1] for name in kinds["device"]} <= {"count", "step"}
    assert sum(name.endswith("layers/q") for name in kinds[HOST]) == len(specs(kind))
    for tree in (there.trainable, there.step):
        assert {a.sharding.memory_kind for a in jax.tree.leaves(tree)} == {"device"}


def test_moments_on_the_host_are_donated_and_stay_there():
    config, mesh = with_offload(KINDS["adamw"]), mesh_of(8, **MESH)
    learner, state = learner_of(config, mesh), state_of(config, mesh)
    places = jax.tree.map(lambda a: a.sharding, state)
    after, _ = learner.update(state, batch_on(learner), {"at": np.float32(1)}, Rates(0.1, 1.0))
    assert all(a.is_deleted() for a in jax.tree.leaves(state))
    assert jax.tree.map(lambda a: a.sharding, after) == places


@pytest.mark.parametrize("is_offloaded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_restored_bit_for_bit(kind, is_offloaded, tmp_path):
    config, mesh = KINDS[kind], mesh_of(8, **MESH)
    if is_offloaded:
        config = with_offload(config)
    state = state_of(config, mesh)
    rng = np.random.default_rng(0)
    state = dataclasses.replace(
        state,
        optimizer=jax.tree.map(
            lambda a: jax.device_put(rng.normal(size=a.shape).astype(a.dtype), a.sharding),
            state.optimizer,
        ),
    )
    with Checkpoints(tmp_path, keep=1, asynchronous=False) as saved:
        saved.save(1, state, {})
        target = abstract_state(state.trainable, {}, config.transform(MODEL))
        restored = saved.restore(1, target)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(restored), jax.device_get(state))
    assert jax.tree.map(lambda a: (a.dtype, a.sharding), restored) == jax.tree.map(
        lambda a: (a.dtype, a.sharding), state
    )

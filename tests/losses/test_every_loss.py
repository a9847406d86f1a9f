"""What holds for every loss, mask and weight of tokens: one table, one test for each kind of fault.

The worked cases of a function are in the file of its own module.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import reference_policy
import reference_weights
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_vr import losses
from jaxrl_vr.arrays import Mean
from jaxrl_vr.metrics.names import METRICS

B, T, V = 8, 5, 4


class Case(NamedTuple):
    """A function, the arrays it gets, its numbers, and which arrays carry a gradient."""

    function: Callable
    args: tuple[str, ...]
    numbers: dict[str, float] = {}
    wrt: tuple[str, ...] = ()

    @property
    def name(self):
        return self.function.__name__

    @property
    def oracle(self):
        modules = (reference_policy, reference_weights)
        return next(getattr(m, self.name) for m in modules if hasattr(m, self.name))

    @property
    def masks(self):
        return {GUARD.get(name, "mask") for name in self.args} & set(self.args)

    def call(self, arrays, numbers=None):
        """The function's value, and its metrics if it has any."""
        inputs = (arrays[name] for name in self.args)
        out = self.function(*inputs, **(self.numbers if numbers is None else numbers))
        return out if isinstance(out, tuple) else (out, {})


# Which mask says where an array is read; "mask" if not here.
GUARD = {
    "chosen_logp": "chosen_mask",
    "chosen_ref": "chosen_mask",
    "rejected_logp": "rejected_mask",
    "rejected_ref": "rejected_mask",
    "chosen_mask": "chosen_mask",
    "rejected_mask": "rejected_mask",
    "chosen": "valid",
    "rejected": "valid",
    "logit": "step_end",
    "label": "step_end",
}

RATIO = ("logp", "old_logp", "adv", "mask")
PACKED = (*RATIO, "segment_ids")
WEIGHT = ("logp", "sampler_logp", "mask")
CLIP = {"clip_low": 0.2, "clip_high": 0.28}
LOGP = ("logp",)
PAIRS = (
    *("chosen_logp", "rejected_logp", "chosen_ref", "rejected_ref"),
    *("chosen_mask", "rejected_mask"),
)
CASES = [
    Case(losses.reinforce, ("logp", "adv", "mask"), {}, LOGP),
    Case(losses.ppo_clip, RATIO, CLIP, LOGP),
    Case(losses.ppo_clip, RATIO, CLIP | {"dual_clip": 1.5}, LOGP),
    Case(losses.ppo_clip, RATIO, CLIP | {"max_ratio": 1.5}, LOGP),
    Case(losses.cispo, RATIO, {"clip_low": 0.3, "clip_high": 0.4}, LOGP),
    Case(losses.sapo, RATIO, {"tau_pos": 1.0, "tau_neg": 1.05}, LOGP),
    Case(losses.dppo_tv, RATIO, CLIP | {"max_ratio": 1.7}, LOGP),
    Case(losses.dppo_kl, RATIO, {"clip_low": 0.05, "clip_high": 0.1, "max_ratio": 1.7}, LOGP),
    Case(
        losses.decoupled_ppo,
        ("logp", "old_logp", "sampler_logp", "adv", "mask"),
        CLIP | {"max_weight": 1.6},
        LOGP,
    ),
    Case(losses.positive_nll, ("logp", "is_right", "mask"), {}, LOGP),
    Case(losses.rft, ("logp", "reward", "mask"), {}, LOGP),
    Case(losses.gspo, PACKED, CLIP, LOGP),
    Case(losses.gspo_token, PACKED, CLIP, LOGP),
    Case(losses.gmpo, PACKED, {"clip_low": 0.3, "clip_high": 0.4}, LOGP),
    Case(losses.online_mirror_descent, PACKED, {"tau": 0.3}, LOGP),
    Case(losses.online_mirror_descent_squared, PACKED, {"tau": 0.3}, LOGP),
    Case(losses.dpo, PAIRS, {"beta": 0.7}, ("chosen_logp", "rejected_logp")),
    Case(
        losses.packed_dpo,
        ("logp", "old_logp", "preference", "mask", "segment_ids"),
        {"beta": 0.7},
        LOGP,
    ),
    Case(losses.opsm, PACKED, {"delta": 0.05}),
    Case(losses.top_entropy_mask, ("entropy", "mask"), {"threshold": 1.5}),
    Case(losses.token_covariance, ("logp", "adv", "mask")),
    Case(
        losses.select_clip_cov,
        ("cov", "mask", "noise"),
        {"low": 0.5, "high": 2.0, "fraction": 0.15},
    ),
    Case(losses.select_kl_cov, ("cov", "mask"), {"fraction": 0.15}),
    Case(losses.clip_cov, (*RATIO, "selected"), CLIP, LOGP),
    Case(losses.kl_cov, (*RATIO, "selected"), {"coef": 0.8}, LOGP),
    Case(losses.tis, WEIGHT, {"max_weight": 1.3}),
    Case(losses.sequence_tis, (*WEIGHT, "segment_ids"), {"max_weight": 1.3}),
    Case(losses.geometric_tis, (*WEIGHT, "segment_ids"), {"max_weight": 1.1}),
    Case(losses.mis, WEIGHT, {"max_weight": 1.3}),
    Case(losses.sequence_mis, (*WEIGHT, "segment_ids"), {"max_weight": 1.3}),
    Case(losses.geometric_mis, (*WEIGHT, "segment_ids"), {"low": 0.8, "high": 1.2}),
    Case(losses.icepop, WEIGHT, {"low": 0.7, "high": 1.4}),
    Case(losses.veto, (*WEIGHT, "segment_ids"), {"threshold": 0.4}),
    Case(losses.cross_entropy, ("logp", "mask"), {}, LOGP),
    Case(losses.label_smoothing, ("logits", "target", "mask"), {"epsilon": 0.2}, ("logits",)),
    Case(losses.z_loss, ("log_z", "mask"), {"coef": 0.3}, ("log_z",)),
    Case(losses.pretraining_mix, ("logp", "mask"), {"coef": 1.7}, LOGP),
    Case(losses.bradley_terry, ("chosen", "rejected", "valid"), {}, ("chosen", "rejected")),
    Case(losses.step_cross_entropy, ("logit", "label", "step_end"), {}, ("logit",)),
    Case(losses.forward_kl, ("logits", "teacher_logits", "mask"), {}, ("logits",)),
    Case(losses.reverse_kl, ("logits", "teacher_logits", "mask"), {}, ("logits",)),
    Case(losses.jensen_shannon, ("logits", "teacher_logits", "mask"), {"beta": 0.3}, ("logits",)),
    Case(losses.top_k_forward_kl, ("top_logp", "teacher_top", "mask"), {}, ("top_logp",)),
    Case(losses.on_policy_advantage, ("logp", "old_logp", "mask")),
    Case(losses.entropy_bonus, ("entropy", "mask"), {"coef": 0.4}, ("entropy",)),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join([c.name, *c.numbers]))


def draw(seed, dtype=np.float32):
    """All the arrays of the table, ragged and random."""
    rng = np.random.default_rng(seed)

    def uniform(low, high, *shape):
        return rng.uniform(low, high, shape or (B, T)).astype(dtype)

    def some(*shape):
        return rng.random(shape or (B, T)) < 0.7

    logp = uniform(-3, -0.05)
    old_logp = np.minimum(logp - uniform(-0.7, 0.7), dtype(-0.01))
    logits, teacher_logits = uniform(-2, 2, B, T, V), uniform(-2, 2, B, T, V)
    top = [x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (logits, teacher_logits)]
    sign = rng.choice([-1.0, 0.0, 1.0], (B, T), p=[0.45, 0.1, 0.45]).astype(dtype)
    return {
        "logp": logp,
        "old_logp": old_logp,
        "sampler_logp": old_logp - uniform(-0.6, 0.6),
        "adv": uniform(-2, 2) * np.abs(sign),
        "mask": some(),
        "segment_ids": np.cumsum(rng.random((B, T)) < 0.3, axis=1).astype(np.int32),
        "is_right": some(),
        "reward": uniform(-1, 1),
        "preference": sign,
        "selected": some(),
        "entropy": uniform(0, 3),
        "cov": uniform(-1, 3),
        "noise": uniform(0, 1),
        "chosen_logp": uniform(-3, 0),
        "chosen_ref": uniform(-3, 0),
        "rejected_logp": uniform(-3, 0, B, T + 1),
        "rejected_ref": uniform(-3, 0, B, T + 1),
        "chosen_mask": some() & (np.arange(B) != 0)[:, None],
        "rejected_mask": some(B, T + 1),
        "logits": logits,
        "teacher_logits": teacher_logits,
        "target": rng.integers(0, V, (B, T)).astype(np.int32),
        "log_z": uniform(-2, 2),
        "chosen": uniform(-2, 2, B),
        "rejected": uniform(-2, 2, B),
        "valid": some(B),
        "logit": uniform(-2, 2),
        "label": uniform(0, 1),
        "step_end": some(),
        "top_logp": top[0][..., :2],
        "teacher_top": top[1][..., :2],
    }


def arrays_of(case, seed=0, dtype=np.float32):
    drawn = draw(seed, dtype)
    return {name: drawn[name] for name in case.args}


def floats(arrays):
    return {k: v for k, v in arrays.items() if np.issubdtype(v.dtype, np.floating)}


COTANGENT = np.random.default_rng(7).uniform(0.5, 2, (B, T))


def weighted(value):
    """A sum in which every place counts differently."""
    weight = COTANGENT if value.ndim == 2 else COTANGENT[:, 0]
    return jnp.sum(value * weight.astype(value.dtype))


@functools.cache
def compiled(index):
    """(arrays, numbers) -> value, metrics, and the gradients of the weighted sum.

    The metrics are added to that sum: its gradients are only right if they have none.
    """
    case = CASES[index]

    def total(varied, arrays, numbers):
        value, metrics = case.call({**arrays, **varied}, numbers)
        numeric = value.astype(jnp.float32) if value.dtype == bool else value
        summed = sum((jnp.asarray(x, numeric.dtype) for x in jax.tree.leaves(metrics)), 0.0)
        return weighted(numeric) + summed, (value, metrics)

    def everything(arrays, numbers):
        grads, (value, metrics) = jax.grad(total, has_aux=True)(floats(arrays), arrays, numbers)
        return value, metrics, grads

    return jax.jit(everything)


def run(case, arrays):
    return compiled(CASES.index(case))(arrays, case.numbers)


def close(found, expected, **tolerance):
    jax.tree.map(functools.partial(np.testing.assert_allclose, **tolerance), found, expected)


@every_case
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_equals_the_loop(case, seed):
    arrays = arrays_of(case, seed, np.float64)
    expected = case.oracle(
        **dict(zip(parameters(case), arrays.values(), strict=True)), **case.numbers
    )
    with jax.enable_x64(True):
        value = run(case, arrays)[0]
        assert value.dtype == (bool if expected.dtype == bool else np.float64)
        np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-12)


def parameters(case):
    code = case.oracle.__code__
    return code.co_varnames[: len(case.args)]


@every_case
def test_gradient_by_finite_differences(case):
    arrays = arrays_of(case, 3, np.float64)
    with jax.enable_x64(True):
        grads = jax.device_get(run(case, arrays)[2])
    frozen = {"frozen": arrays["logp"]} if "frozen" in case.oracle.__code__.co_varnames else {}
    for name in case.wrt:

        def oracle(x, name=name):
            inputs = {**arrays, name: x}.values()
            named = dict(zip(parameters(case), inputs, strict=True))
            value = case.oracle(**named, **frozen, **case.numbers)
            return np.sum(value * (COTANGENT if value.ndim == 2 else COTANGENT[:, 0]))

        numeric = reference.gradient(oracle, arrays[name])
        np.testing.assert_allclose(grads[name], numeric, rtol=1e-6, atol=1e-7)
        assert numeric.any()


@every_case
def test_only_the_policy_carries_a_gradient(case):
    _, _, grads = run(case, arrays_of(case))
    assert not any(np.any(grad) for name, grad in grads.items() if name not in case.wrt)
    assert all(np.any(grads[name]) for name in case.wrt)


@every_case
def test_what_is_masked_out_does_not_matter(case):
    arrays = arrays_of(case)
    clean = run(case, arrays)
    for poison in (np.nan, np.inf, -np.inf):
        dirty = dict(arrays)
        for name, array in floats(arrays).items():
            mask = arrays[GUARD.get(name, "mask")]
            mask = mask.reshape(mask.shape + (1,) * (array.ndim - mask.ndim))
            dirty[name] = np.where(mask, array, np.float32(poison))
            assert not np.isfinite(dirty[name]).all()
        jax.tree.map(np.testing.assert_array_equal, run(case, dirty), clean)


@every_case
def test_nothing_to_train(case):
    arrays = arrays_of(case)
    assert case.masks
    none = {name: np.zeros_like(arrays[name]) for name in case.masks}
    value, metrics, grads = run(case, {**arrays, **none})
    assert not np.any(value)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves((metrics, grads)))


@every_case
def test_metrics_count_what_trains(case):
    arrays = arrays_of(case)
    counts = {int(np.sum(arrays[name])) for name in case.masks}
    metrics = run(case, arrays)[1]
    assert set(metrics) <= set(METRICS)
    for name, metric in metrics.items():
        if isinstance(metric, Mean) and name not in OVER_FEWER:
            assert float(metric.count) in counts, name


# Means over some of the trained tokens, or over pairs.
OVER_FEWER = {"policy/positive_nll", "dpo/accuracy", "dpo/margin"}


@every_case
def test_not_jitted_equals_jitted(case):
    arrays = arrays_of(case)
    close(case.call(arrays), run(case, arrays)[:2], rtol=1e-5, atol=1e-6)


@every_case
def test_vmapped_equals_looped(case):
    batches = [arrays_of(case, seed) for seed in (0, 1)]
    stacked = jax.tree.map(lambda *x: np.stack(x), *batches)
    found = jax.jit(jax.vmap(lambda arrays: case.call(arrays)))(stacked)
    expected = jax.tree.map(lambda *x: np.stack(x), *(run(case, b)[:2] for b in batches))
    close(found, expected, rtol=1e-5, atol=1e-6)


@every_case
def test_sharded_equals_plain(case):
    arrays = arrays_of(case)
    mesh = jax.make_mesh((8,), ("data",))
    rows = jax.NamedSharding(mesh, jax.P("data"))
    found = run(case, jax.device_put(arrays, rows))
    close(found, run(case, arrays), rtol=1e-5, atol=1e-6)


@every_case
def test_in_shard_map_equals_each_device_s_part(case):
    arrays = arrays_of(case)
    mesh = jax.make_mesh((8,), ("data",), (jax.sharding.AxisType.Auto,))

    def part(arrays):  # a leading axis, so that results of devices can stand side by side
        grads = jax.grad(lambda varied: weighted_part(case, {**arrays, **varied}))(floats(arrays))
        return jax.tree.map(lambda x: jnp.asarray(x)[None], (*case.call(arrays), grads))

    spec = jax.P("data")
    found = jax.jit(jax.shard_map(part, mesh=mesh, in_specs=spec, out_specs=spec))(arrays)
    parts = {name: x.reshape(8, -1, *x.shape[1:]) for name, x in arrays.items()}
    expected = jax.jit(jax.vmap(part))(parts)
    close(found, jax.tree.map(lambda x: x[:, 0], expected), rtol=1e-5, atol=1e-6)


def weighted_part(case, arrays):
    """A sum over a device's part in which every token counts differently."""
    value = case.call(arrays)[0]
    return jnp.sum(jnp.asarray(value, jnp.float32) * COTANGENT[0, : value.shape[-1]].sum())


@every_case
def test_permuted_rows_give_permuted_values(case):
    arrays = arrays_of(case)
    order = np.random.default_rng(1).permutation(B)
    permuted = {name: array[order] for name, array in arrays.items()}
    value, metrics, _ = run(case, arrays)
    new_value, new_metrics, _ = run(case, permuted)
    close(new_value, np.asarray(value)[order], rtol=1e-6, atol=1e-6)
    close(new_metrics, metrics, rtol=1e-5, atol=1e-6)


PACKABLE = [case for case in CASES if "segment_ids" in case.args]


@pytest.mark.parametrize("case", PACKABLE, ids=lambda case: case.name)
def test_packed_equals_unpacked(case):
    arrays = {k: v for k, v in arrays_of(case).items() if k != "segment_ids"}
    alone = case.function(*arrays.values(), **case.numbers)
    # Two rows beside each other: B, T -> B / 2, 2 T
    packed = {name: array.reshape(B // 2, 2 * T) for name, array in arrays.items()}
    ids = np.repeat(np.array([[3, 1]], np.int32), T, axis=1).repeat(B // 2, axis=0)
    together = case.function(*packed.values(), ids, **case.numbers)
    value = together[0] if isinstance(together, tuple) else together
    unpacked = np.asarray(value).reshape(B, T)  # B / 2, 2 T -> B, T
    together = (unpacked, together[1]) if isinstance(together, tuple) else unpacked
    close(together, alone, rtol=1e-5, atol=1e-6)


@every_case
def test_bfloat16_gives_float32(case):
    arrays = arrays_of(case)
    low = {name: jnp.asarray(array, jnp.bfloat16) for name, array in floats(arrays).items()}
    value, metrics = jax.eval_shape(case.call, {**arrays, **low})
    leaves = [value, *(metric[0] for metric in metrics.values())]
    assert all(leaf.dtype != jnp.bfloat16 for leaf in leaves)
    if case.wrt:
        assert value.dtype == jnp.float32


@every_case
def test_wrong_shapes(case):
    arrays = arrays_of(case)
    for name, array in arrays.items():
        wrong = {**arrays, name: array[:-1]}
        with pytest.raises(ValueError, match=r"expected shape \["):
            jax.eval_shape(case.call, wrong)


def test_every_token_function_is_in_the_table():
    elsewhere = set(
        "trpo_step preference_pairs entropy_threshold effective_sample_size mismatch_metrics "
        "staleness_decay adaptive_entropy".split()
    )
    modules = [losses.policy, losses.offpolicy, losses.supervised, losses.distill, losses.entropy]
    public = {
        name
        for name in losses.__all__
        if callable(getattr(losses, name)) and any(hasattr(m, name) for m in modules)
    }
    assert public - {case.name for case in CASES} == elsewhere

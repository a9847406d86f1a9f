"""What holds for every advantage, divergence, critic loss, shaped reward and weight alike.

A case names a function, its oracle, and its arrays. The shape of an array is spelled by letters and
a sign for its content: none for floats, `?` bool, `#` counts, `^` positions, `-` log-probs,
`@` segment ids, `!` 0 or 1.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import reference_advantages
import reference_kl
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_vr import losses

SIZES = {"P": 8, "G": 4, "R": 3, "S": 3, "B": 8, "N": 32, "T": 6, "V": 5}  # N = P x G
MASK = {"mask": "BT?"}
BY_MASK = {"logp": "mask", "ref_logp": "mask"}


@dataclasses.dataclass(frozen=True)
class Case:
    ours: Callable
    oracle: Callable
    arrays: dict[str, str]
    read: dict[str, str] = dataclasses.field(default_factory=dict)
    """Array -> the mask outside of which nothing of it may be read."""
    learns: tuple[str, ...] = ()
    """Arrays with a gradient; the others have none."""
    slope: Callable | None = None
    """The oracle whose finite differences are the gradient, if it is not the value's."""
    static: dict = dataclasses.field(default_factory=dict)
    numbers: dict = dataclasses.field(default_factory=dict)
    is_by_row: bool = True
    """Whether permuted rows give permuted results."""

    def call(self, arrays, numbers):
        return self.ours(**arrays, **numbers, **self.static)

    def expected(self, arrays, function=None):
        return (function or self.oracle)(**arrays, **self.numbers)


def group(ours, oracle, arrays=None, **numbers):
    """An advantage of the rollouts of a group."""
    arrays = {"reward": "PG"} | (arrays or {})
    read = {name: "valid" for name, spec in arrays.items() if spec.startswith("PG")}
    return Case(ours, oracle, arrays | {"valid": "PG?"}, read, numbers=numbers)


def steps(ours, oracle):
    return Case(ours, oracle, {"score": "BT", "mask": "BT?"}, {"score": "mask"})


def tokens(ours, oracle, arrays=None, *, static=None, **numbers):
    """Advantages of tokens, from rewards of tokens."""
    arrays = {"reward": "BT"} | (arrays or {})
    read = {name: "mask" for name, spec in arrays.items() if spec == "BT"}
    return Case(ours, oracle, arrays | MASK, read, static=static or {}, numbers=numbers)


def divergence(ours, oracle, slope=None, arrays=None):
    arrays = {"logp": "BT-", "ref_logp": "BT-"} | (arrays or {})

    def masked(function):
        if function is None:
            return None
        return lambda mask, **rest: np.where(mask, function(**rest), 0)

    read = {name: "mask" for name in arrays}
    return Case(ours, masked(oracle), arrays | MASK, read, ("logp",), masked(slope))


def shaped(ours, oracle, arrays, learns=(), **numbers):
    return Case(ours, oracle, arrays, learns=learns, numbers=numbers)


LOGITS = {"logits": "BTV", "ref_logits": "BTV"} | MASK
BY_LOGITS = {"logits": "mask", "ref_logits": "mask"}
IDS = {"segment_ids": "BT@"}
RIGHT = {"reward": "PG!"}
REF, REF_KL = reference_advantages, reference_kl


def value_loss(value, old_value, returns, mask, *, clip):
    loss, metrics = losses.clipped_value_loss(value, old_value, returns, mask, clip=clip)
    return loss, metrics["value/clip_frac"].sum


def huber(**rest):
    return losses.huber_value_loss(**rest)[0]


def reward_metrics(**rest):
    metrics = losses.kl_reward_metrics(**rest)
    names = ("reward/total", "reward/task", "reward/kl")
    return *(metrics[name].sum for name in names), metrics["reward/kl"].count


def top_k(k):
    return functools.partial(REF_KL.top_k_kl, k=k)


CASES = {
    "group_norm": group(losses.group_norm, reference.group_norm, eps=1e-4, ddof=0),
    "group_norm_of_sample": group(losses.group_norm, reference.group_norm, eps=0.1, ddof=1),
    "group_center": group(losses.group_center, reference.group_center),
    "leave_one_out": group(losses.leave_one_out, REF.leave_one_out),
    "batch_norm": group(losses.batch_norm, REF.batch_norm, eps=1e-4, ddof=1),
    "max_rl": group(losses.max_rl, REF.max_rl, RIGHT),
    "opo": group(losses.opo, REF.opo, {"length": "PG#"}),
    "remax": group(
        losses.remax,
        lambda reward, greedy_reward, valid: REF.fixed_baseline(reward, greedy_reward, valid),
        {"greedy_reward": "P"},
    ),
    "fixed_baseline": group(losses.fixed_baseline, REF.fixed_baseline, {"baseline": "P"}),
    "pass_at_1": group(losses.pass_at_k_advantage, REF.pass_at_k_advantage, RIGHT, k=1, eps=1e-6),
    "pass_at_2": group(losses.pass_at_k_advantage, REF.pass_at_k_advantage, RIGHT, k=2, eps=1e-6),
    "pass_at_3": group(losses.pass_at_k_advantage, REF.pass_at_k_advantage, RIGHT, k=3, eps=1e-6),
    "reinforce_plus_plus_baseline": group(
        losses.reinforce_plus_plus_baseline, REF.reinforce_plus_plus_baseline, eps=1e-8
    ),
    "multi_reward_norm": Case(
        losses.multi_reward_norm,
        REF.multi_reward_norm,
        {"rewards": "PGR", "weights": "R", "valid": "PG?"},
        {"rewards": "valid"},
        numbers={"eps": 1e-4, "ddof": 0},
    ),
    "gdpo": Case(
        losses.gdpo,
        REF.gdpo,
        {"rewards": "PGR", "weights": "R", "valid": "PG?"},
        {"rewards": "valid"},
        numbers={"eps": 1e-4, "ddof": 1},
    ),
    "process_group_norm": Case(
        losses.process_group_norm,
        REF.process_group_norm,
        {"step_reward": "PGS", "step_end": "PGS^", "step_mask": "PGS?", "mask": "NT?"},
        {"step_reward": "step_mask", "step_end": "step_mask"},
        numbers={"eps": 1e-4, "ddof": 0},
        is_by_row=False,  # rows are of rollouts, and steps of prompts
    ),
    "gae": tokens(losses.gae, REF.gae, {"value": "BT"}, gamma=0.9, lam=0.8),
    "gae_packed": tokens(
        losses.gae, REF.gae, {"value": "BT", "bootstrap": "BT"} | IDS, gamma=0.9, lam=0.8
    ),
    "gae_in_chunks": tokens(
        losses.gae,
        REF.gae,
        {"value": "BT", "bootstrap": "BT", "lam": "BT"} | IDS,
        static={"chunk": 4},
        gamma=0.9,
    ),
    "gae_cut": tokens(
        losses.gae, REF.gae, {"value": "BT", "bootstrap": "B", "lam": "B"}, gamma=1.0
    ),
    "discounted_return": tokens(losses.discounted_return, REF.discounted_return, gamma=0.9),
    "discounted_return_packed": tokens(
        losses.discounted_return, REF.discounted_return, IDS, static={"chunk": 2}, gamma=0.9
    ),
    "reinforce_plus_plus": tokens(
        losses.reinforce_plus_plus, REF.reinforce_plus_plus, IDS, gamma=0.9, eps=1e-8
    ),
    "whiten": Case(
        losses.whiten, REF.whiten, {"x": "BT"} | MASK, {"x": "mask"}, numbers={"eps": 1e-8}
    ),
    "whiten_about_its_mean": Case(
        losses.whiten,
        REF.whiten,
        {"x": "B", "mask": "B?"},
        {"x": "mask"},
        numbers={"shift_mean": False, "eps": 1e-8},
    ),
    "length_adaptive_lambda": shaped(
        losses.length_adaptive_lambda, REF.length_adaptive_lambda, {"length": "B#"}, alpha=0.05
    ),
    "step_min": steps(losses.step_min, REF.step_min),
    "step_product": steps(losses.step_product, REF.step_product),
    "step_mean": steps(losses.step_mean, REF.step_mean),
    "k1": divergence(losses.k1, REF_KL.k1),
    "k2": divergence(losses.k2, REF_KL.k2),
    "k3": divergence(losses.k3, reference.k3),
    "unbiased_k3": divergence(losses.unbiased_k3, REF_KL.unbiased_k3, None, {"old_logp": "BT-"}),
    "k1_straight_through": divergence(losses.k1_straight_through, REF_KL.k1, REF_KL.k2),
    "k3_straight_through": divergence(losses.k3_straight_through, reference.k3, REF_KL.k2),
    "full_kl": Case(
        losses.full_kl, REF_KL.full_kl, LOGITS, BY_LOGITS, ("logits",), static={"chunk": 9}
    ),
    "full_kl_at_once": Case(losses.full_kl, REF_KL.full_kl, LOGITS, BY_LOGITS, ("logits",)),
    "top_1_kl": Case(
        losses.top_k_kl, top_k(1), LOGITS, BY_LOGITS, ("logits",), static={"k": 1, "chunk": 9}
    ),
    "top_3_kl": Case(losses.top_k_kl, top_k(3), LOGITS, BY_LOGITS, ("logits",), static={"k": 3}),
    "top_all_kl": Case(losses.top_k_kl, top_k(5), LOGITS, BY_LOGITS, ("logits",), static={"k": 5}),
    "kl_in_reward": Case(
        losses.kl_in_reward,
        REF_KL.kl_in_reward,
        {"reward": "B", "logp": "BT-", "ref_logp": "BT-"} | MASK,
        BY_MASK,
        numbers={"coef": 0.3},
    ),
    "kl_in_reward_packed": Case(
        losses.kl_in_reward,
        REF_KL.kl_in_reward,
        {"reward": "BT", "logp": "BT-", "ref_logp": "BT-"} | MASK | IDS,
        BY_MASK | {"reward": "mask"},
        numbers={"coef": 0.3, "clamp_at_zero": True},
    ),
    "kl_reward_metrics": Case(
        reward_metrics,
        REF_KL.kl_reward_metrics,
        {"token_reward": "BT", "reward": "BT"} | MASK | IDS,
        {"token_reward": "mask", "reward": "mask"},
    ),
    "clipped_value_loss": Case(
        value_loss,
        REF_KL.clipped_value_loss,
        {"value": "BT", "old_value": "BT", "returns": "BT"} | MASK,
        {"value": "mask", "old_value": "mask", "returns": "mask"},
        ("value",),
        numbers={"clip": 0.5},
    ),
    "huber_value_loss": Case(
        huber,
        REF_KL.huber_value_loss,
        {"value": "BT", "returns": "BT"} | MASK,
        {"value": "mask", "returns": "mask"},
        ("value",),
        numbers={"delta": 0.7},
    ),
    "explained_variance": Case(
        losses.explained_variance,
        REF_KL.explained_variance,
        {"value": "BT", "returns": "BT"} | MASK,
        {"value": "mask", "returns": "mask"},
    ),
    "overlong_penalty": shaped(
        losses.overlong_penalty,
        REF.overlong_penalty,
        {"length": "PG#"},
        max_length=40,
        buffer=20,
        penalty=0.5,
    ),
    "truncated_mask": shaped(
        losses.truncated_mask, REF.truncated_mask, {"mask": "BT?", "truncated": "B?"}
    ),
    "kimi_length_reward": Case(
        losses.kimi_length_reward,
        REF.kimi_length_reward,
        {"length": "PG#", "correct": "PG?", "valid": "PG?"},
        {"length": "valid"},
    ),
    "cosine_length_reward": shaped(
        losses.cosine_length_reward,
        REF.cosine_length_reward,
        {"length": "B#", "correct": "B?"},
        max_length=40,
    ),
    "stop_properly_penalty": shaped(
        losses.stop_properly_penalty,
        REF.stop_properly_penalty,
        {"reward": "PG", "truncated": "PG?"},
        ("reward",),
        scale=0.25,
    ),
    "format_gate": shaped(
        losses.format_gate,
        REF.format_gate,
        {"reward": "B", "has_format": "B?"},
        ("reward",),
        otherwise=-0.5,
    ),
    "language_consistency": shaped(
        losses.language_consistency,
        REF.language_consistency,
        {"reward": "B", "share": "B"},
        ("reward", "share"),
        coef=0.5,
    ),
    "token_mean": shaped(losses.token_mean, reference.token_mean, {"length": "B#"}),
    "sequence_mean": shaped(losses.sequence_mean, reference.sequence_mean, {"length": "B#"}),
    "sequence_sum": shaped(losses.sequence_sum, REF.sequence_sum, {"length": "B#"}),
    "constant_length": shaped(
        losses.constant_length, reference.constant_length, {"length": "B#"}, max_length=60
    ),
    "prompt_mean": shaped(losses.prompt_mean, REF.prompt_mean, {"length": "B#", "group": "B^"}),
}
every = pytest.mark.parametrize("name", CASES)
# The last case of each function, for what costs a compilation and is no matter of numbers.
once = pytest.mark.parametrize("name", {case.ours: name for name, case in CASES.items()}.values())
masked = pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.read])


def draw(spec, rng):
    """An array of a case; floats in thousandths, so that none are closer than rounding."""
    letters, sign = (spec[:-1], spec[-1]) if not spec[-1].isalpha() else (spec, "")
    shape = tuple(SIZES[letter] for letter in letters)
    if sign == "?":
        return rng.random(shape) < rng.choice([0.3, 0.7, 1.0])
    if sign == "#":
        return rng.integers(1, 50, shape).astype(np.int32)
    if sign == "^":
        return rng.integers(-1, SIZES["T"] + 1, shape).astype(np.int32)
    if sign == "-":
        return rng.integers(-4000, 0, shape) / 1000
    if sign == "!":
        return rng.integers(0, 2, shape).astype(float)
    if sign == "@":
        return np.sort(rng.integers(0, 3, shape), axis=1).astype(np.int32)
    return rng.integers(-4000, 4000, shape) / 1000


def draw_all(name, seed, dtype=np.float32):
    rng = np.random.default_rng(seed)
    arrays = {key: draw(spec, rng) for key, spec in CASES[name].arrays.items()}
    return {k: x.astype(dtype) if x.dtype.kind == "f" else x for k, x in arrays.items()}


@functools.cache
def jitted(name):
    return jax.jit(CASES[name].call)


def value(name, arrays):
    return jitted(name)(arrays, CASES[name].numbers)


def total(out):
    """A scalar that weighs each entry of the first result differently."""
    first = jax.tree.leaves(out)[0]
    weight = np.cos(np.arange(first.size)).reshape(first.shape)
    return (first * weight.astype(first.dtype)).sum()


@functools.cache
def jitted_gradient(name):
    def of_floats(floats, others):
        return total(CASES[name].call(floats | others, CASES[name].numbers))

    return jax.jit(jax.grad(of_floats))


def gradient(name, arrays):
    floats = {k: x for k, x in arrays.items() if x.dtype.kind == "f"}
    others = {k: x for k, x in arrays.items() if k not in floats}
    return jitted_gradient(name)(floats, others) if floats else {}


def assert_close(found, expected, **tolerance):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(to_arrays(expected))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert np.shape(ours) == np.shape(theirs)
        np.testing.assert_allclose(ours, theirs, **tolerance)


def to_arrays(out):
    return tuple(map(np.asarray, out)) if isinstance(out, tuple) else np.asarray(out)


def assert_equal(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_every_public_function_is_in_the_table():
    modules = {"advantages", "returns", "steps", "kl", "value", "shaping", "weights"}
    public = {
        n
        for n in losses.__all__
        if getattr(getattr(losses, n), "__module__", "").split(".")[-1] in modules
    }
    wrapped = {value_loss: "clipped_value_loss", huber: "huber_value_loss"}
    wrapped[reward_metrics] = "kl_reward_metrics"
    here = {wrapped.get(case.ours, case.ours.__name__) for case in CASES.values()}
    # Of a scalar, and of a bool without a value to weigh: in the tests of their modules.
    assert public - here == {"adaptive_kl", "has_contrast"}


@every
@settings(max_examples=12)
@given(seed=st.integers(0, 2**32 - 1))
def test_equals_the_loop(name, seed):
    arrays = draw_all(name, seed)
    found = value(name, arrays)
    assert all(x.dtype in (jnp.float32, jnp.int32, jnp.bool_) for x in jax.tree.leaves(found))
    assert_close(found, CASES[name].expected(arrays), rtol=3e-5, atol=1e-5)


@every
def test_float64_stays_and_is_exact(name):
    with jax.enable_x64(True):
        for seed in range(3):
            arrays = draw_all(name, seed, np.float64)
            found = value(name, arrays)
            if any(x.dtype.kind == "f" for x in arrays.values()):
                assert jax.tree.leaves(found)[0].dtype == jnp.float64
                tolerance = {"rtol": 1e-12, "atol": 1e-12}
            else:  # made from counts alone
                tolerance = {"rtol": 1e-6, "atol": 1e-6}
            assert_close(found, CASES[name].expected(arrays), **tolerance)


@every
def test_gradient(name):
    case = CASES[name]
    arrays = draw_all(name, 1, np.float64)
    with jax.enable_x64(True):
        found = gradient(name, arrays)
    for key, grad in found.items():
        if key not in case.learns:
            assert_equal(np.asarray(grad), np.zeros_like(grad))
            continue

        def oracle(x, key=key):
            out = case.expected(arrays | {key: x}, case.slope)
            return total(to_arrays(out))

        numeric = reference.gradient(oracle, arrays[key])
        assert np.any(numeric)
        np.testing.assert_allclose(grad, numeric, rtol=1e-6, atol=1e-7)


@masked
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf], ids=str)
def test_what_is_masked_out_does_not_matter(name, poison):
    arrays = draw_all(name, 0, np.float64)
    rng = np.random.default_rng(1)
    for mask in sorted(set(CASES[name].read.values())):
        arrays[mask] = rng.random(arrays[mask].shape) < 0.6
    dirty = dict(arrays)
    for key, mask in CASES[name].read.items():
        x = arrays[key]
        keep = arrays[mask].reshape(arrays[mask].shape + (1,) * (x.ndim - arrays[mask].ndim))
        dirty[key] = np.where(keep, x, x.dtype.type(poison if x.dtype.kind == "f" else 3))
    with jax.enable_x64(True):
        assert_equal(value(name, dirty), value(name, arrays))
        assert_equal(gradient(name, dirty), gradient(name, arrays))


@masked
def test_nothing_to_train(name):
    masks = set(CASES[name].read.values())
    arrays = draw_all(name, 0, np.float64)
    arrays |= {key: np.zeros_like(arrays[key]) for key in masks}
    with jax.enable_x64(True):
        for out in (value(name, arrays), gradient(name, arrays)):
            assert all(not np.any(x) for x in jax.tree.leaves(out))


@once
def test_jit_and_vmap(name):
    case = CASES[name]
    each = [draw_all(name, seed) for seed in (0, 1)]
    plain = case.call(each[0], case.numbers)
    assert_close(value(name, each[0]), plain, rtol=1e-5, atol=1e-6)
    both = jax.tree.map(lambda *x: np.stack(x), *each)
    found = jax.jit(jax.vmap(lambda arrays: case.call(arrays, case.numbers)))(both)
    expected = jax.tree.map(lambda *x: np.stack(x), *(value(name, arrays) for arrays in each))
    assert_close(found, expected, rtol=1e-5, atol=1e-6)


@once
def test_sharded_equals_plain(name):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    arrays = draw_all(name, 0)

    def place(x):
        spec = jax.P("data") if x.shape[0] % 8 == 0 else jax.P()
        return jax.device_put(x, jax.NamedSharding(mesh, spec))

    placed = jax.tree.map(place, arrays)
    assert_close(value(name, placed), value(name, arrays), rtol=1e-5, atol=1e-6)


@once
def test_in_shard_map_equals_each_device_s_part(name):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    case, arrays = CASES[name], draw_all(name, 0)
    is_split = {key: x.shape[0] % 8 == 0 for key, x in arrays.items()}

    def part(arrays):
        out = case.call(arrays, case.numbers)
        return jax.tree.map(lambda x: jnp.asarray(x)[None], out)  # to stand side by side

    specs = {key: jax.P("data") if split else jax.P() for key, split in is_split.items()}
    if not any(is_split.values()):
        pytest.skip("no array has rows for 8 devices")
    mapped = jax.shard_map(part, mesh=mesh, in_specs=(specs,), out_specs=jax.P("data"))
    found = jax.jit(mapped)(arrays)
    each = [
        {k: np.split(x, 8)[i] if is_split[k] else x for k, x in arrays.items()} for i in range(8)
    ]
    expected = jax.tree.map(lambda *x: np.stack(x), *(value(name, part) for part in each))
    assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.is_by_row])
def test_permuted_rows_give_permuted_results(name):
    arrays = draw_all(name, 0)
    order = np.random.default_rng(0).permutation(8)
    moved = {k: x[order] if len(x) == 8 else x for k, x in arrays.items()}
    expected = jax.tree.map(lambda x: x[order] if x.ndim else x, value(name, arrays))
    assert_close(value(name, moved), expected, rtol=1e-5, atol=1e-6)


@every
def test_low_precision_is_lifted(name):
    arrays = draw_all(name, 0)
    short = {k: x.astype(jnp.bfloat16) if x.dtype.kind == "f" else x for k, x in arrays.items()}
    found = jax.eval_shape(jitted(name), short, CASES[name].numbers)
    expected = jax.eval_shape(jitted(name), arrays, CASES[name].numbers)
    assert [x.dtype for x in jax.tree.leaves(found)] == [x.dtype for x in jax.tree.leaves(expected)]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.numbers])
def test_numbers_may_be_arrays(name):
    numbers = {
        key: np.asarray(x, {int: np.int32, float: np.float32, bool: bool}[type(x)])
        for key, x in CASES[name].numbers.items()
    }
    arrays = draw_all(name, 0)
    found = jax.eval_shape(jitted(name), arrays, numbers)
    assert found == jax.eval_shape(jitted(name), arrays, CASES[name].numbers)


@every
def test_wrong_shapes(name):
    arrays = draw_all(name, 0)
    for key, x in arrays.items():
        wrong = arrays | {key: x[None, None]}
        with pytest.raises(ValueError, match=r"\w+: expected shape \[[A-Z, ]+\]"):
            CASES[name].call(wrong, CASES[name].numbers)

"""Estimators of the KL, sums over the vocabulary, KL in the reward and its controller."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import reference_kl
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.losses import (
    adaptive_kl,
    full_kl,
    k1,
    k1_straight_through,
    k2,
    k3,
    k3_straight_through,
    kl_in_reward,
    kl_reward_metrics,
    top_k_kl,
    unbiased_k3,
)

K3 = jax.jit(k3)
pairs = st.lists(
    st.tuples(st.floats(-8, 0, width=32), st.floats(-8, 0, width=32)), min_size=4, max_size=4
).map(lambda p: np.array(p, np.float32).T.reshape(2, 1, 4))


def test_by_hand():
    logp, ref_logp = jnp.log(jnp.array([[0.5, 0.25]])), jnp.log(jnp.array([[0.25, 0.5]]))
    # 1/2 - 1 - log 1/2 = 0.1931; 2 - 1 - log 2 = 0.3069
    np.testing.assert_allclose(k3(logp, ref_logp), [[0.1931, 0.3069]], atol=5e-5)


@given(pairs)
def test_equals_the_loop_and_is_not_negative(pair):
    value = K3(*pair)
    assert (value >= 0).all()
    expected = reference.k3(*pair.astype(np.float64))
    np.testing.assert_allclose(value, expected, rtol=2e-6, atol=1e-6)


def test_equal_policies_give_exact_zero():
    logp = jnp.array([[-0.1, -7.0, -1 / 3]])
    np.testing.assert_array_equal(k3(logp, logp), 0.0)
    np.testing.assert_array_equal(jax.grad(lambda x: jnp.sum(k3(x, logp)))(logp), 0.0)


def test_keeps_its_digits_where_the_two_are_close():
    # d = 2 ** -10: d^2 / 2 + d^3 / 6
    logp = jnp.array([[-1.0]])
    d = 2.0**-10
    np.testing.assert_allclose(k3(logp, logp + d), [[d**2 / 2 + d**3 / 6]], rtol=1e-3)


def test_gradient():
    logp, ref_logp = np.random.default_rng(0).uniform(-4, 0, (2, 2, 3)).astype(np.float32)
    grad = jax.grad(lambda x: jnp.sum(k3(x, ref_logp)))(jnp.array(logp))
    np.testing.assert_allclose(grad, 1 - np.exp(ref_logp - logp), rtol=1e-4, atol=1e-5)
    numeric = reference.gradient(lambda x: reference.k3(x, ref_logp).sum(), logp)
    np.testing.assert_allclose(grad, numeric, rtol=1e-4, atol=1e-5)


def test_reference_carries_no_gradient():
    logp = jnp.array([[-1.0, -2.0]])
    assert not jax.grad(lambda ref: jnp.sum(k3(logp, ref)))(logp - 1).any()


def test_expectation_is_the_divergence():
    p, q = np.array([0.5, 0.3, 0.2], np.float32), np.array([0.2, 0.2, 0.6], np.float32)
    expected = np.sum(p * np.log(p / q))  # KL(p || q), by enumeration of the tokens
    np.testing.assert_allclose(
        np.sum(p * k3(jnp.log(p)[None], jnp.log(q)[None])[0]), expected, 1e-6
    )


def test_far_apart_is_finite():
    logp, ref_logp = jnp.array([[-200.0, -0.1]]), jnp.array([[-0.1, -200.0]])
    value, grad = k3(logp, ref_logp), jax.grad(lambda x: jnp.sum(k3(x, ref_logp)))(logp)
    assert np.isfinite(value).all()
    assert np.isfinite(grad).all()
    np.testing.assert_allclose(value[0, 1], 198.9, rtol=1e-6)  # 0 - 1 + 199.9


def test_vmap():
    pair = jnp.array(np.random.default_rng(0).uniform(-4, 0, (2, 3, 2, 4)), jnp.float32)
    np.testing.assert_allclose(
        jax.vmap(k3)(*pair), jnp.stack([k3(a, b) for a, b in zip(*pair, strict=True)]), rtol=1e-6
    )


def test_wrong_shape():
    with pytest.raises(ValueError, match=r"ref_logp: expected shape \[B, T\]"):
        k3(jnp.zeros((1, 2)), jnp.zeros((1, 3)))


def test_other_estimators_by_hand():
    logp, ref_logp = jnp.log(jnp.array([[0.5, 0.25]])), jnp.log(jnp.array([[0.25, 0.5]]))
    old_logp = jnp.log(jnp.array([[0.25, 0.25]]))
    # log 2 = 0.6931 and its negative; half its square 0.2402
    np.testing.assert_allclose(k1(logp, ref_logp), [[0.6931, -0.6931]], atol=5e-5)
    np.testing.assert_allclose(k2(logp, ref_logp), [[0.2402, 0.2402]], atol=5e-5)
    # ratios 2 and 1 times k3
    found = unbiased_k3(logp, old_logp, ref_logp)
    np.testing.assert_allclose(found, [[0.3863, 0.3069]], atol=5e-5)
    np.testing.assert_array_equal(k1_straight_through(logp, ref_logp), k1(logp, ref_logp))
    np.testing.assert_array_equal(k3_straight_through(logp, ref_logp), k3(logp, ref_logp))


def expected_gradient(estimator, logits, ref_logits, old_logits=None):
    """Of an estimator, over the tokens of the policy that samples, by the policy's logits."""
    log_p, log_ref = jax.nn.log_softmax(logits), jax.nn.log_softmax(ref_logits)
    prob = jnp.exp(log_p if old_logits is None else jax.nn.log_softmax(old_logits))

    @jax.jit
    @jax.grad
    def slope(logits):
        logp = jax.nn.log_softmax(logits)[None]
        return jnp.sum(prob * estimator(logp, log_ref[None])[0])

    return slope(logits)


def test_which_gradient_each_estimator_has():
    logits, ref, old = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5)), jnp.float32)
    forward = jax.jit(jax.grad(lambda x: full_kl(x[None, None], ref[None, None])[0, 0]))(logits)
    p, q = jax.nn.softmax(logits), jax.nn.softmax(ref)
    close = functools.partial(np.testing.assert_allclose, atol=1e-6)
    # k2 and what borrows its gradient: that of KL(policy || reference)
    for estimator in (k2, k1_straight_through, k3_straight_through):
        close(expected_gradient(estimator, logits, ref), forward)
    # k1: none; k3: that of KL(reference || policy), p - q
    close(expected_gradient(k1, logits, ref), jnp.zeros(5))
    close(expected_gradient(k3, logits, ref), p - q)

    # with the ratio k3 has the right one, also for tokens of another policy
    def unbiased(logp, ref_logp):
        return unbiased_k3(logp, jax.nn.log_softmax(old)[None], ref_logp)

    close(expected_gradient(unbiased, logits, ref, old), forward)
    assert np.abs(forward - (p - q)).max() > 0.01


def test_full_kl_by_hand():
    # 0.5 log(0.5 / 0.25) + 0.5 log(0.5 / 0.75) = 0.3466 - 0.2027; a token ruled out adds nothing
    p, q = [0.5, 0.5, 0.0], [0.25, 0.75, 0.0]
    logits, ref = (jnp.log(jnp.array([[x]])) for x in (p, q))
    np.testing.assert_allclose(full_kl(logits, ref), [[0.1438]], atol=5e-5)
    assert np.isfinite(jax.grad(lambda x: jnp.sum(full_kl(x, ref)))(logits)).all()
    impossible = jnp.log(jnp.array([[[1.0, 0.0, 0.0]]]))
    assert full_kl(logits, impossible).tolist() == [[jnp.inf]]


@given(st.integers(0, 2**32 - 1))
def test_merging_tokens_loses_divergence(seed):
    logits, ref = np.random.default_rng(seed).normal(size=(2, 1, 3, 6), scale=3).astype(np.float32)
    whole = np.asarray(FULL(logits, ref))
    below = np.zeros_like(whole)
    for k in (1, 3, 5):
        merged = np.asarray(TOP(logits, ref, k=k))
        assert (merged >= below - 1e-5).all()
        below = merged
    np.testing.assert_allclose(below, whole, rtol=1e-4, atol=1e-5)  # k = V - 1 merges nothing


FULL, TOP = jax.jit(full_kl), jax.jit(top_k_kl, static_argnames="k")


@pytest.mark.parametrize("chunk", [1, 4, 6, 100])
def test_chunks_change_nothing(chunk):
    logits, ref = jnp.asarray(np.random.default_rng(0).normal(size=(2, 2, 3, 6)), jnp.float32)
    mask = jnp.array([[True, False, True], [True, True, False]])

    @functools.partial(jax.jit, static_argnums=1)
    def both(x, chunk):
        def total(x):
            merged = top_k_kl(x, ref, mask, k=2, chunk=chunk)
            values = full_kl(x, ref, mask, chunk=chunk), merged
            return jnp.sum(values[0] * values[1]), values

        return jax.grad(total, has_aux=True)(x)

    for x, y in zip(*(jax.tree.leaves(both(logits, n)) for n in (chunk, None)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_memory_of_the_full_kl_does_not_hold_softmaxes():
    # 256 tokens of 2048: beside the gradient, 2 MB in float32, a chunk of 8 may take some 64 kB
    # apiece; without chunks the softmaxes of both and their product take 6 MB.
    shape = jax.ShapeDtypeStruct((1, 256, 2048), jnp.float32)
    grad = jax.grad(lambda x, y: jnp.sum(full_kl(x, y, chunk=8)))
    memory = jax.jit(grad).lower(shape, shape).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 3 * 2**20


@pytest.mark.parametrize("k", [0, 7])
def test_top_k_outside_the_vocabulary(k):
    with pytest.raises(ValueError, match=f"k: expected from 1 to V = 6, the vocabulary, got {k}"):
        top_k_kl(jnp.zeros((1, 2, 6)), jnp.zeros((1, 2, 6)), k=k)


LOGP = jnp.array([[-1.0, -2.0, -1.0, -3.0]])
REF_LOGP = jnp.array([[-2.0, -1.0, -1.5, 0.0]])
MASK = jnp.array([[True, True, True, False]])


def test_kl_in_the_reward_by_hand():
    # KL 1, -1, 0.5, times 0.1; the reward 2 at the last trained token; the fourth is masked
    found = kl_in_reward(jnp.array([2.0]), LOGP, REF_LOGP, MASK, coef=0.1)
    np.testing.assert_allclose(found, [[-0.1, 0.1, 1.95, 0]], rtol=1e-6)
    # AlpacaFarm: what is below 0 is no reward
    found = kl_in_reward(jnp.array([2.0]), LOGP, REF_LOGP, MASK, coef=0.1, clamp_at_zero=True)
    np.testing.assert_allclose(found, [[-0.1, 0.0, 1.95, 0]], rtol=1e-6)
    # another estimator: 1 / 2, 1 / 2, 1 / 8
    found = kl_in_reward(jnp.array([2.0]), LOGP, REF_LOGP, MASK, coef=0.1, estimator=k2)
    np.testing.assert_allclose(found, [[-0.05, -0.05, 1.9875, 0]], rtol=1e-6)


def test_kl_in_the_reward_of_packed_rows():
    ids, reward = jnp.array([[1, 1, 2, 2]]), jnp.array([[2.0, 2.0, 7.0, 7.0]])
    shaped = kl_in_reward(reward, LOGP, REF_LOGP, MASK, coef=0.1, segment_ids=ids)
    np.testing.assert_allclose(shaped, [[-0.1, 2.1, 6.95, 0]], rtol=1e-6)
    metrics = kl_reward_metrics(shaped, reward, MASK, segment_ids=ids)
    sums = {name: float(metric.sum) for name, metric in metrics.items()}
    # two sequences: 2 + 7, less 0.1 x (1 - 1 + 0.5)
    expected = {"reward/total": 8.95, "reward/task": 9.0, "reward/kl": -0.05}
    assert sums == pytest.approx(expected, abs=1e-5)
    assert {int(metric.count) for metric in metrics.values()} == {2}
    with pytest.raises(ValueError, match=r"reward: rows with segment_ids .* need shape \[B, T\]"):
        kl_in_reward(jnp.ones(1), LOGP, REF_LOGP, MASK, coef=0.1, segment_ids=ids)


def test_rollouts_without_trained_tokens_are_not_counted():
    mask = jnp.array([[False] * 4, [True] * 4])
    metrics = kl_reward_metrics(jnp.ones((2, 4)), jnp.array([5.0, 3.0]), mask)
    assert {name: (float(m.sum), int(m.count)) for name, m in metrics.items()} == {
        "reward/total": (4.0, 1),
        "reward/task": (3.0, 1),
        "reward/kl": (1.0, 1),
    }


@pytest.mark.parametrize(
    "kl, expected",
    [
        (6.0, 0.1),  # on target
        (6.6, 0.1 * 1.01),  # 0.1 above: 1 + 0.1 x 0.1
        (60.0, 0.1 * 1.02),  # far above: at most 0.2
        (0.0, 0.1 * 0.98),
    ],
)
def test_adaptive_kl_by_hand(kl, expected):
    found = STEP(jnp.array(0.1), jnp.array(kl))
    assert float(found) == pytest.approx(expected, rel=1e-6)
    assert float(found) == pytest.approx(
        reference_kl.adaptive_kl(0.1, kl, target=6.0, horizon=10_000, num_rollouts=1000), rel=1e-6
    )


STEP = jax.jit(functools.partial(adaptive_kl, target=6.0, horizon=10_000, num_rollouts=1000))


def test_the_controller_holds_its_target():
    # a policy whose KL is 1 / coefficient comes to rest at the target, from either side
    def step(coef, _):
        return adaptive_kl(coef, 1 / coef, target=4.0, horizon=10), None

    for start in (0.01, 10.0):
        end, _ = jax.lax.scan(step, jnp.array(start), length=1000)
        assert float(end) == pytest.approx(0.25, rel=1e-3)
    with pytest.raises(ValueError, match=r"kl: expected shape \[\], got \[2\]"):
        adaptive_kl(jnp.array(0.1), jnp.ones(2), target=1.0, horizon=10)

"""Policy-gradient losses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.losses import ppo_clip, reinforce

MASK = np.array([[False, True, True, True], [True, True, False, True]])
RNG = np.random.default_rng(0)
LOGP = RNG.uniform(-3, -0.1, (2, 4)).astype(np.float32)
# Ratios from 0.6 to 1.6: cut below, inside, cut above, of either sign of the advantage.
OLD = (LOGP - np.array([[0.1, 0.5, -0.5, 0.1], [-0.5, -0.1, 0.2, 0.5]])).astype(np.float32)
ADV = np.array([[1.0, 0.7, -1.2, 0.4], [0.9, -0.3, 2.0, -0.8]], np.float32)

CLIP = functools.partial(ppo_clip, clip_low=0.2, clip_high=0.28)
PPO = jax.jit(ppo_clip)


def clip_total(logp, old_logp=OLD, adv=ADV, mask=MASK):
    return jnp.sum(CLIP(logp, old_logp, adv, mask)[0])


def reinforce_total(logp, adv=ADV, mask=MASK):
    return jnp.sum(reinforce(logp, adv, mask)[0])


def one(prob, old_prob, adv, **clip):
    """Loss, its derivative by log p, and whether it is clipped, of one token."""
    logp, old_logp = (np.log(np.array([[p]], np.float32)) for p in (prob, old_prob))
    (value, clipped), grad = one_token(logp, old_logp, np.array([adv], np.float32), clip)
    return float(value), float(grad[0, 0]), int(clipped)


@jax.jit
@functools.partial(jax.value_and_grad, has_aux=True)
def one_token(logp, old_logp, adv, clip):
    loss, metrics = ppo_clip(logp, old_logp, adv, jnp.ones((1, 1), bool), **clip)
    return loss[0, 0], metrics["policy/clip_frac"].sum


@pytest.mark.parametrize(
    "prob, old_prob, adv, expected",
    [
        (0.5, 0.5, 2.0, (-2.0, -2.0, 0)),  # ratio 1: -A, and -A r
        (0.55, 0.5, 2.0, (-2.2, -2.2, 0)),  # ratio 1.1 is inside: -2 x 1.1
        (0.8, 0.5, 2.0, (-2.4, 0.0, 1)),  # ratio 1.6, cut at 1.2: -2 x 1.2
        (0.8, 0.5, -2.0, (3.2, 3.2, 0)),  # ratio 1.6 the bad way: never cut
        (0.2, 0.5, -2.0, (1.6, 0.0, 1)),  # ratio 0.4, cut at 0.8: 2 x 0.8
        (0.2, 0.5, 2.0, (-0.8, -0.8, 0)),  # ratio 0.4 the bad way: -2 x 0.4
        (0.8, 0.5, 0.0, (0.0, 0.0, 0)),  # no advantage, no gradient
    ],
)
def test_ppo_clip_by_hand(prob, old_prob, adv, expected):
    np.testing.assert_allclose(one(prob, old_prob, adv), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("clip_high, cap", [(0.2, 0.012), (0.28, 0.0128)])
def test_clip_higher_lets_an_unlikely_token_rise(clip_high, cap):
    # from probability 0.01: 0.01 x 1.2 = 0.012, 0.01 x 1.28 = 0.0128
    for prob, is_cut in ((cap - 1e-5, 0), (cap + 1e-5, 1)):
        loss, grad, clipped = one(prob, 0.01, 1.0, clip_low=0.2, clip_high=clip_high)
        assert clipped == is_cut
        assert (grad == 0.0) == bool(is_cut)
        assert loss == pytest.approx(-min(prob, cap) / 0.01, rel=1e-5)


def test_metrics_by_hand():
    prob, old_prob = np.array([[0.9, 0.5, 0.1, 0.5]]), np.array([[0.5, 0.5, 0.5, 0.1]])
    mask = np.array([[True, True, True, False]])
    logp, old_logp = (np.log(p).astype(np.float32) for p in (prob, old_prob))
    metrics = ppo_clip(logp, old_logp, jnp.ones(1), mask)[1]
    # ratios 1.8 (cut), 1, 0.2 (the bad way); the fourth is masked
    assert int(metrics["policy/clip_frac"].sum) == 1
    assert float(metrics["policy/ratio_max"].value) == pytest.approx(1.8)
    # 1.8 - 1 - log 1.8 = 0.21221; 0; 0.2 - 1 - log 0.2 = 0.80944
    assert float(metrics["policy/approx_kl"].sum) == pytest.approx(1.02165, abs=1e-5)
    assert [int(metrics[f"policy/{n}"].count) for n in ("clip_frac", "approx_kl")] == [3, 3]


def test_reinforce_by_hand():
    loss, metrics = reinforce(
        jnp.array([[-1.0, -2.0], [-0.5, -4.0]]),
        jnp.array([0.5, -1.0]),
        jnp.array([[True, True], [False, True]]),
    )
    assert loss.tolist() == [[0.5, 1.0], [0.0, -4.0]]  # -0.5 x -1, -0.5 x -2, masked, 1 x -4
    assert metrics == {}


def test_equal_to_the_loops():
    expected, found = reference.ppo_clip(LOGP, OLD, ADV, MASK, clip_low=0.2, clip_high=0.28)
    loss, metrics = CLIP(LOGP, OLD, ADV, MASK)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-7)
    assert int(metrics["policy/clip_frac"].sum) == found["clip_frac"] > 0
    assert float(metrics["policy/approx_kl"].sum) == pytest.approx(found["approx_kl"], rel=1e-4)
    assert float(metrics["policy/ratio_max"].value) == pytest.approx(found["ratio_max"], rel=1e-5)
    np.testing.assert_allclose(
        reinforce(LOGP, ADV, MASK)[0], reference.reinforce(LOGP, ADV, MASK), rtol=1e-6
    )


@given(
    st.lists(st.floats(-6, 0, width=32), min_size=16, max_size=16),
    st.lists(st.floats(-3, 3, width=32), min_size=8, max_size=8),
    st.lists(st.booleans(), min_size=8, max_size=8),
    st.sampled_from([(0.2, 0.2), (0.2, 0.28), (3e-4, 4e-4), (1.0, 5.0)]),
)
def test_ppo_clip_equals_the_loop(logps, adv, mask, clip):
    logp, old_logp = np.array(logps, np.float32).reshape(2, 2, 4)
    adv, mask = np.array(adv, np.float32).reshape(2, 4), np.array(mask).reshape(2, 4)
    low, high = clip
    expected, _ = reference.ppo_clip(logp, old_logp, adv, mask, clip_low=low, clip_high=high)
    loss, _ = PPO(logp, old_logp, adv, mask, clip_low=np.float32(low), clip_high=np.float32(high))
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-6)


def test_gradients_by_finite_differences():
    def oracle(logp):
        return reference.ppo_clip(logp, OLD, ADV, MASK, clip_low=0.2, clip_high=0.28)[0].sum()

    numeric = reference.gradient(oracle, LOGP)
    np.testing.assert_allclose(jax.grad(clip_total)(LOGP), numeric, rtol=1e-4, atol=1e-5)
    assert (numeric[MASK] == 0).any()  # some are cut,
    assert (numeric[MASK] != 0).any()  # some are not
    numeric = reference.gradient(lambda x: reference.reinforce(x, ADV, MASK).sum(), LOGP)
    np.testing.assert_allclose(jax.grad(reinforce_total)(LOGP), numeric, rtol=1e-4, atol=1e-5)


def test_on_policy_gradient_is_that_of_reinforce():
    on_policy = jax.grad(lambda x: clip_total(x, old_logp=LOGP))(LOGP)
    np.testing.assert_array_equal(on_policy, jax.grad(reinforce_total)(LOGP))
    np.testing.assert_array_equal(on_policy, np.where(MASK, -ADV, 0))


def test_zero_advantage_gives_zero_gradient():
    zero = np.zeros_like(ADV)
    assert not jax.grad(lambda x: clip_total(x, adv=zero))(LOGP).any()
    assert not jax.grad(lambda x: reinforce_total(x, adv=zero))(LOGP).any()


def test_old_logp_and_advantage_carry_no_gradient():
    grads = jax.grad(clip_total, argnums=(1, 2))(LOGP, OLD, ADV)
    grads += (jax.grad(reinforce_total, argnums=1)(LOGP, ADV),)
    assert not any(grad.any() for grad in grads)


def test_metrics_carry_no_gradient():
    def metric(logp):
        metrics = CLIP(logp, OLD, ADV, MASK)[1]
        return metrics["policy/approx_kl"].sum + metrics["policy/ratio_max"].value

    assert not jax.grad(metric)(LOGP).any()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("which", ["logp", "old_logp", "adv"])
def test_padding_does_not_matter(which, poison):
    arrays = {"logp": LOGP, "old_logp": OLD, "adv": ADV}
    poisoned = arrays | {which: np.where(MASK, arrays[which], np.float32(poison))}

    def everything(logp, old_logp, adv):
        return CLIP(logp, old_logp, adv, MASK), jax.grad(clip_total)(logp, old_logp, adv)

    jax.tree.map(np.testing.assert_array_equal, everything(**poisoned), everything(**arrays))
    if which != "old_logp":
        logp, adv = poisoned["logp"], poisoned["adv"]
        np.testing.assert_array_equal(reinforce(logp, adv, MASK)[0], reinforce(LOGP, ADV, MASK)[0])
        np.testing.assert_array_equal(
            jax.grad(reinforce_total)(logp, adv), jax.grad(reinforce_total)(LOGP, ADV)
        )


def test_nothing_to_train():
    none = np.zeros_like(MASK)
    loss, metrics = CLIP(LOGP, OLD, ADV, none)
    assert not loss.any()
    assert not any(float(leaf) for leaf in jax.tree.leaves(metrics))
    assert not jax.grad(lambda x: clip_total(x, mask=none))(LOGP).any()
    assert not reinforce(LOGP, ADV, none)[0].any()
    assert not jax.grad(lambda x: reinforce_total(x, mask=none))(LOGP).any()


def test_a_ratio_beyond_float32_is_finite():
    logp, old_logp = jnp.array([[-0.1, -300.0]]), jnp.array([[-300.0, -0.1]])
    mask = jnp.ones((1, 2), bool)
    for adv in (1.0, -1.0):
        adv = jnp.array([adv])
        loss, metrics = ppo_clip(logp, old_logp, adv, mask)
        grad = jax.grad(lambda x, adv=adv: jnp.sum(ppo_clip(x, old_logp, adv, mask)[0]))(logp)
        leaves = [loss, grad, *jax.tree.leaves(metrics)]
        assert all(np.isfinite(leaf).all() for leaf in leaves)


def test_an_advantage_a_rollout_is_one_a_token():
    adv = jnp.array([0.5, -2.0])
    per_token = jnp.broadcast_to(adv[:, None], LOGP.shape)
    for loss in (functools.partial(CLIP, LOGP, OLD), functools.partial(reinforce, LOGP)):
        np.testing.assert_array_equal(loss(adv, MASK)[0], loss(per_token, MASK)[0])


def test_jit_and_vmap():
    plain = CLIP(LOGP, OLD, ADV, MASK)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    jax.tree.map(close, jax.jit(CLIP)(LOGP, OLD, ADV, MASK), plain)
    np.testing.assert_allclose(
        jax.jit(jax.grad(clip_total))(LOGP), jax.grad(clip_total)(LOGP), rtol=1e-6
    )
    np.testing.assert_array_equal(
        jax.jit(reinforce)(LOGP, ADV, MASK)[0], reinforce(LOGP, ADV, MASK)[0]
    )
    rows = jax.vmap(CLIP)(*(x[:, None] for x in (LOGP, OLD, ADV, MASK)))
    np.testing.assert_allclose(rows[0][:, 0], plain[0], rtol=1e-6)
    assert int(rows[1]["policy/clip_frac"].sum.sum()) == int(plain[1]["policy/clip_frac"].sum)


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"old_logp": OLD[:, :3]}, r"old_logp: expected shape \[B, T\] with T = 4"),
        ({"mask": MASK[0]}, r"mask: expected shape \[B, T\], got \[4\]"),
        ({"adv": ADV[:1]}, r"adv: expected shape \[B, T\] with B = 2"),
        ({"adv": np.ones(4, np.float32)}, r"adv: expected shape \[B\] with B = 2"),
    ],
)
def test_wrong_shapes(wrong, says):
    with pytest.raises(ValueError, match=says):
        ppo_clip(**{"logp": LOGP, "old_logp": OLD, "adv": ADV, "mask": MASK, **wrong})

"""Policy-gradient losses over the ratios of tokens; see test_every_loss.py too."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_vr.losses import (
    cispo,
    decoupled_ppo,
    dppo_kl,
    dppo_tv,
    gmpo,
    gspo,
    gspo_token,
    kl_cov,
    online_mirror_descent,
    positive_nll,
    ppo_clip,
    reinforce,
    rft,
    sapo,
)

MASK = np.array([[False, True, True, True], [True, True, False, True]])
RNG = np.random.default_rng(0)
LOGP = RNG.uniform(-3, -0.1, (2, 4)).astype(np.float32)
# Ratios from 0.6 to 1.6: cut below, inside, cut above, of either sign of the advantage.
OLD = (LOGP - np.array([[0.1, 0.5, -0.5, 0.1], [-0.5, -0.1, 0.2, 0.5]])).astype(np.float32)
ADV = np.array([[1.0, 0.7, -1.2, 0.4], [0.9, -0.3, 2.0, -0.8]], np.float32)

CLIP = functools.partial(ppo_clip, clip_low=0.2, clip_high=0.28)
# Losses that are -A p_t / p_old_t at first order, with ranges wide enough for the ratios above.
ON_POLICY = {
    "ppo_clip": ppo_clip,
    "dual_clip": functools.partial(ppo_clip, dual_clip=3.0),
    "max_ratio": functools.partial(ppo_clip, max_ratio=4.0),
    "cispo": cispo,
    "sapo": sapo,
    "dppo_tv": dppo_tv,
    "dppo_kl": dppo_kl,
    "kl_cov": lambda *arrays: kl_cov(*arrays, MASK),
    "decoupled_ppo": lambda logp, old, adv, mask: decoupled_ppo(logp, old, old, adv, mask),
    "gspo_token": gspo_token,
}
IN_SEQUENCES = {
    "gspo": gspo,
    "gmpo": gmpo,
    "online_mirror_descent": functools.partial(online_mirror_descent, tau=0.5),
}
every_ratio_loss = pytest.mark.parametrize(
    "loss", (ON_POLICY | IN_SEQUENCES).values(), ids=ON_POLICY | IN_SEQUENCES
)


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


def grad_of(loss, *arrays):
    return jax.jit(jax.grad(lambda logp: jnp.sum(loss(logp, *arrays)[0])))(LOGP)


@pytest.mark.parametrize("loss", ON_POLICY.values(), ids=ON_POLICY)
def test_on_policy_gradient_is_that_of_reinforce(loss):
    np.testing.assert_array_equal(grad_of(reinforce, ADV, MASK), np.where(MASK, -ADV, 0))
    np.testing.assert_allclose(grad_of(loss, LOGP, ADV, MASK), np.where(MASK, -ADV, 0), rtol=1e-6)


@every_ratio_loss
def test_zero_advantage_gives_zero_gradient_on_policy(loss):
    assert not grad_of(loss, LOGP, np.zeros_like(ADV), MASK).any()


@every_ratio_loss
def test_a_ratio_beyond_float32_is_finite(loss):
    logp, old_logp = jnp.array([[-0.1, -300.0, -0.1]]), jnp.array([[-300.0, -0.1, -0.1]])
    mask = jnp.ones((1, 3), bool)
    loss = (
        functools.partial(loss)
        if loss is not ON_POLICY["kl_cov"]
        else (lambda *arrays: kl_cov(*arrays, mask))
    )
    for adv in (1.0, -1.0):
        adv = jnp.array([adv])
        value, metrics = loss(logp, old_logp, adv, mask)
        grad = jax.grad(lambda x, adv=adv: jnp.sum(loss(x, old_logp, adv, mask)[0]))(logp)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((value, grad, metrics)))


@every_ratio_loss
def test_an_advantage_a_rollout_is_one_a_token(loss):
    adv = jnp.array([0.5, -2.0])
    per_token = jnp.broadcast_to(adv[:, None], LOGP.shape)
    found, expected = (loss(LOGP, OLD, a, MASK)[0] for a in (adv, per_token))
    np.testing.assert_array_equal(found, expected)


def test_dual_clip_by_hand():
    # ratio 4 the bad way: 2 x 4 = 8, but at most 2 x 3; the gradient is cut, and counted.
    assert one(0.8, 0.2, -2.0, dual_clip=3.0) == pytest.approx((6.0, 0.0, 1), rel=1e-5)
    assert one(0.5, 0.2, -2.0, dual_clip=3.0) == pytest.approx((5.0, 5.0, 0), rel=1e-5)
    # A positive advantage is not its business: -2 x 1.2.
    assert one(0.8, 0.2, 2.0, dual_clip=3.0) == pytest.approx((-2.4, 0.0, 1), rel=1e-5)


def test_max_ratio_by_hand():
    # max(2 min(4, 3), 2 clip(4, 0.8, 1.2)) = 6
    assert one(0.8, 0.2, -2.0, max_ratio=3.0) == pytest.approx((6.0, 0.0, 1), rel=1e-5)
    # ratio 2.5 is below the bound
    assert one(0.5, 0.2, -2.0, max_ratio=3.0) == pytest.approx((5.0, 5.0, 0), rel=1e-5)
    assert one(0.8, 0.2, 2.0, max_ratio=3.0) == pytest.approx((-2.4, 0.0, 1), rel=1e-5)


def test_dual_clip_and_max_ratio_are_one_loss_above_the_range():
    wide = (LOGP - OLD) * 3  # ratios up to 4.5
    found = ppo_clip(OLD + wide, OLD, ADV, MASK, dual_clip=1.5)
    expected = ppo_clip(OLD + wide, OLD, ADV, MASK, max_ratio=1.5)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert (found[0] != ppo_clip(OLD + wide, OLD, ADV, MASK)[0]).any()


def logs(*probs):
    return jnp.log(jnp.array([probs]))


def call(loss, new, old, adv, **numbers):
    """Loss and gradient of tokens with these probabilities, and the share that is cut."""
    mask, adv = jnp.ones((1, len(new)), bool), jnp.array([adv])

    def total(logp):
        value, metrics = loss(logp, logs(*old), adv, mask, **numbers)
        return jnp.sum(value), (value, metrics)

    grad, (value, metrics) = jax.grad(total, has_aux=True)(logs(*new))
    return value[0], grad[0], metrics


def test_cispo_by_hand():
    # ratios 10, 0.1, 1; weights 5 (1 + 4), 0.5 (1 - 0.5), 1; loss -w A log p
    value, grad, metrics = call(
        cispo, (0.5, 0.05, 0.2), (0.05, 0.5, 0.2), (1.0, -2.0, 3.0), clip_low=0.5, clip_high=4.0
    )
    log = [-0.6931, -2.9957, -1.6094]
    np.testing.assert_allclose(value, [-5 * log[0], 0.5 * 2 * log[1], -3 * log[2]], rtol=1e-4)
    np.testing.assert_allclose(grad, [-5.0, 1.0, -3.0], rtol=1e-5)  # no token is dropped
    assert float(metrics["policy/weight_clip_frac"].sum) == 2
    assert float(metrics["policy/clip_frac"].sum) == 0


@pytest.mark.parametrize("cap", [2.0, 5.0])
def test_cispo_takes_the_parameters_of_others(cap):
    # A cap c on the ratio itself, without a lower bound, is clip_low = 1 and clip_high = c - 1.
    ratio = np.exp((LOGP - OLD) * 4)
    value, _ = cispo(LOGP, LOGP - np.log(ratio), ADV, MASK, clip_low=1.0, clip_high=cap - 1)
    expected = np.where(MASK, -np.minimum(ratio, cap) * ADV * LOGP, 0)
    np.testing.assert_allclose(value, expected, rtol=2e-5)


def test_sapo_by_hand():
    # ratio 2: tau 1: -4 sigmoid(1) = -2.9242; tau 2, A = -1: (4 / 2) sigmoid(2) = 1.7616
    value, grad, _ = call(sapo, (0.4, 0.4), (0.2, 0.2), (1.0, -1.0), tau_pos=1.0, tau_neg=2.0)
    np.testing.assert_allclose(value, [-2.9242, 1.7616], rtol=1e-4)
    # -A r 4 s (1 - s): s = 0.7311: -2 x 4 x 0.1966; s = 0.8808: 2 x 4 x 0.1050
    np.testing.assert_allclose(grad, [-1.5729, 0.8399], rtol=1e-4)


def test_dppo_tv_by_hand():
    # +0.01 at ratio 2 trains, +0.3 does not; -0.3 with A < 0 does not, with A > 0 does.
    new, old = (0.02, 0.9, 0.3, 0.3), (0.01, 0.6, 0.6, 0.6)
    value, grad, metrics = call(dppo_tv, new, old, (1.0, 1.0, -1.0, 1.0))
    np.testing.assert_allclose(value, [-2.0, 0.0, 0.0, -0.5], rtol=1e-5)
    np.testing.assert_allclose(grad, [-2.0, 0.0, 0.0, -0.5], rtol=1e-5)
    assert float(metrics["policy/clip_frac"].sum) == 2
    # A weight of 20 at ratio 50, whose gradient stays.
    value, grad, _ = call(dppo_tv, (0.05,), (0.001,), (1.0,))
    np.testing.assert_allclose([value[0], grad[0]], [-20, -20], rtol=1e-5)


def test_dppo_kl_by_hand():
    # 0.6 log(0.6 / 0.9) + 0.4 log(0.4 / 0.1) = 0.3112; 0.01 log(1 / 2) + 0.99 log(0.99 / 0.98)
    # = 0.0031; 0.6 log(0.6 / 0.5) + 0.4 log(0.4 / 0.5) = 0.0201
    new, old = (0.9, 0.02, 0.5), (0.6, 0.01, 0.6)
    for clip, cut in ((0.32, []), (0.31, [0]), (0.02, [0, 2]), (0.003, [0, 1, 2])):
        value, _, _ = call(dppo_kl, new, old, (1.0, 1.0, -1.0), clip_low=clip, clip_high=clip)
        assert np.flatnonzero(value == 0).tolist() == cut


def test_dppo_kl_of_a_certain_token():
    one_token = jnp.ones((1, 1), bool)
    for logp, old in ((0.0, 0.0), (0.0, -1.0), (-1.0, 0.0)):
        value, _ = dppo_kl(jnp.array([[logp]]), jnp.array([[old]]), jnp.ones(1), one_token)
        assert np.isfinite(value).all()
    # From 0.37 to 1 the divergence is infinite, so it is cut; back from 1 it is none of A > 0.
    assert (
        float(
            dppo_kl(jnp.zeros((1, 1)), -one_token.astype(jnp.float32), jnp.ones(1), one_token)[0][
                0, 0
            ]
        )
        == 0
    )


def test_decoupled_ppo_by_hand():
    # w = 0.5 / 0.25 = 2 and 0.2 / 0.8 = 0.25; r = 0.9 / 0.5 = 1.8, cut at 1.2, and 1
    new, old, sampler = logs(0.9, 0.2), logs(0.5, 0.2), logs(0.25, 0.8)
    mask, adv = jnp.ones((1, 2), bool), jnp.array([1.0])
    value, metrics = decoupled_ppo(new, old, sampler, adv, mask)
    np.testing.assert_allclose(value, [[-2.4, -0.25]], rtol=1e-5)
    assert float(metrics["policy/clip_frac"].sum) == 1
    value, _ = decoupled_ppo(new, old, sampler, adv, mask, max_weight=1.5)
    np.testing.assert_allclose(value, [[0.0, -0.25]], rtol=1e-5)


def test_decoupled_ppo_needs_the_sampler():
    with pytest.raises(ValueError, match="sampler_logp: off-policy weights need .* got None"):
        decoupled_ppo(LOGP, OLD, None, ADV, MASK)


def test_right_answers_by_hand():
    logp, mask = jnp.array([[-1.0, -2.0], [-4.0, -8.0]]), jnp.array([[True, True], [True, False]])
    loss, metrics = positive_nll(logp, jnp.array([True, False]), mask)
    assert loss.tolist() == [[1, 2], [0, 0]]
    assert [float(x) for x in metrics["policy/positive_nll"]] == [3, 2]  # 1 + 2, of 2 tokens
    loss, metrics = rft(logp, jnp.array([0.5, 2.0]), mask)
    assert loss.tolist() == [[0.5, 1], [8, 0]]
    assert [float(x) for x in metrics["policy/positive_nll"]] == [7, 3]  # 1 + 2 + 4, unweighted


def test_rft_of_right_and_wrong_is_imitation_of_the_right():
    is_right = jnp.array([True, False])
    for reward in (is_right.astype(jnp.float32), jnp.array([1.0, -1.0])):
        found, expected = rft(LOGP, reward, MASK), positive_nll(LOGP, is_right, MASK)
        jax.tree.map(np.testing.assert_array_equal, found, expected)

"""Distillation by hand; see test_every_loss.py too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_vr.losses import (
    forward_kl,
    jensen_shannon,
    on_policy_advantage,
    reinforce,
    reverse_kl,
    top_k_forward_kl,
)

ONE = jnp.ones((1, 1), bool)
# Student (1/2, 1/4, 1/4), teacher (1/4, 1/4, 1/2).
STUDENT, TEACHER = (jnp.log(jnp.array([[p]])) for p in ([0.5, 0.25, 0.25], [0.25, 0.25, 0.5]))
LOG_2 = 0.693147


def test_kls_by_hand():
    # forward: 1/4 log(1/2) + 0 + 1/2 log 2; reverse: 1/2 log 2 + 0 + 1/4 log(1/2)
    for kl in (forward_kl, reverse_kl):
        loss, metrics = kl(STUDENT + 3.0, TEACHER, ONE)  # logits, normalised or not
        np.testing.assert_allclose(loss, [[0.25 * LOG_2]], rtol=1e-5)
        assert float(metrics["distill/divergence"].sum) == pytest.approx(0.25 * LOG_2, rel=1e-5)


def test_jensen_shannon_by_hand():
    # M = (3/8, 1/4, 3/8): each side 1/4 log(2/3) + 1/2 log(4/3) = 0.0424747
    loss, _ = jensen_shannon(STUDENT, TEACHER, ONE)
    np.testing.assert_allclose(loss, [[0.0424747]], rtol=1e-5)


@pytest.mark.parametrize("kl, near", [(forward_kl, 1e-3), (reverse_kl, 1 - 1e-3)])
def test_jensen_shannon_lies_between_the_kls(kl, near):
    rng = np.random.default_rng(0)
    student, teacher = rng.normal(size=(2, 1, 1, 5)).astype(np.float32)
    share = min(near, 1 - near)
    loss = jensen_shannon(student, teacher, ONE, beta=near)[0] / share
    np.testing.assert_allclose(loss, kl(student, teacher, ONE)[0], rtol=5e-3)


def test_equal_distributions_diverge_by_nothing():
    for loss in (forward_kl, reverse_kl, jensen_shannon):
        value, grad = jax.value_and_grad(lambda x, f=loss: jnp.sum(f(x, STUDENT, ONE)[0]))(STUDENT)
        np.testing.assert_allclose(value, 0, atol=1e-7)
        np.testing.assert_allclose(grad, 0, atol=1e-7)


def test_a_teacher_may_rule_tokens_out():
    ruled_out = TEACHER.at[0, 0, 0].set(-jnp.inf)
    # Teacher (0, 1/3, 2/3): 1/3 log(4/3) + 2/3 log(8/3)
    loss, grad = jax.value_and_grad(lambda x: jnp.sum(forward_kl(x, ruled_out, ONE)[0]))(STUDENT)
    np.testing.assert_allclose(loss, 0.749780, rtol=1e-5)
    np.testing.assert_allclose(grad, [[[0.5, 0.25 - 1 / 3, 0.25 - 2 / 3]]], rtol=1e-5)


def test_top_k_by_hand():
    # The teacher lists its last token, 1/2; the rest is 1/2 of its mass and 3/4 of the student's:
    # 1/2 log 2 + 1/2 log(2/3)
    loss, _ = top_k_forward_kl(STUDENT[..., 2:], TEACHER[..., 2:], ONE)
    np.testing.assert_allclose(loss, [[0.5 * LOG_2 + 0.5 * np.log(2 / 3)]], rtol=1e-5)


def test_top_k_rises_to_the_whole_kl():
    rng = np.random.default_rng(1)
    student, teacher = (jax.nn.log_softmax(x) for x in rng.normal(size=(2, 1, 1, 6)))
    order = np.argsort(-teacher[0, 0])
    whole = float(forward_kl(student, teacher, ONE)[0][0, 0])
    kls = [
        float(top_k_forward_kl(student[..., order[:k]], teacher[..., order[:k]], ONE)[0][0, 0])
        for k in range(1, 7)
    ]
    assert kls == sorted(kls)
    assert 0 <= kls[0] < whole
    assert kls[4] == pytest.approx(whole, rel=1e-5)  # all but one is all
    assert kls[5] == pytest.approx(whole, rel=1e-5)


def test_a_shorter_list_is_filled_with_minus_infinity():
    filled, junk = (jnp.full((1, 1, 1), x) for x in (-jnp.inf, jnp.nan))
    expected = top_k_forward_kl(STUDENT[..., 2:], TEACHER[..., 2:], ONE)[0]
    padded = [
        jnp.concatenate([a[..., 2:], b], axis=-1) for a, b in ((STUDENT, junk), (TEACHER, filled))
    ]
    np.testing.assert_array_equal(top_k_forward_kl(*padded, ONE)[0], expected)


def test_on_policy_advantage_by_hand():
    logp, teacher = jnp.array([[-1.0, -2.0, -9.0]]), jnp.array([[-1.5, -1.0, -9.0]])
    adv, metrics = on_policy_advantage(logp, teacher, jnp.array([[True, True, False]]))
    assert adv.tolist() == [[-0.5, 1.0, 0.0]]
    assert [float(x) for x in metrics["distill/reverse_kl"]] == [-0.5, 2]


def test_on_policy_advantage_has_the_gradient_of_the_reverse_kl():
    def expected_loss(logits):
        logp = jax.nn.log_softmax(logits)[:, 0]  # every token of the vocabulary as a sample
        adv, _ = on_policy_advantage(logp, TEACHER[:, 0], jnp.ones((1, 3), bool))
        loss, _ = reinforce(logp, adv, jnp.ones((1, 3), bool))
        return jnp.sum(jax.lax.stop_gradient(jnp.exp(logp)) * loss)

    found = jax.grad(expected_loss)(STUDENT)
    expected = jax.grad(lambda x: jnp.sum(reverse_kl(x, TEACHER, ONE)[0]))(STUDENT)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)

"""The KL estimator."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.losses import k3

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

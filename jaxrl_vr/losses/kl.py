"""Estimators of KL(policy || reference) from the log-probs of sampled tokens.

B rows, T tokens of a row.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_vr.arrays import check


def k3(logp: jax.Array, ref_logp: jax.Array) -> jax.Array:
    """The low-variance, never negative estimator that GRPO adds to its loss.

    k3_t = exp(d_t) - 1 - d_t with d_t = log ref_t - log p_t.

    Sources: http://joschu.net/blog/kl-approx.html; DeepSeekMath,
    https://arxiv.org/abs/2402.03300, equation 4. As a loss its gradient is that of
    KL(reference || policy), not of KL(policy || reference).

    Args:
      logp: [B, T] float32, log-prob of each token under the policy.
      ref_logp: [B, T] float32, the same under the reference; carries no gradient.

    Returns:
      [B, T] float32, at least 0.

    >>> round(float(k3(jnp.log(jnp.array([[0.5]])), jnp.log(jnp.array([[0.25]])))[0, 0]), 4)
    0.1931
    """
    check("BT, BT", logp=logp, ref_logp=ref_logp)
    # expm1 keeps the digits that exp(d) - 1 loses where the two are close; the bound keeps the
    # value and its gradient finite where they are far apart.
    difference = jnp.minimum(jax.lax.stop_gradient(ref_logp) - logp, 20.0)
    return jnp.expm1(difference) - difference

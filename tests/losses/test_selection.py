"""Selections of tokens by hand; see test_every_loss.py too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_vr.losses import (
    clip_cov,
    entropy_threshold,
    kl_cov,
    opsm,
    ppo_clip,
    select_clip_cov,
    select_kl_cov,
    token_covariance,
    top_entropy_mask,
)

THRESHOLD = jax.jit(entropy_threshold)


def test_opsm_by_hand():
    # mean log p_old - log p: 0.6 in rows 0 and 1, 0.4 in row 2; only A < 0 above 0.5 goes
    old = jnp.zeros((3, 2))
    logp = old - jnp.array([[0.2, 1.0], [0.2, 1.0], [0.4, 0.4]])
    keep = opsm(logp, old, jnp.array([-1.0, 1.0, -1.0]), jnp.ones((3, 2), bool), delta=0.5)
    assert keep.tolist() == [[False] * 2, [True] * 2, [True] * 2]


def test_top_entropy_by_hand():
    # 5 trained tokens, 0.4 of them: the 2 largest, 3 and 2; the 9 is masked
    entropy = jnp.array([[1.0, 9.0, 3.0], [2.0, 0.5, 1.5]])
    mask = jnp.array([[True, False, True], [True, True, True]])
    threshold = entropy_threshold(entropy, mask, fraction=0.4)
    assert float(threshold) == 2.0
    keep = top_entropy_mask(entropy, mask, threshold=threshold)
    assert keep.tolist() == [[False, False, True], [True, False, False]]


@settings(max_examples=50)
@given(
    st.lists(st.floats(-4, 4, width=16), min_size=12, max_size=12),
    st.lists(st.booleans(), min_size=12, max_size=12),
    st.sampled_from([0.01, 0.2, 0.5, 0.7, 1.0]),
)
def test_threshold_is_the_kth_largest(entropy, mask, fraction):
    entropy, mask = np.array(entropy, np.float32).reshape(3, 4), np.array(mask).reshape(3, 4)
    ordered = np.sort(entropy[mask])[::-1]
    found = float(THRESHOLD(entropy, mask, fraction=fraction))
    if not len(ordered):
        assert found == -np.inf
        return
    assert found == ordered[max(int(np.float32(fraction) * len(ordered)), 1) - 1]


def test_micro_batches_do_not_change_a_selection():
    rng = np.random.default_rng(0)
    entropy = rng.uniform(0, 3, (6, 5)).astype(np.float32)
    mask = rng.random((6, 5)) < 0.7
    threshold = entropy_threshold(entropy, mask)
    whole = top_entropy_mask(entropy, mask, threshold=threshold)
    parts = [
        top_entropy_mask(entropy[i : i + 2], mask[i : i + 2], threshold=threshold)
        for i in (0, 2, 4)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert int(whole.sum()) == int(0.2 * mask.sum())


def test_covariance_by_hand():
    # means -2 and 1: (1 x -1), (0 x 2), (-1 x -1); the masked token is in neither
    logp, adv = jnp.array([[-1.0, -2.0, -3.0, 50.0]]), jnp.array([[0.0, 3.0, 0.0, 50.0]])
    cov = token_covariance(logp, adv, jnp.array([[True, True, True, False]]))
    assert cov.tolist() == [[-1, 0, 1, 0]]


def test_clip_cov_selection_by_hand():
    # Inside (1, 5): tokens 0, 1, 4; 0.5 of 5 trained is 2: those of the largest noise, 4 and 0
    cov = jnp.array([[2.0, 3.0, 0.5, 9.0, 1.5, 2.0]])
    noise = jnp.array([[0.5, 0.2, 0.9, 0.9, 0.6, 0.99]])
    mask = jnp.array([[True] * 5 + [False]])
    selected = select_clip_cov(cov, mask, noise, fraction=0.5)
    assert selected.tolist() == [[True, False, False, False, True, False]]
    # Fewer candidates than wanted: all of them; never fewer than one.
    assert int(select_clip_cov(cov, mask, noise, fraction=1.0).sum()) == 3
    assert select_clip_cov(cov, mask, noise, fraction=0.0).tolist()[0].index(True) == 4


def test_kl_cov_selection_by_hand():
    cov = jnp.array([[2.0, 3.0, -7.0, 9.0, 99.0]])
    mask = jnp.array([[True] * 4 + [False]])
    assert select_kl_cov(cov, mask, fraction=0.5).tolist() == [[False, True, False, True, False]]
    assert select_kl_cov(cov, mask).tolist() == [[False, False, False, True, False]]
    assert select_kl_cov(-jnp.abs(cov), mask, fraction=0.25).tolist()[0] == [True] + [False] * 4


OLD = jnp.array([[-2.0, -2.0, -2.0]])
NEW = OLD + jnp.array([[0.1, 0.5, -0.5]])
MASK = jnp.ones((1, 3), bool)


def test_clip_cov_by_hand():
    # ratios e^0.1 = 1.10517, e^0.5 cut at 1.2; the third is selected and does not train
    selected = jnp.array([[False, False, True]])
    loss, metrics = clip_cov(NEW, OLD, jnp.array([2.0]), MASK, selected)
    np.testing.assert_allclose(loss, [[-2.21034, -2.4, 0]], rtol=1e-5)
    assert float(metrics["policy/clip_frac"].sum) == 2
    assert [float(x) for x in metrics["policy/selected_frac"]] == [1, 3]
    nothing = clip_cov(NEW, OLD, jnp.array([2.0]), MASK, jnp.zeros_like(MASK))[0]
    np.testing.assert_array_equal(nothing, ppo_clip(NEW, OLD, jnp.array([2.0]), MASK)[0])


def test_kl_cov_by_hand():
    # -2 e^0.1, -2 e^0.5 unclipped, -2 e^-0.5 + 3 x 0.5
    selected = jnp.array([[False, False, True]])
    loss, metrics = kl_cov(NEW, OLD, jnp.array([2.0]), MASK, selected, coef=3.0)
    np.testing.assert_allclose(loss, [[-2.21034, -3.29744, -1.21306 + 1.5]], rtol=1e-5)
    assert [float(x) for x in metrics["policy/selected_frac"]] == [1, 3]


@pytest.mark.parametrize("loss", [clip_cov, kl_cov])
def test_selected_must_fit(loss):
    with pytest.raises(ValueError, match=r"selected: expected shape \[B, T\] with T = 3"):
        loss(NEW, OLD, jnp.array([2.0]), MASK, MASK[:, :2])

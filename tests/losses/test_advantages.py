"""Group advantages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.losses import group_center, group_norm, has_contrast

G = 6  # one shape for all properties: compiled once
NORM = jax.jit(group_norm, static_argnames=("eps", "ddof"))
CENTER = jax.jit(group_center)

# In thousandths, so that no two rewards are closer than rounding.
rewards = st.lists(st.integers(-4000, 4000), min_size=G, max_size=G).map(
    lambda r: np.array([r], np.float32) / 1000
)
valids = st.lists(st.booleans(), min_size=G, max_size=G).map(lambda v: np.array([v]))


@pytest.mark.parametrize(
    "reward, right, wrong",
    [
        # mean 3/8, std sqrt(3/8 x 5/8) = 0.4841: 0.625 / 0.4841, -0.375 / 0.4841
        ((1, 1, 1, 0, 0, 0, 0, 0), 1.2910, -0.7746),
        # mean 5/8, the same std: 0.375 / 0.4841, -0.625 / 0.4841
        ((1, 1, 0, 1, 0, 0, 1, 1), 0.7746, -1.2910),
        # mean 1/2, std 1/2
        ((1, 0, 0, 1), 1.0, -1.0),
        # mean 1/4, std sqrt(1/4 x 3/4) = 0.4330: 0.75 / 0.4330, -0.25 / 0.4330
        ((1, 0, 0, 0), 1.7321, -0.5774),
        # mean 7/8, std sqrt(7/8 x 1/8) = 0.3307: 0.125 / 0.3307, -0.875 / 0.3307
        ((1, 1, 1, 1, 1, 1, 1, 0), 0.3780, -2.6458),
    ],
    ids=["3_of_8", "5_of_8", "2_of_4", "1_of_4", "7_of_8"],
)
def test_group_norm_by_hand(reward, right, wrong):
    expected = [[right if r else wrong for r in reward]]
    np.testing.assert_allclose(group_norm(jnp.array([reward]), eps=0.0), expected, atol=5e-5)


def test_group_center_by_hand():
    np.testing.assert_array_equal(
        group_center(jnp.array([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]])),
        [[0.75, -0.25, -0.25, -0.25], [0.5, 0.5, -0.5, -0.5]],
    )


def test_sample_deviation_by_hand():
    # 1, 2, 3: mean 2, sum of squares 2; population sqrt(2 / 3), sample sqrt(2 / 2)
    reward = jnp.array([[1.0, 2.0, 3.0]])
    np.testing.assert_allclose(group_norm(reward, eps=0.0), [[-1.2247, 0, 1.2247]], atol=5e-5)
    np.testing.assert_allclose(group_norm(reward, eps=0.0, ddof=1), [[-1, 0, 1]], rtol=1e-6)


def test_eps_is_added_to_the_deviation():
    # std 1/2: 0.5 / (0.5 + 0.5)
    adv = group_norm(jnp.array([[1.0, 0.0]]), eps=0.5)
    np.testing.assert_allclose(adv, [[0.5, -0.5]], rtol=1e-6)


def test_groups_do_not_touch():
    reward = jnp.array([[1.0, 0.0, 0.0, 1.0], [5.0, 5.0, 5.0, 9.0], [2.0, 2.0, 2.0, 2.0]])
    apart = [NORM(reward[p : p + 1])[0] for p in range(3)]
    np.testing.assert_array_equal(NORM(reward), apart)


@pytest.mark.parametrize("size", [2, 3, 8, 1000])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_equal_rewards_give_exact_zeros(dtype, size):
    values = [0.0, 0.1, 1 / 3, -0.7, 1.0, 12345.678]
    reward = jnp.broadcast_to(jnp.array(values, dtype)[:, None], (len(values), size))
    for eps, ddof in ((0.0, 0), (1e-8, 0), (1e-4, 0), (0.0, 1)):
        adv = NORM(reward, eps=eps, ddof=ddof)
        assert adv.dtype == jnp.float32
        np.testing.assert_array_equal(adv, 0.0)
    np.testing.assert_array_equal(CENTER(reward), 0.0)
    np.testing.assert_array_equal(has_contrast(reward), False)


def test_rewards_apart_by_one_rounding_step():
    above = float(np.nextafter(np.float32(1), np.float32(2)))
    # 1 and the next number: half a step from their mean, which is itself no float32
    adv = group_norm(jnp.array([[1.0, above], [above, 1.0]]), eps=0.0)
    np.testing.assert_allclose(adv, [[-1, 1], [1, -1]], rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.int32, bool])
def test_dtype_of_rewards(dtype):
    reward = jnp.array([[1, 0, 0, 1, 1]])
    expected = group_norm(reward.astype(jnp.float32))
    np.testing.assert_array_equal(group_norm(reward.astype(dtype)), expected)
    np.testing.assert_array_equal(has_contrast(reward.astype(dtype)), [True])


@given(rewards, valids, st.sampled_from([0.0, 1e-4, 1.0]), st.sampled_from([0, 1]))
def test_group_norm_equals_the_loop(reward, valid, eps, ddof):
    expected = reference.group_norm(reward, valid, eps=eps, ddof=ddof)
    np.testing.assert_allclose(NORM(reward, valid, eps=eps, ddof=ddof), expected, atol=2e-6)


@given(rewards, valids)
def test_group_center_equals_the_loop(reward, valid):
    expected = reference.group_center(reward, valid)
    np.testing.assert_allclose(CENTER(reward, valid), expected, atol=2e-6)


@given(rewards, valids)
def test_advantages_of_a_group_sum_to_zero(reward, valid):
    assert abs(float(jnp.sum(NORM(reward, valid, eps=0.0)))) < 1e-4
    assert abs(float(jnp.sum(CENTER(reward, valid)))) < 1e-5


@given(rewards)
def test_normalised_advantages_have_unit_variance(reward):
    adv = np.asarray(NORM(reward, eps=0.0))
    if has_contrast(jnp.array(reward))[0]:
        assert np.mean(adv**2) == pytest.approx(1, rel=1e-4)


@given(rewards, st.permutations(range(G)))
def test_permuting_rollouts_permutes_advantages(reward, order):
    for function in (NORM, CENTER):
        np.testing.assert_allclose(
            function(reward[:, order]), np.asarray(function(reward))[:, order], atol=1e-5
        )


@given(rewards, st.sampled_from([0.125, 0.5, 3.0, 100.0]), st.sampled_from([0.0, -2.0, 7.0]))
def test_scale_and_shift_of_rewards_do_not_matter(reward, scale, shift):
    moved = (reward * scale + shift).astype(np.float32)
    if np.std(reward) < 0.1:
        return  # the shift then costs the reward too many digits
    np.testing.assert_allclose(NORM(moved, eps=0.0), NORM(reward, eps=0.0), atol=2e-4)
    # eps takes the share eps / (std + eps) of an advantage, and |adv| <= sqrt(G - 1).
    bound = 2e-4 + np.sqrt(G - 1) * 1e-4 / min(np.std(reward), np.std(moved))
    np.testing.assert_allclose(NORM(moved, eps=1e-4), NORM(reward, eps=1e-4), atol=bound)


@given(rewards, valids, st.sampled_from([np.nan, np.inf, -np.inf, 1e30]))
def test_invalid_rollouts_are_left_out(reward, valid, poison):
    poisoned = np.where(valid, reward, np.float32(poison)).astype(np.float32)
    for function in (NORM, CENTER):
        adv = np.asarray(function(poisoned, valid))
        assert not adv[~valid].any()
        np.testing.assert_array_equal(adv, function(reward, valid))
    assert bool(has_contrast(poisoned, valid)[0]) == (len(set(reward[valid].tolist())) > 1)


def test_a_group_of_valid_rollouts_alone_gives_the_same():
    reward = jnp.array([[1.0, 9.0, 0.0, 0.0, 9.0]])
    valid = jnp.array([[True, False, True, True, False]])
    adv = group_norm(reward, valid, eps=0.0)
    few = group_norm(reward[:, jnp.array([0, 2, 3])], eps=0.0)
    np.testing.assert_array_equal(adv[:, jnp.array([0, 2, 3])], few)


def test_no_valid_rollout_or_only_one():
    reward = jnp.array([[1.0, 0.0, 3.0], [1.0, 0.0, 3.0]])
    valid = jnp.array([[False, False, False], [False, True, False]])
    for ddof in (0, 1):
        np.testing.assert_array_equal(group_norm(reward, valid, eps=0.0, ddof=ddof), 0.0)
    np.testing.assert_array_equal(group_center(reward, valid), 0.0)
    np.testing.assert_array_equal(has_contrast(reward, valid), False)


@pytest.mark.parametrize("function", [group_norm, group_center])
def test_jit_and_vmap(function):
    reward = jax.random.normal(jax.random.key(0), (3, 2, 5))
    one_by_one = np.stack([function(r) for r in reward])
    np.testing.assert_allclose(jax.jit(function)(reward[0]), one_by_one[0], atol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.vmap(function))(reward), one_by_one, atol=1e-6)


@pytest.mark.parametrize("function", [group_norm, group_center, has_contrast])
def test_mistakes(function):
    with pytest.raises(ValueError, match=r"at least 2 samples of each prompt, got G = 1"):
        function(jnp.ones((3, 1)))
    with pytest.raises(ValueError, match=r"reward: expected shape \[P, G\], got \[4\]"):
        function(jnp.ones(4))
    with pytest.raises(ValueError, match=r"valid: expected shape \[P, G\] with G = 4"):
        function(jnp.ones((2, 4)), jnp.ones((2, 3), bool))

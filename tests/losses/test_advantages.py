"""Group advantages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_vr import losses
from jaxrl_vr.losses import group_center, group_norm, has_contrast

G = 6  # one shape for all properties: compiled once
NORM = jax.jit(group_norm, static_argnames=("eps", "ddof"))
CENTER = jax.jit(group_center)


def of_one_reward(function):
    """A function of several rewards as one of a single one."""
    return lambda reward, valid=None: function(reward[:, :, None], jnp.ones(1), valid)


def process(reward, valid=None):
    """Process supervision with one step a rollout, which ends at its only token."""
    valid = np.ones(np.shape(reward), bool) if valid is None else valid
    step = (jnp.asarray(reward)[:, :, None], jnp.zeros((*reward.shape, 1), jnp.int32))
    mask = jnp.asarray(valid).reshape(-1, 1)
    return losses.process_group_norm(*step, valid[:, :, None], mask).reshape(reward.shape)


# Length of each of the G rollouts, or of the first few in a smaller group.
LENGTH = np.resize([3, 50, 7, 7, 1, 20], 1000)
GROUP = {
    "group_norm": group_norm,
    "group_center": group_center,
    "leave_one_out": losses.leave_one_out,
    "batch_norm": losses.batch_norm,
    "max_rl": losses.max_rl,
    "opo": lambda reward, valid=None: losses.opo(
        reward, jnp.broadcast_to(LENGTH[: reward.shape[1]], reward.shape), valid
    ),
    "pass_at_1": lambda reward, valid=None: losses.pass_at_k_advantage(reward, valid, k=1),
    "pass_at_2": lambda reward, valid=None: losses.pass_at_k_advantage(reward, valid, k=2),
    "reinforce_plus_plus_baseline": losses.reinforce_plus_plus_baseline,
    "multi_reward_norm": of_one_reward(losses.multi_reward_norm),
    "gdpo": of_one_reward(losses.gdpo),
    "process_group_norm": process,
}
JITTED = {name: jax.jit(function) for name, function in GROUP.items()}
each_baseline = pytest.mark.parametrize("name", GROUP)

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
        # mean 1/2, std 1/2
        ((1, 1, 1, 1, 0, 0, 0, 0), 1.0, -1.0),
        # mean 2/3, std sqrt(2/3 x 1/3) = 0.4714: 0.3333 / 0.4714, -0.6667 / 0.4714
        ((0, 0, 1, 1, 1, 1), 0.7071, -1.4142),
        # mean 1/8, std sqrt(1/8 x 7/8) = 0.3307: 0.875 / 0.3307, -0.125 / 0.3307. A text that says
        # 1.63 is wrong: that is neither this nor the sample's deviation, 0.875 / 0.3536 = 2.4749.
        ((1, 0, 0, 0, 0, 0, 0, 0), 2.6458, -0.3780),
        ((1, 1, 1, 1, 1, 1, 1, 1), 0.0, 0.0),
        ((0, 0, 0, 0, 0, 0, 0, 0), 0.0, 0.0),
    ],
    ids=["3_of_8", "5_of_8", "2_of_4", "1_of_4", "7_of_8", "4_of_8", "4_of_6", "1_of_8", "8", "0"],
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
    np.testing.assert_array_equal(has_contrast(reward), False)


@each_baseline
@pytest.mark.parametrize("size", [3, 7, 1000])
def test_equal_rewards_give_exact_zeros_under_every_baseline(name, size):
    # One group differs, so that no deviation over the batch is 0.
    values = np.array([0.0, 0.1, 1 / 3, -0.7, 1.0, 12345.678, 0.3], np.float32)
    reward = np.broadcast_to(values[:, None], (len(values), size)).copy()
    reward[-1, 0] = 1.0
    adv = np.asarray(JITTED[name](reward))
    np.testing.assert_array_equal(adv[:-1], 0.0)
    assert adv[-1].any()
    with jax.enable_x64(True):
        np.testing.assert_array_equal(JITTED[name](reward.astype(np.float64) / 3)[:-1], 0.0)


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


@each_baseline
@settings(max_examples=30)
@given(reward=rewards, valid=valids)
def test_advantages_of_a_group_sum_to_zero(name, reward, valid):
    if name == "max_rl":
        reward = np.abs(reward)
    adv = np.asarray(JITTED[name](reward, valid), np.float64)
    weight = LENGTH[:G] if name == "opo" else np.ones(G)  # OPO's baseline is a weighted mean
    assert abs(np.sum(weight * adv)) < 1e-5 * (1 + np.sum(weight * np.abs(adv)))


@given(rewards, valids)
def test_leave_one_out_is_the_centred_reward_enlarged(reward, valid):
    count = int(valid.sum())
    factor = count / (count - 1) if count > 1 else 0.0
    expected = factor * np.asarray(CENTER(reward, valid))
    np.testing.assert_allclose(JITTED["leave_one_out"](reward, valid), expected, rtol=1e-6)


@given(rewards)
def test_normalised_advantages_have_unit_variance(reward):
    adv = np.asarray(NORM(reward, eps=0.0))
    if has_contrast(jnp.array(reward))[0]:
        assert np.mean(adv**2) == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("name", [name for name in GROUP if name != "opo"])
@settings(max_examples=30)
@given(reward=rewards, order=st.permutations(range(G)))
def test_permuting_rollouts_permutes_advantages(name, reward, order):
    if name == "max_rl":
        reward = np.abs(reward) + 1
    adv = np.asarray(JITTED[name](reward))
    np.testing.assert_allclose(JITTED[name](reward[:, order]), adv[:, order], atol=2e-5)


@given(rewards, st.permutations(range(G)))
def test_permuting_rollouts_permutes_the_advantages_of_opo(reward, order):
    length = LENGTH[None, :G]
    adv = np.asarray(OPO(reward, length))
    np.testing.assert_allclose(OPO(reward[:, order], length[:, order]), adv[:, order], atol=1e-5)


OPO = jax.jit(losses.opo)


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


def test_max_rl_by_hand():
    # mean 1/4: 0.75 / 0.25, -0.25 / 0.25; none right: nothing; mean 3/4: 0.25 / 0.75, -1
    reward = jnp.array([[1.0, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]])
    expected = [[3, -1, -1, -1], [0, 0, 0, 0], [1 / 3, 1 / 3, 1 / 3, -1]]
    np.testing.assert_allclose(losses.max_rl(reward), expected, rtol=1e-6)


def test_batch_norm_by_hand():
    # all rewards 1, 0, 1, 1: mean 3/4, std sqrt(3/16) = 0.4330; group means 1/2 and 1
    adv = losses.batch_norm(jnp.array([[1.0, 0.0], [1.0, 1.0]]), eps=0.0)
    np.testing.assert_allclose(adv, [[0.5 / 0.4330127, -0.5 / 0.4330127], [0, 0]], rtol=1e-6)


def test_opo_by_hand():
    # (100 x 1 + 300 x 0 + 100 x 1) / 500 = 0.4
    adv = losses.opo(jnp.array([[1.0, 0.0, 1.0]]), jnp.array([[100, 300, 100]]))
    np.testing.assert_allclose(adv, [[0.6, -0.4, 0.6]], rtol=1e-6)


def test_leave_one_out_by_hand():
    # 3 - (1 + 2) / 2, 1 - (3 + 2) / 2, 2 - (3 + 1) / 2; the last is invalid
    reward, valid = jnp.array([[3.0, 1, 2, 9]]), jnp.array([[True, True, True, False]])
    np.testing.assert_allclose(losses.leave_one_out(reward, valid), [[1.5, -1.5, 0, 0]])


@pytest.mark.parametrize("k, expected", [(1, (1.0, -1.0)), (2, (0.4472, -0.4472)), (3, (0, 0))])
def test_pass_at_k_by_hand(k, expected):
    # 2 of 4 right. k = 1: mean 1/2, std 1/2: 0.5 / 0.5. k = 2: 1 of 6 pairs has none right, mean
    # 5/6, std sqrt(5/36) = 0.3727; right: (1 - 5/6) / 0.3727; wrong: with 2 of its 3 partners the
    # pair is right, (2/3 - 5/6) / 0.3727. k = 3: two wrong ones fill no triple.
    adv = losses.pass_at_k_advantage(jnp.array([[1.0, 1, 0, 0]]), k=k, eps=0.0)
    right, wrong = expected
    np.testing.assert_allclose(adv, [[right, right, wrong, wrong]], atol=5e-5)


def test_pass_at_k_without_enough_valid_rollouts():
    reward, valid = jnp.array([[1.0, 0, 0, 0]]), jnp.array([[True, True, False, False]])
    assert losses.pass_at_k_advantage(reward, valid, k=2)[0].tolist() == [0, 0, 0, 0]
    assert not losses.pass_at_k_advantage(reward, valid, k=3).any()
    assert losses.pass_at_k_advantage(reward, valid, k=1, eps=0.0)[0].tolist() == [1, -1, 0, 0]


@pytest.mark.parametrize("k", [0, 5])
def test_pass_at_k_of_more_than_the_group(k):
    with pytest.raises(ValueError, match=rf"k: expected from 1 to G = 4, .*, got {k}"):
        losses.pass_at_k_advantage(jnp.ones((2, 4)), k=k)


def test_a_known_baseline_takes_the_spread_between_prompts_away():
    # 11, 9, 0, 2: mean 5.5, squares 30.25 + 12.25 + 30.25 + 12.25 = 85, variance 21.25
    reward, baseline = jnp.array([[11.0, 9.0], [0.0, 2.0]]), jnp.array([10.0, 1.0])
    assert float(jnp.var(reward)) == 21.25
    for function in (losses.fixed_baseline, losses.remax):
        adv = function(reward, baseline)
        assert adv.tolist() == [[1, -1], [-1, 1]]
        assert float(jnp.var(adv)) == 1.0


def test_several_rewards_by_hand():
    # first reward 1, 0: 1, -1; second 0, 4: -1, 1, times 0.25; third equal: nothing.
    rewards = jnp.array([[[1.0, 0.0, 7.0], [0.0, 4.0, 7.0]]])
    weights = jnp.array([1.0, 0.25, 9.0])
    np.testing.assert_allclose(
        losses.multi_reward_norm(rewards, weights, eps=0.0), [[0.75, -0.75]], rtol=1e-6
    )
    # the deviation of 0.75, -0.75 is 0.75
    np.testing.assert_allclose(losses.gdpo(rewards, weights, eps=0.0), [[1, -1]], rtol=1e-6)


def test_several_rewards_stay_apart_where_their_sum_hides_them():
    # The sums 1, 0 and 2, 0 normalise alike; apart, a rollout ahead in both gets twice as much.
    one, both = [[1.0, 0.0], [0.0, 0.0]], [[1.0, 1.0], [0.0, 0.0]]
    rewards = jnp.array([one, both])
    np.testing.assert_allclose(group_norm(jnp.sum(rewards, 2), eps=0.0), [[1, -1], [1, -1]])
    apart = losses.multi_reward_norm(rewards, jnp.ones(2), eps=0.0)
    np.testing.assert_allclose(apart, [[1, -1], [2, -2]])


def test_reinforce_plus_plus_with_baseline_by_hand():
    # centred 1/2, -1/2, 0, 0: variance 1/8, so 0.5 / 0.3536
    adv = losses.reinforce_plus_plus_baseline(jnp.array([[1.0, 0.0], [1.0, 1.0]]), eps=0.0)
    np.testing.assert_allclose(adv, [[1.4142, -1.4142], [0, 0]], atol=5e-5)


BASELINES = [
    group_norm,
    group_center,
    has_contrast,
    losses.leave_one_out,
    losses.batch_norm,
    losses.max_rl,
    losses.reinforce_plus_plus_baseline,
    lambda reward, valid=None: losses.pass_at_k_advantage(reward, valid, k=1),
]


@pytest.mark.parametrize("function", BASELINES)
def test_mistakes(function):
    with pytest.raises(ValueError, match=r"at least 2 samples of each prompt, got G = 1"):
        function(jnp.ones((3, 1)))
    with pytest.raises(ValueError, match=r"reward: expected shape \[P, G\], got \[4\]"):
        function(jnp.ones(4))
    with pytest.raises(ValueError, match=r"valid: expected shape \[P, G\] with G = 4"):
        function(jnp.ones((2, 4)), jnp.ones((2, 3), bool))

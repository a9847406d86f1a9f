"""What is read off finished groups."""

import dataclasses
import math

import numpy as np
import pytest

from jaxrl_vr.rollout.groups import (
    completions,
    group_metrics,
    samples_of,
    trajectories,
    with_advantages,
)
from jaxrl_vr.types import Example, Group, Max, Mean, Rollout, Score, Step


def rollout(n, verdict, value=None, finish="stop", source=None):
    """A completion of n tokens after a prompt of two."""
    value = float(verdict == "right") if value is None else value
    return Rollout(
        id=0,
        prompt_ids=(10, 11),
        token_ids=tuple(range(20, 20 + n)),
        logp=tuple(-0.5 * (i + 1) for i in range(n)),
        source=source or ("sampled",) * n,
        version=tuple(range(3, 3 + n)),
        kept_mass=None,
        finish=finish,
        score=Score(value, verdict),
    )


def group(*rollouts, source=""):
    return Group(Example("e", "?", source=source), rollouts)


def decode(ids):
    """Two characters a token."""
    return "".join(f"{i:02d}" for i in ids)


GROUPS = [
    group(rollout(4, "right"), rollout(6, "wrong", 0.25), rollout(9, "unscorable")),
    group(rollout(3, "right"), rollout(5, "right"), rollout(2, "right")),
    group(rollout(8, "no_answer", finish="length"), rollout(7, "wrong"), rollout(1, "wrong")),
    group(rollout(9, "unscorable", finish="length"), rollout(1, "right"), rollout(1, "wrong")),
]


def test_samples():
    expected = {
        "reward": np.float32([[1, 0.25, 0], [1, 1, 1], [0, 0, 0], [0, 1, 0]]),
        "valid": np.array([[1, 1, 0], [1, 1, 1], [1, 1, 1], [0, 1, 1]], bool),
        "trains": np.array([[1, 1, 0], [1, 1, 1], [1, 1, 1], [0, 1, 1]], bool),
        "length": np.int32([[4, 6, 9], [3, 5, 2], [8, 7, 1], [9, 1, 1]]),
        "is_truncated": np.array([[0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 0, 0]], bool),
        "is_right": np.array([[1, 0, 0], [1, 1, 1], [0, 0, 0], [0, 1, 0]], bool),
    }
    found = samples_of(GROUPS, decode, 9)
    assert set(vars(found)) == {
        *expected,
        *("components", "mask", "token_reward", "value", "step_value", "step_end", "step_mask"),
        *("logp", "teacher_logp", "baseline"),
    }
    for name, values in expected.items():
        array = getattr(found, name)
        np.testing.assert_array_equal(array, values, err_msg=name)
        assert array.dtype == values.dtype
    np.testing.assert_array_equal(found.mask.sum(2), found.length)
    assert found.mask.shape == (4, 3, 9)
    for some in (np.array([1, 3]), np.array([False, True, False, True])):
        chosen = found.select(some)
        np.testing.assert_array_equal(chosen.length, [[3, 5, 2], [9, 1, 1]])
        np.testing.assert_array_equal(chosen.mask.sum(2), chosen.length)


def test_what_rewards_are_compared_with():
    found = samples_of(GROUPS, decode, 9)
    against = found.against(np.array([0.5, np.nan, 1.0, 0.0]))
    np.testing.assert_array_equal(against.baseline, np.float32([0.5, 0, 1, 0]))
    # A prompt without a baseline neither counts nor trains; the others are as they were.
    known = np.array([[True], [False], [True], [True]])
    np.testing.assert_array_equal(against.valid, found.valid & known)
    np.testing.assert_array_equal(against.trains, found.trains & known)
    np.testing.assert_array_equal(against.select(np.array([2])).baseline, np.float32([1]))
    np.testing.assert_array_equal(against.padded(6).baseline[4:], np.float32([0, 0]))


def test_groups_behind_to_come_to_few_sizes():
    found = samples_of(GROUPS, decode, 9).padded(8)
    assert found.reward.shape == (8, 3) and found.mask.shape == (8, 3, 9)
    assert not found.valid[4:].any() and not found.mask[4:].any() and not found.trains[4:].any()
    np.testing.assert_array_equal(found.reward[:4], samples_of(GROUPS, decode, 9).reward)


def test_components_of_scores():
    def scored(**components):
        return dataclasses.replace(rollout(2, "right"), score=Score(1.0, "right", components))

    groups = [group(scored(format=1.0), scored(format=0.5, brief=0.25)), group(scored(), scored())]
    found = samples_of(groups, decode, 9)
    np.testing.assert_array_equal(found.component("format"), [[1, 0.5], [0, 0]])
    np.testing.assert_array_equal(found.component("brief"), [[0, 0.25], [0, 0]])
    np.testing.assert_array_equal(found.select(np.array([1])).component("brief"), [[0, 0]])
    with pytest.raises(ValueError, match=r"'from'.* only \['brief', 'format'\]"):
        found.component("from")
    # A step in which nothing could be judged is no fault of the config.
    np.testing.assert_array_equal(samples_of(GROUPS, decode, 9).component("any"), np.zeros((4, 3)))


def test_each_component_is_a_metric_over_those_that_have_it():
    def scored(verdict, **components):
        score = Score(1.0, verdict, components)
        return dataclasses.replace(rollout(1, verdict), score=score)

    groups = [
        group(scored("right", math=1.0, format=0.5), scored("wrong", math=0.0)),
        group(scored("unscorable", math=5.0), scored("no_answer", **{"math/steps": 2.0})),
    ]
    metrics = group_metrics(groups)
    assert {name: x for name, x in metrics.items() if name.startswith("component/")} == {
        "component/format": Mean(0.5, 1),
        "component/math": Mean(1.0, 2),
        "component/math/steps": Mean(2.0, 1),
    }


def test_group_metrics_by_hand():
    # Scored: lengths 4 6 | 3 5 2 | 8 7 1 | 1 1, ten rollouts of 38 tokens; right are 4 3 5 2 1.
    assert group_metrics(GROUPS) == {
        "reward/mean": Mean(5.25, 10),
        "reward/accuracy": Mean(5, 10),
        "reward/no_answer": Mean(1, 10),
        "reward/unscorable": Mean(2, 12),
        "length/mean": Mean(38, 10),
        "length/max": Max(9),  # of all
        "length/right": Mean(15, 5),
        "length/wrong": Mean(23, 5),  # 6 + 8 + 7 + 1 + 1
        "length/truncated_rate": Mean(1, 10),
        "efficiency/accuracy_per_kilotoken": Mean(5000, 38),
        "group/all_right": Mean(1, 4),
        "group/all_wrong": Mean(1, 4),
        "group/mixed": Mean(2, 4),
    }


def test_a_group_without_scored_rollouts_is_no_group():
    metrics = group_metrics([group(rollout(2, "unscorable"), rollout(3, "unscorable"))])
    assert metrics["group/mixed"] == metrics["group/all_wrong"] == Mean(0, 0)
    assert metrics["reward/mean"] == Mean(0, 0)
    assert metrics["reward/unscorable"] == Mean(2, 2)


def test_the_rest_of_a_group_decides_what_it_is():
    metrics = group_metrics([group(rollout(2, "right"), rollout(3, "unscorable"))])
    assert metrics["group/all_right"] == Mean(1, 1)
    metrics = group_metrics([group(rollout(2, "wrong"), rollout(3, "unscorable"))])
    assert metrics["group/all_wrong"] == Mean(1, 1)


def test_metrics_of_each_source():
    groups = [
        group(rollout(1, "right"), rollout(1, "wrong", 0.5), source="a"),
        group(rollout(1, "unscorable"), rollout(1, "wrong"), source="b"),
        group(rollout(1, "right"), rollout(1, "right"), source="a"),
    ]
    metrics = group_metrics(groups)
    found = {name: value for name, value in metrics.items() if name.startswith("source/")}
    assert found == {
        "source/a/accuracy": Mean(3, 4),
        "source/a/reward": Mean(3.5, 4),
        "source/b/accuracy": Mean(0, 1),
        "source/b/reward": Mean(0.0, 1),
    }
    assert not any(name.startswith("source/") for name in group_metrics(groups[:1]))


def test_steps_end_at_the_token_that_completes_their_text():
    def scored(n, *steps):
        score = Score(1.0, "right", steps=tuple(Step(end, value) for end, value in steps))
        return dataclasses.replace(rollout(n, "right"), score=score)

    # Two characters a token: 1 to 2 are the first token, 3 to 4 the second, and so on.
    groups = [group(scored(4, (1, 0.5), (2, 1.0), (3, 0.0), (8, 0.25)), scored(2, (99, 1.0)))]
    found = samples_of(groups, decode, 9)
    np.testing.assert_array_equal(found.step_end, [[[0, 0, 1, 3], [1, 0, 0, 0]]])
    np.testing.assert_array_equal(found.step_value[0, 0], [0.5, 1, 0, 0.25])
    np.testing.assert_array_equal(found.step_mask.sum(2), [[4, 1]])
    assert samples_of(GROUPS, decode, 9).step_mask.shape == (4, 3, 0)


def test_trajectories():
    found = trajectories(GROUPS, samples_of(GROUPS, decode, 9), 0.7)
    assert [t.group for t in found] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert {t.temperature for t in found} == {0.7}
    assert {t.num_prompt for t in found} == {2}
    first = found[0]
    # Prompt, then completion with its EOS; only the completion trains.
    np.testing.assert_array_equal(first.token_ids, [10, 11, 20, 21, 22, 23])
    np.testing.assert_array_equal(first.mask, [False, False, True, True, True, True])
    np.testing.assert_array_equal(first.logp, np.float32([0, 0, -0.5, -1, -1.5, -2]))
    np.testing.assert_array_equal(first.version, [0, 0, 3, 4, 5, 6])
    # What could not be scored does not train; what was cut or gave no answer does.
    trained = [t.num_trained for t in found]
    assert trained == [4, 6, 0, 3, 5, 2, 8, 7, 1, 0, 1, 1]


def test_only_sampled_tokens_of_rollouts_that_train_do():
    source = ("sampled", "forced", "observation", "sampled")
    groups = [group(rollout(4, "right", source=source), rollout(1, "wrong"))]
    samples = samples_of(groups, decode, 9)
    found = trajectories(groups, samples, 1.0)
    np.testing.assert_array_equal(found[0].mask, [False, False, True, False, False, True])
    samples = dataclasses.replace(samples, trains=np.array([[False, True]]))
    # Those that do not train are compared with a reference all the same.
    every = trajectories(groups, samples, 1.0)
    assert [t.num_trained for t in every] == [2, 1]
    assert [t.num_trained for t in with_advantages(every, np.ones((1, 2)), samples)] == [0, 1]


def test_advantages_of_rollouts_and_of_tokens():
    groups = [group(rollout(4, "right"), rollout(1, "wrong"))]
    samples = samples_of(groups, decode, 9)
    every = trajectories(groups, samples, 1.0)
    found = with_advantages(every, np.float32([[0.5, -0.5]]), samples)
    assert [t.adv for t in found] == [0.5, -0.5]
    adv = np.arange(18, dtype=np.float32).reshape(1, 2, 9)
    found = with_advantages(every, adv, samples)
    # Two prompt tokens, then one for each completion token; what is behind is padding.
    np.testing.assert_array_equal(found[0].adv, [0, 0, 0, 1, 2, 3])
    np.testing.assert_array_equal(found[1].adv, [0, 0, 9])
    back = completions([t.adv for t in found], found, samples)
    np.testing.assert_array_equal(back[0], [[0, 1, 2, 3] + [0] * 5, [9] + [0] * 8])


@pytest.mark.parametrize("temperature, expected", [(0.0, 1.0), (1.5, 1.5)], ids=["greedy", "warm"])
def test_greedy_log_probs_are_those_of_temperature_one(temperature, expected):
    groups = [group(rollout(1, "right"), rollout(1, "wrong"))]
    found = trajectories(groups, samples_of(groups, decode, 9), temperature)
    assert {t.temperature for t in found} == {expected}


def test_kept_mass_is_a_mean_over_sampled_tokens():
    cut = dataclasses.replace(rollout(2, "right"), kept_mass=(math.log(0.5), math.log(0.75)))
    found = group_metrics([group(cut, rollout(3, "wrong"))])
    assert found["policy/kept_mass"].count == 2
    assert found["policy/kept_mass"].sum == pytest.approx(1.25)

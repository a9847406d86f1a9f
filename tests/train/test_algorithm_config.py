"""What a config can choose of an algorithm: the functions of `losses`, with their own numbers."""

import inspect
import typing

import numpy as np
import pytest
import reference
from pydantic import TypeAdapter, ValidationError

from jaxrl_vr.losses import advantages, returns, selection, shaping, supervised
from jaxrl_vr.rollout.groups import Samples
from jaxrl_vr.train.advantage import Advantage, compiled
from jaxrl_vr.train.imitation import LmMix
from jaxrl_vr.train.objectives import ClipCov, KlCov, PolicyUnion
from jaxrl_vr.train.offpolicy import Offpolicy
from jaxrl_vr.train.penalty import Kl
from jaxrl_vr.train.selection import TopEntropy
from jaxrl_vr.train.shaping import Shaping
from jaxrl_vr.train.weights import Weights

REWARD = np.array([[1, 0, 0, 1], [0.5, 0.5, 0.5, 0.5], [1, 0, 2, 0]], np.float32)
VALID = np.array([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 1]], bool)
COMPLETION = np.array([[2, 5, 3, 4], [6, 1, 1, 2], [3, 3, 3, 3]])
LENGTH = np.array([2, 5, 0, 3])
BASELINE = np.array([0.25, 1.0, 0.0], np.float32)
GROUP = np.array([0, 0, 1, 1])


def members(union):
    """The config models of a union by `type`."""
    (inner, *_) = typing.get_args(union)
    return typing.get_args(inner)


def samples(**more):
    mask = np.arange(6) < COMPLETION[:, :, None]
    fields = {
        "reward": REWARD,
        "valid": VALID,
        "trains": VALID,
        "length": COMPLETION.astype(np.int32),
        "is_truncated": COMPLETION == 6,
        "is_right": REWARD == 1,
        "components": {"format": (COMPLETION > 2).astype(np.float32), "language": REWARD / 2},
        "mask": mask,
        # Two steps: the first token, right or wrong as the answer, and the last, which is right.
        "step_value": np.stack([REWARD, np.ones_like(REWARD)], axis=2),
        "step_end": np.stack([0 * COMPLETION, COMPLETION - 1], axis=2).astype(np.int32),
        "step_mask": np.ones((3, 4, 2), bool),
        "value": np.where(mask, 0.25, 7.0).astype(np.float32),
        "baseline": BASELINE,
        "logp": np.where(mask, -1.0, 5.0).astype(np.float32),
        "teacher_logp": np.where(mask, -1.5, -7.0).astype(np.float32),
    }
    return Samples(**{**fields, **more})


def choose(union, **fields):
    return TypeAdapter(union).validate_python(fields)


# Of a shaping that has no function of its own, or whose fields are about more than it.
OWN_FIELDS = {
    "type",
    "coef",  # of kimi_length: the weight beside the verifier's reward
    "from_accuracy",
    "component",
    "weights",
    "over_batch",
    *("data", "batch", "loss_on", "max_tokens"),  # of lm_mix: which texts
    *("low", "high", "fraction"),  # of clip_cov and kl_cov: which tokens
    "samples",  # of fixed_baseline: how many answers make the baseline
}
SHAPING_FUNCTIONS = {
    "overlong_penalty": shaping.overlong_penalty,
    "kimi_length": shaping.kimi_length_reward,
    "cosine_length": shaping.cosine_length_reward,
    "stop_properly": shaping.stop_properly_penalty,
    "format_gate": shaping.format_gate,
    "language_consistency": shaping.language_consistency,
}
FUNCTIONS = [
    *((model, model.loss) for u in (PolicyUnion, Offpolicy) for model in members(u)),
    *((model, model.loss) for model in members(Advantage) if hasattr(model, "loss")),
    *(
        (model, SHAPING_FUNCTIONS[model.model_fields["type"].default])
        for model in members(Shaping)
        if model.model_fields["type"].default in SHAPING_FUNCTIONS
    ),
    *(
        (model, advantages.gdpo)
        for model in members(Advantage)
        if "over_batch" in model.model_fields
    ),
    (LmMix, supervised.pretraining_mix),
    (TopEntropy, selection.entropy_threshold),
]
SELECTIONS = [(ClipCov, selection.select_clip_cov), (KlCov, selection.select_kl_cov)]


@pytest.mark.parametrize("model, function", SELECTIONS)
def test_fields_of_a_selection_have_the_defaults_of_its_function(model, function):
    parameters = inspect.signature(function).parameters.values()
    found = {
        p.name: model.model_fields[p.name].default for p in parameters if p.kind is p.KEYWORD_ONLY
    }
    assert found == {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


@pytest.mark.parametrize("model, function", FUNCTIONS, ids=lambda x: getattr(x, "__name__", ""))
def test_fields_are_the_keywords_of_the_function_with_their_defaults(model, function):
    keywords = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in ("segment_ids", "chunk")
    }
    fields = {name: f for name, f in model.model_fields.items() if name != "type"}
    assert set(keywords) <= set(fields)
    assert set(fields) - set(keywords) <= OWN_FIELDS
    for name, default in keywords.items():
        if default is inspect.Parameter.empty:
            # A number the caller must give: required, or the limit of new tokens.
            assert fields[name].is_required() or fields[name].default is None
        else:
            assert fields[name].default == default, name


EXPECTED_ADVANTAGES = {
    "norm": ({"type": "group_norm"}, reference.group_norm(REWARD, VALID, eps=1e-4)),
    "norm_sample": (
        {"type": "group_norm", "eps": 0.1, "ddof": 1},
        reference.group_norm(REWARD, VALID, eps=0.1, ddof=1),
    ),
    "center": ({"type": "group_center"}, reference.group_center(REWARD, VALID)),
    # 4 / 3 of the centred reward; of three valid ones 3 / 2.
    "leave_one_out": (
        {"type": "leave_one_out"},
        reference.group_center(REWARD, VALID) * np.array([[4 / 3], [4 / 3], [3 / 2]]),
    ),
    "remax": ({"type": "remax"}, np.where(VALID, REWARD - BASELINE[:, None], 0)),
    "fixed_baseline": ({"type": "fixed_baseline"}, np.where(VALID, REWARD - BASELINE[:, None], 0)),
    "reward": ({"type": "reward"}, np.where(VALID, REWARD, 0)),
    # Lengths 2 5 3 4 weigh the rewards 1 0 0 1: 6 / 14; 0.5; 3 / 9.
    "opo": (
        {"type": "opo"},
        np.where(VALID, REWARD - np.array([[6 / 14], [0.5], [3 / 9]]), 0),
    ),
    # Over the group's mean: 0.5 (equal rewards give 0), 1 / 3.
    "max_rl": (
        {"type": "max_rl"},
        reference.group_center(REWARD, VALID) / np.array([[0.5], [0.5], [1 / 3]]),
    ),
}


@pytest.mark.parametrize(
    "fields, expected", EXPECTED_ADVANTAGES.values(), ids=EXPECTED_ADVANTAGES.keys()
)
def test_advantages(fields, expected):
    found = choose(Advantage, **fields)(samples())
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert found[2, 2] == 0


ALL_ADVANTAGES = {
    "pass_at_k": {"k": 2},
    "multi_reward_norm": {"weights": {"format": 1.0, "language": 0.5}},
    "on_policy_distillation": {"teacher": "base"},
}


@pytest.mark.parametrize("model", members(Advantage), ids=lambda m: m.__name__)
def test_every_advantage_gives_numbers_to_valid_samples_only(model):
    name = model.model_fields["type"].default
    found = choose(Advantage, type=name, **ALL_ADVANTAGES.get(name, {}))(samples())
    assert found.dtype == np.float32
    assert found.shape in ((3, 4), (3, 4, 6))
    assert np.isfinite(found).all() and np.any(found)
    assert not found[2, 2].any()


def test_process_group_norm_by_hand():
    choice = choose(Advantage, type="process_group_norm", eps=0.0)
    found = choice(samples())
    # Steps of the first group: 1 1, 0 1, 0 1, 1 1: mean 0.75, deviation 0.4330; so 0.5774, -1.7321.
    # The first token has both steps to come, later ones the last step alone.
    np.testing.assert_allclose(found[0, 0, :2], [1.1547, 0.5774], atol=1e-4)
    np.testing.assert_allclose(found[0, 1, :5], [-1.1547] + 4 * [0.5774], atol=1e-4)
    assert not found[0, 0, 2:].any()
    # A step in which nothing could be judged.
    assert not choice(samples(step_mask=np.zeros((3, 4, 2), bool))).any()


def test_on_policy_distillation_by_hand():
    found = choose(Advantage, type="on_policy_distillation", teacher="base")(samples())
    # The teacher finds each token half a nat less likely; what does not train has nothing.
    trains = (np.arange(6) < COMPLETION[:, :, None]) & VALID[:, :, None]
    np.testing.assert_array_equal(found, np.where(trains, -0.5, 0.0))


def test_preference_pairs_by_hand():
    found = choose(Advantage, type="preference_pairs")(samples())
    # 1 0 0 1; all equal; 1 0 (2) 0, where 2 could not be scored.
    assert found.tolist() == [[1, -1, 0, 0], [0, 0, 0, 0], [1, -1, 0, 0]]


def test_multi_reward_norm_names_an_unknown_component():
    choice = choose(Advantage, type="multi_reward_norm", weights={"fromat": 1.0})
    with pytest.raises(ValueError, match=r"'fromat'.*only \['format', 'language'\]"):
        choice(samples())


def test_rewards_charged_with_their_kl():
    mask = samples().mask
    reward = REWARD.reshape(-1)
    logp, ref_logp = np.full((12, 6), -1.0, np.float32), np.full((12, 6), -1.5, np.float32)
    kl = Kl(type="k1", coef=0.1, where="reward")
    found, metrics = kl.token_reward(reward, logp, ref_logp, mask.reshape(12, 6), coef=0.5)
    # 0.5 x 0.5 nats for each of the completion's tokens.
    charged = samples(token_reward=found.reshape(3, 4, 6))
    np.testing.assert_allclose(charged.total(), REWARD - 0.25 * COMPLETION, atol=1e-6)
    # The first completion has two tokens: -0.25, and 1 - 0.25 at the last.
    np.testing.assert_allclose(charged.token_reward[0, 0], [-0.25, 0.75, 0, 0, 0, 0])
    assert float(metrics["reward/kl"].sum) == pytest.approx(-0.25 * COMPLETION.sum())
    adv = choose(Advantage, type="group_center")(charged)
    expected = reference.group_center(REWARD - 0.25 * COMPLETION, VALID)
    np.testing.assert_allclose(adv, expected, atol=1e-6)
    # Nothing below 0 is charged where that is asked for.
    kl = Kl(type="k1", coef=0.1, where="reward", clamp_at_zero=True)
    found, _ = kl.token_reward(reward, ref_logp, logp, mask.reshape(12, 6), coef=0.5)
    np.testing.assert_allclose(found.sum(1), reward)


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({"type": "token_mean"}, [1 / 10] * 4),
        ({"type": "sequence_mean"}, [1 / 6, 1 / 15, 1 / 3, 1 / 9]),  # of three with tokens
        ({"type": "sequence_sum"}, [1 / 3] * 4),
        ({"type": "prompt_mean"}, [1 / 14, 1 / 14, 1 / 6, 1 / 6]),  # two prompts of 7 and 3 tokens
        ({"type": "constant_length"}, [1 / 60] * 4),  # three rollouts x the limit of 20
        ({"type": "constant_length", "max_length": 8}, [1 / 24] * 4),
    ],
    ids=lambda x: "-".join(map(str, x.values())) if isinstance(x, dict) else "",
)
def test_weights(fields, expected):
    found = choose(Weights, **fields)(LENGTH, GROUP, 20)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found[[0, 1, 3]], np.array(expected)[[0, 1, 3]], rtol=1e-6)


def shaped(limit=6, state=None, before=None, **fields):
    return choose(Shaping, **fields)(samples() if before is None else before, limit, state or {})


def test_overlong_penalty():
    found, _ = shaped(type="overlong_penalty", buffer=4)
    # Limit 6, from 2 tokens on: 2 5 3 4 -> 0 -3/4 -1/4 -2/4; 6 -> -1; invalid ones are left alone.
    added = np.array([[0, -0.75, -0.25, -0.5], [-1, 0, 0, 0], [-0.25, -0.25, 0, -0.25]])
    np.testing.assert_allclose(found.reward, REWARD + added, atol=1e-6)


def test_truncated_samples_count_but_do_not_train():
    found, _ = shaped(type="truncated_mask")
    np.testing.assert_array_equal(found.valid, VALID)
    np.testing.assert_array_equal(found.trains, VALID & (COMPLETION != 6))


def test_kimi_length_waits_for_accuracy_and_stays():
    choice = {"type": "kimi_length", "coef": 2.0, "from_accuracy": 0.3}
    # 3 of 11 valid ones are right.
    found, state = shaped(**choice)
    np.testing.assert_array_equal(found.reward, REWARD)
    assert state == {"is_on": False}
    found, state = shaped(**{**choice, "from_accuracy": 0.25})
    assert state == {"is_on": True}
    # Lengths 2 5 3 4: 0.5 - (l - 2) / 3 = 0.5, -0.5, 1/6, -1/6; wrong ones at most 0.
    np.testing.assert_allclose(found.reward[0], [1 + 1, -1, 0, 1 - 1 / 3], atol=1e-6)
    # Once on, it stays on.
    again, state = shaped(**choice, state=state)
    assert state == {"is_on": True}
    np.testing.assert_allclose(again.reward, found.reward)


def test_cosine_stop_format_and_language():
    found, _ = shaped(type="cosine_length")
    # A right answer of 2 of 6 tokens: 1 + (2 - 1) (1 + cos(pi / 3)) / 2 = 1.75.
    assert found.reward[0, 0] == pytest.approx(1.75)
    assert found.reward[1, 0] == -10  # reaches the limit
    found, _ = shaped(type="stop_properly", scale=0.5)
    assert found.reward[1].tolist() == [0.25, 0.5, 0.5, 0.5]
    found, _ = shaped(type="format_gate", otherwise=-1.0)
    assert found.reward[0].tolist() == [-1, 0, 0, 1]
    for reduce, expected in {"min": 0.5, "product": 0.5, "mean": 0.75}.items():
        found, _ = shaped(type="step_reward", reduce=reduce)
        assert found.reward[1].tolist() == [expected] * 4  # steps 0.5 and 1
    found, _ = shaped(type="language_consistency", coef=0.5)
    np.testing.assert_allclose(found.reward, np.where(VALID, REWARD * 1.25, REWARD))


def test_what_does_not_train_is_not_in_the_statistics():
    # With and without it: the others keep their advantages.
    some = VALID.copy()
    some[0, 1] = False
    mask = np.arange(6) < COMPLETION[:, :, None]
    value = np.where(some[:, :, None] & mask, 0.25, 0.0).astype(np.float32)
    for fields in ({"type": "gae"}, {"type": "reinforce_plus_plus"}):
        found = choose(Advantage, **fields)(samples(trains=some, value=value))
        trained = mask & some[:, :, None]
        assert not found[~trained].any()
        assert found[trained].mean() == pytest.approx(0, abs=1e-5)
        assert found[trained].std() == pytest.approx(1, abs=1e-3)


def test_few_programs_for_steps_of_any_length():
    choice = choose(Advantage, type="gae")
    choice(samples())
    before = compiled(returns.gae)._cache_size()
    for length in range(1, 6):
        other = np.minimum(COMPLETION, length)
        choice(samples(mask=np.arange(6) < other[:, :, None]))
    assert compiled(returns.gae)._cache_size() == before


@pytest.mark.parametrize(
    "union, fields",
    [
        (Shaping, {"type": "stop_properly", "scale": -0.5}),
        (PolicyUnion, {"type": "ppo_clip", "max_ratio": 1.1}),
        (Offpolicy, {"type": "icepop", "low": 2.0, "high": 1.0}),
        (Advantage, {"type": "group_norm", "ddof": 2}),
        (Advantage, {"type": "group_norm", "eps": -1.0}),
        (Advantage, {"type": "group_center", "eps": 1.0}),
        (Advantage, {"type": "pass_at_k"}),
        (Weights, {"type": "constant_length", "max_length": 0}),
        (PolicyUnion, {"type": "online_mirror_descent"}),
        (PolicyUnion, {"type": "ppo_clip", "dual_clip": 0.5}),
        (Shaping, {"type": "overlong_penalty"}),
        (Offpolicy, {"type": "tis", "max_weight": 0}),
    ],
)
def test_refused(union, fields):
    with pytest.raises(ValidationError):
        choose(union, **fields)

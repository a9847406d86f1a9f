"""The advantages and weights a config can choose: the functions of `losses`, with its numbers."""

import numpy as np
import pytest
import reference
from pydantic import TypeAdapter, ValidationError

from jaxrl_vr.rollout.groups import Samples
from jaxrl_vr.train.reward import Advantage, Weights

REWARD = np.array([[1, 0, 0, 1], [0.5, 0.5, 0.5, 0.5], [1, 0, 2, 0]], np.float32)
VALID = np.array([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 1]], bool)
LENGTH = np.array([2, 5, 0, 3])


def advantage(**fields):
    return TypeAdapter(Advantage).validate_python(fields)


def samples(reward, valid):
    length = np.full(reward.shape, 5, np.int32)
    return Samples(reward, valid, length, np.zeros(reward.shape, bool), reward == 1)


def weights(**fields):
    return TypeAdapter(Weights).validate_python(fields)


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({"type": "group_norm"}, reference.group_norm(REWARD, VALID, eps=1e-4)),
        (
            {"type": "group_norm", "eps": 0.1, "ddof": 1},
            reference.group_norm(REWARD, VALID, eps=0.1, ddof=1),
        ),
        ({"type": "group_center"}, reference.group_center(REWARD, VALID)),
    ],
    ids=["norm", "norm_sample", "center"],
)
def test_advantages(fields, expected):
    found = advantage(**fields)(samples(REWARD, VALID))
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert not found[1].any()
    assert found[2, 2] == 0


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({"type": "token_mean"}, reference.token_mean(LENGTH)),
        ({"type": "sequence_mean"}, reference.sequence_mean(LENGTH)),
        ({"type": "constant_length"}, reference.constant_length(LENGTH, max_length=20)),
        (
            {"type": "constant_length", "max_length": 50},
            reference.constant_length(LENGTH, max_length=50),
        ),
    ],
    ids=["token", "sequence", "limit", "constant"],
)
def test_weights(fields, expected):
    found = weights(**fields)(LENGTH, 20)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "make, fields",
    [
        (advantage, {"type": "group_norm", "ddof": 2}),
        (advantage, {"type": "group_norm", "eps": -1.0}),
        (advantage, {"type": "group_center", "eps": 1.0}),
        (weights, {"type": "constant_length", "max_length": 0}),
        (weights, {"type": "token_mean", "max_length": 5}),
    ],
)
def test_what_cannot_be_is_refused(make, fields):
    with pytest.raises(ValidationError):
        make(**fields)

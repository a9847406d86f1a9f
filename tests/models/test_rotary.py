"""Rotary embedding and its scalings, against loops in float64 and numbers by hand."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.rope_scaling import LinearScaling, Llama3Scaling, YarnScaling
from jaxrl_vr.models.rotary import rotary_angles, rotary_frequencies, rotate


def arch_with(**changes):
    sizes = dict(vocab_size=8, width=8, layers=1, heads=1, kv_heads=1, head_dim=8, ffn=8)
    return Architecture(**{**sizes, **changes})


def test_plain_rotary_frequencies_by_hand():
    arch = arch_with(rope_theta=10_000.0)
    np.testing.assert_allclose(rotary_frequencies(arch), [1.0, 0.1, 0.01, 0.001], rtol=1e-12)


def llama3_by_loop(theta, head_dim, factor, low, high, original):
    """As the Llama 3.1 release describes it: by wavelength, one pair at a time."""
    out = []
    for i in range(head_dim // 2):
        frequency = 1.0 / theta ** (2 * i / head_dim)
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            out.append(frequency)
        elif wavelength > original / low:
            out.append(frequency / factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append((1 - smooth) * frequency / factor + smooth * frequency)
    return out


@pytest.mark.parametrize(
    "theta, head_dim, factor, low, high, original",
    [
        (500_000.0, 128, 8.0, 1.0, 4.0, 8192),
        (500_000.0, 64, 32.0, 1.0, 4.0, 8192),
        (500.0, 8, 4.0, 1.0, 4.0, 16),
        (10_000.0, 64, 2.5, 0.5, 3.0, 100),
    ],
)
def test_llama3_frequencies_equal_a_loop(theta, head_dim, factor, low, high, original):
    scaling = Llama3Scaling(
        factor=factor, low_freq_factor=low, high_freq_factor=high, original_length=original
    )
    arch = arch_with(head_dim=head_dim, rope_theta=theta, rope_scaling=scaling)
    expected = llama3_by_loop(theta, head_dim, factor, low, high, original)
    np.testing.assert_allclose(rotary_frequencies(arch), expected, rtol=1e-12)


def test_llama3_frequencies_by_hand():
    # theta 10^4, Q 8: plain frequencies 1, 0.1, 0.01, 0.001, so 40 pi tokens hold 20, 2, 0.2 and
    # 0.02 turns (original_length is whole: 126 tokens hold 20.05, 2.005, 0.2005, 0.02005).
    # 20 turns > 4: kept. 2.005 lies (2.005 - 1) / 3 = 0.3351 of the way: 0.1 (0.3351 + 0.6649 / 8).
    # Both below 1: an eighth.
    scaling = Llama3Scaling(factor=8.0, original_length=126)
    got = rotary_frequencies(arch_with(rope_scaling=scaling))
    np.testing.assert_allclose(got, [1.0, 0.041822, 0.00125, 0.000125], rtol=2e-4)


def yarn_by_loop(theta, head_dim, factor, original, fast=32.0, slow=1.0, truncate=True):
    """The paper's section 3.2, one pair at a time: by how often it turns within the original
    context. Between the bounds the ramp is that of the authors' code, over the logarithm of the
    turns, whose ends they round to whole pairs."""
    half = head_dim // 2

    def turns_of(index):
        return original * theta ** (-2 * index / head_dim) / (2 * math.pi)

    def index_of(turns):  # a pair of this many turns; seldom a whole one
        return math.log(turns_of(0) / turns) / math.log(turns_of(0) / turns_of(1))

    first, last = index_of(fast), index_of(slow)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(0, first), min(last, head_dim - 1)
    out = []
    for i in range(half):
        frequency = 1.0 / theta ** (2 * i / head_dim)
        if i <= first:
            out.append(frequency)
        elif i >= last:
            out.append(frequency / factor)
        else:
            kept = math.log(turns_of(i) / turns_of(last)) / math.log(
                turns_of(first) / turns_of(last)
            )
            out.append((1 - kept) * frequency / factor + kept * frequency)
    return out


@pytest.mark.parametrize(
    "theta, head_dim, factor, original, rest",
    [
        (1e6, 128, 4.0, 32768, {}),  # Qwen2.5 and Qwen3 for 128k tokens
        (1e4, 128, 16.0, 4096, {}),  # the paper's Llama 2 for 64k tokens
        (1e6, 128, 4.0, 32768, {"truncate": False}),
        (1.5e5, 64, 32.0, 4096, {"truncate": False}),
        (1e4, 64, 2.5, 1000, {"beta_fast": 16.0, "beta_slow": 2.0}),
        (500.0, 8, 4.0, 16, {}),  # the fastest pair turns less than beta_fast
    ],
)
def test_yarn_frequencies_equal_a_loop(theta, head_dim, factor, original, rest):
    scaling = YarnScaling(factor=factor, original_length=original, **rest)
    arch = arch_with(head_dim=head_dim, rope_theta=theta, rope_scaling=scaling, max_length=original)
    names = {"beta_fast": "fast", "beta_slow": "slow", "truncate": "truncate"}
    rest = {names[k]: v for k, v in rest.items()}
    expected = yarn_by_loop(theta, head_dim, factor, original, **rest)
    np.testing.assert_allclose(rotary_frequencies(arch), expected, rtol=1e-12)


def test_yarn_keeps_what_turns_often_and_stretches_what_hardly_turns():
    """What the paper says of all pairs but those of the ramp, whatever that is."""
    scaling = YarnScaling(factor=4.0, original_length=32768, truncate=False)
    plain = rotary_frequencies(arch_with(head_dim=128, rope_theta=1e6))
    got = rotary_frequencies(arch_with(head_dim=128, rope_theta=1e6, rope_scaling=scaling))
    turns = 32768 * plain / (2 * np.pi)
    np.testing.assert_allclose(got[turns > 32], plain[turns > 32], rtol=1e-12)
    np.testing.assert_allclose(got[turns < 1], plain[turns < 1] / 4, rtol=1e-12)
    ramp = got[(turns < 32) & (turns > 1)] / plain[(turns < 32) & (turns > 1)]
    assert len(ramp) == 16 and (np.diff(ramp) < 0).all() and 0.25 < ramp[-1] < ramp[0] < 1


def test_yarn_frequencies_by_hand():
    # theta 10^4, Q 8: plain 1, 0.1, 0.01, 0.001. 2011 tokens hold 320, 32, 3.2 and 0.32 turns, so
    # that 32 turns are those of pair 1.0 and one turn of pair 2.5; rounded outwards 1 and 3. (2011
    # is a little more than 640 pi, so floor(1.0001) = 1.) Pair 2 lies half way: 0.01 (1 + 1/4) / 2.
    scaling = YarnScaling(factor=4.0, original_length=2011)
    got = rotary_frequencies(arch_with(rope_scaling=scaling))
    np.testing.assert_allclose(got, [1.0, 0.1, 0.00625, 0.00025], rtol=1e-12)


def test_linear_frequencies_are_those_of_divided_positions():
    arch, plain = arch_with(rope_scaling=LinearScaling(factor=4.0)), arch_with()
    np.testing.assert_allclose(rotary_frequencies(arch), rotary_frequencies(plain) / 4, rtol=1e-15)
    scaled = rotary_angles(arch, jnp.asarray([[8, 40]]))
    for got, expected in zip(scaled, rotary_angles(plain, jnp.asarray([[2, 10]])), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize(
    "numbers, expected",
    [
        ({}, 1.1386294),  # 0.1 ln 4 + 1
        ({"attention_factor": 0.7}, 0.7),
        ({"mscale": 2.0, "mscale_all_dim": 0.5}, 1.1944649),  # (0.2 ln 4 + 1) / (0.05 ln 4 + 1)
        ({"mscale": 2.0}, 1.1386294),  # both or none
        ({"mscale": 2.0, "mscale_all_dim": 0.0}, 1.1386294),
        ({"mscale": 2.0, "mscale_all_dim": 0.5, "attention_factor": 0.7}, 0.7),
        ({"factor": 1.0}, 1.0),
    ],
    ids=str,
)
def test_yarn_makes_cos_and_sin_longer(numbers, expected):
    scaling = YarnScaling(**{"factor": 4.0, "original_length": 512} | numbers)
    assert scaling.magnitude == pytest.approx(expected, rel=1e-6)
    arch = arch_with(rope_scaling=scaling, max_length=512)
    cos, sin = rotary_angles(arch, jnp.asarray([[0, 3, 500]]))
    np.testing.assert_allclose(np.hypot(cos, sin), expected, rtol=1e-6)
    np.testing.assert_allclose(cos[0, 0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    "numbers, message",
    [
        ({"factor": 0.5}, "greater than or equal to 1"),
        ({"original_length": 0}, "greater than 0"),
        ({"beta_fast": 0.5}, "beta_fast = 0.5 is below beta_slow = 1.0; the paper has 32 and 1"),
        ({"attention_factor": 0.0}, "greater than 0"),
    ],
    ids=str,
)
def test_bounds_of_yarn(numbers, message):
    with pytest.raises(ValidationError, match=message):
        YarnScaling(**{"factor": 4.0, "original_length": 512} | numbers)


def test_a_context_beyond_what_yarn_reaches_is_refused():
    scaling = YarnScaling(factor=4.0, original_length=512)
    assert arch_with(rope_scaling=scaling, max_length=2048).longest == 2048
    message = (
        r"max_length = 2100 exceeds rope_scaling.factor = 4 x original_length = 512, 2048 tokens; "
        r"lower it, set factor to 4.2, or original_length to what the model was pretrained with"
    )
    with pytest.raises(ValidationError, match=message):
        arch_with(rope_scaling=scaling, max_length=2100)
    enough = YarnScaling(factor=4.2, original_length=512)
    assert arch_with(rope_scaling=enough, max_length=2100).longest == 2151
    with pytest.raises(ValidationError, match="rope_theta = 1.0 with YaRN: raise it above 1"):
        arch_with(rope_scaling=scaling, rope_theta=1.0, max_length=512)


def test_a_model_gets_a_scaling_once():
    model = arch_with(max_length=40)
    yarn = YarnScaling(factor=2.5, original_length=32)
    assert model.with_scaling(yarn) == arch_with(max_length=80, rope_scaling=yarn)
    assert model.with_scaling(yarn).with_scaling(yarn).max_length == 80
    linear = LinearScaling(factor=2.5)
    assert model.with_scaling(linear) == arch_with(max_length=100, rope_scaling=linear)
    with pytest.raises(
        ValueError, match=r"the model has one of its own \(type='linear' factor=2.5"
    ):
        model.with_scaling(linear).with_scaling(yarn)
    longer = YarnScaling(factor=2.5, original_length=64)
    with pytest.raises(
        ValueError, match=r"original_length = 64 exceeds the model's own context .* 40"
    ):
        model.with_scaling(longer)


def test_rotation_by_hand():
    # Q = 2, one pair; a quarter turn takes (1, 0) to (0, 1) and (0, 1) to (-1, 0).
    rotary = (jnp.zeros((1, 1, 1)), jnp.ones((1, 1, 1)))
    x = jnp.asarray([[1.0, 0.0], [0.0, 1.0]]).reshape(1, 1, 2, 2)
    np.testing.assert_array_equal(rotate(x, rotary)[0, 0], [[0.0, 1.0], [-1.0, 0.0]])


def test_rotation_pairs_the_halves():
    arch = arch_with()
    x = jnp.zeros((1, 1, 1, 8)).at[..., 1].set(1.0)  # the pair of entry 1 is entry 5, frequency 0.1
    turned = rotate(x, rotary_angles(arch, jnp.asarray([[5]])))[0, 0, 0]
    expected = np.zeros(8)
    expected[1], expected[5] = math.cos(0.5), math.sin(0.5)
    np.testing.assert_allclose(turned, expected, atol=1e-7)


def test_scores_depend_on_distance_only():
    arch = arch_with(rope_scaling=Llama3Scaling(original_length=16))
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(1, 1, 1, 8)), jnp.float32) for _ in range(2))

    def score(at_q, at_k):
        turned = [
            rotate(x, rotary_angles(arch, jnp.asarray([[at]]))) for x, at in ((q, at_q), (k, at_k))
        ]
        return float(jnp.sum(turned[0] * turned[1]))

    assert score(9, 4) == pytest.approx(score(1009, 1004), abs=1e-3)
    assert score(9, 4) == pytest.approx(score(5, 0), abs=1e-5)
    assert abs(score(9, 4) - score(9, 3)) > 1e-2

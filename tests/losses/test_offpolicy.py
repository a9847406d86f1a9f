"""Off-policy weights by hand; see test_every_loss.py too."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_vr.losses import (
    effective_sample_size,
    geometric_mis,
    geometric_tis,
    icepop,
    mis,
    mismatch_metrics,
    sequence_mis,
    sequence_tis,
    staleness_decay,
    tis,
    veto,
)

# Ratios 4, 0.25, 1.5 | 2, 1: products 1.5 and 2, geometric means 1.1447 and 1.4142.
SAMPLER = jnp.log(jnp.array([[0.1, 0.8, 0.2], [0.25, 0.5, 0.9]]))
LOGP = jnp.log(jnp.array([[0.4, 0.2, 0.3], [0.5, 0.5, 0.1]]))
MASK = jnp.array([[True, True, True], [True, True, False]])


@pytest.mark.parametrize(
    "function, numbers, expected, num_cut",
    [
        (tis, {"max_weight": 1.4}, [[1.4, 0.25, 1.4], [1.4, 1, 0]], 3),
        (mis, {"max_weight": 1.6}, [[0, 0.25, 1.5], [0, 1, 0]], 2),
        (icepop, {"low": 0.5, "high": 3.0}, [[0, 0, 1.5], [2, 1, 0]], 2),
        (sequence_tis, {"max_weight": 1.8}, [[1.5] * 3, [1.8, 1.8, 0]], 2),
        (sequence_mis, {"max_weight": 1.8}, [[1.5] * 3, [0, 0, 0]], 2),
        (geometric_tis, {"max_weight": 1.3}, [[1.14471] * 3, [1.3, 1.3, 0]], 2),
        (geometric_mis, {"low": 1.2, "high": 1.5}, [[0] * 3, [1.41421, 1.41421, 0]], 3),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_weights_by_hand(function, numbers, expected, num_cut):
    weight, metrics = function(LOGP, SAMPLER, MASK, **numbers)
    np.testing.assert_allclose(weight, expected, rtol=1e-5)
    assert [int(x) for x in metrics["offpolicy/cut_frac"]] == [num_cut, 5]
    np.testing.assert_allclose(metrics["offpolicy/weight"].sum, np.sum(expected), rtol=1e-5)
    squares = np.sum(np.square(expected))
    np.testing.assert_allclose(metrics["offpolicy/weight_square"].sum, squares, rtol=1e-5)


@pytest.mark.parametrize(
    "function", [tis, mis, icepop, sequence_tis, sequence_mis, geometric_tis, geometric_mis]
)
def test_equal_policies_weigh_1(function):
    np.testing.assert_array_equal(function(LOGP, LOGP, MASK)[0], MASK)


@pytest.mark.parametrize(
    "function",
    [tis, mis, icepop, sequence_tis, sequence_mis, geometric_tis, geometric_mis]
    + [veto, mismatch_metrics],
)
def test_none_is_refused(function):
    says = "sampler_logp: off-policy weights need the log-prob .* got None; record them"
    with pytest.raises(ValueError, match=says):
        function(LOGP, None, MASK)


@pytest.mark.parametrize("function", [tis, sequence_tis, geometric_tis, mis, sequence_mis])
def test_a_ratio_beyond_float32_is_finite(function):
    weight, metrics = function(LOGP + 500, SAMPLER, MASK)
    assert np.isfinite(weight).all()
    assert np.isfinite(metrics["offpolicy/weight_square"].sum)


def test_veto_by_hand():
    # Row 0 holds a ratio of 0.25, row 1 none below 1 that trains.
    assert veto(LOGP, SAMPLER, MASK, threshold=0.3).tolist() == [[False] * 3, [True, True, False]]
    assert veto(LOGP, SAMPLER, MASK, threshold=0.2).tolist() == MASK.tolist()
    # Packed, it takes only its own sequence.
    ids = jnp.array([[1, 2, 2], [1, 1, 1]])
    assert veto(LOGP, SAMPLER, MASK, ids, threshold=0.3)[0].tolist() == [True, False, False]


def test_staleness_by_hand():
    np.testing.assert_allclose(
        staleness_decay(jnp.array([[0, 1], [2, 3]]), decay=0.5), [[1, 0.5], [0.25, 0.125]]
    )
    np.testing.assert_allclose(staleness_decay(jnp.array([0, 1, 2]), decay=0.0), [1, 0, 0])
    with pytest.raises(ValueError, match=r"staleness: expected shape \[B, T\], got \[1, 1, 1\]"):
        staleness_decay(jnp.zeros((1, 1, 1), int))


def test_effective_sample_size_by_hand():
    # (3 + 1 + 1 + 1)^2 / (4 x (9 + 1 + 1 + 1)) = 36 / 48; the masked 100 is not read
    weight = jnp.array([[3.0, 1.0, 100.0], [1.0, 1.0, 100.0]])
    mask = jnp.array([[True, True, False]] * 2)
    assert float(effective_sample_size(weight, mask)) == pytest.approx(0.75)
    assert float(effective_sample_size(jnp.full((2, 3), 7.0), MASK)) == pytest.approx(1.0)
    for scale in (1e-30, 1e30):  # whose squares are beyond float32
        assert float(effective_sample_size(weight * scale, mask)) == pytest.approx(0.75)
    assert float(effective_sample_size(weight, jnp.zeros_like(mask))) == 0
    assert float(effective_sample_size(weight * 0, mask)) == 0


def test_effective_sample_size_follows_from_the_metrics():
    weight, metrics = tis(LOGP, SAMPLER, MASK)
    mean, square = (
        float(metrics[name].sum) / float(metrics[name].count)
        for name in ("offpolicy/weight", "offpolicy/weight_square")
    )
    assert float(effective_sample_size(weight, MASK)) == pytest.approx(mean**2 / square, rel=1e-5)


def test_mismatch_by_hand():
    # d = log 2 and -log 2 over two tokens
    logp, sampler = jnp.log(jnp.array([[0.5, 0.2]])), jnp.log(jnp.array([[0.25, 0.4]]))
    log_2 = 0.693147
    found = mismatch_metrics(logp, sampler, jnp.ones((1, 2), bool))
    assert float(found["mismatch/max"].value) == pytest.approx(log_2, rel=1e-5)
    sums = {name: float(metric.sum) for name, metric in found.items() if "max" not in name}
    assert sums == pytest.approx(
        {
            "mismatch/mean": 2 * log_2,
            "mismatch/k1": 0.0,
            "mismatch/k3": 2 + 0.5 - 2,  # (2 - 1 - log 2) + (1/2 - 1 + log 2)
            "mismatch/chi2": 4 + 0.25 - 2,
        },
        rel=1e-5,
        abs=1e-6,
    )


def test_mismatch_reads_only_what_trains():
    logp = LOGP.at[1, 2].set(jnp.nan)
    found, expected = (mismatch_metrics(x, SAMPLER, MASK) for x in (logp, LOGP))
    for name, metric in expected.items():
        np.testing.assert_array_equal(found[name], metric)

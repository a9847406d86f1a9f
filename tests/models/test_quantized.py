"""Weights in int8: what rounding changes, and what it must not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pages_by_hand import ByHand

from jaxrl_vr.models.quantized import Quantized, product, quantize


@pytest.mark.parametrize(
    ("equation", "shape", "contracted"),
    [
        ("BTD,DHQ->BTHQ", (24, 4, 6), (0,)),
        ("BTHQ,HQD->BTD", (4, 6, 24), (0, 1)),
        ("BTD,DF->BTF", (24, 40), (0,)),
    ],
)
def test_a_product_is_that_of_the_rounded_weight(equation, shape, contracted):
    rng = np.random.default_rng(0)
    weight = rng.normal(size=shape) * np.exp(rng.normal(size=shape[-1]))
    x = rng.normal(size=(2, 3, *shape[: len(contracted)]))
    rounded = quantize(jnp.asarray(weight, jnp.float32), contracted)
    assert rounded.values.dtype == jnp.int8
    assert rounded.scale.shape == shape[len(contracted) :]
    exact = np.asarray(rounded.values, np.float64) * np.asarray(rounded.scale, np.float64)
    # Half a step of each channel at most.
    step = np.abs(weight).max(axis=contracted) / 127
    assert (np.abs(exact - weight) <= 0.5001 * step).all()
    got = product(equation, jnp.asarray(x, jnp.float32), rounded)
    np.testing.assert_allclose(got, np.einsum(equation, x, exact), rtol=1e-5, atol=1e-5)


def test_a_channel_of_zeros_stays_one():
    rounded = quantize(jnp.zeros((3, 2)), (0,))
    assert np.isfinite(rounded.scale).all()
    np.testing.assert_array_equal(rounded.values, 0)


def test_only_projections_are_rounded_and_little_changes(tiny):
    plain, rounded = (
        tiny.model.sampler_view(tiny.params),
        tiny.model.sampler_view(tiny.params, True),
    )
    for name in plain:
        if name != "layers":
            np.testing.assert_array_equal(plain[name], rounded[name])
    for before, after in zip(plain["layers"], rounded["layers"], strict=True):
        names = {name for name, w in after.items() if isinstance(w, Quantized)}
        assert names == {"q_rows", "k_rows", "v_rows", "o", "gate", "up", "down"}
        for name in set(before) - names:
            np.testing.assert_array_equal(before[name], after[name])
    hidden = [ByHand(tiny.model, view, 1).prefill([[5, 6, 7, 8]]) for view in (plain, rounded)]
    error = jnp.linalg.norm(hidden[0] - hidden[1]) / jnp.linalg.norm(hidden[0])
    assert 1e-4 < float(error) < 0.1


def test_int8_takes_a_quarter_of_float32(tiny):
    def size(view):
        return sum(a.nbytes for a in jax.tree.leaves(view["layers"]))

    plain, rounded = (
        tiny.model.sampler_view(tiny.params),
        tiny.model.sampler_view(tiny.params, True),
    )
    assert size(rounded) < 0.4 * size(plain)  # small layers: scales and norms weigh

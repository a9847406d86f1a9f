"""Weights in int8: what rounding changes, and what it must not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pages_by_hand import ByHand

from jaxrl_vr.models.quantized import Quantized, product, quantize
from jaxrl_vr.sharding import MeshConfig, make_mesh

EQUATIONS = pytest.mark.parametrize(
    ("equation", "shape", "contracted"),
    [
        ("BTD,DHQ->BTHQ", (24, 4, 6), (0,)),
        ("BTD,HQD->BTHQ", (4, 6, 24), (2,)),
        ("BTHQ,HQD->BTD", (4, 6, 24), (0, 1)),
        ("BTD,DF->BTF", (24, 40), (0,)),
    ],
)


@EQUATIONS
@pytest.mark.parametrize("devices", [1, 8])
def test_a_product_and_its_gradients_are_those_of_the_definition(
    equation, shape, contracted, devices
):
    rng = np.random.default_rng(0)
    weight = rng.normal(size=shape)
    x = rng.normal(size=(4, 6, *(shape[axis] for axis in contracted)))
    exact = np.einsum(equation, x, weight)
    given = rng.normal(size=exact.shape)
    inputs, result = equation.split("->")
    of_x, of_weight = inputs.split(",")
    by_x = np.einsum(f"{result},{of_weight}->{of_x}", given, weight)
    by_weight = np.einsum(f"{result},{of_x}->{of_weight}", given, x)

    def both(x, weight, given):
        out, backward = jax.vjp(lambda x, weight: product(equation, x, weight), x, weight)
        return out, *backward(given)

    config = MeshConfig(fsdp=2, context=2, tensor=2) if devices == 8 else MeshConfig()
    with jax.set_mesh(make_mesh(config, jax.devices()[:devices])):
        found = jax.jit(both)(*(jnp.asarray(a, jnp.float32) for a in (x, weight, given)))
    for got, wanted in zip(found, (exact, by_x, by_weight), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@EQUATIONS
def test_a_product_is_that_of_the_rounded_weight(equation, shape, contracted):
    rng = np.random.default_rng(0)
    weight = rng.normal(size=shape) * np.exp(rng.normal(size=shape))
    x = rng.normal(size=(2, 3, *(shape[axis] for axis in contracted)))
    rounded = quantize(jnp.asarray(weight, jnp.float32), contracted)
    assert rounded.values.dtype == jnp.int8
    kept = [n for axis, n in enumerate(shape) if axis not in contracted]
    assert list(rounded.scale.shape) == kept
    scale = np.expand_dims(np.asarray(rounded.scale, np.float64), contracted)
    exact = np.asarray(rounded.values, np.float64) * scale
    # Half a step of each channel at most.
    step = np.abs(weight).max(axis=contracted, keepdims=True) / 127
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
        assert names == {"q", "k", "v", "o", "gate", "up", "down"}
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


@pytest.mark.parametrize("int8", [False, True])
def test_weights_as_rows_change_nothing(tiny, int8):
    views = [tiny.model.sampler_view(tiny.params, int8, as_rows) for as_rows in (False, True)]
    assert views[1]["layers"][0].keys() - views[0]["layers"][0].keys() == {
        "q_rows",
        "k_rows",
        "v_rows",
    }
    hidden = [ByHand(tiny.model, view, 1).prefill([[5, 6, 7, 8]]) for view in views]
    np.testing.assert_allclose(*hidden, atol=1e-5)

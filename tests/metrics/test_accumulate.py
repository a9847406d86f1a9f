"""Sums and counts, minima and maxima over parts of different size."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.metrics.accumulate import Accumulator
from jaxrl_vr.types import Max, Mean, Min


def test_parts_count_by_their_size():
    total = Accumulator()
    total.add({"loss": Mean(2.0, 1), "low": Min(3.0), "high": Max(3.0)})
    total.add({"loss": Mean(1.0, 3), "low": Min(-1.0), "high": Max(-1.0)})
    # (2 + 1) / (1 + 3); a mean of means would be (2 + 1/3) / 2.
    assert total.result() == {"loss": 0.75, "low": -1.0, "high": 3.0}


def test_a_mean_of_nothing_is_absent():
    total = Accumulator()
    total.add({"length/right": Mean(0.0, 0)})
    assert total.result() == {}
    total.add({"length/right": Mean(4.0, 2)})
    assert total.result() == {"length/right": 2.0}


def test_numpy_and_jax_scalars_become_floats():
    import jax.numpy as jnp

    total = Accumulator()
    total.add({"a": Mean(jnp.float32(1.5), jnp.int32(3)), "b": Max(np.float32(0.5))})
    result = total.result()
    assert result == {"a": 0.5, "b": 0.5}
    assert {type(v) for v in result.values()} == {float}


def test_nan_is_not_lost():
    for values in ([1.0, math.nan], [math.nan, 1.0]):
        total = Accumulator()
        for value in values:
            total.add({"low": Min(value), "high": Max(value), "mean": Mean(value, 1)})
        assert all(math.isnan(v) for v in total.result().values())


def test_two_kinds_under_one_name_are_refused():
    total = Accumulator()
    total.add({"a": Mean(1.0, 1)})
    with pytest.raises(ValueError, match="metric 'a' is a Max and was a Mean before"):
        total.add({"a": Max(1.0)})


@given(st.lists(st.lists(st.integers(-1000, 1000), min_size=1), min_size=1))
def test_any_split_gives_the_mean_of_the_whole(parts):
    total = Accumulator()
    for part in parts:
        total.add({"x": Mean(sum(part), len(part)), "low": Min(min(part)), "high": Max(max(part))})
    whole = [value for part in parts for value in part]
    assert total.result() == {
        "x": sum(whole) / len(whole),
        "low": min(whole),
        "high": max(whole),
    }


def test_smallest_and_largest_of_nothing_are_left_out():
    accumulator = Accumulator()
    accumulator.add({"a/max": Max(-math.inf), "a/min": Min(math.inf), "b/max": Max(math.inf)})
    assert accumulator.result() == {"b/max": math.inf}

"""Shape checks, pytree dataclasses, metrics that add up."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_vr.arrays import Max, Mean, Min, check, constant_of, merge_metrics, pytree_dataclass


def test_check_returns_sizes():
    sizes = check("PG, P, , GPG", a=np.ones((2, 3)), b=np.ones(2), c=1.5, d=np.ones((3, 2, 3)))
    assert sizes == {"P": 2, "G": 3}


def test_check_skips_what_is_none():
    assert check("BT, BT", logp=jnp.ones((2, 3)), mask=None) == {"B": 2, "T": 3}


def test_check_works_on_shapes_alone():
    shapes = []
    jax.eval_shape(lambda x: shapes.append(check("BT", x=x)), jax.ShapeDtypeStruct((4, 5), "int32"))
    assert shapes == [{"B": 4, "T": 5}]


@pytest.mark.parametrize(
    "letters, arrays, says",
    [
        ("BT", {"logp": np.ones(3)}, "logp: expected shape [B, T], got [3]"),
        ("BT", {"logp": 2.0}, "logp: expected shape [B, T], got []"),
        ("", {"rate": np.ones(1)}, "rate: expected shape [], got [1]"),
        (
            "BT, BT",
            {"logp": np.ones((2, 3)), "mask": np.ones((2, 1))},
            "mask: expected shape [B, T] with T = 3 as in logp, got [2, 1]",
        ),
        ("NN", {"x": np.ones((2, 3))}, "x: expected shape [N, N] with N = 2 as in x, got [2, 3]"),
        ("B, T", {"x": np.ones(2)}, "check: 2 shapes in 'B, T' for 1 arrays"),
    ],
)
def test_check_says_what_is_wrong(letters, arrays, says):
    with pytest.raises(ValueError) as error:
        check(letters, **arrays)
    assert str(error.value) == says


def test_pytree_dataclass():
    @pytree_dataclass
    class Pair:
        first: jax.Array
        second: jax.Array | None = None

    doubled = jax.jit(lambda p: jax.tree.map(lambda x: 2 * x, p))(Pair(jnp.array(3)))
    assert isinstance(doubled, Pair)
    assert int(doubled.first) == 6
    assert doubled.second is None
    assert len(jax.tree.leaves(Pair(1, 2))) == 2
    with pytest.raises(AttributeError):
        doubled.first = 1


def test_merge_metrics():
    a = {"a": Mean(1.0, 2), "b": Max(jnp.array(3.0)), "c": Min(jnp.array(3.0))}
    b = {"a": Mean(0.5, 6), "b": Max(jnp.array(-1.0)), "c": Min(jnp.array(-1.0))}
    # a mean of means would be (0.5 + 0.08) / 2; sums and counts give 1.5 / 8
    assert merge_metrics(a, b) == {"a": Mean(1.5, 8), "b": Max(3.0), "c": Min(-1.0)}


def test_metrics_of_two_kinds_under_one_name():
    with pytest.raises(ValueError, match="metrics of two kinds under one name"):
        merge_metrics({"a": Mean(1.0, 2)}, {"a": Max(1.0)})


def test_constant_of_makes_the_two_ends_of_a_loop_alike_in_shard_map():
    mesh = jax.make_mesh((8,), ("data",), (jax.sharding.AxisType.Auto,))

    def count(x):  # from a plain 0 this loop is an error
        start = constant_of(0, x.dtype, x)
        return jax.lax.fori_loop(0, 3, lambda _, n: n + x[0], start)[None]

    spec = jax.P("data")
    found = jax.jit(jax.shard_map(count, mesh=mesh, in_specs=spec, out_specs=spec))(jnp.arange(8))
    assert found.tolist() == [0, 3, 6, 9, 12, 15, 18, 21]


def test_constant_of_costs_nothing_and_is_the_value_for_any_array():
    def scaled(x):
        return x * constant_of(1, x.dtype, x)

    x = jnp.array([jnp.nan, jnp.inf, -0.0, 2.0])
    np.testing.assert_array_equal(jax.jit(scaled)(x), x)
    assert float(constant_of(3, jnp.float32, x[:1], x[:0])) == 3.0
    compiled = jax.jit(scaled).lower(x).compile().as_text()
    assert not any(op in compiled for op in ("multiply", "select", "compare", "reduce"))

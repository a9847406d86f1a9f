"""Keyed orders are permutations, differ by key, and keep repeats apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.data.order import epoch_order, key, permuted, uniform


@given(st.integers(1, 300), st.integers(0, 2**64 - 1))
def test_permuted_is_a_bijection(size, permutation):
    assert sorted(permuted(i, size, permutation) for i in range(size)) == list(range(size))


def test_permuted_moves_things_and_depends_on_the_key():
    one, other = ([permuted(i, 1000, k) for i in range(1000)] for k in (1, 2))
    assert sum(a == i for i, a in enumerate(one)) < 10
    assert sum(a == b for a, b in zip(one, other, strict=True)) < 10
    assert permuted(123_456_789_012, 10**15, 7) < 10**15


def test_permuted_refuses_an_index_outside():
    with pytest.raises(ValueError, match="index 5 is outside a permutation of 5"):
        permuted(5, 5, 0)


def test_keys_are_the_same_in_every_process_and_tell_types_apart():
    assert key("a", 1) == 6_093_571_037_014_766_401
    assert len({key("a", 1), key("a", "1"), key("a1"), key(1, "a")}) == 4


def test_uniform_is_uniform():
    draws = [uniform("u", i) for i in range(4000)]
    assert all(0 <= u < 1 for u in draws)
    assert abs(sum(draws) / 4000 - 0.5) < 0.02
    assert abs(sum(u < 0.1 for u in draws) / 4000 - 0.1) < 0.02


@given(st.integers(1, 60), st.integers(0, 5), st.integers(0, 4))
def test_any_third_of_an_epoch_is_distinct_also_across_the_border(size, seed, epoch):
    first, second = (list(epoch_order(size, seed, "s", e)) for e in (epoch, epoch + 1))
    assert sorted(first) == sorted(second) == list(range(size))
    stream, window = first + second, max(1, size // 3)
    for start in range(len(stream) - window + 1):
        assert len(set(stream[start : start + window])) == window


def test_epochs_seeds_and_names_have_their_own_orders():
    orders = [
        tuple(epoch_order(100, *args))
        for args in [(0, "a", 0), (0, "a", 1), (1, "a", 0), (0, "b", 0)]
    ]
    assert len(set(orders)) == 4

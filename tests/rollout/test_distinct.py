"""Tokens of packed rows that repeat others, with all that stands before them."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.rollout.batch import Shape, Trajectory, abstract_batch, build, pack, unpack
from jaxrl_vr.rollout.distinct import distinct_tokens

# Few different tokens, so that prefixes are often alike.
sequences = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=12), min_size=1, max_size=20)


def trajectories(of_each, **fields):
    every = []
    for i, ids in enumerate(of_each):
        mask = np.arange(len(ids)) > 0
        every.append(Trajectory(np.array(ids), mask, group=i // 3, **fields))
    return every


def prefixes(batch, parts):
    """[M R, n] the tokens up to each place of a part in its own sequence; () is padding."""
    found = []
    rows = zip(
        batch.tokens.reshape(-1, batch.tokens.shape[-1]),
        batch.segment_ids.reshape(-1, batch.tokens.shape[-1]),
        strict=True,
    )
    for tokens, segments in rows:
        starts = {s: int(np.argmax(segments == s)) for s in set(segments.tolist())}
        found += [
            tuple(tokens[starts[s] : t + 1].tolist()) if s else ()
            for t, s in enumerate(segments.tolist())
        ]
    n = batch.tokens.shape[1] * batch.tokens.shape[2] // parts
    return [found[i : i + n] for i in range(0, len(found), n)]


@given(sequences, st.sampled_from([(1, 1), (2, 1), (4, 2), (4, 4)]))
def test_a_token_is_one_with_those_of_the_same_prefix_and_no_other(of_each, cut):
    rows, parts = cut
    every = trajectories(of_each)
    weight = np.ones(len(every))
    batch = build(every, weight, Shape(24, rows, parts))
    alike = prefixes(batch, parts)
    needed = max(len(set(of_part)) for of_part in alike)
    n = 24 * rows // parts
    # Sizes are sixteenths of a part; with 13 of them nothing is gained.
    least = -(-16 * needed // n)
    if least > 12:
        assert batch.distinct_place is None and batch.distinct_token is None
        return
    size = int(np.ceil(least * n / 16))
    assert batch.distinct_place.shape == (len(batch.tokens), parts, size)
    places = batch.distinct_place.reshape(-1, size)
    tokens = batch.distinct_token.reshape(-1, n)
    for place, token, of_part in zip(places, tokens, alike, strict=True):
        assert [of_part[i] for i in place[token]] == of_part
        used = len(set(of_part))
        assert token[place[:used]].tolist() == list(range(used))


@given(sequences, st.integers(1, 4))
def test_a_batch_is_the_same_but_for_the_order_of_its_rows(of_each, rows):
    every = trajectories(of_each, adv=1.0)
    weight = np.arange(len(every)) + 1.0
    batch = build(every, weight, Shape(24, rows, 1))
    for name in ("tokens", "weight", "positions", "mask"):
        found = unpack(getattr(batch, name), every, Shape(24, rows, 1))
        plain = build(every, weight, Shape(24, rows))
        expected = unpack(getattr(plain, name), every, Shape(24, rows))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_groups_are_packed_one_behind_the_other_the_longest_first():
    lengths, groups = [3, 6, 4, 5, 2], [0, 1, 0, 1, 2]
    # group 1: 6, 5; group 0: 4 (fits the first), 3 (fits the second); group 2: 2 (fits the second)
    assert pack(lengths, 10, groups) == [[1, 2], [3, 0, 4]]
    # without groups 5 would be before 4 too, but 6 6 5 5 of two groups would alternate
    assert pack([6, 6, 5, 5], 6, [0, 1, 0, 1]) == [[0], [2], [1], [3]]
    assert pack([6, 6, 5, 5], 6) == [[0], [1], [2], [3]]


def test_a_prompt_of_a_group_by_hand():
    # two samples of the prompt 7 8, in rows of their own, and padding
    tokens = np.array([[[7, 8, 1, 2], [7, 8, 3, 0], [9, 0, 0, 0], [0, 0, 0, 0]]], np.int32)
    segments = np.array([[[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]], np.int32)
    place, token = distinct_tokens(tokens, segments, 1)
    # the padding first, at its first place; then 7 8 1 2, what 7 8 3 has more, and 9
    assert place.tolist() == [[[7, 0, 1, 2, 3, 6, 8]]]
    assert token.tolist() == [[[1, 2, 3, 4], [1, 2, 5, 0], [6, 0, 0, 0], [0, 0, 0, 0]]]
    # in two parts, each has its own; both get the size of the larger
    place, token = distinct_tokens(tokens, segments, 2)
    assert place.tolist() == [[[7, 0, 1, 2, 3, 6], [1, 0, 0, 0, 0, 0]]]
    assert token.tolist() == [[[1, 2, 3, 4], [1, 2, 5, 0], [1, 0, 0, 0], [0, 0, 0, 0]]]


def test_the_abstract_batch_is_that_of_the_built_one():
    every = trajectories([[1, 2, 3, 4, n] for n in range(6)])
    shape = Shape(10, 4, parts=2)
    batch = build(every, np.ones(6), shape)
    size = batch.distinct_place.shape[-1]
    assert size < shape.tokens // shape.parts
    expected = jax.tree.map(lambda a: (a.shape, a.dtype), batch)
    found = abstract_batch(len(batch.tokens), shape, distinct=size)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), found) == expected


def test_nothing_is_gained_where_no_token_repeats():
    tokens = np.arange(16, dtype=np.int32).reshape(1, 2, 8)
    assert distinct_tokens(tokens, np.ones_like(tokens), 1) is None


def test_parts_that_do_not_divide_the_rows_are_refused():
    tokens = np.zeros((1, 3, 4), np.int32)
    with pytest.raises(ValueError, match="3 rows cannot be split into 2 parts"):
        distinct_tokens(tokens, tokens, 2)

"""Packing sequences into rows, and rows into the arrays of an optimizer step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.rollout.batch import Shape, Trajectory, build, pack, unpack

lengths = st.lists(st.integers(1, 20), min_size=1, max_size=30)


def trajectory(n, seed, **fields):
    """A sequence of n tokens, all different from padding; the first does not train."""
    rng = np.random.default_rng(seed)
    mask = rng.random(n) < 0.5
    mask[0] = False
    return Trajectory(rng.integers(1, 100, n), mask, **fields)


def segments(batch):
    """Each packed sequence as (row, slice), in order."""
    rows = batch.segment_ids.reshape(-1, batch.segment_ids.shape[-1])
    for row, ids in enumerate(rows):
        for segment in range(1, ids.max() + 1):
            (at,) = np.nonzero(ids == segment)
            assert (np.diff(at) == 1).all()  # in one piece
            yield row, slice(at[0], at[-1] + 1)


def at(array, place):
    return array.reshape(-1, array.shape[-1])[place]


@given(lengths)
def test_pack_places_each_sequence_once_and_overfills_no_row(lengths):
    rows = pack(lengths, 20)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    assert all(0 < sum(lengths[i] for i in row) <= 20 for row in rows)
    # First fit: no sequence of a later row would fit into an earlier one.
    for k, row in enumerate(rows):
        free = 20 - sum(lengths[i] for i in row)
        assert all(lengths[i] > free for later in rows[k + 1 :] for i in later)


@given(lengths)
def test_pack_is_a_function_of_the_lengths(lengths):
    assert pack(lengths, 20) == pack(list(lengths), 20)


def test_pack_by_hand():
    # longest first: 6, then 5 (a row of its own), 4 (fits the first), 3 (fits the second)
    assert pack([3, 6, 4, 5], 10) == [[1, 2], [3, 0]]
    assert pack([2, 2, 2], 4) == [[0, 1], [2]]
    assert pack([], 4) == []


@given(lengths, st.integers(1, 4))
def test_rows_of_at_most_so_many_sequences(lengths, most):
    rows = pack(lengths, 20, most=most)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in row) <= 20 and len(row) <= most for row in rows)
    if max(map(len, pack(lengths, 20))) <= most:
        assert rows == pack(lengths, 20), "where it binds nowhere it changes nothing"


def test_rows_of_at_most_two_by_hand():
    assert pack([1, 1, 1, 5, 2], 10, most=2) == [[3, 4], [0, 1], [2]]
    every = [trajectory(n, 0) for n in (2, 2, 3, 3, 1, 1)]
    for most, pairs_of_a_row in ((None, [3]), (5, [2, 1]), (2, [1, 1, 1])):
        batch = build(every, np.ones(6), Shape(20, 1, sequences=most), together=2)
        found = [row.max() // 2 for row in batch.segment_ids[:, 0] if row.any()]
        assert found == pairs_of_a_row


def test_pack_refuses_what_is_too_long():
    with pytest.raises(ValueError, match="a sequence of 11 tokens does not fit a row of row_len"):
        pack([3, 11], 10)


def test_build_by_hand():
    a = Trajectory(
        token_ids=np.array([5, 6, 7]),
        mask=np.array([False, True, True]),
        logp=np.array([0.0, -1.0, -2.0], np.float32),
        version=np.array([0, 3, 4]),
        adv=0.5,
        temperature=0.7,
    )
    b = Trajectory(np.array([8, 9]), np.array([False, True]), adv=-1.0)
    batch = build([b, a], np.array([0.25, 0.125], np.float32), Shape(row_length=6, rows=1))
    # One row: a first, for it is longer, then b, then a place of padding.
    expected = {
        "tokens": [5, 6, 7, 8, 9, 0],
        "positions": [0, 1, 2, 0, 1, 0],
        "segment_ids": [1, 1, 1, 2, 2, 0],
        "mask": [False, True, True, False, True, False],
        "weight": [0, 0.125, 0.125, 0, 0.25, 0],
        "adv": [0.5, 0.5, 0.5, -1, -1, 0],
        "old_logp": [0, -1, -2, 0, 0, 0],
        "sampler_logp": [0, -1, -2, 0, 0, 0],
        "temperature": np.float32([0.7, 0.7, 0.7, 1, 1, 1]),
        "version": [0, 3, 4, 0, 0, 0],
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(getattr(batch, name), [[values]], err_msg=name)
    assert batch.ref_logp is batch.old_value is batch.returns is batch.imitation is None


def test_build_of_what_each_token_has_by_hand():
    def of(n, **more):
        arrays = {
            name: np.arange(n) + start
            for start, name in enumerate(("old_logp", "ref_logp", "old_value", "returns", "adv"))
        }
        arrays["imitation"] = np.arange(n) / 4
        return Trajectory(np.arange(n), np.arange(n) > 0, **{**arrays, **more})

    batch = build([of(2), of(3)], np.ones(2), Shape(row_length=6, rows=1))
    expected = {
        "old_logp": [0, 1, 2, 0, 1, 0],
        "ref_logp": [1, 2, 3, 1, 2, 0],
        "old_value": [2, 3, 4, 2, 3, 0],
        "returns": [3, 4, 5, 3, 4, 0],
        "adv": [4, 5, 6, 4, 5, 0],
        "imitation": [0, 0.25, 0.5, 0, 0.25, 0],
        "sampler_logp": [0] * 6,
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(getattr(batch, name), [[values]], err_msg=name)
        assert getattr(batch, name).dtype == np.float32
    assert batch.selected is None and batch.weight[0, 0].tolist() == [0, 1, 1, 0, 1, 0]
    selected = np.array([False, True])
    batch = build([of(2, selected=selected, counts=~selected)], np.ones(1), Shape(2, 1))
    assert batch.selected.tolist() == [[[False, True]]]
    # What does not count has no weight and stays in the mask.
    assert batch.mask.tolist() == [[[False, True]]] and not batch.weight.any()
    with pytest.raises(ValueError, match="trajectory 1: has no returns, but others have"):
        build([of(2), of(3, returns=None)], np.ones(2), Shape(6, 1))


@given(lengths, st.integers(1, 5))
def test_unpack_undoes_build(lengths, rows):
    given_ = [trajectory(n, i) for i, n in enumerate(lengths)]
    shape = Shape(20, rows)
    batch = build(given_, np.ones(len(lengths)), shape)
    found = unpack(np.asarray(batch.tokens), given_, shape)
    for values, t in zip(found, given_, strict=True):
        np.testing.assert_array_equal(values, t.token_ids)


@given(st.lists(st.integers(1, 10), min_size=1, max_size=10), st.integers(1, 5))
def test_pairs_lie_in_one_row_one_behind_the_other(lengths, rows):
    given_ = [trajectory(n, i, adv=float(i)) for i, n in enumerate(np.repeat(lengths, 2))]
    batch = build(given_, np.ones(len(given_)), Shape(20, rows), together=2)
    places = list(segments(batch))
    assert len(places) == len(given_)
    for (row, tokens), (other_row, other) in zip(places[::2], places[1::2], strict=True):
        assert (row, tokens.stop) == (other_row, other.start)
        first, second = (int(at(batch.adv, (row, slot))[0]) for slot in (tokens, other))
        assert second == first + 1 and first % 2 == 0
        segment = int(at(batch.segment_ids, (row, tokens))[0])
        assert segment % 2 == 1 and (at(batch.segment_ids, (row, other)) == segment + 1).all()


@given(lengths, st.integers(1, 5), st.integers(0, 3))
def test_dealt_rows_are_those_that_were_packed(lengths, rows, seed):
    given_ = [trajectory(n, i, group=i) for i, n in enumerate(lengths)]
    weight = np.arange(1, len(lengths) + 1)
    plain = build(given_, weight, Shape(20, rows))
    dealt, again = (build(given_, weight, Shape(20, rows), deal=(seed, 7)) for _ in range(2))
    num_rows = sum(1 for ids in plain.segment_ids.reshape(-1, 20) if ids.any())
    for name in ("tokens", "mask", "weight", "segment_ids"):
        array, other = (getattr(b, name) for b in (plain, dealt))
        np.testing.assert_array_equal(getattr(again, name), other)
        assert other.shape == array.shape
        found, packed = (a.reshape(-1, 20)[:num_rows].tolist() for a in (other, array))
        assert sorted(found) == sorted(packed)
        # What is empty stays at the end, where the learner skips it.
        assert not other.reshape(-1, 20)[num_rows:].any()


def test_dealt_rows_do_not_stand_by_length():
    given_ = [trajectory(n, n) for n in range(11, 20)]
    batch = build(given_, np.ones(9), Shape(20, 3), deal=(0,))
    lengths = (batch.segment_ids > 0).sum(2).reshape(-1)[:9]
    assert sorted(lengths) == list(range(11, 20))
    assert list(lengths) != sorted(lengths, reverse=True)


def test_dtypes():
    batch = build([trajectory(4, 0)], np.ones(1), Shape(4, 1))
    ints = ("tokens", "positions", "segment_ids", "version")
    floats = ("weight", "adv", "old_logp", "sampler_logp", "temperature")
    assert {getattr(batch, n).dtype for n in ints} == {np.dtype(np.int32)}
    assert {getattr(batch, n).dtype for n in floats} == {np.dtype(np.float32)}
    assert batch.mask.dtype == bool


@given(lengths, st.integers(1, 5))
def test_build_keeps_each_token_with_what_belongs_to_it(lengths, rows):
    rng = np.random.default_rng(len(lengths))
    given_ = [
        trajectory(
            n,
            i,
            logp=rng.normal(size=n).astype(np.float32),
            version=rng.integers(0, 9, n),
            adv=float(i),
            temperature=1.0 + i,
        )
        for i, n in enumerate(lengths)
    ]
    weight = rng.random(len(lengths)).astype(np.float32)
    batch = build(given_, weight, Shape(20, rows))
    found = []
    for place in segments(batch):
        i = int(at(batch.adv, place)[0])
        t = given_[i]
        found.append(i)
        same = np.testing.assert_array_equal
        same(at(batch.tokens, place), t.token_ids)
        same(at(batch.positions, place), np.arange(len(t.token_ids)))
        same(at(batch.mask, place), t.mask)
        same(at(batch.weight, place), np.where(t.mask, weight[i], 0))
        same(at(batch.sampler_logp, place), t.logp)
        same(at(batch.old_logp, place), t.logp)
        same(at(batch.version, place), t.version)
        same(at(batch.adv, place), t.adv)
        same(at(batch.temperature, place), t.temperature)
    assert sorted(found) == list(range(len(lengths)))
    padding = batch.segment_ids == 0
    assert padding.sum() == batch.tokens.size - sum(lengths)
    for name in ("tokens", "mask", "weight", "adv", "sampler_logp", "positions"):
        assert not getattr(batch, name)[padding].any()
    assert (batch.temperature > 0).all()
    assert batch.mask.sum() == sum(t.num_trained for t in given_)


@given(lengths, st.integers(1, 5))
def test_the_number_of_micro_batches_is_the_next_power_of_two(lengths, rows):
    batch = build([trajectory(n, 0) for n in lengths], np.ones(len(lengths)), Shape(20, rows))
    num_micro, b, T = batch.tokens.shape
    assert (b, T) == (rows, 20)
    needed = -(-len(pack(lengths, 20)) // rows)
    assert num_micro & (num_micro - 1) == 0
    assert needed <= num_micro < 2 * needed


def test_tokens_of_a_shape():
    assert Shape(row_length=20, rows=3).tokens == 60


@pytest.mark.parametrize(
    "trajectories, says",
    [
        ([], "no trajectories; an optimizer step needs at least one"),
        ([trajectory(21, 0)], "a sequence of 21 tokens does not fit a row of row_length = 20"),
        (
            [trajectory(3, 0), Trajectory(np.array([1, 2]), np.array([True, True]))],
            "trajectory 1: its first token trains, but has no log-prob",
        ),
    ],
    ids=["none", "long", "first"],
)
def test_build_refuses(trajectories, says):
    with pytest.raises(ValueError) as error:
        build(trajectories, np.ones(len(trajectories)), Shape(20, 2))
    assert says in str(error.value)

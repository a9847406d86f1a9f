"""The stream of draws: the same resumed and again; refused on other data."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.data.mixture import Mixture
from jaxrl_vr.data.streams import Endless, Table, content, converted
from jaxrl_vr.types import Example


def table(name, size, weight=1.0):
    return Table(name, weight, tuple(f"{name}{i}" for i in range(size)), f"{name}-{size}")


def endless(name, weight=1.0):
    return Endless(name, weight, lambda index: f"{name}{index}", name)


def mixture(seed=0, sizes=(7, 20)):
    streams = [table(f"t{size}_", size, weight=size) for size in sizes]
    return Mixture([*streams, endless("e", 5.0)], seed=seed)


def test_one_source_goes_through_all_items_each_epoch():
    mix = Mixture([table("t", 10)], seed=3)
    items, _ = mix.take(30, mix.start())
    assert Counter(items) == {f"t{i}": 3 for i in range(10)}
    for epoch in range(3):
        assert len(set(items[10 * epoch : 10 * epoch + 10])) == 10
    assert items[:10] != items[10:20]


@given(st.integers(1, 12), st.integers(0, 9), st.integers(36, 60))
def test_no_prompt_twice_within_a_step(step, seed, size):
    mix = Mixture([table("t", size)], seed=seed)
    cursor = mix.start()
    for _ in range(3 * size // step):
        items, cursor = mix.take(step, cursor)
        assert len(set(items)) == step


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 3))
def test_resumed_equals_uninterrupted(steps, seed):
    whole, end = mixture(seed).take(sum(steps), mixture(seed).start())
    cursor, pieces = mixture(seed).start(), []
    for n in steps:
        # through JSON and a fresh mixture each time, as after a kill
        items, cursor = mixture(seed).take(n, json.loads(json.dumps(cursor)))
        pieces += items
    assert pieces == whole
    assert cursor == end


def test_take_leaves_the_cursor_alone():
    mix = mixture()
    cursor = mix.start()
    assert mix.take(5, cursor) == mix.take(5, cursor)
    assert cursor == mix.start()


def test_weights_are_shares_of_the_draws():
    mix = Mixture([endless("a", 3.0), endless("b", 1.0)], seed=0)
    items, cursor = mix.take(4000, mix.start())
    share = sum(item[0] == "a" for item in items) / 4000
    assert abs(share - 0.75) < 0.02
    drawn = {name: entry["drawn"] for name, entry in cursor["sources"].items()}
    assert drawn == {"a": round(4000 * share), "b": 4000 - round(4000 * share)}


def test_seeds_give_other_orders():
    a, b = (mixture(seed).take(20, mixture(seed).start())[0] for seed in (0, 1))
    assert a != b


def test_everything_is_in_order_and_needs_an_end():
    assert Mixture([table("a", 2), table("b", 1)], seed=0).everything() == ["a0", "a1", "b0"]
    with pytest.raises(ValueError, match="source 'e' has no end: set its `limit`"):
        mixture().everything()


def test_changed_data_is_refused_with_a_way_on():
    cursor = Mixture([table("t", 10)], seed=0).start()
    changed = Mixture([Table("t", 1.0, ("x",), "other")], seed=0)
    with pytest.raises(ValueError, match="source 't' changed.*t-10.*now other.*start a new run"):
        changed.take(1, cursor)
    with pytest.raises(ValueError, match=r"of the sources \['t'\], the config has \['u'\]"):
        Mixture([table("u", 10)], seed=0).take(1, cursor)


def test_content_fingerprint_sees_every_change():
    base = [Example("0", "q", "r"), Example("1", "p", "r")]
    variants = [
        base,
        base[::-1],
        base[:1],
        [Example("0", "q", "s"), base[1]],
        [Example("0", "q", "r", difficulty=1.0), base[1]],
        [Example("0", "q", "r", verifier={"type": "exact"}), base[1]],
    ]
    assert len({content(v) for v in variants}) == len(variants)
    assert content(list(base)) == content(base)


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        ([], "the list is empty"),
        ([table("a", 1), table("a", 2)], "two are named 'a'"),
        ([table("a", 1), table("b", 1, weight=0.0)], "source 'b': weight = 0.0 is no share"),
        ([table("a", 1, 0.0), table("b", 1, 0.0)], "source 'a': weight = 0.0 is no share"),
        ([table("a", 1, weight=-1.0)], "source 'a': weight = -1.0 is no share"),
        ([table("a", 1, weight=float("inf"))], "source 'a': weight = inf is no share"),
        ([table("a", 1, weight=float("nan"))], "source 'a': weight = nan is no share"),
    ],
    ids="empty same-name no-weight none-has-weight negative inf nan".split(),
)
def test_impossible_mixtures(streams, message):
    with pytest.raises(ValueError, match=message):
        Mixture(streams, seed=0)


def lengths(stream, limit):
    return converted(
        stream, lambda s: s * 2, length=len, limit=limit, limit_name="most", convert_key="twice"
    )


def test_a_table_drops_at_load_and_counts():
    kept = lengths(Table("t", 1.0, ("a", "bbb", "cc"), "f"), 4)
    assert (kept.items, kept.dropped, kept.size) == (("aa", "cccc"), 1, 2)
    assert kept.fingerprint != lengths(Table("t", 1.0, ("a", "bbb", "cc"), "f"), 9).fingerprint


def test_an_endless_stream_draws_again_and_counts():
    stream = Endless("e", 1.0, lambda i: "x" * (i % 5 + 1), "f")
    kept = lengths(stream, 6)
    assert [len(kept.get(i)) for i in range(3)] == [2, 4, 6]
    assert kept.dropped == 0
    assert len(kept.get(4)) <= 6
    assert kept.dropped > 0
    assert kept.get(4) == lengths(stream, 6).get(4)


def test_dropped_draws_count_what_endless_sources_left_out():
    known = Endless("e", 1.0, lambda i: "x" * (i % 5 + 1), "f")
    mix = Mixture([lengths(known, 6), lengths(Table("t", 1.0, ("a", "bbbb"), "f"), 6)], seed=0)
    assert mix.dropped == {"e": 0, "t": 1}
    assert mix.dropped_draws == 0  # a table's are known, and said, at its load
    items, cursor = mix.take(200, mix.start())
    drawn = cursor["sources"]["e"]["drawn"]
    # 2 of 5 do not fit; each is drawn again, further on, until one does
    again = [sum(1 for _ in redraws(i)) for i in range(drawn)]
    assert mix.dropped_draws == sum(again) == mix.dropped["e"] > 0.3 * drawn
    before = mix.dropped_draws
    mix.take(200, mix.start())
    assert mix.dropped_draws == 2 * before


def redraws(index):
    """The indices that are tried and do not fit before one does."""
    for attempt in range(1000):
        if (index + (attempt << 48)) % 5 < 3:
            return
        yield attempt


def test_nothing_fits():
    message = r"source 't': all 2 items are longer than most = 3 tokens \(the shortest has 4\)"
    with pytest.raises(ValueError, match=message):
        lengths(Table("t", 1.0, ("aa", "bbb"), "f"), 3)
    with pytest.raises(ValueError, match="source 'e': 1000 draws in a row are longer than most"):
        lengths(Endless("e", 1.0, lambda i: "aa", "f"), 3).get(0)

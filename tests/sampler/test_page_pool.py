"""Pages: none belongs to two, none is lost, and a slot's pages say what they hold."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_vr.sampler.page_pool import NO_TOKEN, PagePool
from jaxrl_vr.sampler.residents import Residents
from jaxrl_vr.types import Prefix, Request, Sampling


def test_own_pages_come_from_below_and_shared_ones_from_above():
    pool = PagePool(8, page_tokens=4, block_pages=2)
    assert pool.take_own(3, slot=5, start=0) == [0, 1, 2]
    assert pool.take_shared(2) == [7, 6]
    assert pool.start.tolist() == [0, 4, 8, *[NO_TOKEN] * 5]
    assert pool.slot[:3].tolist() == [5, 5, 5]
    assert pool.blocks().tolist() == [0, 1]
    pool.give([0, 1])
    assert pool.blocks().tolist() == [1]
    assert pool.take_own(1, slot=2, start=4) == [0]
    assert (pool.slot[0], pool.start[0], pool.num_free) == (2, 4, 4)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(1, 3)), max_size=40))
def test_no_page_belongs_to_two_and_none_is_lost(moves):
    pool, held = PagePool(12, page_tokens=4, block_pages=3), {}
    for kind, key, count in moves:
        if kind == 2 and key in held:
            pool.give(held.pop(key))
        elif kind < 2 and key not in held and count <= pool.num_free:
            held[key] = pool.take_own(count, key, 0) if kind == 0 else pool.take_shared(count)
        pages = [page for of_key in held.values() for page in of_key]
        assert len(pages) == len(set(pages)) == 12 - pool.num_free
        with_tokens = set(np.flatnonzero(pool.start != NO_TOKEN).tolist())
        assert with_tokens <= set(pages)


def request(id, prompt, *, limit=20, prefix=0):
    tokens = tuple(range(prefix))
    before = Prefix(tokens, (0.0,) * prefix, None, ("sampled",) * prefix, (0,) * prefix)
    return Request(id, tuple(prompt), (0, 0, 0, id), Sampling(limit), before)


def residents(num_pages=10, slots=4):
    return Residents(PagePool(num_pages, page_tokens=4, block_pages=5), slots, 3 * slots)


def test_a_shared_prompt_lies_there_once():
    cache = residents()
    for slot in range(3):
        assert cache.can_hold(request(slot, range(6)), 4, is_shared=True)
        cache.add(slot, request(slot, range(6)), 4, is_shared=True)
    (shared,) = cache.prompts.values()
    assert shared.slots == {0, 1, 2}
    assert len(shared.pages) == 2 and cache.pool.num_free == 10 - 2 - 3
    assert [cache.of_slot[slot].base for slot in range(3)] == [6, 6, 6]
    # Each begins from the prompt's last state until it has tokens of its own.
    assert {cache.of_slot[slot].first_row for slot in range(3)} == {shared.row}
    cache.add(3, request(3, range(6), prefix=3), 4, is_shared=True)
    assert cache.of_slot[3].first_row == 3 and cache.of_slot[3].ids == (0, 1, 2)


def test_a_prompt_of_its_own_lies_in_the_slots_pages():
    cache = residents()
    cache.add(1, request(0, range(6), prefix=3), 4, is_shared=False)
    own = cache.of_slot[1]
    assert own.ids == (*range(6), 0, 1, 2) and own.base == 0
    assert len(own.pages) == 4  # 6 + 3 + 4 tokens
    assert cache.prompts == {}


def test_a_prompt_without_slots_makes_room_when_it_is_needed():
    cache = residents()
    cache.add(0, request(0, range(6)), 4, is_shared=True)
    cache.remove(0)
    assert cache.pool.num_free == 8  # the prompt stays for those who wait
    assert cache.can_hold(request(1, range(30)), 4, is_shared=False)
    cache.add(1, request(1, range(30)), 4, is_shared=False)
    assert cache.prompts == {} and cache.pool.num_free == 1


def test_growing_takes_pages_as_tokens_come_and_fails_when_there_are_none():
    cache = residents(num_pages=5)
    cache.add(0, request(0, range(4)), 4, is_shared=False)
    assert cache.grow(0, 8) and cache.pool.num_free == 3
    assert cache.grow(0, 9) and cache.pool.num_free == 2
    assert not cache.grow(0, 21)
    assert cache.pool.num_free == 2  # nothing was taken
    cache.remove(0)
    assert cache.pool.num_free == 5


def test_a_request_leaves_a_page_to_each_slot_that_is_there():
    cache = residents(num_pages=5)
    cache.add(0, request(0, range(4)), 4, is_shared=False)
    assert cache.can_hold(request(1, range(4)), 4, is_shared=False)  # 2 of the 3 free ones
    cache.grow(0, 9)
    assert not cache.can_hold(request(1, range(4)), 4, is_shared=False)

"""The kernels over listed pages, interpreted: against a loop over tokens, and against plain XLA."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxrl_vr.models import paged_write
from jaxrl_vr.models.paged import ListReads, PageList, PoolReads, write
from jaxrl_vr.models.paged_attention import attend_own, attend_shared, merge
from jaxrl_vr.models.paged_kernel import attend_lists
from jaxrl_vr.models.paged_write import rotation, write_tokens
from jaxrl_vr.models.rotary import rotate
from jaxrl_vr.models.transformer import rms_norm
from jaxrl_vr.sampler.page_pool import PagePool
from jaxrl_vr.sampler.plans import decode_plan
from jaxrl_vr.sampler.residents import Residents
from jaxrl_vr.types import Request, Sampling

K, C, Q = 2, 8, 16
SLOTS, PAGES, CONTEXT = 20, 96, 64

# Of each slot: its prompt (None: alone), the tokens of that, its own tokens.
CASES = {
    "one slot, one token": {0: (None, 0, 1)},
    "one full page": {3: (None, 0, C)},
    "full items": {0: (None, 0, 4 * C), 1: (None, 0, 8 * C)},
    "ragged": {
        0: (None, 0, 5),
        1: (None, 0, 41),
        4: (None, 0, 8),
        9: (None, 0, 60),
        11: (None, 0, 1),
    },
    "a prompt, all members": {s: (0, 19, 3 + s) for s in range(8)},
    "a prompt, members missing": {2: (0, 8, 9), 5: (0, 8, 30), 19: (0, 8, 1)},
    "two prompts and slots alone": {
        0: (0, 33, 4),
        1: (None, 0, 17),
        2: (1, 3, 8),
        3: (0, 33, 25),
        6: (1, 3, 1),
        7: (None, 0, 9),
    },
    "more members than an entry has": {s: (0, 50, 1 + s) for s in range(19)},
}


def resident(case, order):
    """The cache of a case, in pages that are taken in no particular order."""
    part = Residents(PagePool(PAGES, C, 4), SLOTS, 3 * SLOTS)
    for slot in order.permutation(list(case)).tolist():
        prompt, length, own = case[slot]
        ids = (0,) if prompt is None else (1 + prompt, *range(2, length + 1))
        request = Request(slot, ids, (0, 0, 0, 0), Sampling(CONTEXT))
        # Prompts of slots alone lie in their own pages.
        part.add(slot, request, own - (prompt is None), prompt is not None)
    return part


def plans(case, part, G, rows=SLOTS):
    """The kernel's plan and that of plain XLA."""
    slots = sorted(case)
    positions = {(0, s): case[s][1] + case[s][2] - 1 for s in slots}
    return [
        decode_plan([part], [slots], positions, rows, 1, CONTEXT, item_pages)
        for item_pages in (G, None)
    ]


def naive(q, layer, pages):
    """Attention of one slot's queries, [K, R, Q], to the tokens of pages, in float64."""
    k, v = (
        np.concatenate([a[page, :, :count].astype(np.float64) for page, count in pages], axis=1)
        for a in layer
    )
    scores = np.einsum("KRQ,KCQ->KRC", q, k) * Q**-0.5
    weight = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("KRC,KCQ->KRQ", weight / weight.sum(axis=-1, keepdims=True), v)


@jax.jit
def plain(q, layer, reads, own):
    """The oracle."""
    q = q * Q**-0.5
    return merge(attend_own(q, layer, False, reads, own - 1), attend_shared(q, layer, False, reads))


def pages_of(text, tokens):
    """Pages of a text and how many of its tokens each holds."""
    return [(page, min(tokens - C * i, C)) for i, page in enumerate(text.pages) if tokens > C * i]


def arrays(seed, R):
    rng = np.random.default_rng(seed)
    q = 3 * rng.normal(size=(SLOTS, K, R, Q)).astype(np.float32)
    layer = tuple(rng.normal(size=(PAGES, K, C, Q)).astype(np.float32) for _ in range(2))
    return rng, q, layer


@jax.jit
def by_kernel(q, layer, reads, own, shared):
    """The kernels' attention, [S, K, R, Q]."""
    rows = q.reshape(SLOTS, -1, Q)  # K, R -> H
    return attend_lists(rows, layer, reads, own, shared).reshape(q.shape)


def lengths(case):
    own, shared = np.zeros((2, SLOTS), np.int32)
    for row, slot in enumerate(sorted(case)):
        own[row], shared[row] = case[slot][2], case[slot][1]
    return own, shared


@pytest.mark.parametrize("G", [1, 4])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_equals_a_loop_and_plain_xla(case, G):
    rng, q, layer = arrays(0, R=3)
    part = resident(case, rng)
    listed, pool = plans(case, part, G)
    own, shared = lengths(case)
    assert isinstance(listed.reads, ListReads) and isinstance(pool.reads, PoolReads)
    out = by_kernel(q, layer, listed.reads, own, shared)
    oracle = plain(q, layer, pool.reads, own)
    for row, slot in enumerate(sorted(case)):
        at = part.of_slot[slot]
        pages = pages_of(at, own[row])
        if at.shared is not None:
            pages = pages_of(at.shared, shared[row]) + pages
        np.testing.assert_allclose(out[row], naive(q[row], layer, pages), atol=1e-5)
        np.testing.assert_allclose(out[row], oracle[row], atol=1e-5)


@pytest.mark.parametrize("R", [1, 6, 8, 9])
def test_query_heads_need_not_fill_registers(R):
    case = CASES["two prompts and slots alone"]
    rng, q, layer = arrays(1, R)
    part = resident(case, rng)
    (listed, _), (own, shared) = plans(case, part, 2), lengths(case)
    out = by_kernel(q, layer, listed.reads, own, shared)
    assert out.shape == q.shape
    for head in range(R):
        one = np.ascontiguousarray(q[:, :, head : head + 1])
        alone = by_kernel(one, layer, listed.reads, own, shared)
        np.testing.assert_allclose(out[: len(case), :, head], alone[: len(case), :, 0], atol=1e-6)


def test_what_is_not_finite_stays_with_its_slot():
    case = CASES["two prompts and slots alone"]
    rng, q, layer = arrays(2, R=3)
    part = resident(case, rng)
    (listed, _), (own, shared) = plans(case, part, 4), lengths(case)
    clean = by_kernel(q, layer, listed.reads, own, shared)
    broken = 1  # the row of a slot whose pages others have behind theirs
    for a in layer:
        a[part.of_slot[sorted(case)[broken]].pages] = np.nan
    out = by_kernel(q, layer, listed.reads, own, shared)
    assert np.isnan(out[broken]).all()
    for row in set(range(len(case))) - {broken}:
        np.testing.assert_array_equal(out[row], clean[row])


def test_a_plan_without_slots_has_a_step_for_each_kernel():
    part = Residents(PagePool(PAGES, C, 4), SLOTS, 3 * SLOTS)
    listed, _ = plans({}, part, 4)
    assert [p.num_items.tolist() for p in (listed.reads.own, listed.reads.shared)] == [[1], [1]]
    _, q, layer = arrays(3, R=3)
    out = by_kernel(q, layer, listed.reads, *lengths({}))
    assert out.shape == q.shape


def test_a_place_behind_an_owners_pages_repeats_what_stood_there():
    case = {0: (None, 0, 3 * C), 1: (None, 0, 6 * C)}
    part = resident(case, np.random.default_rng(4))
    pages: PageList = plans(case, part, 4)[0].reads.own
    first, second = (part.of_slot[slot].pages for slot in (0, 1))
    expected = [[*first, 0], second[:4], [*second[4:], *second[2:4]]]
    np.testing.assert_array_equal(pages.page[:3], expected)
    np.testing.assert_array_equal(pages.owner[:3], [0, 1, 1])
    np.testing.assert_array_equal(pages.start[:3], [0, 0, 4 * C])


@pytest.mark.parametrize("has_norm", [False, True], ids=["", "normalised"])
@pytest.mark.parametrize("dtype", [np.float32, jax.numpy.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("num_slots", [1, 20])
def test_turns_and_writes_as_plain_xla_does(num_slots, dtype, has_norm, monkeypatch):
    monkeypatch.setattr(paged_write, "_WRITE_BYTES", 1)  # 16 slots at a time, and then 4
    rng, _, layer = arrays(5, R=1)
    layer = tuple(a.reshape(PAGES // 4, K, 4 * C, Q).astype(dtype) for a in layer)
    page = rng.permutation(PAGES // 4)[:num_slots].astype(np.int32)
    page[num_slots // 2 :: 5] = PAGES // 4  # dropped
    offset = rng.integers(0, 4 * C, num_slots).astype(np.int32)
    new = tuple(rng.normal(size=(num_slots, heads, Q)).astype(dtype) for heads in (3 * K, K, K))
    angle = rng.uniform(-9, 9, (num_slots, Q // 2)).astype(np.float32)
    rotary = np.cos(angle), np.sin(angle)
    norms = ()
    if has_norm:
        norms = tuple(rng.uniform(0.5, 2, Q).astype(dtype) for _ in range(2))

    @jax.jit
    def found_by(layer, new, norms):
        turn = rotation(rotary).normalised(norms, 1, 1e-6)
        return write_tokens(layer, page, offset, new, turn)

    @jax.jit
    def expected_by(layer, new, norms):
        q, k, v = (a[:, None] for a in new)
        if has_norm:
            q, k = (rms_norm(a, scale, 1e-6) for a, scale in zip((q, k), norms, strict=True))
        q, k = (rotate(a, tuple(part[:, None] for part in rotary)) for a in (q, k))
        return q[:, 0], write(layer, False, page, offset, (k[:, 0], v[:, 0]))

    q, pages = found_by(layer, new, norms)
    expected, expected_pages = expected_by(layer, new, norms)
    # The same numbers but for the order of sums, which may round to the neighbour in bfloat16.
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == np.float32 else {"rtol": 2**-7, "atol": 1e-2}
    assert q.dtype == np.float32
    np.testing.assert_allclose(q, expected.astype(np.float32), **close)
    keys, values = (np.asarray(a).astype(np.float32) for a in pages)
    np.testing.assert_allclose(keys, expected_pages[0].astype(np.float32), **close)
    np.testing.assert_array_equal(values, expected_pages[1].astype(np.float32))
    for a, before in zip(pages, layer, strict=True):
        is_new = (np.asarray(a) != before).any(axis=(1, 3))  # pages, places
        there = page < PAGES // 4
        assert is_new.sum() == there.sum() and is_new[page[there], offset[there]].all()


COMPILE = """
import jax, jax.numpy as jnp
from jaxrl_vr.plan.topology import devices
from jaxrl_vr.models.paged import ListReads, PageList
from jaxrl_vr.models.paged_kernel import attend_lists
from jaxrl_vr.models.paged_write import rotation, write_tokens

S, E, W, I, G, P, C = 24, 24, 8, 60, 8, 300, 128

def decode(layer, reads, own, shared, page, offset, new, rotary, norms):
    turn = rotation(rotary).normalised(norms, 1, 1e-6)
    q, layer = write_tokens(layer, page, offset, new, turn)
    return attend_lists(q, layer, reads, own, shared), layer

for topology in ("v5e:2x2", "v6e:2x2"):
    on_chip = jax.sharding.SingleDeviceSharding(devices(topology)[0])
    for H, K, Q in ((12, 2, 128), (4, 2, 128), (8, 8, 128), (9, 3, 256)):
        def array(*shape, dtype=jnp.int32):
            return jax.ShapeDtypeStruct(shape, dtype, sharding=on_chip)

        def half(*shape):
            return array(*shape, dtype=jnp.bfloat16)

        pages = PageList(array(I, G), array(I), array(I), array(1))
        reads = ListReads(pages, pages, array(E), array(E, W), array(S))
        layer, new = (half(P, K, C, Q),) * 2, (half(S, H, Q), half(S, K, Q), half(S, K, Q))
        some = [array(S)] * 4
        rotary = (array(S, Q // 2, dtype=jnp.float32),) * 2
        for norms in ((), (half(Q), half(Q))):
            arguments = layer, reads, *some, new, rotary, norms
            compiled = jax.jit(decode, donate_argnums=0).lower(*arguments).compile()
            found = compiled.memory_analysis()
            print(topology, H, K, Q, found.alias_size_in_bytes, found.temp_size_in_bytes)
"""


@pytest.mark.tpu
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason='needs libtpu: pip install "jax[tpu]"'
)
def test_compiles_for_tpus_and_writes_in_place():
    # In a process of its own: libtpu asks the environment of the machine.
    root = Path(__file__).parents[2]
    env = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], cwd=root, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 16
    for _, _, kv_heads, head_dim, aliased, temporary in lines:
        one = 300 * int(kv_heads) * 128 * int(head_dim) * 2
        assert int(aliased) == 2 * one and int(temporary) < 0.2 * one, (head_dim, one)

"""The transformer's own promises: packing, decoding, rematerialisation, sharding."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pages_by_hand import ByHand

from jaxrl_vr.models import quantized, transformer
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.params import init, shardings
from jaxrl_vr.models.transformer import Transformer, rms_norm
from jaxrl_vr.plan.program import Program
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh, sharding_of

LENGTHS = (9, 1, 6)


def prompts(arch, lengths=LENGTHS, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, arch.vocab_size, n).astype(np.int32) for n in lengths]


def packed(sequences, T, rows=1, pad=0):
    """All sequences in the first row, behind each other, then padding."""
    tokens = np.full((rows, T), pad, np.int32)
    positions, segments = np.zeros((rows, T), np.int32), np.zeros((rows, T), np.int32)
    start = 0
    for i, sequence in enumerate(sequences):
        window = slice(start, start + len(sequence))
        tokens[0, window], segments[0, window] = sequence, i + 1
        positions[0, window] = np.arange(len(sequence))
        start += len(sequence)
    return tuple(jnp.asarray(a) for a in (tokens, positions, segments))


def one_a_row(sequences, T):
    rows = zip(*(packed([s], T) for s in sequences), strict=True)
    return tuple(jnp.concatenate(arrays) for arrays in rows)


@pytest.fixture(scope="module")
def alone(tiny):
    """The hidden states of each sequence in a row of its own, [n, D] each."""
    hidden = np.asarray(tiny.hidden(tiny.params, *one_a_row(prompts(tiny.arch), T=20)))
    return [row[:n] for row, n in zip(hidden, LENGTHS, strict=True)]


def only(*names):
    """Some of the families, where each costs a long compilation and they do not differ."""
    return pytest.mark.parametrize("tiny", names, indirect=True)


# Packed rows


def test_packed_rows_equal_single_sequences(tiny, alone):
    row = packed(prompts(tiny.arch), T=20)
    hidden = tiny.hidden(tiny.params, *row)[0]
    start = 0
    for expected in alone:
        got = hidden[start : start + len(expected)]
        np.testing.assert_allclose(got, expected, atol=1e-5)
        start += len(expected)


def test_segments_and_padding_do_not_touch_each_other(tiny):
    sequences = prompts(tiny.arch)
    before = tiny.hidden(tiny.params, *packed(sequences, T=20))
    changed = [sequences[0], sequences[1], (sequences[2] + 1) % tiny.arch.vocab_size]
    after = tiny.hidden(tiny.params, *packed(changed, T=20, pad=5))
    kept = LENGTHS[0] + LENGTHS[1]
    np.testing.assert_array_equal(before[0, :kept], after[0, :kept])
    assert (
        np.abs(before[0, kept : kept + LENGTHS[2]] - after[0, kept : kept + LENGTHS[2]]).min() > 0
    )


def test_later_tokens_do_not_touch_earlier_ones(tiny):
    (sequence,) = prompts(tiny.arch, (12,))
    changed = np.concatenate([sequence[:7], (sequence[7:] + 1) % tiny.arch.vocab_size])
    before, after = (tiny.hidden(tiny.params, *packed([s], T=20))[0] for s in (sequence, changed))
    np.testing.assert_array_equal(before[:7], after[:7])
    assert np.abs(before[7:12] - after[7:12]).max(axis=1).min() > 1e-3


@only("qwen2")
def test_gradient_at_padding_is_zero(tiny):
    tokens, positions, segments = packed(prompts(tiny.arch), T=20, pad=7)
    tokens = jnp.where(segments == 0, 7, jnp.where(tokens == 7, 8, tokens))

    def loss(params):
        hidden = tiny.model.hidden(params, tokens, positions, segments)
        return jnp.sum(jnp.where(segments[..., None] > 0, hidden, 0.0) ** 2)

    gradient = jax.jit(jax.grad(loss))(tiny.params)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradient))
    np.testing.assert_array_equal(gradient["embed"][7], 0.0)  # only padding has token 7
    assert np.abs(gradient["embed"][8]).max() > 0


# Prefill and decode


@pytest.mark.parametrize(
    "backend, width",
    [({}, 7), ({"keys_across": True}, 7), ({"item_pages": 2}, 7), ({"item_pages": 2}, 128)],
    ids=["xla", "xla, keys across", "pallas", "pallas, splash"],
)
def test_prefill_then_decode_equals_full_forward(tiny, alone, backend, width):
    sequences = prompts(tiny.arch)
    view = tiny.model.sampler_view(tiny.params)
    # Full of what an earlier rollout may have left.
    by_hand = ByHand(tiny.model, view, 3, **backend, fill=100.0)
    given = np.asarray([4, 1, 2])
    last = by_hand.prefill([s[:n] for s, n in zip(sequences, given, strict=True)], width=width)
    for i, n in enumerate(given):
        np.testing.assert_allclose(last[i], alone[i][n - 1], atol=1e-5)
    decode_the_rest(tiny, by_hand, given, alone)


def test_decoding_from_nothing_equals_full_forward(tiny, alone):
    by_hand = ByHand(tiny.model, tiny.model.sampler_view(tiny.params), 3)
    by_hand.prefill([[], [], []])
    decode_the_rest(tiny, by_hand, np.zeros(3, int), alone)


def decode_the_rest(tiny, by_hand, given, alone):
    """Feeds each sequence from its token `given` on, and compares every hidden state."""
    sequences = prompts(tiny.arch)
    for step in range(max(LENGTHS)):
        at = given + step
        token = [s[min(n, len(s) - 1)] for s, n in zip(sequences, at, strict=True)]
        out = by_hand.decode(token, at)
        for i, n in enumerate(at):
            if n < len(sequences[i]):
                np.testing.assert_allclose(out[i], alone[i][n], atol=1e-5)


def test_decode_writes_one_place_of_its_own_slot(tiny):
    by_hand = ByHand(tiny.model, tiny.model.sampler_view(tiny.params), 3, fill=5.0)
    by_hand.prefill([[], [], []])
    at = np.asarray([0, 4, 15])
    before = by_hand.pages
    by_hand.decode([1, 2, 3], at)
    expected = {(by_hand.residents.of_slot[slot].pages[n // 4], n % 4) for slot, n in enumerate(at)}
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(by_hand.pages), strict=True):
        is_written = (np.asarray(old) != np.asarray(new)).any(axis=(1, 3))
        assert {tuple(place) for place in np.argwhere(is_written).tolist()} == expected


def test_prefill_ignores_what_stands_behind_a_prompt(tiny):
    by_hand = ByHand(tiny.model, tiny.model.sampler_view(tiny.params), 3)
    last = by_hand.prefill([[5, 6, 7]] * 3, width=5)
    tokens = np.asarray([[5, 6, 7, 0, 0], [5, 6, 7, 9, 9], [5, 6, 7, 5, 6]], np.int32)
    again, _ = jax.jit(tiny.model.extend)(by_hand.view, tokens, by_hand.pages, by_hand.prefilled)
    np.testing.assert_array_equal(last, np.stack([last[0]] * 3))
    np.testing.assert_array_equal(last, again)


def test_view_has_the_learners_head(tiny):
    view = tiny.model.sampler_view(tiny.params)
    np.testing.assert_array_equal(tiny.model.view_head(view), tiny.model.head(tiny.params))
    name = "embed" if tiny.arch.tied else "head"
    np.testing.assert_array_equal(tiny.model.head(tiny.params), tiny.params[name])


# Rematerialisation, dtype, sharding


def test_rematerialisation_saves_memory_and_changes_nothing(one_device, monkeypatch):
    sizes = dict(vocab_size=48, width=32, layers=8, heads=4, kv_heads=4, head_dim=8, ffn=128)
    model = Transformer(Architecture(**sizes, family="qwen3"))
    params = init(model.declare(), jax.random.key(0), TRAIN_RULES, one_device)
    rows = one_a_row(prompts(model.arch, (64, 50, 33, 1)), T=64)

    def run(remat):
        def loss(params):
            return jnp.sin(dataclasses.replace(model, remat=remat).hidden(params, *rows)).sum()

        compiled = jax.jit(jax.value_and_grad(loss)).lower(params).compile()
        program = Program(compiled.as_text())
        return *compiled(params), compiled.memory_analysis().temp_size_in_bytes, program.flops()

    kept, kept_gradient, kept_bytes, kept_products = run("none")
    bytes_of, products_of = {}, {}
    for remat in ("minimal", "block"):
        again, again_gradient, bytes_of[remat], products_of[remat] = run(remat)
        np.testing.assert_allclose(again, kept, rtol=1e-6)
        for a, b in zip(
            jax.tree.leaves(again_gradient), jax.tree.leaves(kept_gradient), strict=True
        ):
            np.testing.assert_allclose(a, b, atol=2e-6 * float(np.abs(b).max()))
    assert bytes_of["block"] < kept_bytes / 3
    # Beside a layer whose parts keep whatever they compute.
    for module, part in (
        (transformer, "_down"),
        (transformer, "rms_norm"),
        (quantized, "_of_tokens"),
    ):
        monkeypatch.setattr(module, part, getattr(module, part).__wrapped__)
    everything_bytes = run("none")[2]
    assert kept_bytes < 0.9 * everything_bytes
    assert bytes_of["block"] < bytes_of["minimal"] < 0.7 * everything_bytes
    assert bytes_of["minimal"] < kept_bytes
    assert products_of["minimal"] == kept_products < products_of["block"]


def test_without_rematerialisation_a_layer_keeps_each_array_once():
    """Of a token: the stream before and behind each norm (4 D), gate and up (2 F), queries, keys
    and values as attention takes them, its output as it gives it and as the product takes it, and
    the log-sum-exp of each head. Neither silu nor a norm keeps anything beside, and no product has
    a copy of an operand that others have too."""
    B, T, D, H, K, Q, F, L = 2, 12, 20, 4, 2, 6, 28, 3
    sizes = dict(vocab_size=48, width=D, layers=L, heads=H, kv_heads=K, head_dim=Q, ffn=F)
    model = Transformer(Architecture(**sizes, family="llama"))
    params = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, jnp.float32), model.declare())
    rows = one_a_row([list(range(T))] * B, T=T)

    def kept(params):
        return jax.vjp(lambda params: model.hidden(params, *rows), params)[1]

    weights = {w.shape for w in jax.tree.leaves(params["layers"])}
    found = [a.shape for a in jax.tree.leaves(jax.eval_shape(kept, params))]
    of_layers = [s for s in found if s[:1] == (L,) and s not in weights]
    heads = H * Q, 2 * K * Q, H * Q, H * Q, H
    assert sum(map(math.prod, of_layers)) == L * B * T * (4 * D + 2 * F + sum(heads))


@only("qwen3")
def test_bfloat16_computes_near_float32(tiny, alone):
    model = dataclasses.replace(tiny.model, dtype="bfloat16")
    row = packed([prompts(tiny.arch)[0]], T=LENGTHS[0])
    hidden = model.hidden(tiny.params, *row)
    assert hidden.dtype == model.head(tiny.params).dtype == jnp.bfloat16
    error = np.asarray(hidden[0], np.float32) - alone[0]
    assert 0 < np.abs(error).mean() < 0.03 * np.abs(alone[0]).mean()
    held = model.sampler_view(tiny.params), model.empty_pages(1, 4, False)
    for path, x in jax.tree_util.tree_leaves_with_path(held):
        is_norm = any(n in jax.tree_util.keystr(path) for n in ("norm", "bias"))
        assert x.dtype == (jnp.float32 if is_norm else jnp.bfloat16)


@only("llama-gqa", "qwen2", "qwen3")
def test_sharded_equals_unsharded(tiny):
    rows = one_a_row(prompts(tiny.arch, [5 + i for i in range(8)]), T=20)
    whole = tiny.hidden(tiny.params, *rows)
    mesh = make_mesh(MeshConfig(tensor=2, fsdp=4))
    split = jax.device_put(tiny.params, shardings(tiny.model.declare(), TRAIN_RULES, mesh))
    split_rows = jax.device_put(rows, sharding_of(("batch", None), TRAIN_RULES, mesh))
    hidden = tiny.hidden(split, *split_rows)
    np.testing.assert_allclose(hidden, whole, atol=1e-5)


def test_wrong_shapes_are_refused(tiny):
    tokens, positions, segments = packed(prompts(tiny.arch), T=20)
    with pytest.raises(ValueError, match=r"positions: expected shape \[B, T\] with T = 20"):
        tiny.model.hidden(tiny.params, tokens, positions[:, :1], segments)


# Pieces


def test_rms_norm_by_hand():
    # Mean square of (3, 4) is 12.5; with eps 3.5 the root is 4.
    x = jnp.asarray([[3.0, 4.0]])
    np.testing.assert_allclose(rms_norm(x, jnp.asarray([2.0, 1.0]), 3.5), [[1.5, 1.0]], rtol=1e-6)
    half = rms_norm(x.astype(jnp.bfloat16), jnp.asarray([2.0, 1.0]), 3.5)
    assert half.dtype == jnp.bfloat16

"""Log-probs and entropy from hidden states and the head."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_vr.losses import scaled_logits, token_logprob, token_logprobs
from jaxrl_vr.plan.program import Program

N, D, V = 7, 5, 11
RNG = np.random.default_rng(0)
HIDDEN = RNG.normal(size=(N, D)).astype(np.float32)
HEAD = RNG.normal(size=(V, D)).astype(np.float32)
TOKEN = RNG.integers(0, V, N).astype(np.int32)
TEMPERATURE = RNG.uniform(0.5, 2.0, N).astype(np.float32)
MASK = np.array([True, False, True, True, False, False, True])
# Weights of the two results, so that every gradient differs.
UP = RNG.normal(size=(2, N)).astype(np.float32)

OURS = jax.jit(token_logprobs, static_argnames=("chunk", "shards", "kept_logits"))


def plain(hidden, head, token, temperature, mask=None):
    """The definition, with all logits at once."""
    log_probs = jax.nn.log_softmax(hidden @ head.T / temperature[:, None])
    logp = jnp.take_along_axis(log_probs, token[:, None], axis=1)[:, 0]
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=1)
    mask = jnp.ones(len(token), bool) if mask is None else mask
    return jnp.where(mask, logp, 0.0), jnp.where(mask, entropy, 0.0)


def total(hidden, head, mask=None, up=UP, *, function=token_logprobs, **chunk):
    logp, entropy = function(hidden, head, TOKEN, TEMPERATURE, mask, **chunk)
    return jnp.sum(up[0] * logp + up[1] * entropy)


STATIC = ("function", "chunk", "shards", "kept_logits")
GRAD = jax.jit(jax.value_and_grad(total, argnums=(0, 1)), static_argnames=STATIC)


def test_by_hand():
    # logits 2, 0, 0 and T = 2, so 1, 0, 0: log-sum-exp = log(e + 2) = 1.5514
    logp, entropy = token_logprobs(
        jnp.array([[2.0], [2.0]]),
        jnp.array([[1.0], [0.0], [0.0]]),
        jnp.array([0, 1]),
        jnp.array([2.0, 2.0]),
    )
    np.testing.assert_allclose(logp, [1 - 1.5514, -1.5514], atol=5e-5)
    # probabilities 0.5761, 0.2119, 0.2119: entropy 1.5514 - 0.5761 x 1
    np.testing.assert_allclose(entropy, [0.9753, 0.9753], atol=1e-4)


def test_token_ids_may_be_numpy_s_own_integers():
    token = np.array([2], np.int64)  # what numpy makes of a list, and wider than JAX's
    np.testing.assert_allclose(token_logprob(np.zeros((1, 4), np.float32), token), -np.log(4))
    logp, _ = token_logprobs(
        np.zeros((1, 2), np.float32), np.ones((4, 2), np.float32), token, np.ones(1)
    )
    np.testing.assert_allclose(logp, -np.log(4), rtol=1e-6)


def test_temperature_divides_before_the_softmax():
    logits = scaled_logits(jnp.array([[1.0]]), jnp.array([[1.0], [3.0]]), jnp.array([2.0]))
    np.testing.assert_array_equal(logits, [[0.5, 1.5]])
    # log(1 / (1 + e)) = -1.3133; dividing the log-prob of T = 1 by 2 would give -1.0635
    np.testing.assert_allclose(token_logprob(logits, jnp.array([0])), [-1.3133], atol=5e-5)


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
@pytest.mark.parametrize("chunk", [1, 3, 7, 100, None])
def test_equals_the_loop(chunk, mask):
    found = OURS(HIDDEN, HEAD, TOKEN, TEMPERATURE, mask, chunk=chunk)
    expected = reference.token_logprobs(HIDDEN, HEAD, TOKEN, TEMPERATURE, mask)
    for ours, oracle in zip(found, expected, strict=True):
        assert ours.dtype == jnp.float32
        np.testing.assert_allclose(ours, oracle, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kept_logits", [0, 1000], ids=["again", "kept"])
@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
@pytest.mark.parametrize("chunk", [3, None])
def test_gradient_equals_that_of_the_definition(chunk, mask, kept_logits):
    found = GRAD(HIDDEN, HEAD, mask, UP, chunk=chunk, kept_logits=kept_logits)
    expected = GRAD(HIDDEN, HEAD, mask, UP, function=plain)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, found, expected)


@pytest.mark.parametrize("kept_logits", [0, 1000], ids=["again", "kept"])
@pytest.mark.parametrize("chunk", [1, 2, None])
@pytest.mark.parametrize("shards", [2, 4])
def test_shards_change_nothing(shards, chunk, kept_logits):
    def twelve(x):
        return np.concatenate([x, x[..., : 12 - N]], axis=-1)

    hidden, token, temperature = (np.concatenate([x, x[:5]]) for x in (HIDDEN, TOKEN, TEMPERATURE))
    mask, up = twelve(MASK), twelve(UP)

    def of(hidden, head, shards):
        options = {"chunk": chunk, "shards": shards, "kept_logits": kept_logits}
        found = token_logprobs(hidden, head, token, temperature, mask, **options)
        return jnp.sum(up[0] * found[0] + up[1] * found[1]), found

    compute = jax.jit(jax.value_and_grad(of, (0, 1), has_aux=True), static_argnums=2)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, compute(hidden, HEAD, shards), compute(hidden, HEAD, 1))


def test_shards_must_divide():
    with pytest.raises(ValueError, match="shards = 2 does not divide the 7 tokens"):
        token_logprobs(HIDDEN, HEAD, TOKEN, TEMPERATURE, MASK, shards=2)


@pytest.mark.parametrize("which", [0, 1], ids=["logp", "entropy"])
def test_gradient_by_finite_differences(which):
    up = np.array(UP)
    up[1 - which] = 0

    def oracle(hidden, head):
        results = reference.token_logprobs(hidden, head, TOKEN, TEMPERATURE, MASK)
        return np.sum(up[which] * results[which])

    _, grads = GRAD(HIDDEN, HEAD, MASK, up, chunk=3)
    numeric = reference.gradient(lambda x: oracle(x, HEAD), HIDDEN)
    np.testing.assert_allclose(grads[0], numeric, rtol=1e-3, atol=1e-5)
    numeric = reference.gradient(lambda x: oracle(HIDDEN, x), HEAD)
    np.testing.assert_allclose(grads[1], numeric, rtol=1e-3, atol=1e-5)


@settings(max_examples=30)
@given(
    st.lists(st.booleans(), min_size=N, max_size=N),
    st.sampled_from([1, 3]),
    st.integers(0, 2**31),
)
def test_any_mask_any_chunk(mask, chunk, seed):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(0, 3, (N, D)).astype(np.float32)
    found = OURS(hidden, HEAD, TOKEN, TEMPERATURE, np.array(mask), chunk=chunk)
    expected = reference.token_logprobs(hidden, HEAD, TOKEN, TEMPERATURE, mask)
    for ours, oracle in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, oracle, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("chunk", [3, None])
@pytest.mark.parametrize("poison", [np.nan, np.inf], ids=str)
def test_padding_does_not_matter(poison, chunk):
    hidden = np.where(MASK[:, None], HIDDEN, np.float32(poison))
    jax.tree.map(
        np.testing.assert_array_equal,
        GRAD(hidden, HEAD, MASK, UP, chunk=chunk),
        GRAD(HIDDEN, HEAD, MASK, UP, chunk=chunk),
    )


def test_temperature_of_padding_may_be_zero():
    temperature = np.where(MASK, TEMPERATURE, np.float32(0))
    found = OURS(HIDDEN, HEAD, TOKEN, temperature, MASK, chunk=3)
    expected = OURS(HIDDEN, HEAD, TOKEN, TEMPERATURE, MASK, chunk=3)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_nothing_wanted():
    none = np.zeros(N, bool)
    assert not any(x.any() for x in OURS(HIDDEN, HEAD, TOKEN, TEMPERATURE, none, chunk=3))
    assert not any(x.any() for x in jax.tree.leaves(GRAD(HIDDEN, HEAD, none, UP, chunk=3)))


def test_temperature_carries_no_gradient():
    def of_temperature(temperature):
        return jnp.sum(token_logprobs(HIDDEN, HEAD, TOKEN, temperature)[0])

    assert not jax.jit(jax.grad(of_temperature))(TEMPERATURE).any()


def test_bfloat16_inputs():
    hidden, head = jnp.asarray(HIDDEN, jnp.bfloat16), jnp.asarray(HEAD, jnp.bfloat16)
    found = OURS(hidden, head, TOKEN, TEMPERATURE, MASK, chunk=3)
    # The product of bfloat16 numbers is taken in float32, so only the inputs are rounded.
    expected = reference.token_logprobs(hidden, head, TOKEN, TEMPERATURE, MASK)
    for ours, oracle in zip(found, expected, strict=True):
        assert ours.dtype == jnp.float32
        np.testing.assert_allclose(ours, oracle, rtol=1e-5, atol=1e-6)
    assert (found[0] <= 0).all()
    _, grads = GRAD(hidden, head, MASK, UP, chunk=3)
    _, exact = GRAD(hidden.astype(jnp.float32), head.astype(jnp.float32), MASK, UP, chunk=3)
    for ours, oracle in zip(grads, exact, strict=True):
        assert ours.dtype == jnp.bfloat16
        error = np.linalg.norm(np.asarray(ours.astype(jnp.float32) - oracle))
        assert error < 1e-2 * np.linalg.norm(np.asarray(oracle))  # bfloat16 keeps 8 bits


def test_sure_tokens_and_large_logits():
    logp, entropy = token_logprobs(
        jnp.array([[100.0], [1e4]]), jnp.array([[1.0], [-1.0]]), jnp.array([0, 1]), jnp.ones(2)
    )
    np.testing.assert_array_equal(logp, [0.0, -2e4])
    np.testing.assert_array_equal(entropy, [0.0, 0.0])


@pytest.mark.parametrize("V", [300, 49_152, 50_001])
def test_a_long_tail_behind_a_likely_token_is_not_lost(V):
    # Summed one after another behind exp(0) = 1, words that weigh less than 6e-8 each add nothing.
    rng = np.random.default_rng(V)
    logits = 1.5 * rng.normal(size=(V, 4))
    logits[7] = 18 + np.arange(4)
    head = logits.astype(np.float32)
    hidden = np.eye(4, dtype=np.float32)
    token = np.array([7, 7, 100, V - 1], np.int32)
    logp, entropy = OURS(hidden, head, token, np.ones(4, np.float32))
    above = head.astype(np.float64).T - head[7].astype(np.float64)[:, None]
    mass = np.exp(above).sum(axis=1)
    expected = above[np.arange(4), token] - np.log(mass)
    np.testing.assert_allclose(logp, expected, rtol=1e-6, atol=2e-6)
    of_entropy = np.log(mass) - (np.exp(above) * above).sum(axis=1) / mass
    np.testing.assert_allclose(entropy, of_entropy, rtol=0, atol=2e-5)


def test_jit_and_vmap():
    eager = token_logprobs(HIDDEN, HEAD, TOKEN, TEMPERATURE, MASK)
    for ours, oracle in zip(OURS(HIDDEN, HEAD, TOKEN, TEMPERATURE, MASK), eager, strict=True):
        np.testing.assert_allclose(ours, oracle, rtol=1e-6)
    stacked = (np.stack([x, x[::-1]]) for x in (HIDDEN, TOKEN, TEMPERATURE, MASK))
    hidden, token, temperature, mask = stacked
    batched = jax.vmap(token_logprobs, (0, None, 0, 0, 0))(hidden, HEAD, token, temperature, mask)
    for ours, oracle in zip(batched, eager, strict=True):
        np.testing.assert_allclose(ours, jnp.stack([oracle, oracle[::-1]]), rtol=1e-5)


def test_the_sampler_s_pieces_give_the_learner_s_log_probs():
    logits = jax.jit(scaled_logits)(HIDDEN, HEAD, TEMPERATURE)
    logp, _ = OURS(HIDDEN, HEAD, TOKEN, TEMPERATURE)
    np.testing.assert_allclose(jax.jit(token_logprob)(logits, TOKEN), logp, atol=1e-6)


def temporary_bytes(function, num_tokens, vocab):
    """Scratch memory of the compiled gradient."""

    def loss(hidden, head, token, temperature):
        logp, entropy = function(hidden, head, token, temperature)
        return jnp.sum(logp) + jnp.sum(entropy)

    shapes = (
        jax.ShapeDtypeStruct((num_tokens, 8), jnp.float32),
        jax.ShapeDtypeStruct((vocab, 8), jnp.float32),
        jax.ShapeDtypeStruct((num_tokens,), jnp.int32),
        jax.ShapeDtypeStruct((num_tokens,), jnp.float32),
    )
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*shapes).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_memory_does_not_grow_with_tokens_times_vocabulary():
    vocab, logits = 32768, 4 * 32768  # bytes of the logits of a token
    assert temporary_bytes(plain, 2048, vocab) > 2048 * logits
    few, many = (temporary_bytes(token_logprobs, n, vocab) for n in (512, 2048))
    assert many - few < 0.05 * (2048 - 512) * logits
    assert many < temporary_bytes(plain, 2048, vocab)


@pytest.mark.parametrize("chunk", [2, 7, None])
@pytest.mark.parametrize("mask", [None, MASK, MASK & False], ids=["all", "masked", "none"])
def test_kept_logits_change_nothing(chunk, mask):
    kept, again = (GRAD(HIDDEN, HEAD, mask, UP, chunk=chunk, kept_logits=k) for k in (1000, 0))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, kept, again)


def test_kept_logits_spare_one_of_four_products():
    def flops(**options):
        """Of products, with those of each chunk."""
        compute = jax.jit(jax.grad(functools.partial(total, **options), argnums=(0, 1)))
        return Program(compute.lower(HIDDEN, HEAD).compile().as_text()).flops()

    # Products are 2 N D V each: logits, both gradients, and the logits again.
    assert flops() == 4 * 2 * N * D * V
    assert flops(kept_logits=N * V) == 3 * 2 * N * D * V
    assert flops(kept_logits=N * V - 1) == flops()
    # What is kept has whole chunks.
    assert flops(chunk=4, kept_logits=N * V) == flops(chunk=4) == 4 * 2 * 8 * D * V
    assert flops(chunk=4, kept_logits=8 * V) == 3 * 2 * 8 * D * V


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"head": HEAD[:, :3]}, r"head: expected shape \[V, D\] with D = 5"),
        ({"token": TOKEN[:3]}, r"token: expected shape \[N\] with N = 7"),
        ({"temperature": np.float32(1)}, r"temperature: expected shape \[N\], got \[\]"),
        ({"mask": MASK[None]}, r"mask: expected shape \[N\], got \[1, 7\]"),
    ],
)
def test_wrong_shapes(wrong, says):
    arrays = {"hidden": HIDDEN, "head": HEAD, "token": TOKEN, "temperature": TEMPERATURE}
    with pytest.raises(ValueError, match=says):
        token_logprobs(**{**arrays, **wrong})


@pytest.mark.parametrize("kept_logits", [0, 1000], ids=["again", "kept"])
@pytest.mark.parametrize("is_masked", [True, False])
@pytest.mark.parametrize("chunk", [1, 3, None])
def test_in_shard_map_equals_plain(chunk, is_masked, kept_logits):
    """Tokens over the devices, one head for all of them: its gradient is the sum of theirs."""
    rng = np.random.default_rng(0)
    num = 8 * 5
    hidden = rng.normal(size=(num, HEAD.shape[1])).astype(np.float32)
    arrays = {
        "token": rng.integers(0, len(HEAD), num).astype(np.int32),
        "temperature": rng.uniform(0.5, 2, num).astype(np.float32),
        # One device has nothing that is wanted.
        "mask": (rng.random(num) < 0.6) & (np.arange(num) >= 5) if is_masked else None,
    }
    weight = rng.normal(size=(2, num)).astype(np.float32)

    def total(hidden, head, arrays, weight):
        found = token_logprobs(hidden, head, **arrays, chunk=chunk, kept_logits=kept_logits)
        return sum(jnp.sum(w * x) for w, x in zip(weight, found, strict=True))

    rows = jax.P("data")
    mesh = jax.make_mesh((8,), ("data",), (jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(
        lambda *args: jax.lax.psum(total(*args), "data"),
        mesh=mesh,
        in_specs=(rows, jax.P(), rows, jax.P(None, "data")),
        out_specs=jax.P(),
    )
    found = jax.jit(jax.value_and_grad(mapped, (0, 1)))(hidden, HEAD, arrays, weight)
    expected = jax.jit(jax.value_and_grad(total, (0, 1)))(hidden, HEAD, arrays, weight)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(close, found, expected)


def test_no_tokens_have_no_gradient():
    none = jnp.zeros((0, D)), jnp.asarray(HEAD), jnp.zeros(0, jnp.int32), jnp.zeros(0)
    found = jax.grad(lambda *args: jnp.sum(token_logprobs(*args)[0]), argnums=(0, 1))(*none)
    assert found[0].shape == (0, D)
    np.testing.assert_array_equal(found[1], np.zeros((V, D)))

"""Model FLOPs against loops over layers, heads and tokens."""

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.flops import Flops, attention_flops, causal_pairs, num_params, update_flops
from jaxrl_vr.models.params import declare, init
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh

ARCH = Architecture(
    vocab_size=32, width=16, layers=3, heads=4, kv_heads=2, head_dim=6, ffn=24, tied=False
)


def products(arch, position):
    """FLOPs of a token's pass forward: every weight it meets and every token it sees, one by one.

    The lookup, the norms and the biases are counted as the field's formula does: 2 a parameter.
    """
    D, H, K, Q = arch.width, arch.heads, arch.kv_heads, arch.head_dim
    total = 2 * arch.vocab_size * D + 2 * arch.vocab_size * D + 2 * D  # embedding, head, norm
    for _ in range(arch.layers):
        total += 2 * D + 2 * D * (H + 2 * K) * Q + 2 * H * Q * D + 2 * D + 3 * 2 * D * arch.ffn
        for _ in range(H):
            for _ in range(position + 1):
                total += 2 * Q + 2 * Q  # a score, and a value times a weight
    return total


def sequence(arch, start, end):
    return sum(products(arch, position) for position in range(start, end))


@given(st.lists(st.integers(1, 12), min_size=1, max_size=4))
def test_sequences_are_the_sum_of_their_tokens(lengths):
    flops = Flops.of(ARCH)
    by_hand = sum(sequence(ARCH, 0, n) for n in lengths)
    assert flops.score(lengths) == by_hand
    assert flops.update(lengths) == 3 * by_hand


@given(st.integers(1, 9), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_a_prompt_is_sampled_from_once(prompt, completions):
    by_hand = sequence(ARCH, 0, prompt)
    by_hand += sum(sequence(ARCH, prompt, prompt + n) for n in completions)
    assert Flops.of(ARCH).sampling([(prompt, *completions)]) == by_hand


def test_padding_and_packing_do_not_count():
    # Two segments of a row see less than one of their length.
    flops = Flops.of(ARCH)
    apart, together = flops.score([5, 7]), flops.score([12])
    assert together - apart == attention_flops(ARCH, 5 * 7)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_those_of_the_arrays(family, tied):
    arch = ARCH.model_copy(update={"family": family, "tied": tied})
    mesh = make_mesh(MeshConfig(data=1), jax.devices()[:1])
    arrays = jax.eval_shape(lambda: init(declare(arch), jax.random.key(0), TRAIN_RULES, mesh))
    assert num_params(declare(arch)) == sum(a.size for a in jax.tree.leaves(arrays))


def test_by_hand():
    # N = 1000 and 3 tokens: 6 N x 3 = 18,000. Pairs 1 + 2 + 3 = 6, each 4 x 3 layers x 4 heads x 6
    # = 288 forward and three times that in all: 3 x 288 x 6 = 5,184.
    assert causal_pairs(3) == 6
    assert update_flops(1000, ARCH, 3, 6) == 18_000 + 5_184

"""The fake model: every token equally likely, to the learner and to the sampler alike."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from pages_by_hand import ByHand

from jaxrl_vr.losses.logprobs import scaled_logits, token_logprobs
from jaxrl_vr.models.fakes import UniformModel
from jaxrl_vr.models.params import init
from jaxrl_vr.sampler.engine import SlotEngine
from jaxrl_vr.sampler.sizes import EngineConfig
from jaxrl_vr.sharding import TRAIN_RULES
from jaxrl_vr.types import Request, Sampling

MODEL = UniformModel(10, max_length=40)


def test_the_learner_finds_every_token_equally_likely(one_device):
    params = init(MODEL.declare(), jax.random.key(0), TRAIN_RULES, one_device)
    tokens = jnp.arange(6).reshape(2, 3)
    hidden = MODEL.hidden(params, tokens, tokens, tokens)
    logp, entropy = token_logprobs(
        hidden.reshape(6, 1), MODEL.head(params), tokens.reshape(6), jnp.full(6, 0.7)
    )
    np.testing.assert_allclose(logp, -math.log(10), rtol=1e-6)
    np.testing.assert_allclose(entropy, math.log(10), rtol=1e-6)


def test_prefill_and_decode_agree_with_it(one_device):
    params = init(MODEL.declare(), jax.random.key(0), TRAIN_RULES, one_device)
    view = MODEL.sampler_view(params)
    by_hand = ByHand(MODEL, view, 2)
    for state in (by_hand.prefill([[1], [1, 2, 3]]), by_hand.decode([1, 2], [1, 3])):
        logits = scaled_logits(state, MODEL.view_head(view), jnp.ones(2))
        np.testing.assert_array_equal(logits, np.zeros((2, 10)))


def test_an_engine_samples_it_evenly(one_device):
    params = init(MODEL.declare(), jax.random.key(0), TRAIN_RULES, one_device)
    engine = SlotEngine(MODEL, params, EngineConfig(slots=32, steps_per_call=13), one_device)
    engine.submit(Request(i, (1,), (0, 0, 0, i), Sampling(39)) for i in range(64))
    counts, logps = np.zeros(10), []
    while engine.num_unfinished:
        for rollout in engine.step():
            counts += np.bincount(rollout.token_ids, minlength=10)
            logps += rollout.logp
    assert counts.sum() == 64 * 39
    expected = counts.sum() / 10
    # chi-square of 9 degrees of freedom: 27.9 is its 0.1 % point
    assert ((counts - expected) ** 2 / expected).sum() < 27.9
    np.testing.assert_allclose(logps, -math.log(10), rtol=1e-6)

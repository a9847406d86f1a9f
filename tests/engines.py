"""Small engines, their text, and what holds them against the slow sampler."""

import math
import random

import jax
import numpy as np

from jaxrl_vr.models.params import shardings
from jaxrl_vr.sampler.engine import SlotEngine
from jaxrl_vr.sampler.sizes import EngineConfig
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh, place, to_host
from jaxrl_vr.types import Forced

TEMPERATURES = (1.0, 0.7, 1.3, 0.0)


def letters(ids):
    """Text of token ids: a is 0, and so on."""
    return "".join(chr(97 + i) for i in ids)


def prompt(seed, length):
    return tuple(random.Random(seed).choices(range(32), k=length))


def engine_of(small, mesh, slots=3, steps=5, params=None, **rest):
    config = EngineConfig(slots=slots, steps_per_call=steps, **rest)
    params = small.params if params is None else params
    return SlotEngine(small.model, params, config, mesh, decode=letters)


def assert_equals_slow(rollout, slow):
    tokens, logp, mass = slow
    assert list(rollout.token_ids) == tokens
    np.testing.assert_allclose(rollout.logp, logp, atol=1e-5)
    if rollout.kept_mass is not None:
        np.testing.assert_allclose(rollout.kept_mass, mass, atol=1e-5)


def on_mesh(small, **axes):
    """A mesh of the first devices, and the small model's parameters as a learner there has them."""
    mesh = make_mesh(MeshConfig(**axes), jax.devices()[: math.prod(axes.values())])
    declared = shardings(small.model.declare(), TRAIN_RULES, mesh)
    return mesh, place(to_host(small.params), declared)


def random_request(rng, id, make_request):
    limit = rng.randrange(1, 30)
    return make_request(
        id,
        # Some have their prompt in common.
        prompt(rng.choice([rng.random(), 1, 2]), rng.randrange(1, 30)),
        key=tuple(rng.randrange(2**32) for _ in range(4)),
        limit=limit,
        stop_ids=tuple(rng.sample(range(32), rng.randrange(4))),
        temperature=rng.choice(TEMPERATURES),
        top_k=rng.choice([0, 0, 3]),
        top_p=rng.choice([1.0, 1.0, 0.8]),
        min_p=rng.choice([0.0, 0.0, 0.1]),
        stop=rng.choice([(), (), ("bc", "d"), ("aa",)]),
        forced=random_rules(rng, limit),
    )


def random_rules(rng, limit):
    """At most one text, behind some of the tokens."""
    if limit < 6 or rng.random() < 0.5:
        return ()
    ids = tuple(rng.choices(range(32), k=rng.randrange(1, 4)))
    return (Forced(rng.randrange(1, limit - 4), ids, rng.choice("abcZ")),)

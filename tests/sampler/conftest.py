"""A small model with contrast in its logits, and a slow sampler that no engine shares code with."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines import letters

from jaxrl_vr.losses.logprobs import scaled_logits
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.params import init
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.sampler import decode, token
from jaxrl_vr.sampler.engine import SlotEngine
from jaxrl_vr.sampler.sizes import EngineConfig
from jaxrl_vr.sampler.support import SamplingValues
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh
from jaxrl_vr.types import Request, Sampling

SIZES = dict(vocab_size=32, width=16, layers=2, heads=4, kv_heads=2, head_dim=4, ffn=24)
REST = dict(max_length=96, tied=False)


@dataclasses.dataclass(frozen=True)
class Small:
    """A model, its parameters, and the program that runs it in full for every token."""

    model: Transformer
    params: dict
    next_token: Callable

    def slow(self, request, params=None):
        """The completion of a request as tokens, logp and kept mass, one full forward a token.

        `params`: what to sample token n with, a function of n; default: always the model's own.
        """
        sampling = request.sampling
        tokens = list(request.prompt_ids + request.prefix.token_ids)
        out = [], [], []
        forced = []
        for n in range(len(request.prefix.token_ids), sampling.max_new_tokens):
            for rule in sampling.forced:
                text = letters(tokens[len(request.prompt_ids) :])
                if rule.after == n and rule.unless not in text:
                    forced = list(rule.token_ids)
            if forced:
                for values, new in zip(out, (forced[0], 0.0, 0.0), strict=True):
                    values.append(new)
                tokens.append(forced.pop(0))
                continue
            row = np.zeros((1, self.model.max_length), np.int32)
            row[0, : len(tokens)] = tokens
            values = jax.tree.map(lambda v: np.asarray([v]), sampling_values(sampling))
            drawn = self.next_token(
                self.params if params is None else params(n),
                row,
                np.int32(len(tokens)),
                np.asarray(request.key, np.uint32),
                np.int32(n),
                values,
            )
            new_values = drawn.token, drawn.logp, drawn.kept_mass
            for values, new in zip(out, new_values, strict=True):
                values.append(new.item())
            tokens.append(out[0][-1])
            sampled = letters(tokens[len(request.prompt_ids) :])
            if tokens[-1] in sampling.stop_ids or any(s in sampled for s in sampling.stop):
                break
        return out


def sampling_values(sampling):
    return SamplingValues(
        np.float32(sampling.temperature),
        np.int32(sampling.top_k),
        np.float32(sampling.top_p),
        np.float32(sampling.min_p),
    )


def next_token(model, params, tokens, length, words, n, values):
    positions = jnp.arange(tokens.shape[1])[None]
    segments = (positions < length).astype(jnp.int32)
    hidden = model.hidden(params, tokens, positions, segments)[0, length - 1]
    logits = scaled_logits(hidden[None], model.head(params), token.logit_temperature(values))
    key = jax.random.fold_in(jax.random.wrap_key_data(decode.request_key(words)), n)
    return token.draw(logits, key[None], values)


def small_model(mesh, seed=0, **sizes):
    model = Transformer(Architecture(**{**SIZES, **REST, **sizes}))
    params = init(model.declare(), jax.random.key(seed), TRAIN_RULES, mesh)
    # Logits of spread 2: every sampling value then changes what is drawn.
    name = "embed" if model.arch.tied else "head"
    params = {**params, name: 2 * params[name]}
    return Small(model, params, jax.jit(functools.partial(next_token, model)))


@pytest.fixture(scope="session")
def one_device():
    """A mesh of one device."""
    return make_mesh(MeshConfig(), jax.devices()[:1])


@pytest.fixture(scope="session")
def make_small(one_device):
    """Small models by their sizes."""
    return functools.partial(small_model, one_device)


@pytest.fixture(scope="session")
def small(make_small):
    """A Llama with grouped queries."""
    return make_small()


@pytest.fixture(scope="session")
def thin(make_small):
    """One layer: for tests that compile engines of their own."""
    return make_small(layers=1)


@pytest.fixture(scope="session")
def other_params(make_small):
    """Other weights of the same model."""
    return make_small(seed=1).params


@pytest.fixture(scope="session")
def shared_engine(small, one_device):
    """Three slots, five steps a call; compiled once."""
    config = EngineConfig(slots=3, steps_per_call=5)
    return SlotEngine(small.model, small.params, config, one_device, decode=letters)


@pytest.fixture
def engine(shared_engine, small):
    """The shared engine, with nothing in it and the small model's weights."""
    shared_engine.abort(range(10_000))
    shared_engine.step()
    shared_engine.set_params(small.params, 0)
    return shared_engine


@pytest.fixture(scope="session")
def make_request():
    """Requests with few words; sampling values by name, EOS 0 unless told."""

    def make(id=0, prompt=(1, 2, 3), *, key=None, limit=8, **values):
        extra = {n: values.pop(n) for n in ("prefix",) if n in values}
        sampling = Sampling(**{"max_new_tokens": limit, "stop_ids": (0,), **values})
        return Request(id, tuple(prompt), key or (7, 0, 0, id), sampling, **extra)

    return make


@pytest.fixture(scope="session")
def drain():
    """Runs an engine dry; rollouts by id, each returned exactly once."""

    def run(engine, requests=()):
        engine.submit(requests)
        done = {}
        while engine.num_unfinished:
            for rollout in engine.step():
                assert rollout.id not in done
                done[rollout.id] = rollout
        return done

    return run

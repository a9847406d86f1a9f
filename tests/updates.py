"""A step's rollouts, and its loss, gradient and update on any mesh."""

import dataclasses
import functools

import jax
import numpy as np

from jaxrl_vr.losses import group_norm
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.params import init, shardings
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.rollout.batch import Shape, Trajectory, build
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh, place
from jaxrl_vr.train.objectives import PpoClip, Reinforce, policy_objective
from jaxrl_vr.train.optimizer import AdamW
from jaxrl_vr.train.penalty import Kl
from jaxrl_vr.train.state import create
from jaxrl_vr.train.update import (
    Learner,
    Rates,
    gradients,
    policy_loss,
    policy_score,
    row_logprobs,
)
from jaxrl_vr.train.weights import TokenMean

MODEL = Transformer(
    Architecture(
        vocab_size=32, width=16, layers=2, heads=4, kv_heads=2, head_dim=4, ffn=24, max_length=64
    )
)
TOKEN_MEAN = TokenMean()
PPO_CLIP = policy_objective(PpoClip(), Kl(coef=0.1), None, ())
REINFORCE = policy_objective(Reinforce(), None, None, ())
NUMBERS = {"objective": {"clip_low": 0.2, "clip_high": 0.28}, "offpolicy": [], "kl": 0.1}
RATES = Rates(1e-2, 1.0)
SHAPE = Shape(row_length=24, rows=16)  # one micro-batch for all 16 rollouts

GRADIENTS = jax.jit(gradients, static_argnames="loss")
ROW_LOGPROBS = jax.jit(row_logprobs, static_argnums=0)


def make_rollouts():
    """Four groups of four: prompts, completions, a mask with holes, advantages, log-probs."""
    rng = np.random.default_rng(0)
    reward = np.array([[1, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0], [0.3, 1, 1, 0]], np.float32)
    valid = np.ones((4, 4), bool)
    valid[3, 2] = False  # could not be scored: trains no token
    adv = np.asarray(group_norm(reward, valid))
    prompts = np.random.default_rng(1).integers(0, 32, (4, 12))
    rollouts = []
    for group, g in np.ndindex(4, 4):
        prompt, completion = rng.integers(10, 13), rng.integers(1, 12)
        mask = np.array([False] * prompt + [True] * completion) & valid[group, g]
        mask[prompt + completion // 2] = False  # a token that was forced
        n = len(mask)
        token_ids = rng.integers(0, 32, n)
        token_ids[:prompt] = prompts[group, :prompt]
        rollouts.append(
            Trajectory(
                token_ids=token_ids,
                mask=mask,
                # Near what the model gives, so that some ratios are clipped and others are not.
                logp=(-3.5 + 0.3 * rng.normal(size=n)).astype(np.float32),
                version=np.zeros(n, int),
                adv=float(adv[group, g]),
                temperature=(0.7, 1.0, 1.3, 1.0)[group],
                group=group,
            )
        )
    return rollouts


ROLLOUTS = make_rollouts()


def batch_of(rollouts, shape, weights=TOKEN_MEAN):
    """A packed step with a reference; its log-prob is the token's, wherever that stands."""
    lengths = np.array([t.num_trained for t in rollouts])
    batch = build(rollouts, weights(lengths, np.array([t.group for t in rollouts]), 20), shape)
    assert (shape.parts is None) == (batch.distinct_place is None)
    ref_logp = np.where(batch.mask, -3.4 + 0.02 * batch.tokens, 0.0).astype(np.float32)
    return dataclasses.replace(batch, ref_logp=ref_logp)


@functools.cache
def mesh_of(devices=1, **sizes):
    return make_mesh(MeshConfig(**sizes), jax.devices()[:devices])


@functools.cache
def host_params():
    """The same parameters for every mesh."""
    return jax.device_get(init(MODEL.declare(), jax.random.key(0), TRAIN_RULES, mesh_of()))


def params_on(mesh):
    return place(host_params(), shardings(MODEL.declare(), TRAIN_RULES, mesh))


def state_on(mesh, transform=None):
    transform = transform or AdamW(learning_rate=1e-2).transform(MODEL.declare())
    return create(params_on(mesh), {}, transform)


@functools.cache
def loss_of(objective, model=MODEL):
    return policy_loss(model, objective)


def learner_on(mesh, objective=PPO_CLIP, transform=None):
    transform = transform or AdamW(learning_rate=1e-2).transform(MODEL.declare())
    return Learner(loss_of(objective), policy_score(MODEL), transform, mesh)


def found_on(mesh, batch, objective=PPO_CLIP, **numbers):
    """Loss, gradient and metrics of a whole batch."""
    placed, params = learner_on(mesh).place(batch), params_on(mesh)
    numbers = NUMBERS | numbers
    with jax.set_mesh(mesh):
        found = GRADIENTS(params, placed, numbers, loss=loss_of(objective))
    return jax.device_get(found)


@functools.cache
def baseline(weights=TOKEN_MEAN, objective=PPO_CLIP):
    """The same of all rollouts in one micro-batch on one device."""
    return found_on(mesh_of(), batch_of(ROLLOUTS, SHAPE, weights), objective)


def norm(tree):
    squares = (np.sum(np.square(x, dtype=np.float64)) for x in jax.tree.leaves(tree))
    return float(np.sqrt(sum(squares)))


def assert_same(found, expected, batch):
    """To rounding: the loss by sum |weight x advantage|, each leaf of the gradient by its norm."""
    scale = np.sum(np.abs(batch.weight * batch.adv))
    assert scale > 0
    assert abs(found[0] - expected[0]) < 1e-5 * scale
    assert norm(expected[1]) > 1e-3
    difference = jax.tree.map(np.subtract, found[1], expected[1])
    for (path, wrong), right in zip(
        jax.tree.leaves_with_path(difference), jax.tree.leaves(expected[1]), strict=True
    ):
        assert norm(wrong) < 1e-5 * norm(right), jax.tree_util.keystr(path)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), found[2], expected[2]
    )


@functools.cache
def learner_and_batch():
    """A learner on one device, its batch, and what one update gives."""
    learner = learner_on(mesh_of())
    return learner, learner.place(batch_of(ROLLOUTS, SHAPE))

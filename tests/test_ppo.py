"""PPO with a critic: GAE from values, an own optimizer, epochs, KL in the reward, resuming."""

import functools
import json
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inprocess import config, rl, train

from jaxrl_vr.metrics.names import METRICS
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.params import init
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.rollout.batch import Shape, Trajectory, build
from jaxrl_vr.rollout.groups import Samples
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh
from jaxrl_vr.train.advantage import Gae
from jaxrl_vr.train.critic import Critic, CriticConfig, critic_learner, critic_state
from jaxrl_vr.train.optimizer import AdamW
from jaxrl_vr.train.update import Rates

MODEL = Transformer(
    Architecture(
        vocab_size=32, width=16, layers=2, heads=4, kv_heads=2, head_dim=4, ffn=24, max_length=64
    )
)
DATA = """
[[data]]
name = "ones"
type = "arithmetic"
digits = 1
verifier = { type = "custom", path = "ppo_verifier:starts_odd" }
"""
PPO = """
advantage = { type = "gae", lam = 0.95 }
critic = { optimizer = { type = "adamw", learning_rate = 1e-2 } }
"""


@pytest.fixture(autouse=True)
def verifier(tmp_path, monkeypatch):
    (tmp_path / "ppo_verifier.py").write_text(
        textwrap.dedent("""
        def starts_odd(example, response):
            return response[:1] in set("13579+>")
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)


def run(tmp_path, more, *overrides, steps=2):
    summary = train(config(tmp_path, rl("rl", steps=steps, more=more), data=DATA), *overrides)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert all(set(step) - {"stage", "step"} <= set(METRICS) for step in steps)
    return summary, steps


@functools.cache
def mesh_of(devices, **sizes):
    return make_mesh(MeshConfig(**sizes), jax.devices()[:devices])


def policy_on(mesh):
    return init(MODEL.declare(), jax.random.key(0), TRAIN_RULES, mesh)


def scored_batch():
    rng = np.random.default_rng(0)
    rollouts = [
        Trajectory(
            token_ids=rng.integers(0, 32, n),
            mask=np.arange(n) >= 3,
            logp=np.zeros(n, np.float32),
            old_value=rng.normal(size=n).astype(np.float32),
            returns=rng.normal(size=n).astype(np.float32),
        )
        for n in (5, 9, 12, 7, 16, 4, 8, 11)
    ]
    weight = np.full(len(rollouts), 1 / sum(t.num_trained for t in rollouts), np.float32)
    return build(rollouts, weight, Shape(row_length=20, rows=8))


def test_values_are_of_the_state_before_the_token():
    critic, mesh = Critic(MODEL), mesh_of(1)
    params = critic.of_policy(policy_on(mesh))
    head = np.random.default_rng(1).normal(size=16).astype(np.float32)
    params = {**params, "value": jnp.asarray(head)}
    batch = jax.tree.map(lambda a: jnp.asarray(a[0]), scored_batch())
    values = jax.jit(critic.values)(params, batch)
    hidden = MODEL.hidden(params["body"], batch.tokens, batch.positions, batch.segment_ids)
    for row, t in np.argwhere(np.asarray(batch.mask)):
        expected = np.asarray(hidden)[row, t - 1] @ head
        assert values[row, t] == pytest.approx(expected, abs=1e-5)
    assert not np.asarray(values)[~np.asarray(batch.mask)].any()


def test_a_new_critic_values_everything_at_nothing_and_has_no_lm_head():
    untied = Transformer(MODEL.arch.model_copy(update={"tied": False}))
    critic = Critic(untied)
    policy = init(untied.declare(), jax.random.key(0), TRAIN_RULES, mesh_of(1))
    params = critic.of_policy(policy)
    assert "head" in policy and "head" not in params["body"]
    assert jax.tree.structure(params) == jax.tree.structure(
        init(critic.declare(), jax.random.key(0), TRAIN_RULES, mesh_of(1))
    )
    batch = jax.tree.map(lambda a: jnp.asarray(a[0]), scored_batch())
    assert not jax.jit(critic.values)(params, batch).any()
    # A copy: the policy's own arrays are donated at its first update.
    jax.tree.map(lambda x: x.delete(), policy)
    assert np.isfinite(np.asarray(params["body"]["embed"])).all()


def test_the_critic_learns_its_returns_on_any_mesh():
    settings = CriticConfig(optimizer=AdamW(learning_rate=1e-2), clip=100.0)
    losses = {}
    for name, mesh in {"one": mesh_of(1), "eight": mesh_of(8, data=2, fsdp=2, tensor=2)}.items():
        learner = critic_learner(settings, MODEL, mesh)
        state = critic_state(settings, MODEL, policy_on(mesh))
        batch = learner.place(scored_batch())
        found = []
        for _ in range(12):
            state, metrics = learner.update(state, batch, settings.numbers, Rates(1e-2, 1.0))
            found.append(float(metrics["loss/total"].sum))
        losses[name] = found
        assert (
            state.trainable["value"].sharding.spec == state.trainable["body"]["norm"].sharding.spec
        )
    mask, returns = scored_batch().mask, scored_batch().returns
    assert losses["one"][0] == pytest.approx(0.5 * np.mean(returns[mask] ** 2), rel=1e-5)
    assert losses["one"][-1] < 0.5 * losses["one"][0]
    np.testing.assert_allclose(losses["eight"], losses["one"], rtol=1e-3)


def gae_samples(**more):
    mask = np.array([[[1, 1, 1], [1, 1, 0]]], bool)
    fields = {
        "reward": np.float32([[1, 0]]),
        "valid": np.array([[True, True]]),
        "trains": np.array([[True, True]]),
        "length": np.int32([[3, 2]]),
        "is_truncated": np.array([[False, False]]),
        "is_right": np.array([[True, False]]),
        "components": {},
        "mask": mask,
        "step_value": np.zeros((1, 2, 0), np.float32),
        "step_end": np.zeros((1, 2, 0), np.int32),
        "step_mask": np.zeros((1, 2, 0), bool),
        "value": np.float32([[[0.5, 0.25, 0.75], [0.5, 0.5, 9.0]]]),
    }
    return Samples(**{**fields, **more})


def test_gae_by_hand():
    # lam = gamma = 1: return less value. Rewards at the end: 1, and 0.
    found = Gae(whiten=False)(gae_samples())
    np.testing.assert_allclose(found, [[[0.5, 0.75, 0.25], [-0.5, -0.5, 0]]], atol=1e-6)
    np.testing.assert_allclose(Gae().returns(gae_samples()), [[[1, 1, 1], [0, 0, 0]]], atol=1e-6)
    # lam = 0: next value less value.
    found = Gae(lam=0.0, whiten=False)(gae_samples())
    np.testing.assert_allclose(found, [[[-0.25, 0.5, 0.25], [0, -0.5, 0]]], atol=1e-6)
    # What the critic learns may have another lam.
    one = Gae(lam=0.0, lam_returns=1.0).returns(gae_samples())
    np.testing.assert_allclose(one, [[[1, 1, 1], [0, 0, 0]]], atol=1e-6)


def test_gae_whitens_and_adapts_to_length():
    found = Gae()(gae_samples())
    trained = found[gae_samples().mask]
    assert trained.mean() == pytest.approx(0, abs=1e-6)
    assert trained.std() == pytest.approx(1, abs=1e-5)
    # alpha = 0.5: lam = 1 - 1 / 1.5 = 1/3 for 3 tokens; errors -0.25, 0.5, 0.25 from the front.
    adaptive = Gae(alpha=0.5, whiten=False)(gae_samples())
    np.testing.assert_allclose(
        adaptive[0, 0], [-0.25 + (0.5 + 0.25 / 3) / 3, 0.5 + 0.25 / 3, 0.25], rtol=1e-5
    )


def test_a_run_with_a_critic(tmp_path):
    _, steps = run(tmp_path, PPO)
    for step in steps:
        assert {"value/mean", "value/return", "value/explained_variance"} <= set(step)
        assert {"critic/total", "critic/grad_norm", "critic/learning_rate"} <= set(step)
        assert step["critic/learning_rate"] == pytest.approx(1e-2)
        assert step["optimizer/grad_norm"] > 0
    # A new critic values all at 0, so its error is the return's: explained variance 0.
    assert steps[0]["value/mean"] == 0 and steps[0]["value/explained_variance"] == pytest.approx(0)
    assert steps[1]["value/mean"] != 0


def test_only_the_critic_learns_while_it_warms_up(tmp_path):
    more = PPO.replace("1e-2 } }", "1e-2 }, warmup_steps = 2 }")
    summary, steps = run(tmp_path, more, steps=3)
    assert [("loss/total" in step, "critic/total" in step) for step in steps] == [
        (False, True),
        (False, True),
        (True, True),
    ]
    assert "mismatch/max" in steps[2]
    # The policy's schedule begins when the policy does: one step of one.
    assert steps[2]["optimizer/learning_rate"] == pytest.approx(1e-2)


def test_epochs_deal_the_groups_anew_and_count(tmp_path):
    _, steps = run(
        tmp_path,
        PPO + "updates = 2\nepochs = 3",
        "stages.rl.optimizer.schedule.type=linear",
        steps=1,
    )
    (step,) = steps
    # 6 optimizer steps at 6/6 ... 1/6 of the rate: mean 3.5 / 6.
    assert step["optimizer/learning_rate"] == pytest.approx(1e-2 * 3.5 / 6)
    assert step["policy/ratio_max"] > 1.001
    assert step["mismatch/max"] < 1e-5  # of the first update alone


def test_kl_in_the_reward(tmp_path):
    _, steps = run(
        tmp_path,
        PPO + 'kl = { type = "k1", coef = 0.5, where = "reward", adaptive = { target = 1.0 } }',
    )
    for step in steps:
        assert step["reward/total"] == pytest.approx(step["reward/task"] + step["reward/kl"])
        assert "policy/kl" in step
    assert steps[0]["reward/kl"] == pytest.approx(0, abs=1e-5)
    assert abs(steps[1]["reward/kl"]) > 1e-4


def test_resumed_equals_uninterrupted(tmp_path, capsys):
    every = "checkpoint.every=1"
    more = (
        PPO
        + "epochs = 2\n"
        + 'kl = { type = "k1", coef = 0.5, where = "reward", adaptive = { target = 0.1 } }'
    )
    whole, _ = run(tmp_path, more, every, steps=4)
    other = tmp_path / "other"
    other.mkdir()
    run(other, more, every, steps=2)
    (other / "run/stages/rl/result.json").unlink()
    resumed, steps = run(other, more, every, steps=4)
    assert "resuming rl at step 2 of 4" in capsys.readouterr().out
    assert len(steps) == 4
    assert resumed["parameter_hash"] == whole["parameter_hash"]

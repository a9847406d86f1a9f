"""TRPO with the quickstart's transformer: natural-gradient steps, each within a bound on the KL.

    python examples/trpo.py

takes half a minute on a CPU and prints the mean reward, which rises from 0.06 to 0.8, and
each step's KL. The prompts are the sums "0+0=" to "4+4=", the answer is one token, and the reward
is 1 where that token is right. The weights are new: nothing has been demonstrated.

P prompts, G samples of a prompt, B = P G rollouts, T tokens of a prompt, V vocabulary.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_vr.config import load
from jaxrl_vr.data.tokenizer import CharTokenizer
from jaxrl_vr.losses import group_center, ppo_clip, trpo_step
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.params import declare, init
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh
from jaxrl_vr.train.config import RandomModel, RunConfig

QUICKSTART = Path(__file__).parent.parent / "configs" / "quickstart.toml"
TOKENIZER = CharTokenizer("0123456789+=>,")
SUMS = [(a, b) for a in range(5) for b in range(5)]
P, G = len(SUMS), 16
MAX_KL = 0.05  # nats


def new_model() -> tuple[Transformer, Any]:
    """The quickstart's model before any training."""
    config = load(RunConfig, [QUICKSTART]).model
    assert isinstance(config, RandomModel), "the quickstart's model is a new one"
    arch = Architecture(
        vocab_size=TOKENIZER.vocab_size,
        width=config.width,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads or config.heads,
        head_dim=config.head_dim or config.width // config.heads,
        ffn=config.ffn,
    )
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    return Transformer(arch), init(declare(arch), jax.random.key(0), TRAIN_RULES, mesh)


def log_probs(model: Transformer, params: Any, prompt: jax.Array) -> jax.Array:
    """[P, T] prompts -> [P, V] float32, the log-probs of the answer's token."""
    positions = jnp.broadcast_to(jnp.arange(prompt.shape[1])[None], prompt.shape)
    hidden = model.hidden(params, prompt, positions, jnp.ones_like(prompt))[:, -1]
    return jax.nn.log_softmax(jnp.einsum("PD,VD->PV", hidden, model.head(params)))


@functools.partial(jax.jit, static_argnums=0)
def step(
    model: Transformer, params: Any, prompt: jax.Array, right: jax.Array, key: jax.Array
) -> tuple[Any, jax.Array, dict[str, Any]]:
    """Samples G answers to each prompt and makes one step; also the mean reward."""
    old = log_probs(model, params, prompt)
    answer = jax.random.categorical(key, old, axis=-1, shape=(G, P)).T  # G, P -> P, G
    adv = group_center(reward := (answer == right[:, None]).astype(jnp.float32))

    def objective(new: Any) -> jax.Array:
        logp, old_logp = (
            jnp.take_along_axis(x, answer, axis=1) for x in (log_probs(model, new, prompt), old)
        )
        # A range that clips nothing: TRPO keeps its steps small by the bound on the KL.
        bounds = {"clip_low": 1.0, "clip_high": jnp.inf}
        loss, _ = ppo_clip(logp, old_logp, adv, jnp.ones_like(answer, bool), **bounds)
        return -jnp.mean(loss)

    def kl(new: Any) -> jax.Array:
        return jnp.mean(jnp.sum(jnp.exp(old) * (old - log_probs(model, new, prompt)), axis=1))

    params, metrics = trpo_step(objective, kl, params, max_kl=MAX_KL, damping=0.01)
    return params, jnp.mean(reward), metrics


def train(steps: int = 40) -> list[tuple[float, float]]:
    """The mean reward and the KL of each step."""
    model, params = new_model()
    prompt = jnp.array([TOKENIZER.encode(f"{a}+{b}=") for a, b in SUMS])
    right = jnp.array([TOKENIZER.encode(str(a + b))[0] for a, b in SUMS])
    found = []
    for i, key in enumerate(jax.random.split(jax.random.key(1), steps)):
        params, reward, metrics = step(model, params, prompt, right, key)
        found.append((float(reward), float(metrics["trpo/kl"].sum)))
        print(f"step {i:2}  reward {found[-1][0]:.3f}  KL {found[-1][1]:.4f}")
    return found


if __name__ == "__main__":
    train()

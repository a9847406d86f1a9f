"""Tunix's GRPOLearner in a process of its own; `peers` says what goes in and out.

The model is Tunix's own Llama 3 class with the weights of the folder; its own sampler is used.
"""

import importlib.metadata
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from peer import STEPS, Turns, serve_trainer, vowels


def rewards(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    """Those of the completions."""
    return [vowels(text) for text in completions]


def load(job: dict, hf: dict) -> tuple[Any, Any]:
    """The model of a config.json, and its mesh."""
    import jax
    import jax.numpy as jnp
    from tunix.models.llama3 import model, params

    config = model.ModelConfig(
        num_layers=hf["num_hidden_layers"],
        vocab_size=hf["vocab_size"],
        embed_dim=hf["hidden_size"],
        hidden_dim=hf["intermediate_size"],
        num_heads=hf["num_attention_heads"],
        head_dim=hf["head_dim"],
        num_kv_heads=hf["num_key_value_heads"],
        rope_theta=hf["rope_theta"],
        norm_eps=hf["rms_norm_eps"],
        weight_tying=True,
        remat_config=model.RematConfig.NONE,
    )
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((1, 1), ("fsdp", "tp"), devices=jax.devices()[:1], axis_types=auto)
    dtype = getattr(jnp, job["dtype"])
    with mesh:
        return params.create_model_from_safe_tensors(job["model"], config, mesh, dtype=dtype), mesh


def prepare(job: dict) -> tuple[dict[str, str], Callable[[Turns], None]]:
    """The learner."""
    import jax
    import numpy as np
    import optax
    from flax import nnx
    from transformers import AutoTokenizer
    from tunix.rl import rl_cluster
    from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
    from tunix.rl.rollout.base_rollout import RolloutConfig

    hf = json.loads((Path(job["model"]) / "config.json").read_text())
    actor, mesh = load(job, hf)
    prompts = len(job["prompts"])
    padded = -(-job["longest_prompt"] // 128) * 128  # Tunix asks for a power of two
    role = rl_cluster.Role
    cluster = rl_cluster.RLCluster(
        actor=actor,
        reference=None,
        tokenizer=AutoTokenizer.from_pretrained(job["model"]),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys((role.ACTOR, role.REFERENCE, role.ROLLOUT), mesh),
            rollout_engine="vanilla",
            offload_to_cpu=False,
            training_config=rl_cluster.RLTrainingConfig(
                actor_optimizer=optax.adamw(1e-6, weight_decay=0.0),
                eval_every_n_steps=STEPS,
                max_steps=STEPS,
                mini_batch_size=prompts,
                train_micro_batch_size=max(1, job["micro"]["tunix"] // job["samples"]),
                rollout_micro_batch_size=prompts,
                compute_logps_micro_batch_size=prompts,
            ),
            rollout_config=RolloutConfig(
                max_tokens_to_generate=job["new"],
                max_prompt_length=padded,
                kv_cache_size=padded + job["new"],
                temperature=1.0,
                top_p=1.0,
                top_k=None,
                eos_tokens=[hf["vocab_size"] - 1],  # a token that text never has
            ),
        ),
    )

    def train(turns: Turns) -> None:
        generate, sampled = cluster.generate, [0]

        def in_turn(*args: Any, **kwargs: Any) -> Any:
            jax.block_until_ready(jax.tree.leaves(nnx.state(cluster.actor_trainer.model)))
            turns.begin(sampled[0])
            out = generate(*args, **kwargs)
            sampled[0] = sum(map(len, out.tokens))
            return out

        cluster.generate = in_turn
        learner = GRPOLearner(
            rl_cluster=cluster,
            algo_config=GRPOConfig(
                num_generations=job["samples"], num_iterations=1, beta=0.0, epsilon=0.2
            ),
            reward_fns=rewards,
        )

        def batches() -> Iterator[dict[str, Any]]:
            while True:
                yield {"prompts": np.array(job["prompts"])}

        with mesh:
            learner.train(batches())

    names = ("google-tunix", "jax")
    return {name: importlib.metadata.version(name) for name in names}, train


if __name__ == "__main__":
    serve_trainer(prepare)

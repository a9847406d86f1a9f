"""Losses inside `jax.shard_map`: each device has its rows, and the sum crosses the devices once.

    python examples/shard_map_loss.py

runs on 8 devices, which on a CPU are made here, and prints that loss and gradient are those of one
device. It works because a loss does not average: it returns values per token, and the weights of
the mean come from the lengths of all rollouts, before they are dealt out to devices.

B rows, T tokens of a row, N tokens of a device, D width, V vocabulary.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from jaxrl_vr.losses import group_norm, gspo, k3, ppo_clip, sequence_mean, token_logprobs

B, T, D, V = 32, 16, 8, 50
DEVICES = 8
ROWS = PartitionSpec("data")


def data(seed: int = 0) -> tuple[jax.Array, dict[str, jax.Array]]:
    """A head [V, D] to train, and a batch whose arrays have B rows."""
    keys = iter(jax.random.split(jax.random.key(seed), 8))
    hidden = jax.random.normal(next(keys), (B, T, D))
    token = jax.random.randint(next(keys), (B, T), 0, V)
    length = jax.random.randint(next(keys), (B,), 1, T + 1)
    reward = jax.random.normal(next(keys), (B // 4, 4))
    logp = jnp.full((B, T), -jnp.log(V))
    batch = {
        "hidden": hidden,
        "token": token,
        "mask": jnp.arange(T)[None] < length[:, None],
        "old_logp": logp + 0.1 * jax.random.normal(next(keys), (B, T)),
        "ref_logp": logp + 0.1 * jax.random.normal(next(keys), (B, T)),
        "adv": group_norm(reward).reshape(-1),  # P, G -> B
        "weight": sequence_mean(length),  # of the whole batch
    }
    return 0.1 * jax.random.normal(next(keys), (V, D)), batch


def summed(loss: Any, head: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """The weighted sum over some rows of a policy loss with a KL penalty."""
    num_tokens = batch["token"].size
    logp, _ = token_logprobs(
        batch["hidden"].reshape(num_tokens, D),  # B, T -> N
        head,
        batch["token"].reshape(num_tokens),
        jnp.ones(num_tokens),
        batch["mask"].reshape(num_tokens),
    )
    logp, mask = logp.reshape(batch["token"].shape), batch["mask"]
    per_token, _ = loss(logp, batch["old_logp"], batch["adv"], mask)
    per_token = per_token + 0.01 * k3(logp, batch["ref_logp"], mask)
    return jnp.sum(batch["weight"][:, None] * per_token)


def sharded(loss: Any, mesh: Mesh) -> Any:
    """The same function of all rows, each device summing its own."""

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(PartitionSpec(), ROWS), out_specs=PartitionSpec()
    )
    def function(head: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
        return jax.lax.psum(summed(loss, head, batch), "data")

    return function


def compare(loss: Any) -> tuple[Any, Any]:
    """Loss and gradient with respect to the head: on one device, and over the mesh."""
    head, batch = data()
    mesh = jax.make_mesh((DEVICES,), ("data",), (jax.sharding.AxisType.Auto,))
    plain = jax.jit(jax.value_and_grad(functools.partial(summed, loss)))(head, batch)
    return plain, jax.jit(jax.value_and_grad(sharded(loss, mesh)))(head, batch)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", DEVICES)
    for loss in (ppo_clip, gspo):
        (value, grad), (value_sharded, grad_sharded) = compare(loss)
        gap = float(jnp.linalg.norm(grad - grad_sharded) / jnp.linalg.norm(grad))
        print(f"{loss.__name__}: loss {value:.6f} on one device, {value_sharded:.6f} on {DEVICES}")
        print(f"{loss.__name__}: gradients differ by {gap:.1e} of their norm")

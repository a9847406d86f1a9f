"""The losses of RLVR as pure functions of arrays; jax is all they need.

Arrays in, arrays out; hyper-parameters are keyword-only; every function works under jit, grad,
vmap and scan and in any sharding. Policy losses return per-token values and metrics, and the
caller aggregates with the weights.
"""

from jaxrl_vr.losses import advantages, kl, logprobs, policy, supervised, weights
from jaxrl_vr.losses.advantages import group_center, group_norm, has_contrast
from jaxrl_vr.losses.kl import k3
from jaxrl_vr.losses.logprobs import scaled_logits, token_logprob, token_logprobs
from jaxrl_vr.losses.policy import ppo_clip, reinforce
from jaxrl_vr.losses.supervised import cross_entropy
from jaxrl_vr.losses.weights import constant_length, sequence_mean, token_mean

__all__ = [
    "advantages",
    "constant_length",
    "cross_entropy",
    "group_center",
    "group_norm",
    "has_contrast",
    "k3",
    "kl",
    "logprobs",
    "policy",
    "ppo_clip",
    "reinforce",
    "scaled_logits",
    "sequence_mean",
    "supervised",
    "token_logprob",
    "token_logprobs",
    "token_mean",
    "weights",
]

"""Memory and time of a run by formulas alone: for chips nobody compiles for, and to rank meshes.

Parameters are float32; they and moments are split over `fsdp` and `tensor`, the sampler's copy over
`tensor`. Exchanges and reads of the weights are added to the products, as if nothing ran beside
them. What is at work in an update follows what TPUs' compiler allots (benchmarks/RESULTS.md, "An
update on TPU v5e"): "activations" are all of it that is no gradient.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import get_args

from jaxrl_vr.metrics.chips import Chip
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.flops import causal_pairs, forward_flops, num_params, update_flops
from jaxrl_vr.models.params import declare
from jaxrl_vr.models.transformer import Remat
from jaxrl_vr.rollout.batch import Shape
from jaxrl_vr.train.limits import Rollouts

# Of a chip's peak, in products of the size of training.
_EFFICIENCY = 0.6
_LOGITS_CHUNK = 512
# Numbers of a block at work in its backward pass: of its forward pass made again, and gradients.
_AT_WORK = 3


@dataclasses.dataclass(frozen=True)
class Choice:
    """How a run is laid over devices.

    Attributes:
      data, fsdp, context, tensor: sizes of the mesh.
      rows: of a micro-batch, over all devices.
      remat: "none", "minimal" or "block".
    """

    data: int
    fsdp: int
    context: int
    tensor: int
    rows: int
    remat: Remat

    @property
    def devices(self) -> int:
        """Of the mesh."""
        return self.data * self.fsdp * self.context * self.tensor

    @property
    def passes(self) -> int:
        """Over the weights in each micro-batch: forward, backward, and forward again."""
        return 3 if self.remat == "block" else 2

    @property
    def mesh(self) -> dict[str, int]:
        """Its axes that split something."""
        sizes = {n: getattr(self, n) for n in ("data", "fsdp", "context", "tensor")}
        return {name: size for name, size in sizes.items() if size > 1}


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What a choice takes, by formulas.

    Attributes:
      memory: bytes of a device by what they hold.
      update_s: of a step's updates.
      rollout_s: of a step's sampling, every completion at its limit.
      bound: what takes most of the update: compute, memory or network.
    """

    memory: Mapping[str, float]
    update_s: float
    rollout_s: float
    bound: str

    @property
    def total_bytes(self) -> float:
        """Of a device, at the worst moment."""
        m = self.memory
        of_learner = "parameters", "optimizer", "reference", "teacher", "critic", "average"
        state = sum(m[name] for name in of_learner)
        return state + max(m["gradients"] + m["activations"], m["sampler_weights"] + m["kv_cache"])

    @property
    def step_s(self) -> float:
        """Of a whole step."""
        return self.update_s + self.rollout_s


def estimate(
    arch: Architecture,
    rollouts: Rollouts,
    choice: Choice,
    chip: Chip,
    *,
    row_length: int,
    slots: int,
    itemsize: int,
    moment_bytes: int,
    has_reference: bool = False,
    teacher: int = 0,
    critic_bytes: int = 0,
    scores: int = 0,
    has_average: bool = False,
) -> Estimate:
    """Memory and time of a choice.

    Args:
      arch: of the model.
      rollouts: of a step, one update on all of them.
      choice: of mesh, micro-batch and remat.
      chip: of the devices.
      row_length: tokens of a packed row.
      slots: of the sampler, over all devices.
      itemsize: bytes of an activation.
      moment_bytes: of the optimizer's state in the devices' memory, all of it.
      has_reference: whether one more copy of the weights is kept.
      teacher: parameters of one.
      critic_bytes: of a critic of the model's size that learns beside it, over all devices.
      scores: passes of the model over a step's tokens before the updates.
      has_average: whether one more copy of the weights is kept, their moving average.
    """
    N = num_params(declare(arch))
    split = choice.fsdp * choice.tensor
    rows_a_device = choice.rows / (choice.data * choice.fsdp)
    tokens = rows_a_device * row_length / choice.context
    num_micro = rollouts.num_micro(Shape(row_length, choice.rows))
    stream = tokens * arch.width * itemsize
    of_layer = tokens * itemsize * _layer_width(arch, choice.tensor)
    kept = (
        arch.layers
        * {
            "none": tokens * itemsize * _taken_width(arch, choice.tensor),
            "minimal": tokens * itemsize * _kept_width(arch, choice.tensor),
            "block": stream,
        }[choice.remat]
    )
    gathered = 2 * itemsize * N / arch.layers / choice.tensor
    logits = 3 * 4 * min(tokens, _LOGITS_CHUNK) * arch.vocab_size / choice.tensor
    # Embedding and head are whole on each device of `fsdp`, and so is each one's float32 gradient.
    tables = itemsize * (1 if arch.tied else 2) + 2 * 4 * (choice.fsdp > 1)
    head = tables * arch.vocab_size * arch.width / choice.tensor
    # Beside the sum of the gradients, those of a micro-batch and what the optimizer makes of them.
    copies = (1 + (num_micro > 1)) * 4 * N / split
    of_token = 2 * arch.layers * arch.kv_heads * arch.head_dim * itemsize
    groups = choice.data * choice.fsdp * choice.context
    cached = slots * rollouts.new_tokens + -(-slots // rollouts.samples) * rollouts.prompt_tokens
    cache = cached * of_token / groups / min(choice.tensor, arch.kv_heads)
    view = itemsize * N / choice.tensor
    memory = {
        "parameters": 4 * N / split,
        "optimizer": moment_bytes / split,
        "reference": 4 * N / split * has_reference,
        "teacher": 4 * teacher / split,
        "critic": critic_bytes / split,
        "average": 4 * N / split * has_average,
        "gradients": 4 * N / split,
        "activations": kept + _AT_WORK * of_layer + gathered + logits + head + copies,
        "sampler_weights": view,
        "kv_cache": cache,
    }
    rows = num_micro * choice.rows
    work = N, arch, rows * row_length, rows * causal_pairs(row_length)
    flops = update_flops(*work)
    if choice.remat == "block":
        flops += forward_flops(*work)
    flops *= 1 + (critic_bytes > 0)
    flops += scores * forward_flops(*work) + 2 * teacher * rows * row_length
    compute = flops / choice.devices / chip.peak_flops / _EFFICIENCY
    network = num_micro * _exchange_s(arch, N, choice, chip, tokens, itemsize)
    # Each micro-batch reads the weights in every pass, and its gradient is added to the sum.
    read = (
        num_micro
        * (choice.passes * itemsize * N / choice.tensor + 3 * 4 * N / split)
        / chip.bandwidth
    )
    waves = math.ceil(rollouts.count / slots)
    products = 2 * N * slots / groups / choice.tensor / chip.peak_flops
    step = max((view + cache / 2) / chip.bandwidth, products)
    step += (
        4
        * arch.layers
        * slots
        / groups
        * arch.width
        * itemsize
        / chip.axis_bandwidth
        * (choice.tensor > 1)
    )
    prefill = 2 * N * rollouts.prompts * rollouts.prompt_tokens / choice.devices
    rollout = waves * rollouts.new_tokens * step + prefill / chip.peak_flops / _EFFICIENCY
    return Estimate(
        memory,
        compute + read + network,
        rollout,
        max((compute, "compute"), (read, "memory"), (network, "network"))[1],
    )


def choices(num_devices: int, rollouts: Rollouts, row_length: int) -> Iterator[Choice]:
    """All that make up the devices; `train.check` says which of them a run can have."""
    sizes = [n for n in range(1, num_devices + 1) if num_devices % n == 0]
    for tensor, context, fsdp in itertools.product(sizes, sizes, sizes):
        if num_devices % (tensor * context * fsdp):
            continue
        data = num_devices // (tensor * context * fsdp)
        rows = data * fsdp
        while rows <= rollouts.num_rows(row_length):
            for remat in get_args(Remat):
                yield Choice(data, fsdp, context, tensor, rows, remat)
            rows *= 2


def _layer_width(arch: Architecture, tensor: int) -> float:
    """Numbers a token that the backward pass of a block wants of its forward pass."""
    heads = arch.heads * arch.head_dim
    kv = 2 * arch.kv_heads * arch.head_dim
    return 4 * arch.width + (3 * heads + 2 * kv + 4 * arch.ffn) / tensor


def _taken_width(arch: Architecture, tensor: int) -> float:
    """Of these, what norms, products and attention take; they make the rest again."""
    heads = arch.heads * arch.head_dim
    kv = 2 * arch.kv_heads * arch.head_dim
    return 4 * arch.width + (3 * heads + kv + 2 * arch.ffn) / tensor


def _kept_width(arch: Architecture, tensor: int) -> float:
    """Of a block's forward pass: its input, the products and attention."""
    heads = arch.heads * arch.head_dim
    kv = 2 * arch.kv_heads * arch.head_dim
    return 3 * arch.width + (2 * heads + kv + 2 * arch.ffn) / tensor


def _exchange_s(
    arch: Architecture, N: int, choice: Choice, chip: Chip, tokens: float, itemsize: int
) -> float:
    """Of one micro-batch: weights gathered and gradients scattered, activations of `tensor`."""
    passes, moved = choice.passes, 0.0
    if choice.fsdp > 1:
        share = (choice.fsdp - 1) / choice.fsdp
        moved += share * N / choice.tensor * (passes * itemsize + 4)
    if choice.data > 1:
        moved += 2 * 4 * N / choice.tensor / choice.fsdp
    if choice.tensor > 1:
        share = (choice.tensor - 1) / choice.tensor
        moved += share * 2 * 2 * passes * arch.layers * tokens * arch.width * itemsize
    if choice.context > 1:
        kv = 2 * arch.kv_heads * arch.head_dim * itemsize
        moved += passes * 2 * arch.layers * tokens * choice.context * kv / choice.tensor
    return moved / chip.axis_bandwidth

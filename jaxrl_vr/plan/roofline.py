"""Memory and time of a run by formulas alone: for chips nobody compiles for, and to rank meshes.

Parameters are float32; they and moments are split over `fsdp` and `tensor`, the sampler's copy over
`tensor`. What is at work in an update follows what TPUs' compiler allots (benchmarks/RESULTS.md,
"An update on TPU v5e"): "activations" are all of it that is no gradient.

A device does one thing at a time, and fetches beside it. Weights are known before they are needed,
so reading them from memory, and gathering them from other devices, goes on beside the products of
the layer before; only the slower of the two counts. What one layer gives to the next is not: the
sums of activations over `tensor`, and the keys and values of `context`, are waited for and added.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import get_args

from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.flops import attention_flops, causal_pairs, num_params
from jaxrl_vr.models.params import declare
from jaxrl_vr.models.transformer import Remat
from jaxrl_vr.plan.network import Network
from jaxrl_vr.rollout.batch import Shape
from jaxrl_vr.sharding import MESH_AXES
from jaxrl_vr.train.limits import Rollouts

# Of a chip's peak, in products of the size of training.
_EFFICIENCY = 0.6
_LOGITS_CHUNK = 512
# A draw writes its float32 logits, reads their peak, and with it the sums of blocks.
_LOGITS_PASSES = 3
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

    def along(self, axis: str) -> range:
        """The first devices of an axis, by the numbers of a mesh."""
        inner = MESH_AXES[MESH_AXES.index(axis) + 1 :]
        apart = math.prod(self.mesh.get(name, 1) for name in inner)
        return range(0, self.mesh.get(axis, 1) * apart, apart)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of all `MESH_AXES`."""
        return tuple(self.mesh.get(name, 1) for name in MESH_AXES)

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
    def moments(self) -> dict[str, float]:
        """Bytes of a device while it updates and while it samples."""
        m = self.memory
        of_learner = "parameters", "optimizer", "reference", "teacher", "critic", "average"
        state = sum(m[name] for name in of_learner)
        return {
            "while_updating": state + m["gradients"] + m["activations"],
            "while_sampling": state + m["sampler_weights"] + m["kv_cache"],
        }

    @property
    def total_bytes(self) -> float:
        """Of a device, at the worst moment."""
        return max(self.moments.values())

    @property
    def step_s(self) -> float:
        """Of a whole step."""
        return self.update_s + self.rollout_s


def estimate(
    arch: Architecture,
    rollouts: Rollouts,
    choice: Choice,
    network: Network,
    *,
    row_length: int,
    slots: int,
    itemsize: int,
    moment_bytes: int,
    has_reference: bool = False,
    teacher: int = 0,
    critic_bytes: int = 0,
    scores: int = 0,
    epochs: int = 1,
    has_average: bool = False,
    cache_tokens: int = 0,
) -> Estimate:
    """Memory and time of a choice.

    Args:
      arch: of the model.
      rollouts: of a step, which updates go through once in every epoch.
      choice: of mesh, micro-batch and remat.
      network: of the devices.
      row_length: tokens of a packed row.
      slots: of the sampler, over all devices.
      itemsize: bytes of an activation.
      moment_bytes: of the optimizer's state in the devices' memory, all of it.
      has_reference: whether one more copy of the weights is kept.
      teacher: parameters of one.
      critic_bytes: of a critic of the model's size that learns beside it, over all devices.
      scores: passes of the model over a step's tokens before the updates.
      epochs: how often the updates of a step go through its rollouts.
      has_average: whether one more copy of the weights is kept, their moving average.
      cache_tokens: that the sampler's cache has room for, over all devices; 0: all of its slots.
    """
    chip, N = network.chip, num_params(declare(arch))
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
    cached = sum(_cached(rollouts, slots))
    cache = (cache_tokens or cached) * of_token / groups / _kv_split(arch, choice.tensor)
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
    passes = Passes.of(choice.remat, epochs * (1 + (critic_bytes > 0)), scores)
    side = chip.matrix_side
    weights = padded_weights(arch, choice.tensor, side)
    pairs = rows * causal_pairs(row_length)
    attention = attention_flops(arch, pairs) * filled(arch.head_dim, side) / arch.head_dim
    of_pass = 2 * weights * rows * row_length * choice.tensor + attention
    flops = passes.products * of_pass + 2 * teacher * rows * row_length
    products = flops / choice.devices / chip.peak_flops / _EFFICIENCY
    # Each micro-batch reads the weights in every pass, and its gradient is added to the sum.
    read = num_micro * passes.total * itemsize * N / choice.tensor / chip.bandwidth
    summed = num_micro * passes.backward * 3 * 4 * N / split / chip.bandwidth
    waited = num_micro * activations_s(arch, choice, network, passes, tokens, itemsize)
    beside = num_micro * _weights_s(N, choice, network, passes, itemsize)
    update = max(max(products, read) + summed + waited, beside)
    waves = math.ceil(rollouts.count / slots)
    of_group = slots / groups
    # Weights are read beside the products; attention and the draw wait for what they read.
    step = max(view / chip.bandwidth, 2 * weights * filled(of_group, side) / chip.peak_flops)
    logits = 4 * of_group * arch.vocab_size / choice.tensor
    step += (cache * mean_share(rollouts, slots) + _LOGITS_PASSES * logits) / chip.bandwidth
    step += (2 * arch.layers + 1) * _summed_s(of_group * arch.width * itemsize, choice, network)
    prefill = 2 * N * rollouts.prompts * rollouts.prompt_tokens / choice.devices
    rollout = waves * rollouts.new_tokens * step + prefill / chip.peak_flops / _EFFICIENCY
    parts = (products, "compute"), (read + summed, "memory"), (max(waited, beside), "network")
    return Estimate(memory, update, rollout, max(parts)[1])


def _cached(rollouts: Rollouts, slots: int) -> tuple[int, int]:
    """Tokens of full slots: their own at their limits, and their prompts."""
    prompts = -(-slots // rollouts.samples)
    return slots * rollouts.new_tokens, prompts * rollouts.prompt_tokens


def mean_share(rollouts: Rollouts, slots: int) -> float:
    """Of the keys and values of full slots, those that a step reads on average while completions
    grow to their limits: all of the prompts, half of the rest.

    >>> mean_share(Rollouts(prompts=2, samples=4, prompt_tokens=8, new_tokens=12), slots=8)
    0.5714285714285714
    """
    own, prompts = _cached(rollouts, slots)
    return (own / 2 + prompts) / (own + prompts)


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
    return 4 * arch.width + (3 * heads + 4 * arch.ffn) / tensor + 2 * kv / _kv_split(arch, tensor)


def _taken_width(arch: Architecture, tensor: int) -> float:
    """Of these, what norms, products and attention take; they make the rest again."""
    heads = arch.heads * arch.head_dim
    kv = 2 * arch.kv_heads * arch.head_dim
    return 4 * arch.width + (3 * heads + 2 * arch.ffn) / tensor + kv / _kv_split(arch, tensor)


def _kept_width(arch: Architecture, tensor: int) -> float:
    """Of a block's forward pass: its input, the products and attention."""
    heads = arch.heads * arch.head_dim
    kv = 2 * arch.kv_heads * arch.head_dim
    return 3 * arch.width + (2 * heads + 2 * arch.ffn) / tensor + kv / _kv_split(arch, tensor)


@dataclasses.dataclass(frozen=True)
class Passes:
    """How often an update goes through the model.

    Attributes:
      forward: with what the layers keep; a score is one.
      backward: of which each has twice the products of a forward pass.
      again: of blocks that are not kept.
    """

    forward: int
    backward: int
    again: int

    @classmethod
    def of(cls, remat: Remat, updates: int, scores: int) -> Passes:
        """Those of so many times that models learn, and so many scores before they do."""
        return cls(updates + scores, updates, updates * (remat == "block"))

    @property
    def total(self) -> int:
        """All, each over the weights of a model."""
        return self.forward + self.backward + self.again

    @property
    def products(self) -> int:
        """In forward passes."""
        return self.forward + 2 * self.backward + self.again


def filled(size: float, side: int) -> int:
    """A dimension of a product as the matrix unit has it: in whole units."""
    return math.ceil(size / side) * side


def padded_weights(arch: Architecture, tensor: int, side: int) -> int:
    """Numbers that a device multiplies a token with in a pass, of all layers and the head.

    Of each product its own part, both dimensions filled up to the matrix unit's. Key and value
    heads that `tensor` does not divide are whole on every device.

    Args:
      arch: of the model.
      tensor: devices that split heads, ffn and vocabulary.
      side: of the matrix unit.
    """
    of_kv = arch.kv_heads // _kv_split(arch, tensor)
    heads, kv = (filled(n * arch.head_dim, side) for n in (arch.heads // tensor, of_kv))
    ffn, vocab = filled(arch.ffn / tensor, side), filled(arch.vocab_size / tensor, side)
    # q and o, k and v; gate, up and down; the head.
    return filled(arch.width, side) * (arch.layers * (2 * heads + 2 * kv + 3 * ffn) + vocab)


def _kv_split(arch: Architecture, tensor: int) -> int:
    return 1 if arch.kv_heads % tensor else tensor


def _summed_s(size: float, choice: Choice, network: Network) -> float:
    """Of a sum over `tensor` of arrays of so many bytes."""
    return 2 * network.gather_s(size, choice.along("tensor"))


def activations_s(
    arch: Architecture,
    choice: Choice,
    network: Network,
    passes: Passes,
    tokens: float,
    itemsize: int,
) -> float:
    """Of one micro-batch: what products wait for.

    Attention and feed-forward each end in a sum over `tensor` forward, and begin with one backward;
    so does what is looked up in a table that is split, and the head. Of a block that is made again
    only attention's: nobody needs its last product again. Over `context` every pass gathers the
    keys and values of a layer, or scatters their gradients.
    """
    L = arch.layers
    sums = (2 * L + 1) * (passes.forward + passes.backward) + L * passes.again
    kv = 2 * arch.kv_heads / _kv_split(arch, choice.tensor) * arch.head_dim * itemsize
    return sums * _summed_s(tokens * arch.width * itemsize, choice, network) + (
        L * passes.total * network.gather_s(tokens * choice.context * kv, choice.along("context"))
    )


def _weights_s(N: int, choice: Choice, network: Network, passes: Passes, itemsize: int) -> float:
    """Of one micro-batch: weights gathered in every pass, and gradients scattered and summed."""
    fsdp = choice.along("fsdp")
    moved = passes.total * network.gather_s(itemsize * N / choice.tensor, fsdp)
    of_data = 4 * N / choice.tensor / choice.fsdp
    summed = network.gather_s(4 * N / choice.tensor, fsdp)
    summed += 2 * network.gather_s(of_data, choice.along("data"))
    return moved + passes.backward * summed

"""What formulas say of a layout: products as a matrix unit has them, what is waited for, and which
layout is the fastest."""

import dataclasses
import re

import jax
import pytest
from runs import ROOT

from jaxrl_vr.config import load
from jaxrl_vr.metrics.chips import CHIPS
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.flops import num_params
from jaxrl_vr.models.params import declare
from jaxrl_vr.plan import plan as plan_module
from jaxrl_vr.plan.known import architecture
from jaxrl_vr.plan.network import Network
from jaxrl_vr.plan.plan import rl_stage
from jaxrl_vr.plan.roofline import Choice, Passes, activations_s, estimate, padded_weights
from jaxrl_vr.plan.search import ranked, roofline_plan
from jaxrl_vr.plan.topology import network_of
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.limits import Rollouts

TPU = ROOT / "configs" / "tpu"
SMALL = Architecture(vocab_size=10, width=8, layers=3, heads=2, kv_heads=1, head_dim=4, ffn=16)
QWEN = "qwen2.5_1.5b_v5e-2x4_grpo.toml"
SPLIT_OVER_ALL = 'model.remat="block"', "mesh.tensor=1"


def shipped(name):
    config = load(RunConfig, [TPU / name], [])
    return config, rl_stage(config, None)


def test_a_matrix_unit_is_filled_up():
    """Of Qwen2.5-1.5B (width 1536, 12 heads and 2 kv heads of 128, ffn 8960, 151,936 rows)."""
    arch = architecture(shipped(QWEN)[0])
    # 8960 = 70 x 128 and 151,936 = 1187 x 128: nothing to fill.
    whole = 28 * (2 * 1536 + 2 * 256 + 3 * 8960) + 151_936
    assert padded_weights(arch, 1, 128) == 1536 * whole
    # A quarter of the ffn is 17.5 units, of the table 296.75; both kv heads are on every device.
    quarter = 28 * (2 * 384 + 2 * 256 + 3 * 18 * 128) + 297 * 128
    assert padded_weights(arch, 4, 128) == 1536 * quarter
    # A head of 128 is half a unit of 256, and 384 one and a half.
    wider = 28 * (2 * 512 + 2 * 256 + 3 * 9 * 256) + 149 * 256
    assert padded_weights(arch, 4, 256) == 1536 * wider


def test_a_head_smaller_than_the_unit_attends_as_long_as_one_that_fills_it():
    """A row of 65,536 tokens with heads of 4, by hand: three passes of the weights, and of scores
    and values, 4 FLOPs for each of 3 layers, 2 heads, 128 numbers and each pair."""
    T = 65_536
    chip = dataclasses.replace(CHIPS["v5e"], bandwidth=1e30)
    found = estimate(
        *(SMALL, Rollouts(1, 1, T - 20, 20), Choice(1, 1, 1, 1, 1, "none"), Network.of(chip, 1)),
        **dict(row_length=T, slots=1, itemsize=2, moment_bytes=0),
    )
    weights = 128 * (3 * (2 * 128 + 2 * 128 + 3 * 128) + 128)
    flops = 3 * (2 * weights * T + 4 * 3 * 2 * 128 * T * (T + 1) / 2)
    assert found.update_s == pytest.approx(flops / 197e12 / 0.6)


@pytest.mark.parametrize("limit", ["peak_flops", "bandwidth", "axis_bandwidth"])
def test_a_critic_doubles_an_update_whatever_bounds_it(limit):
    # Products, reads and exchanges, of its weights as of the policy's.
    rates = dict.fromkeys(("peak_flops", "bandwidth", "axis_bandwidth", "dcn_bandwidth"), 1e30)
    chip = dataclasses.replace(CHIPS["v5e"], **{**rates, limit: 1e9})
    laid_out = SMALL, Rollouts(1, 1, 44, 20), Choice(1, 4, 1, 2, 4, "block"), Network.of(chip, 8)
    sizes = dict(row_length=64, slots=1, itemsize=2, moment_bytes=0)
    alone, beside = (estimate(*laid_out, **sizes, critic_bytes=n).update_s for n in (0, 1))
    assert alone > 0 and beside == pytest.approx(2 * alone)


def test_each_epoch_takes_as_long():
    laid_out = (
        SMALL,
        Rollouts(1, 1, 44, 20),
        Choice(1, 4, 1, 2, 4, "block"),
        Network.of(CHIPS["v5e"], 8),
    )
    sizes = dict(row_length=64, slots=1, itemsize=2, moment_bytes=0)
    one, four = (estimate(*laid_out, **sizes, epochs=n) for n in (1, 4))
    assert one.update_s > 0 and four.update_s == pytest.approx(4 * one.update_s)
    assert (four.memory, four.rollout_s) == (one.memory, one.rollout_s)


def test_sums_over_tensor_are_waited_for_and_gathers_over_fsdp_are_not():
    """By hand: 64 tokens of width 8 in bfloat16 are 1024 bytes. One micro-batch of 3 layers with
    remat block has 2 x 3 + 1 sums forward, as many backward and 3 again; each moves half of them in
    and half out, over one link of 50 GB/s."""
    network = Network.of(CHIPS["v5e"], 2)
    split = Choice(1, 1, 1, 2, 2, "block")
    passes = Passes.of("block", updates=1, scores=0)
    seconds = activations_s(SMALL, split, network, passes, 64, 2)
    assert seconds == pytest.approx((7 + 7 + 3) * 1024 / 50e9)
    over_fsdp = Choice(1, 2, 1, 1, 2, "block")
    assert activations_s(SMALL, over_fsdp, network, passes, 64, 2) == 0
    # A score goes forward once more, a critic learns as the policy does.
    more = Passes.of("block", updates=2, scores=1)
    assert (more.forward, more.backward, more.again, more.products) == (3, 2, 2, 9)
    # On a chip whose network is as slow as this nothing else counts.
    chip = dataclasses.replace(CHIPS["v5e"], bandwidth=1e30, peak_flops=1e12, axis_bandwidth=1e6)

    def update(choice):
        return estimate(
            *(SMALL, Rollouts(1, 2, 12, 20), choice, Network.of(chip, 2)),
            **dict(row_length=32, slots=2, itemsize=2, moment_bytes=0),
        )

    slow = update(split)
    assert slow.update_s == pytest.approx(17 * 1024 / 0.5e6, rel=0.01) and slow.bound == "network"
    N = num_params(declare(SMALL))
    # Three gathers of bfloat16 and a scatter of float32, of half of them each.
    assert update(over_fsdp).update_s == pytest.approx((3 * 2 + 4) * N / 2 / 0.5e6)


@pytest.mark.parametrize(
    "name, choice, axis",
    [
        ("qwen2.5_7b_v5e-4x4_grpo", Choice(1, 4, 1, 4, 4, "block"), "tensor"),
        ("qwen2.5_32b_v6e-16x16_grpo", Choice(2, 16, 1, 8, 32, "none"), "tensor"),
        ("qwen3_8b-128k_v5p-4x4x4_grpo", Choice(1, 2, 4, 8, 2, "none"), "(?:tensor|context)"),
    ],
)
def test_what_is_waited_for_is_what_the_compiler_exchanges(name, choice, axis):
    """In the plan beside the config, over the same axes."""
    config, stage = shipped(f"{name}.toml")
    text = (TPU / f"{name}.plan.txt").read_text()
    times = re.findall(rf"update .* over {axis} .* ([\d.]+) (m?)s\n", text)
    compiled = sum(float(time) / (1000 if milli else 1) for time, milli in times)
    arch, length = architecture(config), stage.row_length(config.model.max_length)
    tokens = choice.rows * length / choice.data / choice.fsdp / choice.context
    topology = re.search(r" on (\S+) ", text)[1]
    passes = Passes.of(choice.remat, updates=1, scores=0)
    network = network_of(topology, choice.sizes)
    rows = Rollouts.of(stage, config.model.max_length).num_rows(length)
    seconds = rows // choice.rows * activations_s(arch, choice, network, passes, tokens, 2)
    assert seconds == pytest.approx(compiled, rel=0.02) and compiled > 0.9


@pytest.mark.parametrize("limit", ["bandwidth", "peak_flops"])
def test_a_decode_step_reads_weights_keys_and_logits(limit):
    """By hand, two prompts of 8 tokens with four samples of 12 each, all at once on one device."""
    rates = {"bandwidth": 1e30, "peak_flops": 1e30, limit: 1e6}
    chip = dataclasses.replace(CHIPS["v5e"], **rates)
    found = estimate(
        *(SMALL, Rollouts(2, 4, 8, 12), Choice(1, 1, 1, 1, 1, "none"), Network.of(chip, 1)),
        **dict(row_length=32, slots=8, itemsize=2, moment_bytes=0),
    )
    N = num_params(declare(SMALL))
    # A token takes 3 layers x one head of 4 x keys and values x 2 bytes. On average half of a
    # completion is there, and both prompts are.
    cache = (8 * 12 / 2 + 2 * 8) * 3 * 4 * 2 * 2
    # 8 x 10 logits of 4 bytes: written, read for their peak and for their sums.
    logits = 3 * 8 * 10 * 4
    # Products of 8 rows take as long as 128.
    products = 2 * 128 * padded_weights(SMALL, 1, 128)
    prefill = 2 * N * 2 * 8 / 0.6
    by_limit = {"bandwidth": 12 * (2 * N + cache + logits), "peak_flops": 12 * products + prefill}
    assert found.rollout_s == pytest.approx(by_limit[limit] / 1e6)


def test_keys_and_values_that_do_not_divide_are_on_every_device():
    network = Network.of(CHIPS["v5e"], 2)
    memory = [
        estimate(
            *(SMALL, Rollouts(4, 4, 12, 20), Choice(1, 1, 1, tensor, 4, "block"), network),
            **dict(row_length=32, slots=16, itemsize=2, moment_bytes=0),
        ).memory["kv_cache"]
        for tensor in (1, 2)
    ]
    # 16 completions of 20 tokens and 4 prompts of 12, of 3 layers, one head of 4, keys and values.
    assert memory == [(16 * 20 + 4 * 12) * 2 * 3 * 4 * 2] * 2


def test_a_small_model_is_split_over_fsdp_before_tensor():
    """Compiled as well, 8 chips of `fsdp` are the fastest for Qwen2.5-1.5B."""
    config, stage = shipped(QWEN)
    found = ranked(config, stage, "v5e:2x4")
    first = {}
    for choice, one in found:
        first.setdefault(tuple(choice.mesh.items()), one)
    meshes = list(first)
    assert meshes[0] == (("fsdp", 8),)
    assert meshes.index((("fsdp", 4), ("tensor", 2))) < meshes.index((("fsdp", 2), ("tensor", 4)))
    assert first[meshes[0]].bound == "compute"


def updates_over_hosts(choice, chip="h100", num_slices=1):
    """Seconds on devices of which only the network between hosts, or slices, is slow."""
    chip = dataclasses.replace(
        CHIPS[chip], bandwidth=1e30, peak_flops=1e30, axis_bandwidth=1e30, dcn_bandwidth=1e3
    )
    return estimate(
        *(SMALL, Rollouts(16, 1, 12, 20), choice, Network.of(chip, choice.devices, num_slices)),
        **dict(row_length=32, slots=16, itemsize=2, moment_bytes=0),
    ).update_s


def test_axes_that_cross_hosts_take_the_network_between_them():
    N = num_params(declare(SMALL))
    one_host = Choice(1, 8, 1, 1, 16, "none")
    assert updates_over_hosts(one_host) == pytest.approx(0, abs=1e-9)
    # Half of two gathers in bfloat16 and a scatter in float32, over the 8 ports of a host.
    both = Choice(1, 16, 1, 1, 16, "none")
    assert updates_over_hosts(both) == pytest.approx((2 * 2 + 4) * N / 2 / 8e3)
    # Each has an eighth of the gradient, of which half goes there and half comes back.
    of_hosts = Choice(2, 8, 1, 1, 16, "none")
    assert updates_over_hosts(of_hosts) == pytest.approx(4 * N / 8 / 1e3)
    # Sums of 4 rows of 32 tokens of width 8 in bfloat16, 7 forward and 7 backward, in and out.
    of_tensor = Choice(1, 4, 1, 4, 16, "none")
    assert updates_over_hosts(of_tensor) == pytest.approx((2 * 2 + 4) * N / 4 / 2 / 2e3)
    wide = Choice(1, 1, 1, 16, 16, "none")
    assert updates_over_hosts(wide) == pytest.approx(14 * 2 * 16 * 32 * 8 * 2 / 2 / 8e3)


def test_slices_exchange_gradients_over_the_hosts_network():
    N = num_params(declare(SMALL))
    of_data = Choice(2, 4, 1, 1, 16, "none")
    assert updates_over_hosts(of_data, "v5e") == pytest.approx(0, abs=1e-9)
    assert updates_over_hosts(of_data, "v5e", 2) == pytest.approx(4 * N / 4 / 1e3)


def test_a_search_over_slices_has_data_over_them():
    config, stage = shipped(QWEN)
    found = ranked(config, stage, "v5e:2x4", num_slices=2)
    assert found and all(choice.data % 2 == 0 for choice, _ in found)


GPU = ROOT / "configs" / "gpu" / "qwen2.5_7b_h100-8_grpo.toml"


@pytest.mark.parametrize(
    "overrides, advice, followed",
    [
        (
            ["stages.rl.micro.rows=256", 'model.remat="none"'],
            [
                "too large by 226.8 GB a device (306.8 of 80.0)",
                'set model.remat = "minimal": no more than products are kept of a layer',
                'set model.remat = "block": activations of one layer at a time',
                "lower stages.rl.micro.rows from 256",
            ],
            ["stages.rl.micro.rows=64", 'model.remat="block"'],
        ),
        (
            ["engine.slots=16384"],
            [
                "too large by 74.4 GB a device (154.4 of 80.0)",
                "the cache takes 127.8 GB: lower engine.slots, or set engine.cache_tokens",
            ],
            ["engine.cache_tokens=1048576"],
        ),
        (
            ["mesh.fsdp=1", "mesh.data=8"],
            [
                "too large by 110.3 GB a device (190.3 of 80.0)",
                "lower stages.rl.micro.rows from 16",
                "set stages.rl.optimizer.state_offload = true: its 60.9 GB lie in the host's "
                "memory between updates",
                "parameters, optimizer and gradients take 121.8 GB of each: raise mesh.fsdp 4 "
                "times, on as many more devices",
            ],
            ["mesh.fsdp=4", "mesh.data=2"],
        ),
    ],
    ids=["activations", "cache", "state"],
)
def test_what_does_not_fit_by_formulas_is_told_what_would(overrides, advice, followed):
    def plan_of(*more):
        config = load(RunConfig, [GPU], [*SPLIT_OVER_ALL, *overrides, *more])
        return roofline_plan(config, rl_stage(config, None), "h100:8")

    found = plan_of()
    assert not found["fits"] and found["advice"] == advice
    mended = plan_of(*followed)
    assert mended["fits"] and mended["advice"] == []


def test_what_the_compiler_refuses_is_told_what_would_fit(monkeypatch):
    def refuse(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in hbm. Used 17G")

    monkeypatch.setattr(plan_module, "devices", lambda *_: jax.devices())
    monkeypatch.setattr(plan_module, "planned", refuse)
    config = load(RunConfig, [TPU / QWEN], [*SPLIT_OVER_ALL, "stages.rl.micro.rows=64"])
    found = plan_module.plan(config, "v5e:2x4")
    assert found["plan"] == "sizes by formulas: the compiler found that a program does not fit"
    assert not found["fits"]
    assert found["advice"] == [
        "Ran out of memory in hbm. Used 17G",
        "lower stages.rl.micro.rows from 64",
        "set stages.rl.optimizer.state_offload = true: its 1.5 GB lie in the host's memory between "
        "updates",
    ]

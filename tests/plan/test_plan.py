"""What a plan says: of programs compiled for CPU devices, whose numbers can be checked, of chips by
formulas, and through the command line."""

import dataclasses
import json
import re
import types

import jax
import pytest
from inprocess import call
from jax.experimental import topologies
from runs import ROOT

from jaxrl_vr.config import load
from jaxrl_vr.metrics.chips import CHIPS
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.flops import attention_flops, causal_pairs, num_params
from jaxrl_vr.models.params import declare
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.plan import plan as plan_module
from jaxrl_vr.plan import topology as topology_module
from jaxrl_vr.plan.network import Network
from jaxrl_vr.plan.plan import plan
from jaxrl_vr.plan.report import axes_of, table
from jaxrl_vr.plan.roofline import Choice, estimate
from jaxrl_vr.plan.search import ranked, roofline_plan
from jaxrl_vr.plan.topology import num_devices, places
from jaxrl_vr.sharding import MeshConfig, axis_sizes, make_mesh, placed_devices
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.limits import Rollouts
from jaxrl_vr.train.update import Learner


@pytest.fixture
def on_cpu(monkeypatch):
    """Topologies whose devices are those of this process."""

    def devices(topology, num_slices):
        return jax.devices()[: num_devices(topology, num_slices)]

    monkeypatch.setattr(plan_module, "devices", devices)


def planned(path, topology, *overrides):
    return plan(load(RunConfig, [path], overrides), topology)


@pytest.mark.parametrize("remat, passes", [("none", 3), ("minimal", 3), ("block", 4)])
def test_products_are_those_of_the_formula(config_file, on_cpu, remat, passes):
    found = planned(config_file, "v5e:1x1", f'model.remat="{remat}"')
    config = load(RunConfig, [config_file], [])
    arch = plan_module.architecture(config)
    rows, length = 16, 128
    body = num_params(declare(arch)) - arch.vocab_size * arch.width
    of_body = 2 * passes * body * rows * length
    # Plain XLA makes all scores of a block, here in two blocks a row: three quarters of a square.
    # Backward makes them anew, so five products for two.
    pairs = 1.5 * attention_flops(arch, rows * causal_pairs(length)) * (1 + 2.5 + (passes == 4))
    head = 4 * 2 * arch.vocab_size * arch.width * rows * length
    # Nobody needs the last product of a block again.
    spared = 2 * arch.layers * arch.ffn * arch.width * rows * length * (passes == 4)
    expected = of_body + pairs + head - spared
    assert found["programs"]["update"]["flops"] == pytest.approx(expected, rel=0.05)
    # And the field's formula, which counts neither of what is made twice.
    assert found["step"]["update_flops_over_model"] < {3: 1.15, 4: 1.4}[passes]


def test_memory_is_that_of_the_arrays(config_file, on_cpu):
    ema = "stages.rl.ema={ decay = 0.9 }"
    one, split = (planned(config_file, topology, ema) for topology in ("v5e:1x1", "v5e:2x2"))
    arch = plan_module.architecture(load(RunConfig, [config_file], []))
    weights = 4 * num_params(declare(arch))
    assert one["memory"]["parameters"] == weights
    assert one["memory"]["optimizer"] == pytest.approx(2 * weights, abs=8)
    assert one["memory"]["average"] == weights
    state = one["memory"]["while_syncing"] - one["programs"]["weight_sync"]["temporary_bytes"]
    assert state == pytest.approx(5 * weights, abs=8)  # the sampler's copy with it
    assert one["memory"]["sampler_weights"] == weights
    # 16 slots and 4 prompts, each in a page of 64 on this platform, in blocks of 32 pages as there
    # is room for pages of 128; and what slots know.
    of_token = 2 * arch.layers * arch.kv_heads * arch.head_dim * 4
    assert one["memory"]["kv_cache"] == pytest.approx(2 * 32 * 64 * of_token, rel=0.02)
    assert split["memory"]["parameters"] == pytest.approx(weights / 4, rel=0.01)
    assert split["memory"]["average"] == split["memory"]["parameters"]
    assert split["memory"]["sampler_weights"] == weights
    exchanged = {(e["kind"], e["axes"]) for e in split["programs"]["update"]["exchanges"]}
    assert ("all-gather", "fsdp") in exchanged
    assert split["fits"] and split["advice"] == []


def test_moments_count_as_they_are_stored_and_where(config_file, on_cpu):
    arch = plan_module.architecture(load(RunConfig, [config_file], []))
    weights, at = 4 * num_params(declare(arch)), "stages.rl.optimizer"
    stored = f"{at}.b2=0.95", f'{at}.state_dtype="bfloat16"'
    half = planned(config_file, "v5e:2x2", *stored)["memory"]
    assert half["optimizer"] == pytest.approx(weights / 4, rel=0.01)
    assert half["optimizer_on_host"] == 0
    away = planned(config_file, "v5e:2x2", f"{at}.state_offload=true")["memory"]
    assert away["optimizer"] == 4  # the number of steps
    assert away["optimizer_on_host"] == pytest.approx(2 * weights / 4, rel=0.01)
    # Between updates the devices hold no moments.
    freed = half["while_sampling"] - away["while_sampling"]
    assert freed == pytest.approx(weights / 4, rel=0.01)


def test_a_plan_says_how_long_and_what_bounds_it(config_file, on_cpu):
    found = planned(config_file, "v5e:2x2")
    step, decode = found["step"], found["programs"]["decode"]
    assert step["sampled_tokens"] == 4 * 4 * 64
    assert decode["memory_s"] == pytest.approx(
        4 * (found["memory"]["sampler_weights"] + found["memory"]["kv_cache"]) / 819e9
    )
    assert step["rollout_s"] >= 64 / 4 * decode["seconds"]
    assert step["step_s"] == pytest.approx(
        step["rollout_s"] + step["update_s"] + step["weight_sync_s"]
    )
    assert (found["rows"], found["row_length"], found["remat"]) == (8, 128, "none")
    assert "\n  micro-batches of 8 rows of 128 tokens, remat none\n" in table(found)
    assert json.loads(json.dumps(found)) == found


# By formulas


@pytest.mark.parametrize("tokens, pages", [(512, 0), (2048, 0), (4096, 8), (8192, 24)])
def test_a_chunk_of_a_prompt_comes_behind_the_pages_of_those_before(tokens, pages):
    """Chunks of 2,048 tokens are 16 pages of 128: none, 16, 32 and 48 before the four of 8,192."""
    sizes = types.SimpleNamespace(prefill_tokens=2048, page_tokens=128)
    assert plan_module.pages_before(tokens, sizes) == pages


def test_a_gpu_is_planned_by_formulas(config_file, capsys):
    text = call(capsys, "plan", config_file, "--topology", "h100:8")
    assert "on h100:8 (fsdp = 8): fits" in text
    assert "roofline estimate, nothing was compiled" in text
    assert "\n  micro-batches of 8 rows of 128 tokens, remat none\n" in text


def test_rows_that_a_plan_by_formulas_finds_are_said(config_file, capsys, tmp_path):
    out = tmp_path / "plan.json"
    args = "plan", config_file, 'stages.rl.micro.rows="auto"', 'model.remat="block"'
    text = call(capsys, *args, "--topology", "h100:8", "--json", out)
    found = json.loads(out.read_text())
    assert (found["rows"], found["row_length"], found["remat"]) == (16, 128, "block")
    assert "\n  micro-batches of 16 rows of 128 tokens, remat block\n" in text


@pytest.mark.parametrize(
    "remat, kept",
    [
        ("none", 4 * 8 + 3 * 8 + 8 + 2 * 16),
        ("minimal", 3 * 8 + 2 * 8 + 8 + 2 * 16),
        ("block", 8),
    ],
)
def test_memory_and_time_of_an_update_by_formulas(remat, kept):
    """By hand, in bfloat16, of two devices with two rows of 32 tokens each in four micro-batches.

    A layer has 64 + 32 + 32 + 64 numbers in attention, 3 x 128 in its feed-forward and 16 in its
    norms: 592. With two tables of 80 and the last norm that makes 1,944.
    """
    arch = Architecture(
        **dict(vocab_size=10, width=8, layers=3, heads=2, kv_heads=1, head_dim=4, ffn=16),
        tied=False,
    )
    N, tokens, rollouts = 1944, 2 * 32, Rollouts(4, 4, 12, 20)
    chip = dataclasses.replace(CHIPS["v5e"], peak_flops=1e12, bandwidth=1e6)
    found = estimate(
        *(arch, rollouts, Choice(1, 2, 1, 1, 4, remat), Network.of(chip, 2)),
        **dict(row_length=32, slots=4, itemsize=2, moment_bytes=8 * N),
    )
    at_work = 3 * tokens * 2 * (4 * 8 + 3 * 8 + 2 * 8 + 4 * 16)
    tables = (2 * 2 + 2 * 4) * 80  # both in bfloat16, and their gradients in float32
    logits, gathered = 3 * 4 * tokens * 10, 2 * 2 * N / 3
    copies = 2 * 4 * N / 2  # of a micro-batch's gradient, and what the optimizer makes
    kept_bytes = 3 * tokens * 2 * kept
    assert found.memory["gradients"] == 4 * N / 2
    expected = kept_bytes + at_work + tables + logits + gathered + copies
    assert found.memory["activations"] == pytest.approx(expected)
    # Weights in each of two or three passes and three numbers of a gradient, four times, and on a
    # chip as slow as this one nothing else counts.
    passes = 3 if remat == "block" else 2
    reads = 4 * (passes * 2 * N + 3 * 4 * N / 2) / 1e6
    assert found.update_s == pytest.approx(reads, rel=1e-3) and found.bound == "memory"


def test_formulas_count_the_moments_of_the_optimizer(config_file):
    def memory(*overrides):
        config = load(RunConfig, [config_file], overrides)
        stage = plan_module.rl_stage(config, None)
        return ranked(config, stage, "v5e:1x1")[0][1].memory

    at = "stages.rl.optimizer"
    plain = memory()
    assert plain["optimizer"] == 2 * plain["parameters"] + 4
    lion = memory(f'{at}={{type="lion", learning_rate=1e-4, state_dtype="bfloat16"}}')
    assert lion["optimizer"] == plain["parameters"] / 2 + 4
    assert memory(f"{at}.state_offload=true")["optimizer"] == 0
    rows = memory(f'{at}={{type="adafactor", learning_rate=1e-3}}')
    assert rows["optimizer"] < plain["parameters"] / 20


def test_what_does_not_fit_ends_with_3_and_says_by_how_much(config_file, capsys, tmp_path):
    large = ["model.width=16384", "model.heads=128", "model.layers=96", "model.ffn=53248"]
    out = tmp_path / "plan.json"
    args = "plan", config_file, *large, "--topology", "h100:8", "--json", out
    text = call(capsys, *args, code=3)
    assert "DOES NOT FIT" in text and "too large by" in text
    assert json.loads(out.read_text())["fits"] is False


def test_an_average_is_one_more_copy_by_formulas(config_file):
    found = []
    for overrides in ([], ["stages.rl.ema={ decay = 0.9 }"]):
        config = load(RunConfig, [config_file], overrides)
        stage = plan_module.rl_stage(config, None)
        plan_of_it = roofline_plan(config, stage, "h100:8")
        found.append(plan_of_it["memory"])
    without, with_it = found
    assert without["average"] == 0 and with_it["average"] == with_it["parameters"]
    assert with_it["total"] - without["total"] == pytest.approx(with_it["parameters"])


# What is asked wrongly


@pytest.mark.parametrize(
    "reason, message",
    [
        (
            "ABORTED: Internal error when accessing libtpu multi-process lockfile.",
            "one process at a time",
        ),
        ("Invalid topology", "topology 'v5e:4x4': libtpu does not make it: Invalid topology"),
    ],
)
def test_libtpu_that_refuses(monkeypatch, reason, message):
    def refuse(*_, **__):
        raise RuntimeError(reason)

    monkeypatch.setattr(topology_module, "has_libtpu", lambda: True)
    monkeypatch.setattr(topologies, "get_topology_desc", refuse)
    with pytest.raises(ValueError, match=re.escape(message)):
        topology_module.devices("v5e:4x4")


def test_a_mesh_that_does_not_divide_the_devices(config_file, capsys):
    args = "plan", config_file, "mesh.fsdp=3", "mesh.data=1", "--topology", "h100:8"
    assert "mesh.fsdp = 3 does not make up the 8 devices" in call(capsys, *args, code=2)


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["mesh.tensor=8", "mesh.data=1"], "mesh.tensor = 8 does not divide the model's 4 query"),
        (["stages.rl.micro.rows=7"], "micro.rows = 7"),
    ],
)
def test_a_mesh_that_divides_neither_heads_nor_rows(config_file, capsys, overrides, message):
    args = "plan", config_file, *overrides, "--topology", "h100:8"
    assert message in call(capsys, *args, code=2)


def test_all_that_does_not_divide_is_said_at_once(config_file, capsys):
    args = "plan", config_file, "mesh.tensor=8", "engine.slots=15", "stages.rl.micro.rows=7"
    text = call(capsys, *args, "--topology", "h100:8", code=2)
    assert text == (
        "error: mesh.tensor = 8 does not divide the model's 4 query heads, so each of its devices "
        "would hold all of them; mesh.tensor = 4 works, with the other devices in data\n"
        "with that, engine.slots = 15 cannot be split over data x fsdp x context = 2 devices, so "
        "that several would sample the same; use 16\n"
        "with that, stages.rl.micro.rows = 7 cannot be split over data x fsdp = 2 devices; use 8\n"
    )
    works = "mesh.tensor=4", "mesh.data=2", "engine.slots=16", "stages.rl.micro.rows=8"
    assert "): fits" in call(capsys, "plan", config_file, *works, "--topology", "h100:8")


def test_a_stage_that_is_not_there(config_file, capsys):
    args = "plan", config_file, "--topology", "h100:8", "--stage", "sft"
    assert "the config's are: rl" in call(capsys, *args, code=2)


def test_critic_and_reference_are_counted(config_file, tmp_path, on_cpu):
    more = (
        'stages.rl.advantage={ type = "gae" }',
        'stages.rl.critic={ optimizer = { type = "adamw", learning_rate = 1e-2 } }',
        "stages.rl.kl={ coef = 0.1 }",
    )
    without = planned(config_file, "v5e:2x2")
    found = planned(config_file, "v5e:2x2", *more)
    config = load(RunConfig, [config_file], [])
    arch = plan_module.architecture(config)
    of_critic = 4 * (num_params(declare(arch)) + arch.width)
    memory, step = found["memory"], found["step"]
    assert memory["critic"] == pytest.approx(3 * of_critic / 4, rel=0.01)
    assert memory["reference"] == memory["parameters"]
    assert memory["while_updating"] > without["memory"]["while_updating"] + memory["critic"]
    programs = found["programs"]
    body = num_params(declare(arch)) - arch.vocab_size * arch.width
    for name in ("score", "critic_score"):
        # Forward alone: a third of an update without its head, or with a head for the policy.
        assert programs[name]["flops"] == pytest.approx(2 * body * 16 * 128 / 4, rel=0.2)
    assert programs["critic_update"]["flops"] == pytest.approx(programs["update"]["flops"], rel=0.1)
    parts = "rollout", "update", "critic_update", "score", "critic_score", "weight_sync"
    assert step["step_s"] == pytest.approx(sum(step[f"{name}_s"] for name in parts))
    # The reference's log-probs, and no others of the policy.
    assert step["score_s"] == pytest.approx(programs["score"]["seconds"])


def test_a_teacher_is_counted(config_file, on_cpu):
    more = 'stages.rl.advantage={ type = "on_policy_distillation", teacher = "base" }'
    found = planned(config_file, "v5e:2x2", more)
    assert found["memory"]["teacher"] == found["memory"]["parameters"]
    assert found["step"]["teacher_score_s"] == found["programs"]["teacher_score"]["seconds"] > 0


def test_formulas_count_critic_and_reference(config_file, capsys):
    ppo = ROOT / "configs" / "presets" / "ppo.toml"
    text = call(capsys, "plan", config_file, ppo, "--topology", "h100:8")
    memory = dict(re.findall(r"  (\w+) +([\d.]+) GB", text))
    parameters = float(memory["parameters"])
    assert float(memory["reference"]) == parameters
    assert float(memory["critic"]) == pytest.approx(3 * parameters, abs=0.002)


def test_out_of_memory_says_what_a_plan_says(config_file, tmp_path, capsys, monkeypatch):
    def exhausted(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 7 bytes.")

    monkeypatch.setattr(Learner, "update", exhausted)
    # Rows that the TPU's kernels would take, which must not be asked for here.
    arguments = "train", config_file, f"run_dir={tmp_path}/run", 'model.attention="auto"'
    text = call(capsys, *arguments, code=1)
    assert "error: stage 'rl': out of memory: RESOURCE_EXHAUSTED: Out of memory allocating" in text
    assert "what `jaxrl-vr plan` says of stage 'rl' on these devices" in text
    found = dict(re.findall(r"  ([a-z ]+?) +([\d.]+) GB", text))
    assert float(found["while updating"]) > float(found["parameters"]) > 0
    assert "lower micro.rows" in text


def test_without_libtpu_it_says_how_to_get_it(config_file, capsys, monkeypatch):
    monkeypatch.setattr("jaxrl_vr.plan.topology.has_libtpu", lambda: False)
    text = call(capsys, "plan", config_file, "--topology", "v5e:2x2", code=2)
    assert text == (
        "error: topology 'v5e:2x2': libtpu is not installed: pip install \"jax[tpu]\"; it compiles "
        "for TPUs on any machine\n"
    )


TEACHER = 'advantage={ type = "on_policy_distillation", teacher = "meta-llama/Llama-3.1-8B" }'


@pytest.mark.parametrize(
    "overrides, message",
    [
        (
            ["mesh.fsdp=3"],
            "mesh.fsdp = 3 does not make up the 8 devices; mesh.data = 8, mesh.fsdp = 1 works",
        ),
        (["mesh.tensor=8", "mesh.fsdp=1"], "mesh.tensor = 8 does not divide the model's 4 query"),
        (["engine.slots=15"], "engine.slots = 15 cannot be split over"),
        (["stages.rl.micro.rows=3"], "stages.rl.micro.rows = 3 cannot be split over"),
        (["stages.rl.sampling.max_new_tokens=128"], "stages.rl.sampling.max_new_tokens = 128"),
        ([f"stages.rl.{TEACHER}", "model.max_length=200000"], "takes 131072 tokens, and the"),
        (["mesh.fsdp=16", "--num-slices", "2"], "mesh.data = 1 with 2 slices: only data goes"),
        (
            [f"stages.rl.optimizer.{key}" for key in ("no_decay=['zz']", "weight_decay=0.1")],
            "stages.rl.optimizer.no_decay",
        ),
    ],
    ids="devices heads slots rows prompt teacher slices optimizer".split(),
)
def test_what_is_wrong_is_said_before_libtpu_is_needed(
    config_file, capsys, monkeypatch, overrides, message
):
    def looked_for():
        pytest.fail("libtpu was looked for")

    monkeypatch.setattr("jaxrl_vr.plan.topology.has_libtpu", looked_for)
    text = call(capsys, "plan", config_file, *overrides, "--topology", "v5e:2x4", code=2)
    assert message in text


def test_slices_split_data_and_nothing_else():
    found = places("v5e:2x2", 2)[::-1]
    with pytest.raises(ValueError, match="mesh.data = 1 with 2 slices"):
        placed_devices((1, 8, 1, 1, 1), found)
    laid = placed_devices((4, 2, 1, 1, 1), found)
    assert set(laid.flat) == set(found)
    assert [{device.slice_index for device in row.flat} for row in laid] == [{0}, {0}, {1}, {1}]


@pytest.mark.parametrize("length, by_kernels", [(2048, True), (2000, False)])
def test_products_of_kernels_are_added_only_where_kernels_attend(config_file, length, by_kernels):
    arch = plan_module.architecture(load(RunConfig, [config_file], []))
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    found = plan_module.kernel_flops(Transformer(arch, attention="splash"), mesh, 3, length)
    assert found == by_kernels * attention_flops(arch, 3 * causal_pairs(length))


def test_axes_of_a_group_of_devices():
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), jax.devices())
    assert axes_of((0, 1), mesh) == "tensor"
    assert axes_of((0, 2), mesh) == "fsdp"
    assert axes_of((1, 3, 5, 7), mesh) == "data+fsdp"
    assert axes_of((), mesh) == "all"


# The plans that are shipped


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "gpu").glob("*.toml")), ids=str)
def test_the_plan_beside_a_gpu_config_is_what_is_printed(path, capsys):
    topology = re.search(r"--topology (\S+)`", path.read_text())[1]
    text = call(capsys, "plan", path, "--topology", topology)
    assert text == (path.parent / f"{path.stem}.plan.txt").read_text()
    assert "): fits" in text


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "tpu").glob("*.toml")), ids=str)
def test_a_tpu_config_has_its_plan_beside_it_and_fits(path):
    topology = re.search(r"--topology (\S+)`", path.read_text())[1]
    first, kind, micro = (path.parent / f"{path.stem}.plan.txt").read_text().splitlines()[:3]
    config = load(RunConfig, [path], [])
    stage = plan_module.rl_stage(config, None)
    sizes = axis_sizes(config.mesh, num_devices(topology))
    mesh = ", ".join(f"{name} = {size}" for name, size in sizes.items() if size > 1)
    N = num_params(declare(plan_module.architecture(config)))
    family = plan_module.architecture(config).family
    assert first == f"{family} of {N / 1e9:.2f} billion parameters on {topology} ({mesh}): fits"
    assert kind == "  compiled; every time is an estimate"
    rows, row_length = stage.micro.rows, stage.row_length(config.model.max_length)
    assert micro == (
        f"  micro-batches of {rows} rows of {row_length:,} tokens, remat {config.model.remat}"
    )
    # What can be known without compiling is as it stands there.
    text = (path.parent / f"{path.stem}.plan.txt").read_text()
    found = float(re.search(r"parameters +([\d.]+) GB", text)[1])
    assert found == pytest.approx(4 * N / sizes["fsdp"] / sizes["tensor"] / 1e9, rel=0.01)

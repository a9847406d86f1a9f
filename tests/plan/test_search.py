"""`--search`: layouts ranked by formulas, and the first that fit compiled."""

import re
from pathlib import Path

import jax
import pytest
from inprocess import call
from planned import CONFIG

from jaxrl_vr.config import load
from jaxrl_vr.plan import command
from jaxrl_vr.plan import plan as plan_module
from jaxrl_vr.plan.roofline import Choice
from jaxrl_vr.plan.search import (
    first_fitting,
    has_room,
    ranked,
    roofline_plan,
    with_choice,
)
from jaxrl_vr.plan.topology import chip_of
from jaxrl_vr.sharding import make_mesh
from jaxrl_vr.train.config import RunConfig


def test_choices_are_ranked_and_all_of_them_work(config_file):
    config = load(RunConfig, [config_file], [])
    stage = plan_module.rl_stage(config, None)
    found = ranked(config, stage, "v5e:2x4")
    times = [one.step_s for _, one in found]
    assert times == sorted(times) and len(found) > 10
    assert {choice.devices for choice, _ in found} == {8}
    for choice, _ in found[:3]:
        laid_out = with_choice(config, stage, choice)
        make_mesh(laid_out.mesh, jax.devices())
        assert laid_out.model.remat == choice.remat
        assert plan_module.rl_stage(laid_out, None).micro.rows == choice.rows


def test_where_none_fits_by_formulas_those_near_it_are_tried():
    """The compiler finds room for one that ships, of which formulas see a little too much."""
    root = Path(__file__).parents[2]
    config = load(RunConfig, [root / "configs/tpu/qwen2.5_7b_v5e-4x4_grpo.toml"], [])
    found = ranked(config, plan_module.rl_stage(config, None), "v5e:4x4")
    times = [one.step_s for _, one in found]
    assert times == sorted(times)
    sizes = [one.total_bytes for _, one in found]
    memory = chip_of("v5e:4x4").memory_bytes
    assert 0.9 * memory < min(sizes) and max(sizes) <= 1.1 * memory
    shipped = Choice(1, 4, 1, 4, rows=4, remat="block")
    assert shipped in [choice for choice, _ in found[:10]]
    assert not any(has_room(one, chip_of("v5e:4x4")) for _, one in found)


def laid_out(data, tensor, rows, remat="none"):
    return Choice(data, 1, 1, tensor, rows, remat)


@pytest.mark.parametrize(
    "refused, compiled, fitting",
    [
        # Of each mesh the first that fits, until there are three.
        ([], ["8 16 none", "4 16 none", "2 16 none"], 3),
        # With more rows of the same remat none is tried; with fewer, or another remat, it is.
        (
            ["8 16 none", "4 16 none"],
            ["8 16 none", "8 16 block", "4 16 none", "4 16 block", "2 16 none"],
            3,
        ),
        # A mesh that was refused three times is left.
        (
            ["8 16 none", "8 16 block", "8 8 none"],
            ["8 16 none", "8 16 block", "8 8 none", "4 16 none", "2 16 none", "1 16 none"],
            3,
        ),
    ],
)
def test_which_layouts_a_search_compiles(refused, compiled, fitting):
    ranking = [
        laid_out(data, 8 // data, rows, remat)
        for data in (8, 4, 2, 1)
        for rows, remat in ((16, "none"), (32, "none"), (16, "block"), (8, "none"), (4, "none"))
    ]
    tried = []

    def compile_it(choice):
        tried.append(f"{choice.data} {choice.rows} {choice.remat}")
        return {"fits": tried[-1] not in refused}

    found, others = first_fitting(ranking, compile_it)
    assert tried == compiled
    assert len(found) == fitting and len(others) == len(refused)


def test_a_search_gives_up_after_ten():
    ranking = [laid_out(data, 1, 8) for data in range(1, 20)]
    found, others = first_fitting(ranking, lambda choice: {"fits": choice.data == 4})
    assert len(found) == 1 and len(others) == 9


def test_a_search_in_which_nothing_fits_says_what_takes_least(config_file, capsys):
    large = ["model.width=16384", "model.heads=128", "model.layers=96", "model.ffn=53248"]
    args = "plan", config_file, *large, "--topology", "h100:8", "--search"
    text = call(capsys, *args, code=3)
    assert re.match(
        r"none fits by formulas: the smallest \((fsdp|tensor) = .*, rows \d+, remat block\) takes "
        r"\d+\.\d GB of a device, of which 90% of 80\.0 may be filled; most are optimizer .*; "
        r"set stages\.rl\.optimizer\.state_offload = true, or use more or larger devices",
        text,
    )


@pytest.mark.parametrize("fits, code", [(True, 0), (False, 3)])
def test_a_search_prints_the_plans_that_fit_or_why_none_does(
    config_file, capsys, monkeypatch, fits, code
):
    def compile_it(config, topology, **_):
        stage = plan_module.rl_stage(config, None)
        return {**roofline_plan(config, stage, topology), "fits": fits}

    monkeypatch.setattr(command, "plan", compile_it)
    args = "plan", config_file, "--topology", "v5e:2x4", "--search"
    text = call(capsys, *args, code=code)
    assert text.count("): fits") == (3 if fits else 0)
    assert text.count("): DOES NOT FIT") == (0 if fits else 1)
    assert ("10 of the 10 that were compiled do not fit" in text) == (not fits)


OTHER_STAGE = """
[[stages]]
type = "sft"
name = "cold"
data = ["train"]
steps = 1
batch = 8
max_tokens = 128
micro = { rows = 7 }
optimizer = { type = "adamw", learning_rate = 1e-3 }
"""


@pytest.mark.parametrize(
    "more, overrides, message, works",
    [
        (
            "",
            ["engine.slots=1"],
            "--search: none of the 210 layouts can run (195 refused for engine.slots, 15 refused "
            "for mesh.tensor). The simplest to mend is data = 2, tensor = 4, rows 2, remat none: "
            "engine.slots = 1 cannot be split over data x fsdp x context = 2 devices, so that "
            "several would sample the same; use 2",
            ["engine.slots=2"],
        ),
        # Of the four devices of `context` no other stage's rows need to know.
        (
            OTHER_STAGE,
            ["engine.slots=3"],
            "--search: none of the 210 layouts can run (195 refused for engine.slots, 150 refused "
            "for stages.cold.micro.rows, 15 refused for mesh.tensor). The simplest to mend is "
            "context = 4, tensor = 2, rows 1, remat none: engine.slots = 3 cannot be split over "
            "data x fsdp x context = 4 devices, so that several would sample the same; use 4",
            ["engine.slots=4"],
        ),
        (
            "",
            ["mesh.expert=2"],
            "--search: none of the 210 layouts can run (210 refused for mesh.expert, 15 refused "
            "for mesh.tensor). The simplest to mend is data = 8, rows 8, remat none: mesh.expert = "
            "2: the model has no experts to split, so these devices would all do the same; set it "
            "to 1, and give them to data or fsdp",
            ["mesh.expert=1"],
        ),
    ],
    ids=["slots", "slots and another stage", "experts"],
)
def test_a_search_in_which_nothing_runs_says_what_is_mended_most_simply(
    config_file, capsys, more, overrides, message, works
):
    config_file.write_text(CONFIG + more)
    args = "plan", config_file, "--topology", "h100:8", "--search"
    text = call(capsys, *args, *overrides, code=2)
    assert text == f"error: {message}\n"
    call(capsys, *args, *works)


def test_more_slices_than_rows_are_said(config_file):
    config = load(RunConfig, [config_file], ["stages.rl.prompts=1", "stages.rl.samples=2"])
    stage = plan_module.rl_stage(config, None)
    says = r"--num-slices 4: a step of stage rl fills [12] rows, .* raise stages\.rl\.prompts"
    with pytest.raises(ValueError, match=says):
        ranked(config, stage, "v5e:2x4", num_slices=4)


def test_a_large_model_is_split(config_file):
    large = ["model.width=8192", "model.heads=64", "model.layers=64", "model.ffn=28672"]
    config = load(RunConfig, [config_file], large)
    stage = plan_module.rl_stage(config, None)
    found = ranked(config, stage, "v5p:4x4x4")
    assert found and all(choice.fsdp * choice.tensor >= 16 for choice, _ in found)
    assert Choice(2, 2, 1, 2, 8, "none").mesh == {"data": 2, "fsdp": 2, "tensor": 2}


@pytest.mark.parametrize(
    "topology, override, says",
    [
        ("a100:8", 'model.attention="cudnn"', "cuDNN wants an NVIDIA GPU of Hopper or later"),
        ("a100:8", 'engine.attention="cudnn"', "and this is NVIDIA A100"),
        ("h100:8", 'model.attention="cudnn"', "cuDNN wants 16 bits"),
        ("h100:8", 'model.attention="splash"', "its kernels are the TPU's"),
        ("h100:8", 'engine.attention="pallas"', "the kernels are for TPU"),
    ],
)
def test_a_plan_of_gpus_refuses_attention_that_cannot_run_there(
    config_file, capsys, topology, override, says
):
    said = call(capsys, "plan", config_file, "--topology", topology, override, code=2)
    assert override.replace("=", " = ") in said and says in said


def test_a_plan_that_cannot_be_written_says_so_before_the_work(config_file, capsys, tmp_path):
    kept = tmp_path / "kept.json"
    kept.write_text("[]")
    args = "plan", config_file, "--topology", "h100:0", "--json"
    call(capsys, *args, kept, code=2)
    assert kept.read_text() == "[]"
    said = call(capsys, "plan", config_file, "--topology", "h100:8", "--json", "/dev/full", code=2)
    assert "--json /dev/full: cannot be written (No space left on device); name another" in said

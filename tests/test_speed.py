"""Speed of a run through the command line: FLOPs, MFU, waits, and traces of its steps."""

import contextlib
import io
import json
import re

import jax
import pytest
from inprocess import ONES, call, compiled_once, config, rl, sft

from jaxrl_vr import cli
from jaxrl_vr.metrics.names import METRICS

PEAK = 2e9  # FLOP/s of a device, made up
PHASES = ("rollout", "score", "advantage", "update")
SHOWN = """
[[data]]
name = "shown"
type = "jsonl"
path = "{folder}/pairs.jsonl"
fields = {{ prompt = "q", completion = "a" }}
[[data]]
name = "pairs"
type = "jsonl"
path = "{folder}/pairs.jsonl"
fields = {{ prompt = "q", completion = "a", rejected = "b" }}
"""
DPO = """
[[stages]]
type = "dpo"
name = "dpo"
data = ["pairs"]
steps = 1
batch = 8
optimizer = { type = "adamw", learning_rate = 1e-2 }
"""
PPO = """
updates = 2
kl = { coef = 0.05 }
advantage = { type = "gae" }
profile = { steps = [2] }
[stages.critic]
optimizer = { type = "adamw", learning_rate = 1e-2 }
warmup_steps = 1
"""
# Of the model in `inprocess`: an embedding of 16 words, one layer, two heads of 8.
BLOCK = 16 + 4 * 16 * 16 + 16 + 3 * 16 * 32  # norm, q k v o, norm, gate up down
POLICY = 16 * 16 + BLOCK + 16  # the embedding is the head; the last norm
CRITIC = POLICY + 16  # and a value
PAIR = 4 * 1 * 2 * 8  # scores and values of a query with a key


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The folder of a run with all kinds of stages that train, and what it printed."""
    folder = tmp_path_factory.mktemp("speed")
    (folder / "pairs.jsonl").write_text('{"q": "1+1=", "a": ">2", "b": ">13"}\n' * 8)
    tables = sft("sft", data="shown", more="profile = { steps = [1] }"), DPO, rl("ppo", steps=2)
    path = config(folder, *tables, PPO, data=ONES + SHOWN.format(folder=folder))
    out, overrides = io.StringIO(), [f"logging.peak_flops={PEAK}", "logging.console=plain"]
    with compiled_once(), contextlib.redirect_stdout(out), pytest.raises(SystemExit) as ended:
        cli.main(["train", str(path), *overrides])
    assert ended.value.code == 0, out.getvalue()
    return folder / "run", out.getvalue()


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def steps(run, stage):
    return [line for line in lines(run / "metrics.jsonl") if line["stage"] == stage]


def forward(positions, params):
    """FLOPs of these positions of a sequence, one after another: each sees those before and
    itself."""
    total = 0
    for position in positions:
        total += 2 * params
        for _ in range(position + 1):
            total += PAIR
    return total


def rollouts(run, step):
    """(which sample, tokens of its prompt, tokens of its completion) of each that was recorded."""
    found = lines(run / f"stages/ppo/rollouts/step-{step:06d}.jsonl")
    return [(r["sample"], len(r["prompt"]), len(r["tokens"])) for r in found]


# FLOPs


@pytest.mark.parametrize("step", [1, 2])
def test_flops_of_an_rl_step_are_those_of_its_rollouts(done, step):
    run, _ = done
    found = steps(run, "ppo")[step - 1]
    sampled = scored = updated = 0
    for sample, prompt, completion in rollouts(run, step):
        everything = range(prompt + completion)
        if sample == 0:
            sampled += forward(range(prompt), POLICY)  # once for all samples
        sampled += forward(range(prompt, prompt + completion), POLICY)
        # The reference and the critic score; in the first step the critic learns alone.
        scored += forward(everything, POLICY) + forward(everything, CRITIC)
        updated += 3 * forward(everything, CRITIC)
        if step == 2:
            updated += 3 * forward(everything, POLICY)
    assert found["speed/rollout_flops"] == sampled
    assert found["speed/score_flops"] == scored
    assert found["speed/update_flops"] == updated


def test_flops_of_demonstrations_and_pairs(done):
    run, _ = done
    (of_sft,) = steps(run, "sft")
    chosen, rejected = range(len("1+1=>2") + 1), range(len("1+1=>13") + 1)  # and the EOS
    assert of_sft["speed/update_flops"] == 8 * 3 * forward(chosen, POLICY)
    assert of_sft["speed/update_tokens_per_s"] * of_sft["speed/update_s"] == pytest.approx(8 * 7)
    (of_dpo,) = steps(run, "dpo")
    of_pair = forward(chosen, POLICY) + forward(rejected, POLICY)
    assert of_dpo["speed/score_flops"] == 8 * of_pair
    assert of_dpo["speed/update_flops"] == 8 * 3 * of_pair
    for phase in ("score", "update"):
        tokens = of_dpo[f"speed/{phase}_tokens_per_s"] * of_dpo[f"speed/{phase}_s"]
        assert tokens == pytest.approx(8 * (7 + 8))


def test_mfu_is_flops_over_time_and_peak_of_all_devices(done):
    run, _ = done
    phases = {"sft": ["update"], "dpo": ["score", "update"], "ppo": ["rollout", "score", "update"]}
    for stage, phase in [(s, p) for s, names in phases.items() for p in names]:
        for found in steps(run, stage):
            a_second = found[f"speed/{phase}_flops"] / found[f"speed/{phase}_s"]
            assert found[f"speed/{phase}_flops_per_s"] == pytest.approx(a_second)
            mfu = a_second / jax.device_count() / PEAK
            assert found[f"speed/{phase}_mfu"] == pytest.approx(mfu)


def test_a_cpu_has_no_mfu_of_its_own(tmp_path, capsys):
    said = call(capsys, "train", config(tmp_path, sft("sft")), "logging.console=plain")
    (found,) = steps(tmp_path / "run", "sft")
    assert found["speed/update_flops_per_s"] > 0
    assert [name for name in found if name.endswith("_mfu")] == []
    assert "MFU" not in said and "is not known" not in said


# Time


def test_phases_and_the_rest_make_up_a_step(done):
    run, _ = done
    for stage in ("sft", "dpo", "ppo"):
        for found in steps(run, stage):
            assert set(found) - {"stage", "step"} <= set(METRICS)
            spent = [found[f"speed/{p}_s"] for p in PHASES if f"speed/{p}_s" in found]
            assert len(spent) == {"sft": 1, "dpo": 2, "ppo": 4}[stage]
            assert sum(spent) <= found["time/step_s"]
            assert sum(spent) + found["time/other_s"] == pytest.approx(found["time/step_s"])


def test_waits_and_idle_times_lie_within_their_phase(done):
    run, _ = done
    for found in steps(run, "ppo"):
        for phase in ("rollout", "score", "update"):
            spent, waited = found[f"speed/{phase}_s"], found[f"speed/{phase}_wait_for_device_s"]
            assert 0 < waited and 0 <= found[f"speed/{phase}_idle_s"]
            assert waited + found[f"speed/{phase}_idle_s"] <= spent * (1 + 1e-9)
        # Where the host waits for rewards the devices have nothing to do.
        assert 0 < found["speed/rollout_wait_for_rewards_s"] <= found["speed/rollout_s"]


def test_the_console_shows_the_mfu(done):
    _, said = done
    assert re.search(r"^ppo 2/2 .*  update MFU [\d.]+ %", said, re.MULTILINE)


# Traces


@pytest.mark.parametrize("stage, step", [("sft", 1), ("ppo", 2)])
def test_a_trace_has_the_names_of_phases_and_of_the_model(done, stage, step):
    run, said = done
    folder = run / "stages" / stage / "profile" / f"step-{step:06d}"
    assert [f.name for f in folder.parent.iterdir()] == [folder.name]
    (found,) = folder.glob("plugins/profile/*/*.xplane.pb")
    content = found.read_bytes()
    names = ["attention/query", "ffn/gate", "head", "loss", "optimizer", "wait for device", stage]
    if stage == "ppo":
        names += ["prefill/layers/0/attention/query", "decode/layers/0/ffn", "draw"]
        names += ["value_head", *PHASES, "wait for rewards", "plan and launch"]
    assert [name for name in names if name.encode() not in content] == []
    assert f"{stage}: trace of step {step} in {folder}" in said
    assert f"xprof --logdir {folder}" in said


def test_steps_that_never_come_are_refused(tmp_path, capsys):
    path = config(tmp_path, sft("cold", steps=3, more="profile = { steps = [2, 4] }"))
    said = call(capsys, "train", path, code=2)
    assert "profile.steps = [2, 4]: step 4 never comes, for the stage has 3" in said
    said = call(capsys, "train", path, "stages.cold.profile.steps=[0]", code=2)
    assert "stages.cold.profile.steps" in said and "greater than 0" in said


def test_a_resumed_run_says_which_steps_it_cannot_trace(tmp_path, capsys):
    path = config(tmp_path, "[checkpoint]\nevery = 1\n", sft("cold"))
    call(capsys, "train", path)
    (tmp_path / "run" / "stages" / "cold" / "result.json").unlink()
    more = ["stages.cold.steps=2", "stages.cold.profile.steps=[1, 2]", "logging.console=plain"]
    said = call(capsys, "train", path, *more)
    expected = "profile.steps = [1, 2]: steps [1] were done before and are not traced; name some"
    assert f"{expected} between 2 and 2" in said
    assert (tmp_path / "run/stages/cold/profile/step-000002").is_dir()

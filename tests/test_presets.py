"""The presets: what they resolve to over a run, that each trains, and the page that lists them."""

import json
import math
import re
import textwrap
import tomllib

import pytest
from inprocess import call, config, rl
from runs import PRESETS, ROOT, config_files

from jaxrl_vr.config import load
from jaxrl_vr.train.check import oddities
from jaxrl_vr.train.config import RunConfig

EVERY = sorted(p.stem for p in PRESETS.glob("*.toml"))
PIPELINES = ("distill", "dpo", "rft", "sft")  # more than the algorithm of an RL stage
NAMES = [name for name in EVERY if name not in PIPELINES]
ALGORITHM = {
    *("samples", "advantage", "objective", "weights", "shaping", "kl", "offpolicy"),
    *("dynamic_sampling", "updates", "epochs", "critic", "positive_nll", "lm_mix"),
}
OVERLONG = [{"type": "overlong_penalty", "max_length": None, "buffer": 4096, "penalty": 0.5}]


def ppo_clip(low, high):
    return {
        "objective.type": "ppo_clip",
        "objective.clip_low": low,
        "objective.clip_high": high,
        "objective.dual_clip": None,
        "objective.max_ratio": None,
    }


def kl(kind, coef, where):
    return {"kl.type": kind, "kl.coef": coef, "kl.where": where, "kl.adaptive": None}


# Every stage key of the algorithm that is not here must be off: no KL, no critic, no shaping.
VALUES = {
    "reinforce": {
        "advantage.type": "reward",
        "objective.type": "reinforce",
        "weights.type": "sequence_sum",
    },
    "rloo": {
        "samples": 4,
        "advantage.type": "leave_one_out",
        "objective.type": "reinforce",
        "weights.type": "sequence_sum",
        **kl("k1", 0.03, "reward"),
        "updates": 2,
    },
    "reinforce_plus_plus": {
        "samples": 1,
        "advantage.type": "reinforce_plus_plus",
        "advantage.gamma": 1.0,
        **ppo_clip(0.2, 0.2),
        "weights.type": "token_mean",
        **kl("k1", 1e-4, "reward"),
        "updates": 8,
    },
    "reinforce_plus_plus_baseline": {
        "samples": 8,
        "advantage.type": "reinforce_plus_plus_baseline",
        "objective.type": "ppo_clip",
        "weights.type": "token_mean",
        **kl("k2", 1e-5, "loss"),
    },
    "ppo": {
        "samples": 1,
        "advantage.type": "gae",
        "advantage.gamma": 1.0,
        "advantage.lam": 0.95,
        "advantage.lam_returns": None,
        "advantage.alpha": None,
        "advantage.whiten": True,
        **ppo_clip(0.2, 0.2),
        "weights.type": "token_mean",
        **kl("k1", 0.05, "reward"),
        "critic.optimizer.learning_rate": 9e-6,
        "critic.clip": 0.2,
        "critic.warmup_steps": 0,
        "epochs": 4,
    },
    "vapo": {
        "samples": 16,
        "advantage.type": "gae",
        "advantage.gamma": 1.0,
        "advantage.lam_returns": 1.0,
        "advantage.alpha": 0.05,
        **ppo_clip(0.2, 0.28),
        "weights.type": "token_mean",
        "critic.optimizer.learning_rate": 2e-6,
        "critic.warmup_steps": 50,
        "positive_nll.coef": 0.1,
        "updates": 16,
    },
    "grpo": {
        "samples": 64,
        "advantage.type": "group_norm",
        "objective.type": "ppo_clip",
        "weights.type": "sequence_mean",
        **kl("k3", 0.04, "loss"),
    },
    "dr_grpo": {
        "samples": 8,
        "advantage.type": "group_center",
        **ppo_clip(0.2, 0.2),
        "weights.type": "constant_length",
        "weights.max_length": None,
        "updates": 8,
    },
    "dapo": {
        "samples": 16,
        "advantage.type": "group_norm",
        **ppo_clip(0.2, 0.28),
        "weights.type": "token_mean",
        "shaping": OVERLONG,
        "dynamic_sampling.max_rounds": 10,
        "updates": 16,
    },
    "gspo": {
        "advantage.type": "group_norm",
        "objective.type": "gspo",
        "objective.clip_low": 3e-4,
        "objective.clip_high": 4e-4,
        "weights.type": "sequence_mean",
        "updates": 4,
    },
    "cispo": {
        "advantage.type": "group_norm",
        "objective.type": "cispo",
        "objective.clip_low": 1.0,
        "objective.clip_high": 4.0,
        "weights.type": "prompt_mean",
        "shaping": OVERLONG,
        "dynamic_sampling.max_rounds": 10,
        "updates": 16,
    },
    "kimi": {
        "advantage.type": "group_center",
        "objective.type": "online_mirror_descent",
        "objective.tau": 0.01,
        "weights.type": "sequence_mean",
        "shaping": [{"type": "kimi_length", "coef": 1.0, "from_accuracy": 0.3}],
        "updates": 16,
    },
    "online_rft": {
        "advantage.type": "reward",
        "objective.type": "rft",
        "weights.type": "sequence_mean",
    },
    "online_dpo": {
        "advantage.type": "preference_pairs",
        "objective.type": "dpo",
        "objective.beta": 0.1,
        "weights.type": "sequence_mean",
    },
    "grpo_process": {
        "samples": 64,
        "advantage.type": "process_group_norm",
        "objective.type": "ppo_clip",
        "weights.type": "sequence_mean",
        **kl("k3", 0.04, "loss"),
    },
    "remax": {
        "samples": 1,
        "advantage.type": "remax",
        "objective.type": "reinforce",
        "weights.type": "sequence_sum",
    },
    "max_rl": {
        "samples": 16,
        "advantage.type": "max_rl",
        "objective.type": "reinforce",
        "weights.type": "token_mean",
    },
    "opo": {
        "advantage.type": "opo",
        "objective.type": "reinforce",
        "weights.type": "token_mean",
    },
    "gmpo": {
        "samples": 8,
        "advantage.type": "group_norm",
        "objective.type": "gmpo",
        "objective.clip_low": 0.4,
        "objective.clip_high": 0.4,
        "weights.type": "sequence_mean",
        "updates": 8,
    },
    "sapo": {
        "advantage.type": "group_norm",
        "objective.type": "sapo",
        "objective.tau_pos": 1.0,
        "objective.tau_neg": 1.05,
        "weights.type": "sequence_mean",
        "updates": 4,
    },
}
OFF = {
    **{key: None for key in ("kl", "critic", "dynamic_sampling", "entropy_bonus")},
    **{key: None for key in ("positive_nll", "lm_mix")},
    **{"shaping": [], "offpolicy": [], "updates": 1, "epochs": 1, "old_logp": "sampler"},
}
SAMPLING = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def resolved(*files):
    """The RL stage of a run as plain values."""
    run = load(RunConfig, files)
    (stage,) = [s for s in run.stages if s.name == "rl"]
    return json.loads(stage.model_dump_json())


def at(values, key):
    for step in key.split("."):
        values = values[step]
    return values


def test_every_preset_has_its_values():
    assert NAMES == sorted(VALUES)


# The second run has a clip range and updates of its own, which a preset must not keep.
@pytest.mark.parametrize("run", ["quickstart", "gsm8k_qwen2.5_1.5b"])
@pytest.mark.parametrize("name", NAMES)
def test_preset_resolves_to_the_values_of_its_paper(name, run):
    beneath = ROOT / "configs" / f"{run}.toml"
    stage, plain = resolved(beneath, PRESETS / f"{name}.toml"), resolved(beneath)
    expected = VALUES[name]
    found = {key: at(stage, key) for key in expected}
    assert found == expected
    off = {k: v for k, v in OFF.items() if not any(e.split(".")[0] == k for e in expected)}
    assert {key: stage[key] for key in off} == off
    assert {key: stage["sampling"][key] for key in SAMPLING} == SAMPLING
    # The rest is the run's.
    theirs = plain.keys() - ALGORITHM
    assert {k: stage[k] for k in theirs} == {k: plain[k] for k in theirs}
    if "samples" not in expected:
        assert stage["samples"] == plain["samples"]


@pytest.mark.parametrize("name", NAMES)
def test_preset_holds_only_the_algorithm_and_is_not_odd(name):
    path = PRESETS / f"{name}.toml"
    content = tomllib.loads(path.read_text())
    assert content.keys() == {"stages"}
    (stage,) = content["stages"]
    assert (stage["type"], stage["name"]) == ("rl", "rl")
    assert stage.keys() - {"type", "name"} <= ALGORITHM
    assert {"advantage", "objective", "weights", "updates"} <= stage.keys()
    assert oddities(load(RunConfig, config_files(path))) == []


# Training


DATA = """
[[data]]
name = "ones"
type = "arithmetic"
digits = 1
verifier = { type = "custom", path = "preset_verifier:starts_odd" }
"""
# What shows that the algorithm acted, of the last step.
RATIO = {"policy/ratio_max": 1.0001}
SEQUENCE = {"policy/ratio_max_seq": 1.0001}
CRITIC = {"value/explained_variance": -math.inf, "critic/grad_norm": 1e-9}
CONTRAST = {"group/kept": 0.01, "rollout/rounds": 1}
IN_REWARD = {"reward/kl": -math.inf, "policy/kl": -math.inf}
ACTS = {
    "reinforce": {},
    "rloo": IN_REWARD,
    "reinforce_plus_plus": {**RATIO, **IN_REWARD},
    "reinforce_plus_plus_baseline": {"policy/kl": 1e-9},
    "ppo": {**RATIO, **CRITIC, **IN_REWARD},
    "vapo": {**RATIO, **CRITIC, "policy/positive_nll": 0.1},
    "grpo": {"policy/kl": 1e-9},
    "dr_grpo": RATIO,
    "dapo": {**RATIO, **CONTRAST},
    "gspo": {**SEQUENCE, "policy/clip_frac": 1e-9},
    "cispo": {**RATIO, **CONTRAST, "policy/weight_clip_frac": 0},
    "kimi": {"policy/approx_kl": 1e-9},
    "online_rft": {"policy/positive_nll": 0.1},
    "online_dpo": {"dpo/margin": -math.inf},
    "grpo_process": {"policy/kl": 1e-9},
    "remax": {"reward/baseline": 0},
    "max_rl": {},
    "opo": {},
    "gmpo": SEQUENCE,
    "sapo": RATIO,
}
SUITE = {"dr_grpo", "gspo", "vapo", "dapo"}  # one of each program: ratio, sequence, critic, rounds


@pytest.fixture
def verifier(tmp_path, monkeypatch):
    (tmp_path / "preset_verifier.py").write_text(
        textwrap.dedent("""
        from jaxrl_vr.types import Score, Step

        def starts_odd(example, response):
            right = response[:1] in set("13579+>")
            steps = tuple(Step(i + 1, float(c in "13579")) for i, c in enumerate(response))
            return Score(float(right), "right" if right else "wrong", steps=steps)
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)


def small(stage):
    """Overrides that make a preset's run small, as far as the preset has the key."""
    yield "stages.rl.samples=4"
    if stage["updates"] > 1:
        yield "stages.rl.updates=2"
    if stage["critic"]:
        yield "stages.rl.critic.optimizer.learning_rate=1e-2"
        yield f"stages.rl.critic.warmup_steps={min(stage['critic']['warmup_steps'], 1)}"
    if stage["shaping"] and "buffer" in stage["shaping"][0]:
        yield "stages.rl.shaping.0.buffer=2"


@pytest.mark.parametrize(
    "name", [n if n in SUITE else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_preset_trains(name, tmp_path, verifier, capsys):
    path = PRESETS / f"{name}.toml"
    beneath = config(tmp_path, rl("rl", steps=2), data=DATA)
    stage = resolved(*config_files(path))
    call(capsys, "train", beneath, path, *small(stage))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert len(steps) == 2
    for step in steps:
        assert all(math.isfinite(v) for v in step.values() if isinstance(v, float)), step
    last = steps[-1]
    assert last["optimizer/grad_norm"] > 0 and last["optimizer/skipped"] == 0
    for metric, least in ACTS[name].items():
        assert last[metric] >= least, (metric, last[metric])
    # A critic that warms up first leaves the policy alone.
    warms_up = stage["critic"] is not None and stage["critic"]["warmup_steps"] > 0
    assert ("optimizer/grad_norm" in steps[0]) != warms_up


# Pipelines


def stages_of(name):
    run = load(RunConfig, config_files(PRESETS / f"{name}.toml"))
    return run, {stage.name: stage for stage in run.stages}


def test_sft_takes_the_place_of_rl():
    run, stages = stages_of("sft")
    assert list(stages) == ["cold_start", "before", "rl", "after"]
    sft = stages["rl"]
    assert (sft.type, sft.loss_on, sft.weights.type) == ("sft", "completion", "token_mean")


def test_rft_imitates_the_right_answers_of_an_evaluation():
    run, stages = stages_of("rft")
    assert list(stages) == ["cold_start", "before", "attempts", "rl", "after"]
    (task,) = [t for t in run.tasks if t.name == "attempts"]
    assert (task.data, task.samples, task.sampling.temperature) == (("train",), 100, 0.7)
    (source,) = run.sources(stages["rl"].data)
    assert source.path == "stage:attempts/right.jsonl"
    rft = stages["rl"]
    assert (rft.type, rft.loss_on, rft.weights.type) == ("sft", "completion", "token_mean")


def test_dpo_learns_from_pairs_of_an_evaluation():
    run, stages = stages_of("dpo")
    assert list(stages) == ["cold_start", "before", "attempts", "rl", "after"]
    (source,) = run.sources(stages["rl"].data)
    assert source.path == "stage:attempts/pairs.jsonl"
    assert (stages["rl"].type, stages["rl"].beta, stages["rl"].batch) == ("dpo", 0.1, 64)


def test_distill_teaches_what_rl_has_learned():
    _, stages = stages_of("distill")
    assert list(stages) == ["cold_start", "before", "rl", "distill", "after"]
    distill = stages["distill"]
    assert (distill.teacher, distill.init) == ("rl", "cold_start")
    assert (distill.prompts, distill.samples, distill.updates) == (64, 4, 1)
    assert (distill.objective.type, distill.weights.type) == ("reinforce", "token_mean")


# The quickstart, small; its own data and stages.
SMALL = (
    *("model.width=32", "model.heads=2", "model.layers=1", "model.ffn=64", "data.heldout.limit=6"),
    *("stages.cold_start.steps=60", "stages.cold_start.batch=64"),
    "data.demonstrations={ name = 'demonstrations', type = 'arithmetic', digits = 1 }",
)
SHORT = {
    "sft": ("stages.rl.steps=2",),
    "rft": ("tasks.attempts.samples=8", "stages.rl.steps=2"),
    "dpo": ("stages.rl.steps=2", "stages.rl.batch=8"),
    "distill": (
        *("stages.rl.steps=2", "stages.rl.prompts=8"),
        *("stages.distill.steps=2", "stages.distill.prompts=8"),
    ),
}
FOUND = {
    "sft": ("rl", "sft/nll"),
    "rft": ("rl", "sft/nll"),
    "dpo": ("rl", "dpo/margin"),
    "distill": ("distill", "distill/reverse_kl"),
}


@pytest.mark.parametrize(
    "name", [n if n == "dpo" else pytest.param(n, marks=pytest.mark.slow) for n in PIPELINES]
)
def test_pipeline_trains(name, tmp_path, capsys):
    files = config_files(PRESETS / f"{name}.toml")
    run_dir = f'run_dir="{tmp_path}/run"'
    # One digit, so that some of the answers are right after a short start.
    one_digit = ("data.train.digits=1", "data.train.limit=40") if name in ("rft", "dpo") else ()
    call(capsys, "train", *files, run_dir, *SMALL, *one_digit, *SHORT[name])
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    stage, metric = FOUND[name]
    steps = [m for m in map(json.loads, lines) if m["stage"] == stage]
    assert len(steps) == 2
    for step in steps:
        assert math.isfinite(step[metric]) and step["optimizer/skipped"] == 0
        assert step["optimizer/grad_norm"] > 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [e["stage"] for e in summary["evaluations"]][-1] == "after"


# The page


def test_the_page_lists_every_preset_with_its_types():
    text = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| [`")]
    listed = []
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if len(cells) == 4:
            name = re.fullmatch(r"\[`(\w+)`\]\(\.\./configs/presets/\1\.toml\)", cells[0])[1]
            links = re.findall(r"\((https://[^)]+)\)", cells[1])
            header = (PRESETS / f"{name}.toml").read_text()
            assert links and all(link in header for link in links), name
            assert name in PIPELINES and cells[3]
            listed.append(name)
            continue
        name, paper, advantage, objective, weights, penalty, differs = (
            cell.strip() for cell in row.strip("|").split("|")
        )
        name = re.fullmatch(r"\[`(\w+)`\]\(\.\./configs/presets/\1\.toml\)", name)[1]
        listed.append(name)
        expected = VALUES[name]
        for cell, key in ((advantage, "advantage"), (objective, "objective"), (weights, "weights")):
            assert re.search(r"`(\w+)`", cell)[1] == expected[f"{key}.type"], name
        kind = re.search(r"`(\w+)` ([\d.e-]+), in the (\w+)", penalty)
        found = (kind[1], float(kind[2]), kind[3]) if kind else None
        wanted = tuple(
            expected[f"kl.{k}"] for k in ("type", "coef", "where") if "kl.type" in expected
        )
        assert found == (wanted or None), name
        assert kind or penalty == "none"
        # The paper is one that the file names.
        links = re.findall(r"\((https://[^)]+)\)", paper)
        header = (PRESETS / f"{name}.toml").read_text()
        assert links and all(link in header for link in links), name
        assert differs
    assert sorted(listed) == EVERY

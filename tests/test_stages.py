"""Stages: where their weights and data come from, and what a run leaves behind."""

import json
import re
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inprocess import MODEL, ONES, call, config, evaluation, rl, sft, train

from jaxrl_vr.checkpoint import load_arrays, parameter_hash
from jaxrl_vr.config import load
from jaxrl_vr.losses.logprobs import token_logprobs
from jaxrl_vr.models import hf, params
from jaxrl_vr.sharding import TRAIN_RULES, make_mesh
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.models import build_model, load_base


def opened(path):
    """Config, model and starting weights of a config file."""
    settings = load(RunConfig, [path])
    mesh = make_mesh(settings.mesh)
    model = build_model(settings).model
    return settings, model, load_base(settings, model, None, mesh)


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def export(name, *, more=""):
    return f'\n[[stages]]\ntype = "export"\nname = "{name}"\n{more}\n'


# Weights


def test_init_is_previous_base_a_stage_or_a_path(tmp_path):
    nothing = {"steps": 0}
    # One problem, because each stage has its own order of data.
    (tmp_path / "one.jsonl").write_text('{"q": "1+1=", "a": ">2"}\n')
    data = f"""
[[data]]
name = "one"
type = "jsonl"
path = "{tmp_path}/one.jsonl"
fields = {{ prompt = "q", completion = "a" }}
"""
    path = config(
        tmp_path,
        sft("first", data="one"),
        sft("of_previous", **nothing),
        sft("of_base", **nothing, more='init = "base"'),
        sft("second", data="one", more='init = "base"'),
        evaluation("look"),
        sft("of_previous_that_trained", **nothing),
        sft("of_first", **nothing, more='init = "first"'),
        export("folder", more=f'init = "first"\npath = "{tmp_path}/folder"'),
        sft("of_path", **nothing, more=f'init = "{tmp_path}/folder"'),
        data=ONES + data,
    )
    summary = train(path)
    found = {s["stage"]: s.get("parameter_hash") for s in summary["stages"]}
    base = parameter_hash(opened(path)[2])
    assert found["of_base"] == base
    assert found["first"] != base
    assert found["of_previous"] == found["of_first"] == found["of_path"] == found["first"]
    # Both trained one step from the same weights, each on its own optimizer and data cursor.
    assert found["second"] == found["first"]
    assert found["of_previous_that_trained"] == found["second"]
    assert found["look"] is None and found["folder"] is None
    assert summary["parameter_hash"] == found["of_path"]


def test_the_reference_is_what_the_stage_started_from(tmp_path):
    # At its first step a policy is its own reference: the KL is 0, whatever came before.
    path = config(tmp_path, sft("first"), rl("grpo", steps=4, more="kl = { coef = 0.1 }"), data=ODD)
    train(path)
    steps = [m for m in lines(tmp_path / "run" / "metrics.jsonl") if m["stage"] == "grpo"]
    assert steps[0]["policy/kl"] == pytest.approx(0.0, abs=1e-6)
    assert max(step["policy/kl"] for step in steps) > 1e-5


def test_export_by_stage_and_by_command(tmp_path, capsys):
    path = config(tmp_path, sft("first"), export("hf"), export("half", more='dtype = "bfloat16"'))
    train(path)
    final = tmp_path / "run" / "stages" / "first" / "final"
    settings, model, _ = opened(path)
    mesh = make_mesh(settings.mesh)
    weights = load_arrays(final, params.abstract(model.declare(), TRAIN_RULES, mesh))
    arch, by_stage = hf.load(tmp_path / "run/stages/hf/hf", rules=TRAIN_RULES, mesh=mesh)
    assert arch == model.arch
    assert parameter_hash(by_stage) == parameter_hash(weights)
    said = call(capsys, "export", path, "--init", "first", "--out", tmp_path / "out")
    assert f"wrote {tmp_path / 'out'}" in said
    _, by_command = hf.load(tmp_path / "out", rules=TRAIN_RULES, mesh=mesh)
    assert parameter_hash(by_command) == parameter_hash(weights)
    _, half = hf.load(tmp_path / "run/stages/half/hf", rules=TRAIN_RULES, mesh=mesh)
    rounded = jax.tree.map(lambda x: x.astype("bfloat16").astype("float32"), weights)
    assert parameter_hash(half) == parameter_hash(rounded)
    # What is not an earlier export is not written over.
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("x")
    said = call(capsys, "export", path, "--init", "first", "--out", tmp_path / "mine", code=2)
    assert "is not an earlier export" in said


# Data

ODD = """
[[data]]
name = "ones"
type = "arithmetic"
digits = 1
verifier = { type = "custom", path = "odd_verifier:starts_odd" }
[[data]]
name = "twos"
type = "arithmetic"
digits = 2
split = "heldout"
limit = 6
verifier = { type = "custom", path = "odd_verifier:starts_odd" }
[[data]]
name = "learned"
type = "jsonl"
path = "stage:before/right.jsonl"
fields = { prompt = "prompt", completion = "completion", id = "id" }
[[tasks]]
name = "sums"
data = ["twos"]
samples = 4
sampling = { max_new_tokens = 4 }
"""
"""Sources whose verifier finds about half of what an untrained model says right."""


@pytest.fixture(autouse=True)
def odd_verifier(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("verifier")
    (folder / "odd_verifier.py").write_text(
        textwrap.dedent("""
        def starts_odd(example, response):
            return response[:1] in set("13579+>")
        """)
    )
    monkeypatch.syspath_prepend(folder)


def test_right_answers_of_an_evaluation_are_a_later_stages_data(tmp_path):
    path = config(tmp_path, evaluation("before"), sft("clone", data="learned"), data=ODD)
    before = train(path)["evaluations"][0]
    folder = tmp_path / "run" / "stages" / "before"
    every, right = lines(folder / "output.jsonl"), lines(folder / "right.jsonl")
    assert len(every) == 6 * 4 and before["n"] == 6 and before["samples"] == 4
    assert right == [r for r in every if r["verdict"] == "right"]
    assert 0 < len(right) < 24
    assert before["accuracy"] == pytest.approx(len(right) / 24)
    assert all(r["completion"][0] in "13579+>" for r in right)
    cloned = lines(tmp_path / "run" / "metrics.jsonl")[-1]
    assert cloned["stage"] == "clone" and cloned["optimizer/grad_norm"] > 0


def test_stage_without_right_answers_says_so(tmp_path, capsys):
    data = ODD.replace("starts_odd", "nothing")
    verifier = "def nothing(example, response):\n    return 0.0\n"
    (tmp_path / "none_verifier.py").write_text(verifier)
    data = data.replace("odd_verifier", "none_verifier")
    path = config(tmp_path, evaluation("before"), sft("clone", data="learned"), data=data)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        said = call(capsys, "train", path, code=2)
    assert "right.jsonl has no records" in said and "'learned'" in said
    assert (tmp_path / "run/stages/before/result.json").exists()


@pytest.mark.parametrize("loss_on", ["completion", "all"])
def test_sft_loss_is_over_the_tokens_it_names(tmp_path, loss_on):
    (tmp_path / "one.jsonl").write_text('{"q": "1+1=", "a": ">2"}\n')
    data = f"""
[[data]]
name = "one"
type = "jsonl"
path = "{tmp_path}/one.jsonl"
fields = {{ prompt = "q", completion = "a" }}
"""
    path = config(tmp_path, sft("s", data="one", more=f'loss_on = "{loss_on}"'), data=data)
    train(path)
    # Of "1+1=>2" and the end, nothing predicts the first token; the prompt has four.
    at = nll(path, "1+1=>2")
    expected = at[1:] if loss_on == "all" else at[4:]
    found = lines(tmp_path / "run" / "metrics.jsonl")[0]
    assert found["sft/nll"] == pytest.approx(np.mean(expected), abs=1e-5)
    assert found["loss/total"] == pytest.approx(np.mean(expected), abs=1e-5)


def test_plain_text_trains_on_every_token(tmp_path):
    (tmp_path / "text.jsonl").write_text('{"text": "1+2=3,4+5"}\n')
    data = f"""
[[data]]
name = "text"
type = "jsonl"
path = "{tmp_path}/text.jsonl"
fields = {{ text = "text" }}
"""
    path = config(tmp_path, sft("s", data="text", more='loss_on = "all"'), data=data)
    train(path)
    found = lines(tmp_path / "run" / "metrics.jsonl")[0]
    assert found["sft/nll"] == pytest.approx(np.mean(nll(path, "1+2=3,4+5")[1:]), abs=1e-5)


def nll(path, text):
    """Negative log-likelihood of each token of a text and its end; of the first one, 0."""
    settings, model, weights = opened(path)
    tokens = jnp.array([[*settings.tokenizer.build().encode(text), 1]])
    n = tokens.shape[1]
    hidden = model.hidden(weights, tokens, jnp.arange(n)[None], jnp.ones((1, n), jnp.int32))
    ones = jnp.ones(n - 1)
    logp, _ = token_logprobs(
        hidden[0, :-1], model.head(weights), tokens[0, 1:], ones, ones.astype(bool)
    )
    return np.array([0.0, *-np.asarray(logp)])


def test_stages_see_the_same_source_in_different_orders(tmp_path):
    # From the same weights, so that the order of data and the sampling keys are all that differs.
    path = config(tmp_path, rl("one"), rl("other", more='init = "base"'))
    train(path)
    rollouts = [
        lines(tmp_path / f"run/stages/{name}/rollouts/step-000001.jsonl")
        for name in ("one", "other")
    ]
    prompts = [{line["prompt"] for line in of_stage} for of_stage in rollouts]
    assert len(prompts[0]) == len(prompts[1]) == 4
    assert prompts[0] != prompts[1]
    settings = load(RunConfig, [path])
    seeds = [settings.stage_seed(stage) for stage in settings.stages]
    assert len(set(seeds)) == 2 and all(0 <= seed < 2**32 for seed in seeds)
    again = load(RunConfig, [path], ["seed=1"])
    assert not set(seeds) & {again.stage_seed(stage) for stage in again.stages}


# Updates


def test_updates_follow_their_schedule_and_so_does_the_learning_rate(tmp_path):
    more = "updates = [{ step = 0, updates = 1 }, { step = 1, updates = 2 }]"
    path = config(tmp_path, rl("grpo", steps=2, more=more), data=ODD)
    train(path, "stages.grpo.optimizer.schedule.type=linear")
    rates = [m["optimizer/learning_rate"] for m in lines(tmp_path / "run" / "metrics.jsonl")]
    # 1 + 2 optimizer steps at 3/3, 2/3 and 1/3 of 1e-2; a step shows the mean of its own.
    assert rates == pytest.approx([1e-2, (2 / 3 + 1 / 3) / 2 * 1e-2])


# What a run leaves


def test_run_folder_explains_itself(tmp_path):
    tables = [sft("cold"), rl("grpo", more="eval = { every = 1, tasks = ['sums'] }")]
    path = config(tmp_path, *tables, evaluation("after"), model=MODEL.replace("= false", "= true"))
    summary = train(path)
    run = tmp_path / "run"
    assert json.loads((run / "summary.json").read_text()) == summary
    # Each file that the folder's README.md names is there, for one stage at least.
    named = re.findall(r"`([\w./]+[\w/]\.?\w*)`", (run / "README.md").read_text())
    files = {n for n in named if "/" in n or n.endswith((".toml", ".json", ".jsonl"))}
    assert {"config.toml", "summary.json", "metrics.jsonl", "tensorboard/"} <= files
    assert {"stages/NAME/rollouts/", "stages/NAME/final/", "stages/NAME/result.json"} <= files
    for name in files - {"stages/NAME/checkpoints/", "stages/NAME/profile/"}:
        # A name without a folder stands behind one that has it.
        pattern = name.replace("NAME", "*").rstrip("/") if "/" in name else f"**/{name}"
        assert list(run.glob(pattern)), name
    during, after = summary["evaluations"]
    assert (during["stage"], during["step"], during["task"]) == ("grpo", 1, "sums")
    assert (after["stage"], after["step"], after["task"]) == ("after", None, "sums")
    # Nothing trained between the two.
    assert {**during, "stage": 0, "step": 0} == {**after, "stage": 0, "step": 0}
    assert after["n"] == 6 and set(after["pass_at_k"]) == {"1"}
    assert {"rollout", "update", "eval"} <= set(summary["seconds"])
    assert summary["seconds"]["update"] == pytest.approx(
        sum(s["seconds"].get("update", 0.0) for s in summary["stages"]), abs=0.01
    )
    assert re.fullmatch("[0-9a-f]{64}", summary["parameter_hash"])
    assert summary["machine"]["devices"].startswith(f"{jax.device_count()} x")
    assert load(RunConfig, [run / "config.toml"]) == load(RunConfig, [path])
    rollouts = lines(run / "stages/grpo/rollouts/step-000001.jsonl")
    assert len(rollouts) == 4 * 2
    assert {"prompt", "text", "tokens", "score", "advantage"} <= set(rollouts[0])
    assert set(rollouts[0]["score"]) == {"value", "verdict", "components", "reason"}


def test_run_that_is_done_says_so_and_changes_nothing(tmp_path, capsys):
    path = config(tmp_path, sft("cold"), evaluation("after"))
    first = train(path)
    said = call(capsys, "train", path)
    assert "cold: done before" in said and "after: done before" in said
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == first


def test_recomputed_log_probs_are_those_before_the_first_update(tmp_path):
    # Otherwise the ratio of each update would be 1, and the clip range could never act.
    more = 'updates = 2\nold_logp = "recomputed"'
    train(config(tmp_path, rl("grpo", steps=1, more=more), data=ODD))
    (step,) = lines(tmp_path / "run" / "metrics.jsonl")
    assert step["policy/ratio_max"] > 1.001
    assert step["mismatch/max"] < 1e-5


def test_steps_cannot_fall_below_a_checkpoint_nor_change_once_done(tmp_path, capsys):
    path = config(tmp_path, sft("first", steps=2))
    train(path)
    output = call(capsys, "train", path, "stages.first.steps=3", code=2)
    assert "(first is done):\n  stages.first.steps: was 2, now 3" in output
    (tmp_path / "run" / "stages" / "first" / "result.json").unlink()
    train(path, "checkpoint.every=1", "stages.first.steps=4")
    (tmp_path / "run" / "stages" / "first" / "result.json").unlink()
    output = call(capsys, "train", path, "stages.first.steps=2", code=2)
    assert "stages.first.steps = 2, but the run has a checkpoint of step" in output

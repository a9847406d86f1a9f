"""A model beyond the context that it ships with: YaRN from the config to the exported folder."""

import json
import shutil

import jax
import numpy as np
import pytest
from inprocess import ONES, call, config, evaluation, rl

from jaxrl_vr.config import load
from jaxrl_vr.data.tokenizer import CharTokenizer
from jaxrl_vr.models import hf, hf_export, params
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.params import declare
from jaxrl_vr.models.rope_scaling import LinearScaling, YarnScaling
from jaxrl_vr.models.rotary import rotary_angles
from jaxrl_vr.plan.known import architecture
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh
from jaxrl_vr.train.config import RunConfig

YARN = YarnScaling(factor=4.0, original_length=12, beta_fast=2.0, beta_slow=0.2)
ON = 'rope_scaling = { type = "yarn", factor = 4, original_length = 12, beta_fast = 2, '
ON += "beta_slow = 0.2 }"
LINEAR = 'rope_scaling = { type = "linear", factor = 2.5 }'
LONG = "sampling = { max_new_tokens = 4 }", "sampling = { max_new_tokens = 30 }"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small Qwen2 with a context of 16 tokens and no scaling."""
    folder = tmp_path_factory.mktemp("models") / "short"
    arch = Architecture(
        family="qwen2",
        vocab_size=16,
        width=16,
        layers=1,
        heads=2,
        kv_heads=1,
        head_dim=8,
        ffn=24,
        max_length=16,
        rope_theta=100.0,
    )
    weights = params.init(declare(arch), jax.random.key(0), TRAIN_RULES, make_mesh(MeshConfig()))
    tokenizer = CharTokenizer("0123456789+=>,")
    hf_export.export(folder, arch, weights, eos_ids=(1,), save_tokenizer=tokenizer.save)
    return folder


def pretrained(tmp_path, folder, *tables, rope=ON):
    """A config that starts from the folder."""
    model = f"""
[model]
type = "pretrained"
path = "{folder}"
{rope}
[tokenizer]
type = "hf"
[engine]
slots = 16
steps_per_call = 4
"""
    return config(tmp_path, *tables, model=model, data=ONES)


EXPORT = """
[[stages]]
type = "export"
name = "out"
"""


def test_yarn_trains_beyond_the_models_context_and_is_exported(tmp_path, folder, capsys):
    path = pretrained(tmp_path, folder, rl("grpo").replace(*LONG), evaluation("after"), EXPORT)
    call(capsys, "train", path)
    # Completions went beyond the 16 tokens, and the learner agrees with the sampler on them.
    metrics = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    (step,) = (found for x in metrics if "length/max" in (found := json.loads(x)))
    assert step["length/max"] > 16
    assert step["mismatch/max"] < 1e-5
    out = tmp_path / "run" / "stages" / "out" / "hf"
    written = json.loads((out / "config.json").read_text())
    assert written["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 12,
        "beta_fast": 2.0,
        "beta_slow": 0.2,
        "truncate": True,
    }
    assert written["max_position_embeddings"] == 48
    # Read back it is the same model, whose own context is now the long one.
    arch = hf.architecture_from_config(hf.read_config(out))
    assert (arch.rope_scaling, arch.max_length) == (YARN, 48)
    (tmp_path / "next").mkdir()
    again = pretrained(tmp_path / "next", out, rl("grpo").replace(*LONG), rope="")
    call(capsys, "train", again, "--dry-run")


def test_weights_without_a_scaling_start_a_stage_under_it(tmp_path, folder, capsys):
    path = pretrained(tmp_path, folder, rl("grpo", more=f'init = "{folder}"').replace(*LONG))
    call(capsys, "train", path, "--dry-run")
    off = pretrained(tmp_path, folder, rl("grpo"), rope="")
    call(capsys, "train", off, "--dry-run")


def test_a_plan_has_the_long_context(tmp_path, folder):
    path = pretrained(tmp_path, folder, rl("grpo"))
    assert architecture(load(RunConfig, [path])).max_length == 48
    of_hub = ["model.path=Qwen/Qwen3-8B", "model.rope_scaling.original_length=32768"]
    assert architecture(load(RunConfig, [path], of_hub)).max_length == 131072
    shorter = load(RunConfig, [path], ["model.max_length=20"])
    assert architecture(shorter).max_length == 20
    linear = pretrained(tmp_path, folder, rl("grpo"), rope=LINEAR)
    arch = architecture(load(RunConfig, [linear]))
    assert (arch.rope_scaling, arch.max_length) == (LinearScaling(factor=2.5), 40)


def test_a_teacher_that_ships_without_a_scaling_has_the_students(tmp_path, folder, capsys):
    advantage = f'advantage = {{ type = "on_policy_distillation", teacher = "{folder}" }}\n'
    # Advantages are the KL's: none, where both are the same model beyond its context too.
    stage = rl("teach", steps=1, more=advantage).replace(*LONG)
    call(capsys, "train", pretrained(tmp_path, folder, stage))
    found = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    (step,) = (metrics for x in found if "length/max" in (metrics := json.loads(x)))
    assert step["length/max"] > 16
    assert step["distill/reverse_kl"] == pytest.approx(0, abs=1e-6)


def changed(folder, to, **fields):
    """The folder with other values in its config.json."""
    shutil.copytree(folder, to)
    hf_config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(hf_config | fields))
    return to


def test_init_from_another_model_is_refused_as_itself(tmp_path, folder, capsys):
    other = changed(folder, tmp_path / "other", intermediate_size=48, max_position_embeddings=10)
    stage = rl("grpo", more=f'init = "{other}"\n').replace(*LONG)
    said = call(capsys, "train", pretrained(tmp_path, folder, stage), "--dry-run", code=2)
    assert f"init = '{other}' holds another model: ffn = 48, and [model] has 24;" in said


def test_a_teacher_too_short_for_the_scaling_is_refused(tmp_path, folder, capsys):
    short = changed(folder, tmp_path / "shorter", max_position_embeddings=10)
    advantage = f'advantage = {{ type = "on_policy_distillation", teacher = "{short}" }}\n'
    stage = rl("teach", steps=1, more=advantage).replace(*LONG)
    said = call(capsys, "train", pretrained(tmp_path, folder, stage), "--dry-run", code=2)
    assert "advantage.teacher" in said and "rope_scaling.original_length = 12 exceeds" in said


@pytest.mark.parametrize(
    "overrides, said",
    [
        (["model.rope_scaling.factor=0.5"], "model.rope_scaling.factor = 0.5: must be greater"),
        (
            ["model.max_length=50"],
            "model: max_length = 50 exceeds rope_scaling.factor = 4 x original_length = 12, 48 "
            "tokens; lower it, set factor to 4.2, or original_length to what the model was",
        ),
        (
            ["model.rope_scaling.original_length=32"],
            "model.rope_scaling.original_length = 32 exceeds the model's own context of 16; set it "
            "to what the model was pretrained with",
        ),
        (['model.rope_scaling={ type = "yarn", factor = 4 }'], "rope_scaling.original_length"),
        (
            ["model.rope_scaling={ type = 'dynamic', factor = 4 }"],
            'must be "linear" or "yarn"',
        ),
        (
            ["model.rope_scaling.original_max_position_embeddings=12"],
            "original_max_position_embeddings = 12: unknown key",
        ),
        (
            ["stages.grpo.sampling.max_new_tokens=48"],
            "leaves no room for a prompt in the model's context of 48",
        ),
    ],
    ids="factor context pretraining missing kind spelling room".split(),
)
def test_faults_of_yarn_are_named_before_the_run(tmp_path, folder, capsys, overrides, said):
    path = pretrained(tmp_path, folder, rl("grpo"))
    assert said in call(capsys, "train", path, "--dry-run", *overrides, code=2)


def test_a_second_scaling_is_refused(tmp_path, folder, capsys):
    own = json.loads((folder / "config.json").read_text())
    other = tmp_path / "other"
    other.mkdir()
    for file in folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    rope = {"rope_type": "linear", "factor": 2.0}
    (other / "config.json").write_text(json.dumps(own | {"rope_scaling": rope}))
    path = pretrained(tmp_path, other, rl("grpo"))
    said = call(capsys, "train", path, "--dry-run", code=2)
    assert "model.rope_scaling: the model has one of its own (type='linear' factor=2.0)" in said


def test_long_contexts_differ_from_plain_ones(folder):
    """That the scaling acts at all: angles at a position within the model's own context."""
    plain = hf.architecture_from_config(hf.read_config(folder))
    at = np.asarray([[10]])
    cos, scaled = (rotary_angles(a, at)[0] for a in (plain, plain.with_scaling(YARN)))
    assert np.abs(scaled - YARN.magnitude * cos).max() > 0.05

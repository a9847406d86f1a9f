"""Optimizers through the command line: they learn, resume bit for bit, and say what cannot act."""

import json
import shutil

import jax
import numpy as np
import pytest
from inprocess import call, config, rl, sft, train

from jaxrl_vr.checkpoint import load_arrays
from jaxrl_vr.config import load
from jaxrl_vr.models.params import abstract
from jaxrl_vr.sharding import TRAIN_RULES, make_mesh
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.models import build_model

MUON = (
    'stages.cold.optimizer={type="muon", learning_rate=0.02, adam_learning_rate=1e-2, '
    'adam_b2=0.95, weight_decay=0.01, no_decay=["embed"], state_dtype="bfloat16", '
    'state_offload=true, groups=[{match="*norm", frozen=true}]}'
)
CRITIC = """
advantage = { type = "gae" }
critic = { optimizer = { type = "adafactor", learning_rate = 1e-2, min_factored_size = 16 } }
"""


def lines(run):
    found = [json.loads(x) for x in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if not k.startswith(("time/", "speed/"))} for line in found
    ]


def final(path, *overrides):
    """The parameters at the end of `cold`."""
    found = load(RunConfig, [path], overrides)
    target = abstract(build_model(found).model.declare(), TRAIN_RULES, make_mesh(found.mesh))
    return jax.device_get(load_arrays(path.parent / "run" / "stages" / "cold" / "final", target))


def test_a_run_of_muon_learns_and_resumes_bit_for_bit(tmp_path):
    path, run = config(tmp_path, sft("cold", steps=8)), tmp_path / "run"
    whole, metrics = train(path, MUON), lines(run)
    loss = [line["loss/total"] for line in metrics]
    assert np.mean(loss[-2:]) < 0.9 * loss[0]
    assert {line["optimizer/skipped"] for line in metrics} == {0.0}
    params = final(path, MUON)
    for norm in (params["norm"], params["layers"]["attn_norm"], params["layers"]["ffn_norm"]):
        np.testing.assert_array_equal(norm, np.ones_like(norm))  # as they begin
    shutil.rmtree(run)
    train(path, MUON, "checkpoint.every=1", "stages.cold.steps=3")
    (run / "stages" / "cold" / "result.json").unlink()
    resumed = train(path, MUON)
    assert resumed["parameter_hash"] == whole["parameter_hash"]
    assert lines(run) == metrics


def test_a_critic_has_an_optimizer_of_its_own(tmp_path):
    path = config(tmp_path, rl("ppo", more=CRITIC))
    train(path, 'stages.ppo.critic.optimizer.groups=[{match="body/embed", frozen=true}]')
    (line,) = lines(tmp_path / "run")
    assert line["critic/skipped"] == 0 and line["critic/learning_rate"] == pytest.approx(1e-2)


@pytest.mark.parametrize(
    "override, says",
    [
        (
            'stages.cold.optimizer.groups=[{match="layer/*", frozen=true}]',
            "stages.cold.optimizer.groups.0.match = 'layer/*' matches no parameter",
        ),
        (
            'stages.cold.optimizer={type="adafactor"}',
            "are missing and to be set: stages.cold.optimizer.learning_rate (was 0.01)",
        ),
        (
            'stages.cold.optimizer={type="adafactor", learning_rate=1e-2}',
            "stages.cold.optimizer.min_factored_size = 128 cannot act: of the matrices that train "
            "none has so many rows and columns (at most 16), so nothing would be factored; set it "
            "to 16 or less",
        ),
        (
            'stages.ppo.critic.optimizer.groups=[{match="layers/*", frozen=true}]',
            "stages.ppo.critic.optimizer.groups.0.match = 'layers/*' matches no parameter; did "
            "you mean 'body/layers/v'? there are body/embed, body/layers/attn_norm",
        ),
        (
            "stages.cold.optimizer.type=adam",
            'must be "adamw", "adafactor", "lion" or "muon"; did you mean `adamw`?',
        ),
        ("stages.cold.optimizer.state_dtype=bfloat16", "b2 = 0.999 cannot act with state_dtype"),
    ],
)
def test_what_cannot_act_is_said_before_the_run(tmp_path, capsys, override, says):
    path = config(tmp_path, sft("cold"), rl("ppo", more=CRITIC))
    assert says in " ".join(call(capsys, "train", path, "--dry-run", override, code=2).split())

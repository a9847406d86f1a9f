"""What of its config a run that is resumed may change."""

import pytest
from inprocess import ONES, config, evaluation, rl, sft

from jaxrl_vr.config import difference, load
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.folder import MAY_CHANGE, settled


def changed(tmp_path, *overrides, num_begun=2, done=("cold",)):
    """What keeps a run from being resumed: one whose first stage is done and second has begun."""
    path = config(tmp_path, sft("cold"), rl("grpo"), evaluation("after"))
    old, new = load(RunConfig, [path]), load(RunConfig, [path], overrides)
    old, new = (settled(c, num_begun, set(done)) for c in (old, new))
    return difference(old, new, may_change=MAY_CHANGE)


@pytest.mark.parametrize(
    "override",
    [
        "logging.console=off",
        "checkpoint.every=3",
        "tasks.sums.sampling.max_new_tokens=3",
        "mesh.fsdp=8",
        "engine.slots=3",
        "verifiers.workers=2",
        "stages.grpo.eval={ every = 1, tasks = ['sums'] }",
        "stages.grpo.steps=9",
        "stages.grpo.diagnostics.layer_norms=true",
        "stages.grpo.profile={ steps = [1] }",
        "stages.cold.profile={ steps = [1] }",  # of a stage that is done
        "stages.cold.micro.share_prefixes=false",
        "run_dir=elsewhere",
    ],
)
def test_keys_that_may_change(tmp_path, override):
    assert changed(tmp_path, override) == []


@pytest.mark.parametrize(
    "override, line",
    [
        ("stages.grpo.steps=9", "stages.grpo.steps: was 1, now 9"),
        (
            "tasks.sums.sampling.max_new_tokens=3",
            "tasks.sums.sampling.max_new_tokens: was 4, now 3",
        ),
        ("data.twos.limit=5", "data.twos.limit: was 6, now 5"),
        ("data.ones.digits=2", "data.ones.digits: was 1, now 2"),
        ("verifiers.deadline=1.0", "verifiers.deadline: was "),
    ],
)
def test_what_a_stage_that_is_done_has_used_may_not_change(tmp_path, override, line):
    everything = ("cold", "grpo", "after")
    (found,) = changed(tmp_path, override, num_begun=3, done=everything)
    assert found.startswith(line)


@pytest.mark.parametrize(
    "override", ["stages.grpo.prompts=8", "stages.after.tasks=['sums']", "data.twos.digits=1"]
)
def test_what_only_later_stages_use_may_change(tmp_path, override):
    assert changed(tmp_path, override, num_begun=1) == []


@pytest.mark.parametrize(
    "override, line",
    [
        ("seed=1", "seed: was 0, now 1"),
        ("model.width=32", "model.width: was 16, now 32"),
        ("stages.grpo.prompts=8", "stages.grpo.prompts: was 4, now 8"),
        (
            "stages.grpo.objective.clip_high=0.3",
            "stages.grpo.objective.clip_high: was 0.2, now 0.3",
        ),
        ("stages.grpo.kl={ coef = 0.1 }", "stages.grpo.kl: was not set, now { type ="),
        ("data.ones.digits=2", "data.ones.digits: was 1, now 2"),
    ],
)
def test_keys_that_may_not(tmp_path, override, line):
    (found,) = changed(tmp_path, override)
    assert found.startswith(line)


def test_texts_that_are_mixed_in_may_not_change(tmp_path):
    texts = '[[data]]\nname = "texts"\ntype = "arithmetic"\ndigits = 1\n'
    mix = 'lm_mix = { data = ["texts"], batch = 2 }'
    path = config(tmp_path, rl("rl", more=mix), data=ONES + texts)
    before = load(RunConfig, [path])
    after = load(RunConfig, [path], ["data.texts.digits=2"])
    parts = (settled(before, 1, []), settled(after, 1, []))
    assert difference(*parts, may_change=MAY_CHANGE) == ["data.texts.digits: was 1, now 2"]

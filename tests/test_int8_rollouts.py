"""Rollouts from weights in int8: their gap to the learner is measured, and weighed."""

import json

from inprocess import call, config, rl, train


def steps_of(folder, *overrides):
    folder.mkdir()
    train(config(folder, rl("rl", steps=2)), "stages.rl.old_logp=recomputed", *overrides)
    return [json.loads(x) for x in (folder / "run/metrics.jsonl").read_text().splitlines()]


def test_the_gap_is_measured_and_weighed(tmp_path):
    tis = "stages.rl.offpolicy=[{ type = 'tis', max_weight = 1.0 }]"
    whole = steps_of(tmp_path / "whole", tis)
    rounded = steps_of(tmp_path / "int8", tis, "engine.weights=int8")
    assert all(step["mismatch/max"] < 1e-5 for step in whole)
    assert all(1e-4 < step["mismatch/max"] < 0.5 for step in rounded)
    # A cap of 1 cuts the weights of all tokens which the learner finds likelier.
    assert all(step["offpolicy/cut_frac"] > 0 for step in rounded)


def test_a_dry_run_says_that_nothing_corrects_it(tmp_path, capsys):
    path = config(tmp_path, rl("rl"))
    said = call(capsys, "train", path, "engine.weights=int8", "--dry-run")
    assert "engine.weights = 'int8' with stages.rl.offpolicy = []" in said
    corrected = "stages.rl.offpolicy=[{ type = 'tis' }]", "stages.rl.old_logp=recomputed"
    assert "int8' with" not in call(
        capsys, "train", path, "engine.weights=int8", *corrected, "--dry-run"
    )

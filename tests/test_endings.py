"""Stop strings and forced texts of a run: what ends a completion, and what does not train."""

import json

import pytest
from inprocess import call, config, evaluation, rl, train


def rollouts(folder):
    files = sorted((folder / "run/stages/rl/rollouts").glob("*.jsonl"))
    return [json.loads(line) for f in files for line in f.read_text().splitlines()]


def test_a_stop_string_ends_each_completion(tmp_path):
    train(config(tmp_path, rl("rl", steps=2)), "stages.rl.sampling.stop=['1', '=>']")
    lines = rollouts(tmp_path)
    assert any(line["finish"] == "stop" for line in lines)
    for line in lines:
        text = line["text"]
        assert "1" not in text[:-1] and "=>" not in text[:-2]
        if text.endswith(("1", "=>")):
            assert line["finish"] == "stop"


def test_forced_text_is_counted_and_not_trained_on(tmp_path):
    rule = "stages.rl.sampling.forced=[{ after = 2, text = '=7', unless = '7' }]"
    train(config(tmp_path, rl("rl", steps=2)), rule, "stages.rl.sampling.max_new_tokens=6")
    steps = [json.loads(x) for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    lines = rollouts(tmp_path)
    equals, seven = 13, 9  # ids: the alphabet's letters from 2 on
    forced = [x for x in lines if len(x["tokens"]) > 2 and seven not in x["tokens"][:2]]
    assert len(forced) > len(lines) / 4
    assert all(line["tokens"][2:4] == [equals, seven] for line in forced)
    rate = sum(step["length/forced_rate"] for step in steps) / 2
    assert rate == pytest.approx(len(forced) / len(lines))
    assert all(step["mismatch/max"] < 1e-4 for step in steps)  # of what trains: the sampled ones


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ('stop = [""]', "stop holds an empty string"),
        ('stop = ["a"]', "stages.rl.sampling.stop = 'a': character 'a' of 'a' is not in the"),
        ("forced = [{ after = 4 }]", "forced.after = 4 is not below max_new_tokens = 4"),
        (
            'forced = [{ after = 2, text = "x" }]',
            "stages.rl.sampling.forced.text = 'x': character 'x' of 'x' is not in the alphabet",
        ),
        (
            'forced = [{ after = 2, text = "12" }]',
            "stages.rl.sampling: 2 tokens forced after 2 leave nothing to sample below",
        ),
    ],
)
def test_a_dry_run_refuses_what_cannot_act(tmp_path, capsys, value, message):
    path = config(tmp_path, rl("rl"))
    override = f"stages.rl.sampling.{value}"
    assert message in call(capsys, "train", path, override, "--dry-run", code=2)


def test_an_evaluation_has_them_too(tmp_path, capsys):
    path = config(tmp_path, evaluation("eval"))
    more = "tasks.sums.sampling.stop=['x']"
    assert "tasks.sums.sampling.stop = 'x'" in call(
        capsys, "train", path, more, "--dry-run", code=2
    )

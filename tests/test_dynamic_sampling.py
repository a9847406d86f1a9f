"""Dynamic sampling: only groups with contrast train, and prompts are sampled until they suffice."""

import json
import textwrap

import pytest
from inprocess import config, rl, train

DATA = """
[[data]]
name = "ones"
type = "arithmetic"
digits = 1
verifier = { type = "custom", path = "contrast_verifier:VERIFIER" }
"""


@pytest.fixture
def verifiers(tmp_path, monkeypatch):
    (tmp_path / "contrast_verifier.py").write_text(
        textwrap.dedent("""
        def starts_odd(example, response):
            return response[:1] in set("13579+>")

        def always(example, response):
            return True
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)


def run(tmp_path, verifier, more):
    path = config(tmp_path, rl("rl", steps=3, more=more), data=DATA.replace("VERIFIER", verifier))
    summary = train(path)
    run = tmp_path / "run"
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rollouts = [
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in sorted((run / "stages/rl/rollouts").glob("*.jsonl"))
    ]
    assert len(steps) == len(rollouts) == 3
    return summary, steps, rollouts


def test_every_group_that_trains_has_contrast(tmp_path, verifiers):
    _, steps, rollouts = run(tmp_path, "starts_odd", "dynamic_sampling = { max_rounds = 20 }")
    for step, lines in zip(steps, rollouts, strict=True):
        # Four prompts of two samples are asked for; those beyond train too.
        groups = [lines[i : i + 2] for i in range(0, len(lines), 2)]
        mixed = [g for g in groups if {line["score"]["value"] for line in g} == {0.0, 1.0}]
        trained = [g for g in groups if any(line["advantage"] != 0 for line in g)]
        assert 4 <= len(trained) < len(groups) and trained == mixed
        assert step["group/kept"] == pytest.approx(len(trained) / len(groups))
        assert step["group/kept"] == pytest.approx(step["group/mixed"])
        assert step["optimizer/grad_norm"] > 0
    # 4 x 1.5 = 6 prompts a round, of which about half have contrast.
    assert max(step["rollout/rounds"] for step in steps) > 1


def test_rounds_are_bounded_and_what_is_there_trains(tmp_path, verifiers):
    more = "dynamic_sampling = { max_rounds = 1, oversample = 1.0 }"
    _, steps, rollouts = run(tmp_path, "starts_odd", more)
    assert [step["rollout/rounds"] for step in steps] == [1, 1, 1]
    assert all(len(lines) == 8 for lines in rollouts)
    assert min(sum(line["advantage"] != 0 for line in lines) for lines in rollouts) < 8


def test_without_any_contrast_the_run_goes_on(tmp_path, verifiers):
    more = "dynamic_sampling = { max_rounds = 2 }\nupdates = 2"
    _, steps, rollouts = run(tmp_path, "always", more)
    for step, lines in zip(steps, rollouts, strict=True):
        assert step["rollout/rounds"] == 2
        assert step["group/kept"] == 0
        assert step["optimizer/grad_norm"] == 0
        assert len(lines) == 12 * 2


def test_a_prompt_of_a_later_round_is_sampled_anew(tmp_path, verifiers):
    # One problem, one prompt a round: with the same keys each would give the same two samples.
    data = DATA.replace("digits = 1", "digits = 1\nlimit = 1").replace("VERIFIER", "always")
    more = "dynamic_sampling = { max_rounds = 6, oversample = 1.0 }"
    train(config(tmp_path, rl("rl", steps=1, more=more), data=data), "stages.rl.prompts=1")
    (file,) = (tmp_path / "run/stages/rl/rollouts").glob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == 12
    texts = {line["text"] for line in lines}
    assert len(texts) > 6

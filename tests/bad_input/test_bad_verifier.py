"""Verifiers of a run, sound and faulty: what is said, what trains, and what the scores become."""

import json

import pytest
from inprocess import call, config, evaluation, final_hash, judged, lines, rl

from jaxrl_vr.checkpoint import parameter_hash
from jaxrl_vr.config import load
from jaxrl_vr.sharding import make_mesh
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.models import build_model, load_base
from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.spec import build


def base(path):
    settings = load(RunConfig, [path])
    return load_base(settings, build_model(settings).model, None, make_mesh(settings.mesh))


def test_custom_verifier_judges_a_whole_run(tmp_path, verifier, capsys):
    verifier("""
    from jaxrl_vr.types import Score

    def digits(example, response, *, want):
        share = sum(c in want for c in response) / 4
        return Score(share, "right" if share >= 0.5 else "wrong", {"share": share}, "digits")
    """)
    spec = 'verifier = { type = "custom", path = "judge:digits", kwargs = { want = "01234" } }'
    path = config(tmp_path, rl("grpo", steps=2), evaluation("after"), data=judged("", spec))
    call(capsys, "train", path)
    for step in (1, 2):
        rollouts = lines(tmp_path / "run/stages/grpo/rollouts" / f"step-{step:06}.jsonl")
        assert len(rollouts) == 8
        for r in rollouts:
            share = sum(c in "01234" for c in r["text"]) / 4
            assert r["score"]["value"] == share and r["score"]["components"] == {"share": share}
            assert r["score"]["verdict"] == ("right" if share >= 0.5 else "wrong")
    answers = lines(tmp_path / "run/stages/after/output.jsonl")
    assert {r["reason"] for r in answers} == {"digits"}


def test_weighted_verifier_with_format_adds_up(tmp_path, verifier, capsys):
    verifier("""
    def odd(example, response):
        return response[:1] in set("13579+>")
    """)
    spec = """verifier = { type = "weighted", decides = "odd", parts = [
    { verifier = { type = "format" }, weight = 0.25 },
    { verifier = { type = "custom", path = "judge:odd" }, weight = 2.0, name = "odd" },
    { verifier = { type = "exact" }, weight = -1.0 },
]}"""
    path = config(tmp_path, rl("grpo"), data=judged("", spec))
    call(capsys, "train", path)
    rollouts = lines(tmp_path / "run/stages/grpo/rollouts/step-000001.jsonl")
    specs = load(RunConfig, [path]).data[0].verifier
    for r in rollouts:
        score = build(specs)(Example("x", r["prompt"], r["reference"]), r["text"])
        assert r["score"]["value"] == score.value
        parts = r["score"]["components"]
        assert set(parts) == {"format", "odd", "exact"}
        assert score.value == 0.25 * parts["format"] + 2 * parts["odd"] - parts["exact"]
        assert r["score"]["verdict"] == ("right" if parts["odd"] else "wrong")
    assert {r["score"]["value"] for r in rollouts} == {0.0, 2.0}
    (first, *_) = lines(tmp_path / "run" / "metrics.jsonl")
    for name in ("format", "odd", "exact"):
        mean = sum(r["score"]["components"][name] for r in rollouts) / len(rollouts)
        assert first[f"component/{name}"] == mean


def test_a_run_whose_answers_cannot_be_scored_stops_and_can_go_on(tmp_path, verifier, capsys):
    verifier("""
    def broken(example, response):
        return 1 / 0
    """)
    path = config(tmp_path, rl("grpo", steps=4), data=judged("broken"))
    said = call(capsys, "train", path, "stages.grpo.prompts=32", code=1)
    # 64 answers a step: a rate means something from the second step on.
    assert (
        "error: 128 of 128 answers could not be scored, more than verifiers.max_unscorable" in said
    )
    assert "128 x the verifier raised ZeroDivisionError: division by zero (first: " in said
    assert "saved grpo at step 1" in said
    verifier("""
    def broken(example, response):
        return response[:1] in set("13579+>")
    """)
    said = call(capsys, "train", path, "stages.grpo.prompts=32")
    assert "resuming grpo at step 1 of 4" in said
    steps = [m for m in lines(tmp_path / "run" / "metrics.jsonl") if m["stage"] == "grpo"]
    assert [m["reward/unscorable"] for m in steps] == [1.0, 0.0, 0.0, 0.0]
    assert [m["verify/unscorable_raised"] for m in steps] == [1.0, 0.0, 0.0, 0.0]


def test_verifier_that_raises_is_said_and_trains_nothing(tmp_path, verifier, capsys):
    verifier("""
    def broken(example, response):
        return 1 / 0
    """)
    path = config(tmp_path, rl("grpo", steps=2), evaluation("after"), data=judged("broken"))
    said = call(capsys, "train", path)
    assert "warning: 8 of 8 answers could not be scored" in said
    assert "the verifier raised ZeroDivisionError: division by zero" in said
    assert "warning: after: 6 of 6 answers to sums could not be scored" in said
    steps = [m for m in lines(tmp_path / "run" / "metrics.jsonl") if m["stage"] == "grpo"]
    assert [m["reward/unscorable"] for m in steps] == [1.0, 1.0]
    assert all(value is not None for m in steps for value in m.values())
    # Not even the optimizer's momentum moved the weights.
    assert not any(name.startswith(("optimizer/", "loss/")) for m in steps for name in m)
    (found,) = json.loads((tmp_path / "run" / "summary.json").read_text())["evaluations"]
    assert (found["n"], found["unscorable"], found["accuracy"]) == (0, 6, 0.0)
    assert final_hash(tmp_path / "run") == parameter_hash(base(path))


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("float('nan')", "judge:odd returned the value nan; return a finite number"),
        ("1e20", "judge:odd returned the value 1e+20; return a finite number between -1000000 and"),
    ],
)
def test_verifier_that_returns_no_score_is_said_and_trains_nothing(
    tmp_path, verifier, capsys, result, said
):
    verifier(f"""
    from jaxrl_vr.types import Score

    def odd(example, response):
        return {result}
    """)
    path = config(tmp_path, rl("grpo"), data=judged("odd"))
    output = call(capsys, "train", path)
    assert "warning: 8 of 8 answers could not be scored" in output and said in output
    assert final_hash(tmp_path / "run") == parameter_hash(base(path))


def test_reasons_that_no_file_can_hold_are_written_with_marks(tmp_path, verifier, capsys):
    verifier(r"""
    from jaxrl_vr.types import Score

    def odd(example, response):
        return Score(0.0, "wrong", {"\udc80": 1.0}, "two\nlines \ud800")
    """)
    path = config(tmp_path, rl("grpo"), evaluation("after"), data=judged("odd"))
    call(capsys, "train", path)
    rollouts = lines(tmp_path / "run/stages/grpo/rollouts/step-000001.jsonl")
    assert {r["score"]["reason"] for r in rollouts} == {"two lines \ufffd"}
    assert all(r["score"]["components"] == {"\ufffd": 1.0} for r in rollouts)
    answers = lines(tmp_path / "run/stages/after/output.jsonl")
    assert {r["reason"] for r in answers} == {"two lines \ufffd"}


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("deadline=1e9", "verifiers.deadline = 1000000000.0: must be less than or equal to 86400"),
        ("memory=1", "verifiers.memory = 1: is in bytes, and a worker needs at least 268435456"),
        ("workers=10000", "verifiers.workers = 10000: must be less than or equal to 256"),
    ],
)
def test_settings_of_workers_beyond_their_bounds(tmp_path, capsys, setting, said):
    output = call(capsys, "train", config(tmp_path, rl("grpo")), f"verifiers.{setting}", code=2)
    assert said in output


def test_verifier_that_hangs_counts_as_wrong_and_the_run_goes_on(tmp_path, verifier, capsys):
    verifier("""
    import pathlib, time

    def hangs_on_the_first(example, response):
        mark = pathlib.Path(__file__).with_name("first")
        me = f"{example.id} {response}"
        if not mark.exists():
            mark.write_text(me)
        while mark.read_text() == me:
            time.sleep(1)
        return 1.0
    """)
    path = config(tmp_path, rl("grpo", steps=2), data=judged("hangs_on_the_first"))
    said = call(capsys, "train", path, "verifiers.deadline=0.5")
    assert "could not be scored" not in said
    first = lines(tmp_path / "run/stages/grpo/rollouts/step-000001.jsonl")
    hung = [r for r in first if f"{r['example']} {r['text']}" == (tmp_path / "first").read_text()]
    assert hung and len(hung) < 8
    for r in first:
        if r in hung:
            assert (r["score"]["value"], r["score"]["verdict"]) == (0.0, "wrong")
            assert r["score"]["reason"].startswith("limit: no result after 0.5 s")
        else:
            assert r["score"]["verdict"] == "right"
    assert (tmp_path / "run/stages/grpo/rollouts/step-000002.jsonl").exists()


def test_steps_whose_shaping_removes_the_contrast_are_said_once(tmp_path, verifier, capsys):
    verifier("""
    from jaxrl_vr.types import Score

    def alternating(example, response, seen=[]):
        seen.append(response)
        is_right = len(seen) % 2 == 0
        return Score(float(is_right), "right" if is_right else "wrong", {"format": 0.0})
    """)
    more = 'shaping = [{ type = "format_gate" }]'
    path = config(tmp_path, rl("grpo", steps=12, more=more), data=judged("alternating"))
    said = call(capsys, "train", path, "checkpoint.every=100", "verifiers.workers=1")
    assert "no group with both right and wrong" not in said
    assert said.count("warning: 10 steps in a row had advantages of 0 alone, though groups") == 1
    assert "advantage 'group_norm' with shaping ['format_gate'] makes no difference" in said
    assert final_hash(tmp_path / "run") == parameter_hash(base(path))


@pytest.mark.parametrize("reward", [0.0, 1.0], ids=["all-wrong", "all-right"])
def test_many_steps_without_contrast_are_said_once(tmp_path, verifier, capsys, reward):
    verifier(f"""
    def same(example, response):
        return {reward}
    """)
    path = config(tmp_path, rl("grpo", steps=12), data=judged("same"))
    said = call(capsys, "train", path, "checkpoint.every=100")
    assert said.count("warning: 10 steps in a row had no group with both right and wrong") == 1
    assert "easier or harder problems" in said
    share = "group/all_right" if reward else "group/all_wrong"
    steps = lines(tmp_path / "run" / "metrics.jsonl")
    assert len(steps) == 12 and all(m[share] == 1.0 for m in steps)
    assert final_hash(tmp_path / "run") == parameter_hash(base(path))

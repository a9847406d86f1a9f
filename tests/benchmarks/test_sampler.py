"""The sampler's benchmark on a tiny model: its lines, its limits, its peers and its comparison."""

import json
import math
import sys

import jax
import pytest

from jaxrl_vr.models.architecture import Architecture

SIZES = dict(width=16, layers=2, heads=4, kv_heads=2, head_dim=6, ffn=24, max_length=512)


@pytest.fixture
def sampler(module, monkeypatch):
    """The command, with settings of a few tokens."""
    command, settings = module("sampler"), module("sampler_settings")
    small = {
        1: settings.Full(prompts=2, samples=2, new=6),
        2: settings.Drawn(prompts=2, rollouts=8, slots=4, mean=5, limit=24),
        3: settings.Long(prompts=2, prompt_tokens=160, samples=2, new=6),
        4: module("sampler_training").Training(prompts=2, samples=2, new=6),
    }
    for number, setting in small.items():
        monkeypatch.setitem(command.SETTINGS, number, (command.SETTINGS[number][0], setting))
    return command


def lines_of(capsys, command, folder, *args, code=None):
    """What the command prints; fails if it ends with another exit code."""
    capsys.readouterr()
    if code is None:
        command.main(["--model", str(folder), *args])
    else:
        with pytest.raises(SystemExit) as ended:
            command.main(["--model", str(folder), *args])
        assert ended.value.code == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_settings_of_whole_rollouts(sampler, folder, capsys):
    lines = lines_of(capsys, sampler, folder, "--setting", "1", "2", "3", "--repeats", "2")
    assert [line["setting"] for line in lines] == [1, 2, 3]
    full, drawn, long = lines
    for line in lines:
        for name in ("tokens_per_s", "limit_tokens_per_s", "weight_sync_s", "first_call_s"):
            assert math.isfinite(line[name]) and line[name] > 0, name
        ratio = line["tokens_per_s"] / line["limit_tokens_per_s"]
        assert line["ratio_to_limit"] == pytest.approx(ratio, rel=1e-6)
        assert line["tokens_per_s"] == pytest.approx(2 * line["tokens"] / sum(line["seconds"]))
        assert len(line["limit_seconds"]) == 2 and min(line["limit_seconds"]) > 0
        assert line["num_compiled"] >= 4 and line["compiled_while_timed"] == 0
        assert line["peak_memory_bytes"] > 2**20 and line["load_average"] >= 0
        assert line["machine"]["backend"] == "cpu"
        assert line["versions"]["jax"] == jax.__version__
        assert "tokens_per_s_per_chip" not in line
    assert full["tokens"] == 2 * 2 * 6
    assert full["settings"]["model"] == "tiny" and full["settings"]["new"] == 6

    assert drawn["tokens"] == sum(drawn["lengths"]) and len(drawn["lengths"]) == 8
    assert drawn["equal_tokens_per_s"] == pytest.approx(2 * 8 * 5 / sum(drawn["equal_seconds"]))
    ratio = drawn["tokens_per_s"] / drawn["equal_tokens_per_s"]
    assert drawn["ratio_to_equal_lengths"] == pytest.approx(ratio)
    assert drawn["targets"]["ratio_to_equal_lengths"]["met"] == (ratio >= 0.7)

    assert long["tokens"] == 2 * 2 * 6 and long["settings"]["prompt_lengths"] == [160, 160]
    assert 0 < long["attention_limit_tokens_per_s"] < long["limit_tokens_per_s"]
    assert 0 < long["times_prefill_and_attention_limit"] < long["times_prefill_and_limit"]
    ratio = long["tokens_per_s"] / long["alone_tokens_per_s"]
    assert long["ratio_to_alone"] == pytest.approx(ratio)


def test_rollouts_end_where_drawn_and_their_requests_do_not_say_it(module, sampler, folder):
    runs, settings = module("sampler_runs"), module("sampler_settings")
    loaded = runs.load(folder, "float32")
    engine = loaded.engine(3, settings.EndsAt)
    wanted = [1, 40, 2, 17, 5, 16, 33]
    engine.lengths = dict(enumerate(wanted))
    requests = runs.requests_of([[1, 2, 3]], 7, 64)(0)
    assert {request.sampling.max_new_tokens for request in requests} == {64}
    done = {rollout.id: rollout for rollout in runs.drain(engine, requests)}
    assert [len(done[i].token_ids) for i in range(7)] == wanted
    # Token for token what it would have gone on with.
    engine.lengths = dict.fromkeys(range(7), 64)
    free = {rollout.id: rollout for rollout in runs.drain(engine, requests)}
    for i, rollout in done.items():
        assert rollout.token_ids == free[i].token_ids[: len(rollout.token_ids)]


def test_drawn_lengths_are_geometric_and_fixed(module):
    setting = module("sampler_settings").Drawn()
    lengths = setting.lengths()
    assert lengths == setting.lengths() and len(lengths) == 128
    assert min(lengths) >= 1 and max(lengths) <= 512
    many = module("sampler_settings").Drawn(rollouts=20_000, limit=60).lengths()
    kept = 1 - 1 / 40
    # E min(X, 60) = sum of P(X >= n) for n = 1 .. 60
    assert sum(many) / 20_000 == pytest.approx(40 * (1 - kept**60), rel=0.02)
    assert max(many) == 60


def test_each_run_prefills_its_prompts(module, folder):
    runs = module("sampler_runs")
    engine = runs.load(folder, "float32").engine(4)
    prompts = [[1] * 33, [2] * 40]
    measure = runs.Runs(engine, runs.requests_of(prompts, 2, 4))
    for number in range(3):
        measure(number)
        assert engine.counters.prefilled_tokens == (number + 1) * 73
    keys = [runs.requests_of(prompts, 2, 4)(n)[0].key for n in (1, 2)]
    assert keys[0] != keys[1]


def test_long_prompts_differ_from_their_first_tokens_on(module, folder):
    loaded = module("sampler_runs").load(folder, "float32")
    settings = module("sampler_settings")
    prompts = settings.long_prompts(loaded.tokenizer, settings.Long(8, 1500, 16, 64))
    assert [len(p) for p in prompts] == [1500] * 8
    assert len({tuple(p[:40]) for p in prompts}) == 8


def test_phases_in_training_and_alone(sampler, folder, capsys):
    (line,) = lines_of(capsys, sampler, folder, "--setting", "4", "--repeats", "2")
    assert line["setting"] == 4
    assert len(line["phases"]) == len(line["alone_phases"]) == 2
    for steps, seconds in line["phases"] + line["alone_phases"]:
        assert 1 <= steps <= 6 and seconds > 0
    steps_per_s = sorted(steps / seconds for steps, seconds in line["phases"])
    assert line["steps_per_s"] == pytest.approx(sum(steps_per_s) / 2)
    ratio = line["steps_per_s"] / line["alone_steps_per_s"]
    assert line["ratio_to_alone"] == pytest.approx(ratio)
    assert 0 < line["ratio_to_limit"] and line["limit_tokens_per_s"] > 0
    # Four rollouts of at most six tokens.
    assert 4 <= line["tokens"] <= 24


# Limits


def test_attention_multiplies_each_prompt_once_for_its_samples(module):
    limits = module("sampler_limits")
    arch = Architecture(vocab_size=40, **SIZES)
    S, P, C, own, K, R, Q = 6, 2, 50, 4, 2, 2, 6

    def struct(*shape):
        return jax.ShapeDtypeStruct(shape, "float32")

    layer = {
        "shared_q": struct(P, K, S // P * R, Q),
        "shared_k": struct(P, K, C, Q),
        "shared_v": struct(P, K, C, Q),
        "own_q": struct(S, K, R, Q),
        "own_k": struct(S, K, own, Q),
        "own_v": struct(S, K, own, Q),
    }
    cost = limits.attention_products.lower([layer] * 2).cost_analysis()
    assert cost["flops"] == pytest.approx(2 * 2 * 2 * S * K * R * Q * (C + own))
    cached = limits.Cached(P, C, own)
    assert limits.attention_limit(arch, S, 8, cached, "float32")() > 0


def test_chip_limit_by_hand(module):
    limits = module("sampler_limits")
    arch = Architecture(vocab_size=40, **SIZES)
    # A layer: q and o 2 x 16 x 24, k and v 2 x 16 x 12, three of 16 x 24; head 40 x 16.
    weights = 2 * (768 + 384 + 1152) + 640
    # Two prompts of 50 tokens and 6 slots of 4: k and v, 2 layers, 2 heads of 6 numbers.
    cached = (2 * 50 + 6 * 4) * 2 * 2 * 12
    seconds, bound_by = limits.chip_limit(
        "TPU v5 lite", arch, 6, limits.Cached(2, 50, 4), "bfloat16"
    )
    assert bound_by == "bytes"
    assert seconds == pytest.approx(2 * (weights + cached) / 0.819e12)
    # Many slots without a cache: products bind.
    seconds, bound_by = limits.chip_limit(
        "TPU v5 lite", arch, 10_000, limits.Cached(1, 0, 0), "bfloat16"
    )
    assert bound_by == "products"
    assert seconds == pytest.approx(2 * 10_000 * weights / 197e12)
    assert limits.chip_limit("abacus", arch, 6, limits.Cached(2, 50, 4), "bfloat16") is None


def test_turns_alternate_and_the_first_two_are_discarded(module):
    calls = []

    def call(name):
        return lambda number: calls.append((name, number)) or 10.0 * number

    found = module("sampler_limits").take_turns({"a": call("a"), "b": call("b")}, 2)
    assert calls == [(name, number) for number in range(4) for name in "ab"]
    assert found == {"a": [20.0, 30.0], "b": [20.0, 30.0]}


# Peers


@pytest.fixture
def job(module, folder):
    """Three answers to two prompts."""
    return module("peers").Job(str(folder), [[1, 2], [3]], [[2, 4], [3]], 2, "float32", 1)


def test_a_peer_that_is_not_there_is_said_and_skipped(module, job, tmp_path, monkeypatch):
    peers = module("peers")
    missing = tmp_path / "missing.py"
    missing.write_text('import json\nprint(json.dumps({"skipped": "not installed: x"}))\n')
    dead = tmp_path / "dead.py"
    dead.write_text("raise SystemExit(3)\n")
    monkeypatch.setattr(peers, "_SCRIPTS", {"gone": missing, "dead": dead, "vllm": missing})
    pythons = {"gone": sys.executable, "dead": sys.executable, "vllm": "/no/such/bin/python"}
    with peers.started(pythons, job) as (ready, skipped):
        assert not ready
    assert skipped == {
        "gone": "not installed: x",
        "dead": "it ended before it was ready",
        "vllm": "/no/such/bin/python: No such file or directory",
    }


PEER = """
import json, sys
job = json.loads(sys.stdin.readline())
print(json.dumps({"versions": {"peer": str(job["threads"])}}), flush=True)
for n, _ in enumerate(sys.stdin):
    said = {"seconds": 0.5 + n, "tokens": 9 if n < 2 else 8, "peak_memory_bytes": 1}
    print(json.dumps(said), flush=True)
"""


def test_a_peer_answers_each_turn_but_the_first(module, job, tmp_path, monkeypatch):
    peers, settings = module("peers"), module("sampler_settings")
    script = tmp_path / "peer.py"
    script.write_text(PEER)
    monkeypatch.setattr(peers, "_SCRIPTS", {"other": script})
    with peers.started({"other": sys.executable}, job) as (ready, skipped):
        assert skipped == {}
        peer = ready["other"]
        assert [peer(number) for number in range(3)] == [0.0, 0.5, 1.5]
        with pytest.raises(RuntimeError, match="asked a peer for 9 tokens"):
            peer(3)
    seconds = {"ours": [1.0, 3.0, 2.0], "other": [5.0, 4.0, 9.0]}
    found = settings.against_peers({"other": peer}, {"vllm": "not installed"}, seconds, 100)
    assert found["ratio_to_other"] == 2.5  # 5 s over 2 s
    assert found["other"]["tokens_per_s"] == 20.0
    assert found["other"]["versions"] == {"peer": "1"}
    assert found["vllm"] == {"skipped": "not installed"}


def test_transformers_samples_the_lengths_that_are_asked_for(module, job):
    pytest.importorskip("torch")
    peers = module("peers")
    with peers.started({"transformers": sys.executable}, job) as (ready, skipped):
        assert skipped == {}
        peer = ready["transformers"]
        assert job.tokens == 9 and peer(1) > 0  # fails for any other number
        assert set(peer.versions) == {"transformers", "torch"}


def test_the_line_has_the_peers(sampler, folder, capsys, monkeypatch):
    args = ["--setting", "1", "--repeats", "1", "--peers"]
    pythons = ["--transformers-python", "/no/python", "--vllm-python", "/no/python"]
    (line,) = lines_of(capsys, sampler, folder, *args, *pythons)
    for name in ("transformers", "vllm"):
        assert line[name] == {"skipped": "/no/python: No such file or directory"}
        assert f"ratio_to_{name}" not in line


# Comparison and pictures


def made_up(setting, ratio, **more):
    """A line as far as a comparison reads it."""
    return {
        "benchmark": "sampler",
        "setting": setting,
        "settings": {"new": 6},
        "ratio_to_limit": ratio,
        "tokens_per_s": 100.0,
        "machine": {"cores": 2},
        **more,
    }


@pytest.mark.parametrize(
    ("old", "args", "code", "expected"),
    [
        ([made_up(1, 0.5), made_up(2, 0.4)], [], 0, [False, False]),
        ([made_up(1, 0.54), made_up(2, 0.4)], [], 0, [False, False]),
        ([made_up(1, 0.57), made_up(2, 0.4)], [], 1, [True, False]),
        ([made_up(1, 0.54), made_up(2, 0.4)], ["--noise", "0.05"], 1, [True, False]),
        ([made_up(1, 0.2), made_up(2, 0.1)], [], 0, [False, False]),
        ([made_up(1, 0.9), made_up(1, 0.5)], [], 0, [False, None]),
        ([made_up(2, 0.9, settings={"new": 7})], [], 2, [None, None]),
        ([made_up(1, 0.9, benchmark="sampler_sweep")], [], 2, [None, None]),
        ([], [], 2, [None, None]),
    ],
    ids=["same", "in noise", "worse", "less noise", "better", "last counts", "other", "sweep", "-"],
)
def test_compare(sampler, capsys, tmp_path, monkeypatch, folder, old, args, code, expected):
    file = tmp_path / "old.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in old))
    new = [made_up(1, 0.5), made_up(2, 0.4, machine={"cores": 4})]
    monkeypatch.setattr(sampler, "measured", lambda *_: iter(new))
    lines = lines_of(capsys, sampler, folder, "--compare", str(file), *args, code=code)
    assert lines[:2] == new
    assert [line["setting"] for line in lines[2:]] == [1, 2]
    assert [line.get("is_worse") for line in lines[2:]] == expected
    for line in lines[2:]:
        assert ("skipped" in line) == ("change" not in line)
        if "change" in line:
            was, now = line["ratio_to_limit"]
            assert line["change"] == pytest.approx(now / was - 1)
            assert line["same_machine"] == (line["setting"] == 1)


def test_the_sweep_measures_each_point_and_draws(sampler, module, folder, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    sweeps, settings = module("sampler_sweep"), module("sampler_settings")
    assert [point.prompts * point.samples for point in sweeps.SLOTS] == [1, 4, 16, 32, 64, 128, 256]
    points = {
        "slots": (settings.Full(1, 1, 3),),
        "answer length": (settings.Full(2, 1, 4),),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps, "SWEEPS", points)
        out = tmp_path / "pictures" / "sampler.svg"
        lines = lines_of(capsys, sampler, folder, "--repeats", "1", "--sweep", str(out))
    assert [(line["sweep"], line["at"], line["tokens"]) for line in lines] == [
        ("slots", 1, 3),
        ("answer length", 4, 8),
    ]
    assert "limit: products of decoding" in out.read_text()


def test_a_sweep_takes_no_peers(sampler, folder, capsys, tmp_path):
    with pytest.raises(SystemExit):
        sampler.main(["--model", str(folder), "--sweep", str(tmp_path / "x.svg"), "--peers"])
    assert "--sweep has neither peers nor a comparison" in capsys.readouterr().err

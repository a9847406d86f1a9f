"""Faulty input: a message that names what is wrong and how to go on, and nothing lost."""

import gc
import json
import os
import shutil
import subprocess
import textwrap

import jax
import numpy as np
import pytest
from inprocess import ONES, call, config, evaluation, rl, sft
from runs import cli
from safetensors.numpy import load_file, save_file

from jaxrl_vr.checkpoint import parameter_hash
from jaxrl_vr.config import load
from jaxrl_vr.data.tokenizer import CharTokenizer
from jaxrl_vr.models import hf_export, params
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.params import declare
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.models import build_model, load_base
from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.spec import build

ALPHABET = "0123456789+=>,"


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# Files of a config and of data


def test_missing_config_file(tmp_path, capsys):
    path = config(tmp_path, sft("cold"))
    said = call(capsys, "train", tmp_path / "confg.toml", code=2)
    assert f"there is no such file; did you mean {path}?" in said
    said = call(capsys, "train", tmp_path / "none" / "x.toml", code=2)
    assert "there is no such file; check the path" in said


def test_config_that_is_not_toml(tmp_path, capsys):
    (tmp_path / "bad.toml").write_text("run_dir = 'x'\nseed == 3\n")
    said = call(capsys, "train", tmp_path / "bad.toml", code=2)
    assert "bad.toml: is not TOML" in said and "line 2" in said and "seed == 3" in said


def test_run_dir_that_is_a_file(tmp_path, capsys):
    path = config(tmp_path, sft("cold"))
    (tmp_path / "run").write_text("notes")
    said = call(capsys, "train", path, code=2)
    assert "is a file; name a folder" in said and f"run_dir = '{tmp_path}/run'" in said
    assert (tmp_path / "run").read_text() == "notes"


@pytest.mark.parametrize(
    "content, parts",
    [
        (None, ["there is no file", "d.jsonl", "correct it"]),
        ("", ["source 'file'", "d.jsonl has no records"]),
        ("\n\n", ["source 'file'", "has no records"]),
        (
            '{"q": "1+1=", "a": ">2"}\n{"question": "1+1=", "a": ">2"}\n',
            ["d.jsonl:2: field 'q' is not there", "['a', 'question']", "name the right one"],
        ),
        ('{"q": "1+1=", "a": null}\n', ["d.jsonl:1: field 'a' is null"]),
        ('{"q": 5, "a": ">2"}\n', ["d.jsonl:1: field 'q' is a int, not text"]),
        ('{"q": "1+1=", "a": ">2"}\n{"q": "1+', ["d.jsonl:2: not JSON"]),
        ("[1]\n", ["d.jsonl:1: a list, not an object"]),
        ('{"q": "one", "a": ">2"}\n', ["character 'o' of 'one'", "tokenizer.alphabet"]),
        (
            '{"q": "1+1+1+1+1+1+1+1+1=", "a": ">9"}\n',
            ["source 'file'", "all 1 items are longer than max_tokens = 16", "shortest has 21"],
        ),
    ],
    ids="missing empty blank field null type cut list letters long".split(),
)
def test_faulty_data(tmp_path, capsys, content, parts):
    if content is not None:
        (tmp_path / "d.jsonl").write_text(content)
    path = config(tmp_path, sft("cold", data="file"), data=ONES + demonstrations(tmp_path))
    said = call(capsys, "train", path, code=2)
    missing = [part for part in parts if part not in said]
    assert not missing, said


def demonstrations(folder):
    return f"""
[[data]]
name = "file"
type = "jsonl"
path = "{folder}/d.jsonl"
fields = {{ prompt = "q", completion = "a" }}
"""


def test_corrected_data_goes_on_under_the_same_command(tmp_path, capsys):
    data = ONES + demonstrations(tmp_path).replace("d.jsonl", "e.jsonl")
    path = config(tmp_path, sft("cold", data="file"), data=data)
    call(capsys, "train", path, code=2)
    (tmp_path / "d.jsonl").write_text('{"q": "1+1=", "a": ">2"}\n')
    # Nothing was trained yet, so a corrected path is no other run.
    call(capsys, "train", path, f'data.file.path="{tmp_path}/d.jsonl"')
    assert (tmp_path / "run" / "summary.json").exists()
    said = call(capsys, "train", path, code=2)
    assert "data.file.path: was" in said and "set them back, or choose another run_dir" in said


def test_too_long_prompts_are_left_out_and_counted(tmp_path, capsys):
    records = [{"q": q, "r": "2"} for q in ("1+1=", "1+1+1+1+1+1+1+1+1=", "1=")]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    data = f"""
[[data]]
name = "file"
type = "jsonl"
path = "{tmp_path}/d.jsonl"
fields = {{ prompt = "q", reference = "r" }}
verifier = {{ type = "exact" }}
"""
    path = config(tmp_path, rl("grpo", data="file"), data=data)
    said = call(capsys, "train", path)
    assert "warning: grpo: 1 items of file are longer than 12 tokens and were left out" in said
    elsewhere = f'run_dir="{tmp_path}/elsewhere"'
    said = call(capsys, "train", path, "stages.grpo.max_prompt_tokens=1", elsewhere, code=2)
    assert "all 3 items are longer than max_prompt_tokens = 1" in said


# Model folders


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A small model's folder with its tokenizer, both without fault."""
    folder = tmp_path_factory.mktemp("models") / "whole"
    arch = Architecture(
        vocab_size=16,
        width=16,
        layers=2,
        heads=2,
        kv_heads=1,
        head_dim=8,
        ffn=24,
        max_length=16,
    )
    mesh = make_mesh(MeshConfig())
    weights = params.init(declare(arch), jax.random.key(0), TRAIN_RULES, mesh)
    tokenizer = CharTokenizer(ALPHABET)
    hf_export.export(folder, arch, weights, eos_ids=(1,), save_tokenizer=tokenizer.save)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    """A copy of it, free to be damaged."""
    return shutil.copytree(whole, tmp_path / "model")


def pretrained(folder, *tables, tokenizer='type = "hf"'):
    """A config that starts from a model folder."""
    model = f"""
[model]
type = "pretrained"
path = "{folder}"
[tokenizer]
{tokenizer}
[engine]
slots = 16
steps_per_call = 4
"""
    return config(folder.parent, *tables, model=model)


def edit(path, **values):
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def edit_tensor(folder, name, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    changed = change(tensors.pop(name))
    if changed is not None:
        tensors[name] = changed
    save_file(tensors, path, metadata={"format": "pt"})


Q = "model.layers.1.self_attn.q_proj.weight"
DAMAGES = {
    "no-folder": (
        lambda f: shutil.rmtree(f),
        ["no such folder", "not a hub id", "correct the path"],
    ),
    "no-config": (
        lambda f: (f / "config.json").unlink(),
        ["is not a model folder: it has no config.json", "it holds", "model.safetensors"],
    ),
    "config-cut": (
        lambda f: (f / "config.json").write_text('{"model_type"'),
        ["config.json is not JSON"],
    ),
    "architecture": (
        lambda f: edit(f / "config.json", model_type="mamba"),
        ["model_type = 'mamba' is not supported", "llama (Llama, SmolLM2), qwen2", "qwen3"],
    ),
    "feature": (
        lambda f: edit(f / "config.json", hidden_act="gelu"),
        ["hidden_act = 'gelu' is not supported", "only hidden_act = 'silu' is"],
    ),
    "config-field": (
        lambda f: edit(f / "config.json", intermediate_size=None),
        ["config.json of a llama model lacks intermediate_size"],
    ),
    "no-weights": (
        lambda f: (f / "model.safetensors").unlink(),
        ["has neither model.safetensors nor model.safetensors.index.json"],
    ),
    "weights-cut": (
        lambda f: os.truncate(f / "model.safetensors", 2000),
        ["is not a whole safetensors file", "download or copy it again"],
    ),
    "tensor-missing": (
        lambda f: edit_tensor(f, Q, lambda _: None),
        [f"tensor '{Q}' [16, 16] is missing"],
    ),
    "tensor-shape": (
        lambda f: edit_tensor(f, Q, lambda x: x[:8].copy()),
        [f"tensor '{Q}': expected shape [16, 16], got [8, 16]"],
    ),
    "nan": (
        lambda f: edit_tensor(f, Q, lambda x: np.full_like(x, np.nan)),
        ["the weights of layers/q hold NaN or inf", "download the model again"],
    ),
    "tokenizer": (
        lambda f: [p.unlink() for p in f.glob("tokenizer*")],
        ["tokenizer.path: the folder", "holds none of tokenizer.json"],
    ),
}


@pytest.mark.parametrize("damage, parts", DAMAGES.values(), ids=DAMAGES)
def test_damaged_model_folder(folder, capsys, damage, parts):
    damage(folder)
    said = call(capsys, "train", pretrained(folder, sft("cold")), code=2)
    missing = [part for part in parts if part not in said]
    assert not missing, said


def test_tokenizer_that_does_not_fit(folder, capsys):
    path = pretrained(folder, sft("cold"), tokenizer=f'type = "char"\nalphabet = "{ALPHABET}abc"')
    said = call(capsys, "train", path, code=2)
    assert "the tokenizer has 19 ids, the model only 16 rows" in said and "do not fit" in said


def test_context_longer_than_the_models(folder, capsys):
    said = call(capsys, "train", pretrained(folder, sft("cold")), "model.max_length=64", code=2)
    assert "model.max_length = 64 exceeds the model's own context of 16; lower it" in said


def test_init_from_a_folder_of_another_model(folder, tmp_path, capsys):
    (tmp_path / "other").mkdir()
    path = config(tmp_path / "other", sft("cold", more=f'init = "{folder}"'))
    said = call(capsys, "train", path, code=2)
    assert "holds another model" in said and "kv_heads = 1, and [model] has 2" in said


def test_folder_without_fault_trains(folder, capsys):
    call(capsys, "train", pretrained(folder, sft("cold"), evaluation("after")))
    assert lines(folder.parent / "run" / "stages" / "after" / "output.jsonl")


# Verifiers


@pytest.fixture
def verifier(tmp_path, monkeypatch):
    """Makes a module `judge` of this text, which the workers can import too."""

    def make(text):
        (tmp_path / "judge.py").write_text(textwrap.dedent(text))
        monkeypatch.syspath_prepend(tmp_path)

    yield make
    monkeypatch.undo()
    __import__("sys").modules.pop("judge", None)


def judged(function, spec=""):
    """Sources that `judge` judges."""
    table = spec or f'verifier = {{ type = "custom", path = "judge:{function}" }}'
    return ONES.replace('type = "arithmetic"\n', f'type = "arithmetic"\n{table}\n')


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


def base(path):
    settings = load(RunConfig, [path])
    return load_base(settings, build_model(settings).model, None, make_mesh(settings.mesh))


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


# Weights that go wrong on the way, disks that fill up


def test_updates_that_are_not_finite_are_skipped_and_said(tmp_path, capsys):
    # The first step makes the weights so large that the second overflows.
    path = config(tmp_path, sft("cold", steps=3))
    said = call(capsys, "train", path, "stages.cold.optimizer.learning_rate=1e38")
    steps = lines(tmp_path / "run" / "metrics.jsonl")
    assert [m["optimizer/skipped"] for m in steps] == [0.0, 1.0, 1.0]
    assert "warning: cold step 2: loss or gradient was not finite" in said
    assert "100 % of its updates were skipped" in said


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, of 8 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"needs the right to mount a small file system: {made.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


FILLS = """
import pathlib

HERE = pathlib.Path(__file__).parent

def fills(example, response):
    \"\"\"Right is what starts odd. While the third step is judged, all but SPARE bytes go.\"\"\"
    steps = len(list((HERE / "disk/run/stages/grpo/rollouts").glob("*.jsonl")))
    ballast = HERE / "disk/ballast"
    if steps == 2 and (HERE / "armed").exists() and not ballast.exists():
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                file.truncate(file.tell() - SPARE)
    if steps == 3 and SPARE:
        ballast.unlink(missing_ok=True)
    return response[:1] in set("13579+>")
"""


def final_hash(run):
    return json.loads((run / "summary.json").read_text())["parameter_hash"]


# What the store leaves behind of a failed write complains when it is collected: here.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_full_disk_leaves_the_last_checkpoint_whole(tmp_path, small_disk, verifier, capsys):
    verifier(FILLS.replace("SPARE", "0"))
    path = config(tmp_path, rl("grpo", steps=5), data=judged("fills"))
    args = ("train", path, "checkpoint.every=1", "checkpoint.asynchronous=false")
    call(capsys, *args, f'run_dir="{tmp_path}/whole"')
    (tmp_path / "armed").touch()
    said = call(capsys, *args, f'run_dir="{small_disk}/run"', code=1)
    assert "No space left on device" in said and "make room" in said
    assert not (small_disk / "run/stages/grpo/result.json").exists()
    (tmp_path / "armed").unlink()
    (small_disk / "ballast").unlink()
    said = call(capsys, *args, f'run_dir="{small_disk}/run"')
    assert "resuming grpo at step 2 of 5" in said
    assert final_hash(small_disk / "run") == final_hash(tmp_path / "whole")
    gc.collect()


def test_no_room_for_one_checkpoint_and_the_run_goes_on(tmp_path, small_disk, verifier):
    # Room for some lines of metrics and rollouts, not for parameters. A process of its own, because
    # what a failed write leaves in the checkpoint library's threads would reach other tests.
    verifier(FILLS.replace("SPARE", "6 * 4096"))
    (tmp_path / "armed").touch()
    said = cli(
        "train",
        config(tmp_path, rl("grpo", steps=5), data=judged("fills")),
        "checkpoint.every=1",
        "checkpoint.asynchronous=false",
        f'run_dir="{small_disk}/run"',
        PYTHONPATH=str(tmp_path),
    )
    assert said.count("the run goes on with the checkpoints before it") == 1
    assert "warning: saving step 3 in" in said and "failed (step 2 is whole)" in said
    checkpoints = small_disk / "run/stages/grpo/checkpoints"
    assert sorted(p.name for p in checkpoints.iterdir()) == ["4", "5"]
    assert (small_disk / "run" / "summary.json").exists()

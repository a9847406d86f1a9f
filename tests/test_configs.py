"""The configs that are shipped: each says what it needs, loads, and the largest one trains."""

import json
import re
import shlex

import jax
import pytest
from inprocess import call, train
from runs import ROOT, config_files

from jaxrl_vr.checkpoint import load_arrays, parameter_hash
from jaxrl_vr.config import dump, load
from jaxrl_vr.data.tokenizer import HFTokenizer
from jaxrl_vr.models import hf, hf_export, params
from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.params import declare
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh
from jaxrl_vr.train.arithmetic import arithmetic
from jaxrl_vr.train.check import oddities
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.rl_stage import RlStage
from jaxrl_vr.train.stages import TrainStage
from jaxrl_vr.types import Message

CONFIGS = sorted((ROOT / "configs").rglob("*.toml"))
QWEN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(params=CONFIGS, ids=[p.stem for p in CONFIGS])
def path(request):
    return request.param


def test_there_are_configs():
    names = {p.stem for p in CONFIGS}
    assert {"quickstart", "smollm2_compare", "smollm2_addition", "gsm8k_qwen2.5_1.5b"} <= names


def test_header_says_command_hardware_time_and_result(path, tmp_path, capsys):
    header = re.match(r"(#.*\n)+", path.read_text(encoding="utf-8"))
    assert header, "the file begins with a comment"
    lines = [line.removeprefix("#").strip() for line in header[0].splitlines()]
    # The command is one that works, from the root of the project.
    program, command, *args = shlex.split(lines[0])
    assert (program, command) == ("jaxrl-vr", "train")
    files = [(ROOT / arg).resolve() for arg in args if "=" not in arg]
    assert files == config_files(path)
    for what in ("Hardware:", "Time:", "Expected:"):
        said = [line.removeprefix(what).strip() for line in lines if line.startswith(what)]
        assert len(said) == 1 and said[0], what
    # In a folder of its own, for the command's may hold the run of who has tried it.
    elsewhere = f'run_dir="{tmp_path}/run"'
    call(capsys, "train", *files, *args[len(files) :], elsewhere, "--dry-run")


def test_resolved_config_loads_back(path, tmp_path):
    config = load(RunConfig, config_files(path))
    (tmp_path / "resolved.toml").write_text(dump(config))
    assert load(RunConfig, [tmp_path / "resolved.toml"]) == config


def test_no_option_is_set_that_cannot_act(path):
    assert oddities(load(RunConfig, config_files(path))) == []


def test_arithmetic_tells_every_training_stage(path):
    config = load(RunConfig, config_files(path))
    shown = arithmetic(config)
    for stage in config.stages:
        assert (f"stage {stage.name} (" in shown) == isinstance(stage, TrainStage)
        if isinstance(stage, RlStage):
            total = stage.prompts * stage.samples
            assert f"{stage.prompts} prompts x {stage.samples} samples = {total}" in shown
            assert f"per rollout batch, {stage.total_updates} in all" in shown
    assert shown.count("micro-batches          at most") == shown.count("stage ")


def qwen_folder(folder):
    """A tiny random Qwen2 with the parts of a real folder: config, weights, tokenizer, template."""
    arch = Architecture(
        family="qwen2",
        vocab_size=272,
        width=16,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=4,
        ffn=32,
        max_length=512,
        norm_eps=1e-6,
    )
    mesh = make_mesh(MeshConfig())
    weights = params.init(declare(arch), jax.random.key(0), TRAIN_RULES, mesh)
    hf_export.export(folder, arch, weights, eos_ids=(258, 256), save_tokenizer=qwen_tokenizer)
    return folder


def qwen_tokenizer(folder):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # ids 256 to 258
    backend.add_special_tokens([AddedToken(token, special=True) for token in special])
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": QWEN,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def gsm8k(path, count):
    """Records under the data set's own names, with its own kind of answer."""
    with path.open("w") as file:
        for i in range(count):
            answer = f"There are {i} + 2 = <<{i}+2={i + 2}>>{i + 2} eggs.\n#### {i + 2}"
            record = {"question": f"A hen lays {i} eggs, then 2. How many?", "answer": answer}
            file.write(json.dumps(record) + "\n")
    return path


def test_gsm8k_trains_with_a_tiny_model_in_its_place(tmp_path):
    model = qwen_folder(tmp_path / "model")
    found = train(
        ROOT / "configs" / "gsm8k_qwen2.5_1.5b.toml",
        f'run_dir="{tmp_path}/run"',
        f'model.path="{model}"',
        "model.max_length=256",
        "model.dtype=float32",
        "engine.slots=16",
        "engine.steps_per_call=4",
        "verifiers.workers=1",
        f'data.gsm8k.path="{gsm8k(tmp_path / "train.jsonl", 8)}"',
        f'data.gsm8k_test.path="{gsm8k(tmp_path / "test.jsonl", 3)}"',
        "tasks.gsm8k.sampling.max_new_tokens=8",
        "stages.rl.steps=2",
        "stages.rl.prompts=4",
        "stages.rl.samples=2",
        "stages.rl.max_prompt_tokens=240",
        "stages.rl.sampling.max_new_tokens=8",
        "stages.rl.micro.row_length=256",
        "stages.rl.eval.every=1",
    )
    assert [(e["stage"], e["step"], e["n"]) for e in found["evaluations"]] == [
        ("before", None, 3),
        ("rl", 1, 3),
        ("rl", 2, 3),
        ("after", None, 3),
    ]
    assert not any(e["unscorable"] for e in found["evaluations"])
    run = tmp_path / "run"
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [m for m in steps if "loss/total" in m]
    assert len(steps) == 2
    for step in steps:
        assert step["mismatch/max"] < 1e-5 and step["optimizer/skipped"] == 0
    rollouts = (run / "stages/rl/rollouts/step-000001.jsonl").read_text().splitlines()
    asked = json.loads(rollouts[0])
    assert "put your final answer within \\boxed{}." in asked["prompt"]
    assert "A hen lays" in asked["prompt"] and asked["reference"].startswith("There are")
    # What was exported is what was trained, in bfloat16, with all that the model came with.
    arch = hf.architecture_from_config(hf.read_config(model))
    mesh = make_mesh(MeshConfig())
    final = run / "stages" / "rl" / "final"
    trained = load_arrays(final, params.abstract(declare(arch), TRAIN_RULES, mesh))
    assert parameter_hash(trained) == found["parameter_hash"]
    exported = run / "stages" / "export" / "hf"
    again, weights = hf.load(exported, rules=TRAIN_RULES, mesh=mesh)
    assert again == arch and arch.max_length == 512
    rounded = jax.tree.map(lambda x: x.astype("bfloat16").astype("float32"), trained)
    assert parameter_hash(weights) == parameter_hash(rounded)
    ours, theirs = HFTokenizer(exported), HFTokenizer(model)
    assert ours.eos_ids == theirs.eos_ids and 258 in ours.eos_ids
    chat = [Message("user", "2+2?")]
    assert ours.chat(chat) == theirs.chat(chat)
    assert ours.chat(chat).endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert ours.encode("2+2?") == theirs.encode("2+2?")

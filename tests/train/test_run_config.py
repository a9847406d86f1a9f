"""Faults of a config: each is named with its key, its value and a fix, before anything runs."""

from types import SimpleNamespace

import pytest
from inprocess import MODEL, ONES, call, config, evaluation, rl, sft

from jaxrl_vr.config import ConfigError, load
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.models import attention_backend

FILE = """
[[data]]
name = "file"
type = "jsonl"
path = "data.jsonl"
"""
MADE = """
[[data]]
name = "made"
type = "jsonl"
path = "stage:after/right.jsonl"
fields = { completion = "completion" }
"""
MADE_TASK = f"""
{MADE.replace('{ completion = "completion" }', '{ prompt = "prompt", reference = "reference" }')}
verifier = {{ type = "exact" }}
[[tasks]]
name = "again"
data = ["made"]
sampling = {{ max_new_tokens = 4 }}
"""
SUMS = 'tasks = ["sums"]\n'


@pytest.mark.parametrize(
    "override, parts",
    [
        (
            "stages.grpo.sample=4",
            ["stages.grpo.sample = 4", "unknown key", "did you mean `samples`"],
        ),
        ("model.heads=3", ["model: width = 16 is no multiple of heads = 3", "set head_dim"]),
        ("model.kv_heads=3", ["model: kv_heads = 3 does not divide heads = 2", "divisor"]),
        ("model.head_dim=3", ["model: head_dim = 3 is odd", "make it even"]),
        (
            "model.rope_scaling={ type = 'llama3', low_freq_factor = 5 }",
            ["model.rope_scaling", "low_freq_factor = 5.0 must lie above 0 and below"],
        ),
        ("sead=1", ["sead = 1", "did you mean `seed`"]),
        ("stages.grpo.batch=4", ["stages.grpo.batch", 'belongs to type "sft"', '"rl"']),
        ('seed="1"', ['seed = "1"', "must be an integer", "write 1, without quotes"]),
        ("stages.grpo.prompts=2.5", ["stages.grpo.prompts = 2.5", "must be an integer"]),
        ("stages.grpo.type=r1", ['stages.grpo.type = "r1"', 'must be "sft", "dpo", "rl", "eval"']),
        ("engine.slots=0", ["engine.slots = 0", "greater than or equal to 1"]),
        ("engine.steps_per_call=0", ["engine.steps_per_call = 0", "greater than or equal to 1"]),
        ("stages.grpo.name=base", ["'base' has a meaning in init"]),
        ("stages.grpo.samples=1", ["samples = 1", "group_norm", "set samples to 2 or more"]),
        ("stages.grpo.sampling.temperature=0", ["temperature = 0", "no contrast", "near 1"]),
        ("stages.grpo.sampling.temperature=1e-9", ["temperature = 1e-09", "below 0.0001", "to 0"]),
        ("stages.grpo.sampling.temperature=1e5", ["temperature = 100000.0", "less than or"]),
        ("stages.grpo.offpolicy=tis", ['write [{ type = "tis"']),
        ("stages.grpo.offpolicy={type='tis'}", ['write [{ type = "tis" }]']),
        ("stages.grpo.offpolicy=3", ["its items are tables, whose type is"]),
        ("stages.grpo[steps]=1", ["a key is named behind a dot; write stages.grpo.steps"]),
        ("stages.grpo.sampling.temperature=-1", ["sampling.temperature = -1", "greater than or"]),
        ("stages.grpo.sampling.top_p=0", ["sampling.top_p = 0", "greater than 0"]),
        ("tasks.sums.sampling.top_k=3", ["top_k = 3 cannot act with temperature = 0"]),
        ("tasks.sums.sampling.min_p=0.1", ["min_p = 0.1 cannot act with temperature = 0"]),
        ("tasks.sums.sampling.top_p=0.9", ["top_p = 0.9 cannot act with temperature = 0"]),
        ("tasks.sums.samples=4", ["samples = 4", "temperature = 0", "same answer"]),
        (
            "stages.cold.optimizer.schedule.end_fraction=0.1",
            ["stages.cold.optimizer.schedule", "end_fraction = 0.1 cannot act", "'constant'"],
        ),
        (
            "stages.cold.optimizer.schedule.total_steps=9",
            ["total_steps = 9 cannot act", "set type to 'linear' or 'cosine'"],
        ),
        ("stages.cold.optimizer.learning_rate=0", ["learning_rate = 0", "greater than 0"]),
        ('stages.cold.data=["one"]', ["stages.cold.data", "named 'one'", "did you mean 'ones'?"]),
        ('stages.after.tasks=["sum"]', ["stages.after.tasks", "'sum'", "did you mean 'sums'?"]),
        ('tasks.sums.data=["two"]', ["tasks.sums.data", "'two'", "did you mean 'twos'?"]),
        (
            'stages.grpo.eval={ every = 1, tasks = ["zebra"] }',
            ["stages.grpo.eval.tasks", "'zebra'", "there are ['sums']"],
        ),
        ("stages.cold.init=grpo", ["stages.cold.init = 'grpo'", "not an earlier stage", "none"]),
        ("stages.cold.init=cold", ["stages.cold.init = 'cold'", "not an earlier stage"]),
        ("stages.grpo.updates=5", ["updates = 5 with prompts = 4", "lower updates or raise"]),
        (
            "stages.grpo.updates=[{ step = 0, updates = 1 }, { step = 2, updates = 9 }]",
            ["updates = 9 with prompts = 4"],
        ),
        ("stages.grpo.updates=[{ step = 2, updates = 1 }]", ["steps are [2]", "start at 0"]),
        ("stages.grpo.updates=[]", ["updates: its steps are []", "start at 0"]),
        ("stages.grpo.steps=10000000000", ["stages.grpo.steps = 10000000000", "1000000000"]),
        ("stages.cold.steps=10000000000", ["stages.cold.steps = 10000000000", "1000000000"]),
        (
            'stages.cold.optimizer.schedule={ type = "linear", warmup_steps = 5, total_steps = 4 }',
            ["warmup_steps = 5 is above total_steps = 4", "lower one, or raise the other"],
        ),
        ('stages.cold.data=["ones", "ones"]', ["stages.cold.data: 'ones' stands there twice"]),
        ('stages.grpo.data=["ones", "ones"]', ["stages.grpo.data: 'ones' stands there twice"]),
        ('tasks.sums.data=["twos", "twos"]', ["tasks.sums.data: 'twos' stands there twice"]),
        ('stages.after.tasks=["sums", "sums"]', ["stages.after.tasks: 'sums' stands there twice"]),
        (
            'stages.grpo.eval={ every = 1, tasks = ["sums", "sums"] }',
            ["stages.grpo.eval.tasks: 'sums' stands there twice", "name it once"],
        ),
        ('stages.after.tasks=[""]', ["stages.after.tasks", "''", "there are ['sums']"]),
        ("stages.grpo.eval={ every = 1 }", ["stages.grpo.eval.tasks", "missing"]),
        (
            'data.twos.verifier={ type = "math_answers" }',
            ["data.twos.verifier", '"math_answers"', "did you mean `math_answer`?"],
        ),
        (
            'data.twos.verifier={ type = "math_answer", extract = "box" }',
            ["data.twos.verifier", 'extract = "box"', "did you mean `boxed`?"],
        ),
        (
            'data.twos.verifier={ type = "custom", path = "no_colon" }',
            ["data.twos.verifier", "write it as 'package.module:function'"],
        ),
        (
            'data.twos.verifier={ type = "custom", path = "no_such_module:f" }',
            ["data.twos.verifier", "no_such_module"],
        ),
        ("data.twos.limit=0", ["data.twos.limit = 0", "greater than or equal to 1"]),
        ("mesh.data=0", ["mesh.data = 0", "use 1"]),
        ("verifiers.workers=0", ["verifiers.workers = 0"]),
        ("stages.cold.name=grpo", ["stages", "two are named 'grpo'"]),
        ("stages.cold.name=base", ["'base' has a meaning in init"]),
        ('stages.cold.name="a/b"', ['"a/b"']),
        ("tasks.sums.data=[]", ["tasks.sums.data = []", "at least 1"]),
        ("model.type=pretrained", ["model.path", "missing"]),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_fault_is_named_with_its_fix(tmp_path, capsys, override, parts):
    path = config(tmp_path, sft("cold"), rl("grpo"), evaluation("after"))
    said = call(capsys, "train", path, "--dry-run", override, code=2)
    missing = [part for part in parts if part not in said]
    assert not missing, said
    assert said.startswith("error: ") and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "tables, data, parts",
    [
        (
            [sft("clone", data="made"), evaluation("after")],
            MADE,
            ["source 'made' reads the output of stage 'after'", "not an earlier stage", "none"],
        ),
        (
            [evaluation("after"), sft("clone", data="made"), evaluation("last")],
            MADE.replace("stage:after/", "stage:before/"),
            ["stages.clone.data: source 'made'", "stage 'before'", "earlier are ['after']"],
        ),
        (
            [sft("cold"), evaluation("after"), sft("clone", data="made")],
            MADE.replace("stage:after/", "stage:cold/"),
            ["'stage:cold/right.jsonl', which stage 'cold' of type 'sft' does not write"],
        ),
        (
            [evaluation("after"), sft("clone", data="made")],
            MADE.replace("stage:after/right.jsonl", "stage:after"),
            ["path = 'stage:after', which stage 'after'", "does not write; name output.jsonl"],
        ),
        (
            [sft("cold"), evaluation("after", more='tasks = ["again"]').replace(SUMS, "")],
            MADE_TASK,
            ["stages.after.tasks: 'again': source 'made'", "stage 'after'", "earlier are ['cold']"],
        ),
        (
            [sft("cold", more='eval = { every = 1, tasks = ["again"] }'), evaluation("after")],
            MADE_TASK,
            ["stages.cold.eval.tasks: 'again': source 'made'", "stage 'after'", "are none"],
        ),
        (
            [sft("cold")],
            '[[tasks]]\ndata = ["twos"]\nsampling = { max_new_tokens = 4 }\n',
            ["tasks.1.name", "missing"],
        ),
        (
            [evaluation("after"), sft("cold", more='init = "after"')],
            "",
            ["stages.cold.init = 'after'", "does not train", "name one that does"],
        ),
        (
            [rl("grpo", data="file")],
            FILE,
            ["stages.grpo.data: source 'file' has no verifier", "verifier = { type = "],
        ),
        ([sft("cold")], '[[tasks]]\nname = "t"\n', ["tasks.t.data", "tasks.t.sampling", "missing"]),
        (
            [sft("cold")],
            '[[tasks]]\nname = "t"\ndata = ["ones"]\nsampling = { max_new_tokens = 4 }\n',
            ["tasks.t.data: source 'ones' has no end", "set its limit"],
        ),
        ([], "", ["stages", "missing"]),
    ],
    ids=(
        "later-data unknown-stage stage-without-data stage-without-file own-output-in-eval "
        "later-output-in-periodic-eval nameless-task init-of-eval no-verifier task endless-task "
        "no-stages"
    ).split(),
)
def test_tables_that_do_not_go_together(tmp_path, capsys, tables, data, parts):
    path = config(tmp_path, *tables, data=ONES + data)
    said = call(capsys, "train", path, "--dry-run", code=2)
    missing = [part for part in parts if part not in said]
    assert not missing, said


def test_sft_needs_no_verifier(tmp_path):
    path = config(tmp_path, sft("cold", data="file"), data=ONES + FILE)
    assert load(RunConfig, [path]).stages[0].data == ("file",)


@pytest.mark.parametrize(
    "override, note",
    [
        (
            'stages.cold.eval={ every = 3, tasks = ["sums"] }',
            "stages.cold.eval.every = 3: the stage has 2 steps, so nothing is evaluated",
        ),
        (
            "stages.cold.optimizer.schedule.warmup_steps=2",
            "stages.cold.optimizer.schedule.warmup_steps = 2: the stage has 2 optimizer steps",
        ),
        (
            "stages.grpo.optimizer.schedule.warmup_steps=4",
            "stages.grpo.optimizer.schedule.warmup_steps = 4: the stage has 4 optimizer steps",
        ),
        (
            'engine.attention="pallas"',
            'engine.attention = "pallas": on CPU the kernels are interpr',
        ),
    ],
)
def test_what_cannot_come_to_act_is_said(tmp_path, capsys, override, note):
    path = config(tmp_path, sft("cold", steps=2), rl("grpo", steps=2, more="updates = 2"))
    assert f"note: {note}" in call(capsys, "train", path, "--dry-run", override)
    shorter = override.replace("= 3,", "= 2,").replace("steps=2", "steps=1").replace("=4", "=3")
    shorter = shorter.replace("pallas", "auto")
    assert note.split(" = ")[0] not in call(capsys, "train", path, "--dry-run", shorter)


def test_fields_of_no_model_are_refused_by_load_too(tmp_path):
    path = config(tmp_path, sft("cold"), model=MODEL + "\n[meshes]\ndata = 1\n")
    with pytest.raises(ConfigError, match="did you mean `mesh`"):
        load(RunConfig, [path])


@pytest.mark.parametrize(
    "device, dtype, asked, backend",
    [
        (("tpu", ""), "bfloat16", "auto", "splash"),
        (("tpu", ""), "bfloat16", "xla", "xla"),
        (("cpu", ""), "float32", "auto", "xla"),
        (("gpu", "9.0"), "bfloat16", "auto", "cudnn"),
        (("gpu", "9.0"), "bfloat16", "cudnn", "cudnn"),
        (("gpu", "9.0"), "bfloat16", "xla", "xla"),
        (("gpu", "9.0"), "float32", "auto", "xla"),
        (("gpu", "8.0"), "bfloat16", "auto", "xla"),
    ],
)
def test_the_device_chooses_who_attends_and_the_config_overrides(device, dtype, asked, backend):
    platform, capability = device
    found = SimpleNamespace(platform=platform, compute_capability=capability, device_kind="it")
    assert attention_backend(asked, dtype, 8, found) == backend


@pytest.mark.parametrize(
    "override, says",
    [
        ('model.attention="splash"', "its kernels are the TPU's, and this is cpu"),
        ('model.attention="cudnn"', "cuDNN wants an NVIDIA GPU of Hopper or later, and this is"),
        ('engine.attention="cudnn"', "cuDNN wants an NVIDIA GPU of Hopper or later, and this is"),
    ],
)
def test_attention_of_other_devices_is_refused_before_anything_runs(
    tmp_path, capsys, override, says
):
    said = call(capsys, "train", config(tmp_path, rl("grpo")), "--dry-run", override, code=2)
    assert f"{override.replace('=', ' = ')}: {says}" in said and 'use "auto" or "xla"' in said

"""Faults of a config: each is named with its key, its value and a fix, before anything runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inprocess import MODEL, ONES, call, config, evaluation, rl, sft

from jaxrl_vr.config import ConfigError, difference, load, parse
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.folder import MAY_CHANGE, settled
from jaxrl_vr.train.optimizer import Schedule
from jaxrl_vr.train.rl_stage import RlStage

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


# Faults that only model and devices show: before the first stage, and before a folder is made of
# anything but its config.


@pytest.mark.parametrize(
    "override, parts",
    [
        (
            "stages.grpo.sampling.max_new_tokens=16",
            ["stages.grpo.sampling.max_new_tokens = 16", "context of 16", "lower it"],
        ),
        (
            "tasks.sums.sampling.max_new_tokens=20",
            ["tasks.sums.sampling.max_new_tokens = 20", "context of 16"],
        ),
        (
            "stages.grpo.micro.row_length=12",
            ["stages.grpo.micro.row_length = 12", "16 tokens", "raise row_length to 16"],
        ),
        ("stages.cold.micro.row_length=12", ["stages.cold.micro.row_length = 12", "16 tokens"]),
        (
            "stages.cold.micro.rows=12",
            ["stages.cold.micro.rows = 12", "data x fsdp = 8 devices", "use 16"],
        ),
        (
            "stages.cold.diagnostics.gradient_noise_scale=true",
            [
                "stages.cold.diagnostics.gradient_noise_scale compares micro-batches",
                "batch = 8 fills at most 8 rows, and micro.rows = 8",
                "raise stages.cold.batch until an update has more than 8 rows",
            ],
        ),
        (
            "stages.grpo.diagnostics.gradient_noise_scale=true",
            [
                "prompts = 4 in updates = 1 with samples = 2 each fills at most 8 rows",
                "micro.rows = 8; raise stages.grpo.prompts until an update has more than 8 rows",
            ],
        ),
        ("mesh.data=3", ["mesh: data 3 = 3 is not the 8 devices", "mesh.data = 8"]),
        ("model.vocab_size=5", ["tokenizer has 16 ids, the model only 5 rows"]),
        ('tokenizer.alphabet="00"', ["tokenizer.alphabet", "more than once"]),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_sizes_are_checked_before_the_first_stage(tmp_path, capsys, override, parts):
    path = config(tmp_path, sft("cold"), rl("grpo"), evaluation("after"))
    said = call(capsys, "train", path, override, code=2)
    missing = [part for part in parts if part not in said]
    assert not missing, said
    assert not (tmp_path / "run" / "stages").exists()
    # What is corrected is not held against the run.
    assert (tmp_path / "run" / "config.toml").exists()
    said = call(capsys, "train", path, "mesh.data=5", code=2)
    assert "cannot change" not in said and "mesh: data 5" in said


# What a mesh cannot split -> what is said -> the setting that is said to work.
MESHES = {
    "devices": (
        ["mesh.fsdp=3", "mesh.data=1"],
        "mesh: fsdp 3 = 3 is not the 8 devices; mesh.data = 8, mesh.fsdp = 1 works",
        ["mesh.data=8", "mesh.fsdp=1"],
    ),
    "rows": (
        ["mesh.context=4", "stages.cold.micro.row_length=18"],
        "stages.cold: mesh.context = 4 cannot split rows of 18 tokens (micro.row_length, by "
        "default the longest that may come); set micro.row_length = 20, or mesh.context = 2",
        ["stages.cold.micro.row_length=20"],
    ),
    "rows by default": (
        ["mesh.context=4", "model.max_length=18", "stages.cold.max_tokens=16"],
        "stages.grpo: mesh.context = 4 cannot split rows of 18 tokens (micro.row_length, by "
        "default the longest that may come); set micro.row_length = 20, or mesh.context = 2",
        ["mesh.context=2"],
    ),
    "rows of pairs": (
        ["mesh.context=8", "stages.pairs.max_tokens=6"],
        "stages.pairs: mesh.context = 8 cannot split rows of 12 tokens (micro.row_length, by "
        "default the longest that may come); set micro.row_length = 16, or mesh.context = 4",
        ["stages.pairs.micro.row_length=16"],
    ),
    "heads": (
        ["mesh.tensor=4"],
        "mesh.tensor = 4 does not divide the model's 2 query heads, so each of its devices would "
        "hold all of them; mesh.tensor = 2 works, with the other devices in data",
        ["mesh.tensor=2"],
    ),
    "vocabulary": (
        ["mesh.tensor=4", "model.heads=4", "model.vocab_size=18"],
        "mesh.tensor = 4 does not divide the model's 18 rows of the embedding, so each of its "
        "devices would hold all of them; mesh.tensor = 2 works, with the other devices in data",
        ["mesh.tensor=2"],
    ),
    "ffn": (
        ["mesh.tensor=4", "model.heads=4", "model.ffn=33"],
        "mesh.tensor = 4 does not divide the model's ffn of 33, so each of its devices would hold "
        "all of them; mesh.tensor = 1 works, with the other devices in data",
        ["mesh.tensor=1"],
    ),
    "width": (
        ["mesh.fsdp=8", "model.width=20"],
        "mesh.fsdp = 8 does not divide the model's width of 20, so each of its devices would hold "
        "all of them; mesh.fsdp = 4 works, with the other devices in data",
        ["mesh.fsdp=4"],
    ),
    "slots": (
        ["engine.slots=12"],
        "engine.slots = 12 cannot be split over data x fsdp x context = 8 devices, so that several "
        "would sample the same; use 16",
        ["engine.slots=16"],
    ),
}

# Several at once: all are said, and together the settings work.
MESHES |= {
    "heads, ffn and vocabulary": (
        ["mesh.tensor=4", "model.ffn=34", "model.vocab_size=18"],
        "error: mesh.tensor = 4 does not divide the model's 2 query heads, ffn of 34 and 18 rows "
        "of the embedding, so each of its devices would hold all of them; mesh.tensor = 2 works, "
        "with the other devices in data\n",
        ["mesh.tensor=2"],
    ),
    "model, slots and rows": (
        ["mesh.tensor=4", "engine.slots=6", "stages.cold.micro.rows=6"],
        "error: mesh.tensor = 4 does not divide the model's 2 query heads, so each of its devices "
        "would hold all of them; mesh.tensor = 2 works, with the other devices in data\n"
        "with that, engine.slots = 6 cannot be split over data x fsdp x context = 4 devices, so "
        "that several would sample the same; use 8\n"
        "with that, stages.cold.micro.rows = 6 cannot be split over data x fsdp = 4 devices; use "
        "8\n",
        ["mesh.tensor=2", "engine.slots=8", "stages.cold.micro.rows=8"],
    ),
    "devices, model, slots and rows": (
        [
            *("mesh.tensor=16", "mesh.context=3", "mesh.data=1", "engine.slots=3"),
            "stages.pairs.micro.row_length=12",
        ],
        "error: mesh: context 3 x tensor 16 = 48 is not the 8 devices; mesh.data = 1, "
        "mesh.context = 1, mesh.tensor = 8 works\n"
        "with that, mesh.tensor = 8 does not divide the model's 2 query heads, so each of its "
        "devices would hold all of them; mesh.tensor = 2 works, with the other devices in data\n"
        "with that, engine.slots = 3 cannot be split over data x fsdp x context = 4 devices, so "
        "that several would sample the same; use 4\n"
        "with that, stages.pairs.micro.row_length = 12, but a sequence may have 32 tokens (2 x "
        "(max_tokens = 16), for a pair lies in one row, where what is not set is what the context "
        "leaves); raise row_length to 32, or lower these limits\n",
        [
            *("mesh.tensor=2", "mesh.context=1", "mesh.data=-1", "engine.slots=4"),
            "stages.pairs.micro.row_length=32",
        ],
    ),
    "short rows that do not split": (
        ["mesh.context=8", "stages.pairs.max_tokens=6", "stages.pairs.micro.row_length=10"],
        "error: stages.pairs.micro.row_length = 10, but a sequence may have 12 tokens (2 x "
        "(max_tokens = 6), for a pair lies in one row, where what is not set is what the context "
        "leaves); raise row_length to 16, or lower these limits\n",
        ["stages.pairs.micro.row_length=16"],
    ),
}


@pytest.mark.parametrize("overrides, message, works", MESHES.values(), ids=list(MESHES))
def test_what_a_mesh_cannot_split_is_said_without_running(
    tmp_path, capsys, overrides, message, works
):
    dpo = sft("pairs", data="pairs").replace('"sft"', '"dpo"')
    data = ONES + FILE.replace('"file"', '"pairs"').replace("data.jsonl", str(tmp_path / "p.jsonl"))
    data += 'fields = { prompt = "q", completion = "a", rejected = "r" }\n'
    (tmp_path / "p.jsonl").write_text('{"q": "1+1=", "a": ">", "r": "2"}\n')
    path = config(tmp_path, sft("cold"), dpo, rl("grpo"), data=data)
    args = "train", path, *overrides, "--dry-run"
    assert message in call(capsys, *args, code=2)
    call(capsys, *args, *works)


def test_row_length_of_shorter_limits_is_enough(tmp_path):
    more = "max_prompt_tokens = 6\nmicro = { rows = 8, row_length = 10 }"
    assert load(RunConfig, [config(tmp_path, rl("grpo", more=more))]).stages[0].name == "grpo"


def test_what_is_said_of_a_noise_scale_that_cannot_act_helps(tmp_path, capsys):
    more = "updates = 2\ndiagnostics = { gradient_noise_scale = true }"
    args = "train", config(tmp_path, rl("grpo", more=more)), "--dry-run", "stages.grpo.samples=8"
    said = call(capsys, *args, "stages.grpo.micro.rows=16", code=2)
    assert "fills at most 16 rows, and micro.rows = 16; set stages.grpo.micro.rows = 8" in said
    call(capsys, *args, "stages.grpo.micro.rows=8")


def test_a_noise_scale_is_of_rows_and_not_of_sequences(tmp_path, capsys):
    # 16 of an update, of which a row holds two, however long.
    more = """updates = 2
diagnostics = { gradient_noise_scale = true }
max_prompt_tokens = 4
"""
    args = "train", config(tmp_path, rl("grpo", more=more)), "--dry-run", "stages.grpo.samples=8"
    said = call(capsys, *args, "stages.grpo.micro.row_length=16", code=2)
    assert "fills at most 8 rows, and micro.rows = 8; raise stages.grpo.prompts until" in said
    call(capsys, *args, "stages.grpo.micro.row_length=8")


# What a resumed run may change


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


# Schedules

RL = {
    "name": "grpo",
    "data": ["ones"],
    "steps": 5,
    "prompts": 4,
    "samples": 2,
    "sampling": {"max_new_tokens": 4},
    "optimizer": {"learning_rate": 1e-2},
}


@pytest.mark.parametrize(
    "schedule, expected",
    [
        (Schedule(), [1, 1, 1, 1, 1]),
        (Schedule(warmup_steps=3), [1 / 4, 2 / 4, 3 / 4, 1, 1]),
        (Schedule(type="linear"), [1, 3 / 4, 2 / 4, 1 / 4, 0]),
        (
            Schedule(type="linear", warmup_steps=2, end_fraction=0.5),
            [1 / 3, 2 / 3, 1, 3 / 4, 1 / 2],
        ),
        (Schedule(type="linear", total_steps=2), [1, 1 / 2, 0, 0, 0]),
        # Half a cosine over 4 steps: 1/2 + cos(pi i / 4) / 2.
        (Schedule(type="cosine"), [1, 0.5 + 0.5**1.5, 1 / 2, 0.5 - 0.5**1.5, 0]),
    ],
    ids=["constant", "warmup", "linear", "warmup-linear", "total", "cosine"],
)
def test_schedule(schedule, expected):
    assert [schedule(step, 4) for step in range(5)] == pytest.approx(expected)


def test_updates_of_a_schedule_add_up(tmp_path):
    more = "updates = [{ step = 0, updates = 1 }, { step = 2, updates = 3 }]"
    (stage,) = load(RunConfig, [config(tmp_path, rl("grpo", steps=5, more=more))]).stages
    assert [stage.updates_at(step) for step in range(5)] == [1, 1, 3, 3, 3]
    assert stage.total_updates == 11


@given(
    st.dictionaries(st.integers(1, 12), st.integers(1, 4), max_size=4),
    st.integers(1, 4),
    st.integers(0, 15),
)
def test_updates_before_a_step_are_the_sum_of_those_at_each(later, first, step):
    schedule = [{"step": s, "updates": u} for s, u in sorted({0: first, **later}.items())]
    stage = parse(RlStage, {**RL, "updates": schedule})
    assert stage.updates_before(step) == sum(stage.updates_at(s) for s in range(step))
    assert parse(RlStage, {**RL, "updates": first}).updates_before(step) == first * step


def test_a_billion_steps_are_counted_without_going_through_them(tmp_path, capsys):
    more = "updates = [{ step = 0, updates = 1 }, { step = 4, updates = 2 }]"
    path = config(tmp_path, rl("grpo", steps=10**9, more=more))
    said = call(capsys, "train", path, "--dry-run")
    assert f"{4 + 2 * (10**9 - 4)} in all" in said


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
    ],
)
def test_what_cannot_come_to_act_is_said(tmp_path, capsys, override, note):
    path = config(tmp_path, sft("cold", steps=2), rl("grpo", steps=2, more="updates = 2"))
    assert f"note: {note}" in call(capsys, "train", path, "--dry-run", override)
    shorter = override.replace("= 3,", "= 2,").replace("steps=2", "steps=1").replace("=4", "=3")
    assert note.split(" = ")[0] not in call(capsys, "train", path, "--dry-run", shorter)


def test_fields_of_no_model_are_refused_by_load_too(tmp_path):
    path = config(tmp_path, sft("cold"), model=MODEL + "\n[meshes]\ndata = 1\n")
    with pytest.raises(ConfigError, match="did you mean `mesh`"):
        load(RunConfig, [path])

"""`micro.rows = "auto"`: as many rows as the memory holds, and a batch as the stage builds it."""

import json
import types

import jax
import numpy as np
import pytest
from inprocess import call, config, rl, sft, train

from jaxrl_vr.config import load
from jaxrl_vr.rollout.batch import Shape, Trajectory, build
from jaxrl_vr.sharding import MeshConfig, make_mesh
from jaxrl_vr.train import micro, policy
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.micro import NoRowFits, micro_shape, shape_of
from jaxrl_vr.train.policy import stage_shape
from jaxrl_vr.train.stages import Micro
from jaxrl_vr.train.update import Learner

AUTO = 'micro = { rows = "auto" }'
GB = 10**9


class Update:
    """An update whose memory is known without compiling."""

    def __init__(self, num_rows, base, of_row):
        self.num_rows, self._base, self._of_row = num_rows, base, of_row
        self.remat = "none"
        self.compiled = []

    def memory(self, shape):
        self.compiled.append(shape.rows)
        return self._base + self._of_row * shape.rows


def found(update, memory, mesh=None):
    stage = types.SimpleNamespace(name="rl", micro=Micro(rows="auto"))
    mesh = mesh or make_mesh(MeshConfig(data=1), jax.devices()[:1])
    said = []
    shape = micro_shape(stage, 64, mesh, lambda: update, said.append, memory)
    return shape, said


@pytest.mark.parametrize(
    "num_rows, memory, rows, compiled",
    [
        # 1 GB and 1 GB a row, nine tenths of the memory to fill.
        (1, 10 * GB, 1, [1]),
        (8, 10 * GB, 8, [1, 2, 8]),  # 9 GB
        (8, 9.9 * GB, 4, [1, 2, 4]),
        (5, 10 * GB, 8, [1, 2, 8]),
        (100, 10 * GB, 8, [1, 2, 8]),
        (100, 3.5 * GB, 2, [1, 2]),
        (100, 3 * GB, 1, [1, 2]),
        (2, 3 * GB, 1, [1, 2]),
    ],
)
def test_the_most_rows_that_fit(num_rows, memory, rows, compiled):
    update = Update(num_rows, GB, GB)
    shape, said = found(update, memory)
    assert shape == Shape(64, rows, parts=1)
    assert update.compiled == compiled
    (line,) = said
    assert f"stages.rl.micro.rows = {rows}: an update takes {rows + 1:.2f} of" in line
    assert ("twice as many would not fit" in line) == (rows < num_rows)


def test_rows_are_split_over_the_devices():
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    shape, _ = found(Update(100, GB, GB / 4), 10 * GB, mesh)
    assert shape.rows == 32


def test_a_program_that_takes_more_than_two_small_ones_said_is_halved():
    class Bent(Update):
        def memory(self, shape):
            return super().memory(shape) + 2 * GB * (shape.rows == 8)

    update = Bent(8, GB, GB)
    assert found(update, 10 * GB)[0].rows == 4
    assert update.compiled == [1, 2, 8, 4]


@pytest.mark.parametrize(
    "base, taken", [(9 * GB, "10.00 GB"), (float("inf"), "more than there is")]
)
def test_not_even_one_row(base, taken):
    with pytest.raises(NoRowFits) as refused:
        found(Update(8, base, GB), 10 * GB)
    for part in ("stages.rl.micro.rows = 'auto'", taken, "9.00 GB (90% of", "model.remat", "fsdp"):
        assert part in str(refused.value)


PAIRS = """
[[data]]
name = "pairs"
type = "jsonl"
path = "{folder}/pairs.jsonl"
fields = {{ prompt = "q", completion = "good", rejected = "bad" }}
[[stages]]
type = "dpo"
name = "dpo"
data = ["pairs"]
steps = 1
batch = 8
{micro}
optimizer = {{ type = "adamw", learning_rate = 1e-2 }}
"""
CRITIC = """
advantage = { type = "gae" }
critic = { optimizer = { type = "adamw", learning_rate = 1e-2 } }
objective = { type = "ppo_clip" }
"""


def test_what_is_compiled_is_what_the_stage_runs(tmp_path, monkeypatch):
    # How many tokens rows repeat is known when they have been sampled.
    auto = 'micro = { rows = "auto", share_prefixes = false }'
    compiled, ran = [], []
    lower, update = Learner.lower, Learner.update

    def noted(to, method):
        def call(self, state, batch, numbers, rates):
            arrays = state, batch, dict(numbers)
            to.append(
                jax.tree.map(lambda a: (jax.numpy.shape(a), jax.numpy.result_type(a)), arrays)
            )
            return method(self, state, batch, numbers, rates)

        return call

    monkeypatch.setattr(Learner, "lower", noted(compiled, lower))
    monkeypatch.setattr(Learner, "update", noted(ran, update))
    (tmp_path / "pairs.jsonl").write_text('{"q": "1+1=", "good": ">2", "bad": ">3"}\n' * 8)
    path = config(
        tmp_path,
        sft("sft", more=auto),
        rl("plain", more=auto),
        rl("kl", more=f"{auto}\nkl = {{ coef = 0.05 }}"),
        rl("critic", more=auto + CRITIC),
        rl("imitating", more=f"{auto}\npositive_nll = {{ coef = 0.1 }}"),
        PAIRS.format(folder=tmp_path, micro=auto),
    )
    train(path, "mesh.data=8")
    # A stage's rows are so few that one program holds them: one row for each of the 8 devices. The
    # critic's update is not compiled for it.
    of_policy = [one for one in ran if "value" not in one[0].trainable]
    assert len(compiled) == len(of_policy) == 6
    for before, after in zip(compiled, of_policy, strict=True):
        assert before == after


def test_a_run_says_what_it_found_and_learns_the_same(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(micro, "device_memory", lambda _: 10**9)
    path = config(tmp_path, sft("sft", more=AUTO), rl("rl", steps=2, more=AUTO))
    said = call(capsys, "train", path)
    assert "stages.sft.micro.rows = 8: an update takes 0.00 of a device's 1.00 GB" in said
    found = train(
        path, f"run_dir={tmp_path}/again", "stages.sft.micro.rows=8", "stages.rl.micro.rows=8"
    )
    first = train(path)
    assert found["parameter_hash"] == first["parameter_hash"]


def test_no_row_fits_ends_the_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(micro, "device_memory", lambda _: 10**4)
    path = config(tmp_path, sft("sft", more=AUTO))
    said = call(capsys, "train", path, code=2)
    assert "stages.sft.micro.rows = 'auto': an update with one row of 16 tokens a device" in said
    assert 'set model.remat = "block"' in said.replace("Set", "set")


def test_the_dry_run_names_it(tmp_path, capsys):
    path = config(tmp_path, sft("sft", more=AUTO), rl("rl", more=AUTO))
    said = call(capsys, "train", path, "--dry-run")
    assert "as many rows as the memory holds" in said


def test_a_resumed_run_keeps_what_was_found(tmp_path, monkeypatch):
    (stage,) = load(RunConfig, [config(tmp_path, sft("sft", more=AUTO))]).stages
    ctx = types.SimpleNamespace(
        model=types.SimpleNamespace(max_length=16, most_sequences=32),
        mesh=make_mesh(MeshConfig(data=2), jax.devices()[:2]),
        stage_folder=lambda name: tmp_path,
        console=types.SimpleNamespace(message=print),
    )
    monkeypatch.setattr(policy, "micro_shape", lambda *_: Shape(16, 12, parts=4))
    (tmp_path / "micro.json").write_text('{"rows": 6, "row_length": 16}')
    assert stage_shape(ctx, stage, learner=None) == Shape(16, 6, parts=2, sequences=32)
    # On another mesh, which cannot split them, rows are found anew, and these are kept.
    ctx.mesh = make_mesh(MeshConfig(data=4), jax.devices()[:4])
    assert stage_shape(ctx, stage, learner=None) == Shape(16, 12, parts=4, sequences=32)
    assert json.loads((tmp_path / "micro.json").read_text()) == {"rows": 12, "row_length": 16}


def groups_of(rng):
    """Prompts, each with its samples, of lengths that differ from step to step."""
    samples, prompt, answer = rng.integers(1, 9), rng.integers(1, 60), rng.integers(1, 60)
    for group in range(rng.integers(1, 33)):
        asked = rng.integers(0, 1000, prompt)
        for _ in range(samples):
            ids = np.append(asked, rng.integers(0, 1000, rng.integers(1, answer + 1)))
            yield Trajectory(ids, np.arange(len(ids)) >= prompt, group=group)


def test_few_programs_are_compiled_for_the_distinct_tokens_of_many_steps():
    """One for each sixteenth of a part up to twelve, and one for all tokens."""
    stage = types.SimpleNamespace(name="rl", micro=Micro(rows=8))
    mesh = make_mesh(MeshConfig(data=2, fsdp=2), jax.devices()[:4])
    shape = shape_of(stage, 128, 8, mesh)
    of_part = 8 * 128 // 4
    rng = np.random.default_rng(0)
    sizes: dict[int, set[int | None]] = {}
    for _ in range(400):
        every = list(groups_of(rng))
        batch = build(every, np.ones(len(every)), shape)
        distinct = None if batch.distinct_place is None else batch.distinct_place.shape[2]
        sizes.setdefault(len(batch.tokens), set()).add(distinct)
    # Micro-batches are of few numbers too.
    assert set(sizes) == {1, 2, 4, 8, 16, 32}
    for found in sizes.values():
        shared = found - {None}
        assert all(16 * size % of_part == 0 for size in shared) and len(shared) <= 12
    # These steps are different enough to want all of them, where few rows hold them.
    assert sizes[1] == {None, *(sixteenths * of_part // 16 for sixteenths in range(1, 13))}

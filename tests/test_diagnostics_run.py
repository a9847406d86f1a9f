"""An average of the weights, the noise scale and norms by layer, through the command line."""

import json
import textwrap

import jax
import numpy as np
import pytest
from inprocess import ONES, call, config, evaluation, rl, sft

from jaxrl_vr.checkpoint import load_arrays
from jaxrl_vr.config import load
from jaxrl_vr.models.params import abstract, init
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.models import build_model

DATA = (
    ONES
    + """
[[data]]
name = "odd"
type = "arithmetic"
digits = 1
verifier = { type = "custom", path = "diagnosed_verifier:starts_odd" }
"""
)
ALL = """
ema = { decay = 0.75 }
diagnostics = { gradient_noise_scale = true, layer_norms = true }
"""
NAMES = {"embed", "layer_00", "layer_01", "norm"}


@pytest.fixture(autouse=True)
def verifier(tmp_path, monkeypatch):
    (tmp_path / "diagnosed_verifier.py").write_text(
        textwrap.dedent("""
        def starts_odd(example, response):
            return response[:1] in set("13579+>")
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)


def trained(capsys, folder, *tables, overrides=()):
    """The lines of metrics.jsonl of a run through the command line, and what it printed."""
    folder.mkdir(exist_ok=True)
    path = config(folder, *tables, data=DATA)
    said = call(capsys, "train", path, "model.layers=2", *overrides)
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], said


def weights(folder, stage=None):
    """The parameters at the end of a stage, or those that a run of this config begins with."""
    run_config = load(RunConfig, [folder / "run" / "config.toml"])
    declared = build_model(run_config).model.declare()
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    if stage is None:
        found = init(declared, jax.random.key(run_config.seed), TRAIN_RULES, mesh)
    else:
        target = abstract(declared, TRAIN_RULES, mesh)
        found = load_arrays(folder / "run" / "stages" / stage / "final", target)
    return jax.tree.map(lambda a: np.asarray(a, np.float64), found)


def by_name(params):
    """Norms of layers and of what is in none."""
    found = {n: np.linalg.norm(params[n]) for n in ("embed", "norm")}
    for i in range(2):
        squares = sum(np.sum(a[i] ** 2) for a in params["layers"].values())
        found[f"layer_{i:02}"] = np.sqrt(squares)
    return found


def norms(line, kind):
    head = f"norms/{kind}/"
    return {k.removeprefix(head): v for k, v in line.items() if k.startswith(head)}


def assert_noise_adds_up(line):
    assert line["noise/trace"] > 0 and line["noise/tokens"] > 32
    square = line["noise/signal"] + line["noise/trace"] / line["noise/tokens"]
    assert square == pytest.approx(line["optimizer/grad_norm"] ** 2, rel=1e-4)
    assert line["noise/scale"] == pytest.approx(line["noise/trace"] / line["noise/signal"])


def test_supervised_with_all_and_without_any(tmp_path, capsys):
    many = "stages.one.batch=64"  # in rows of two to three, 8 of them a micro-batch
    one, other = tmp_path / "one", tmp_path / "other"
    lines, said = trained(capsys, one, sft("one", more=ALL), overrides=[many])
    step = next(line for line in lines if "loss/total" in line)
    same = ALL.splitlines()[2]  # rows are dealt alike
    trained(capsys, other, sft("one", more=same), overrides=[many])
    before, after, average = weights(one), weights(other, "one"), weights(one, "one")
    # One update: the average is 3/4 of the start, 1/4 of the weights after it.
    jax.tree.map(
        lambda a, b, c: np.testing.assert_allclose(a, 0.75 * b + 0.25 * c, atol=1e-6),
        average,
        before,
        after,
    )
    change = by_name(jax.tree.map(np.subtract, after, before))
    assert norms(step, "update") == pytest.approx(change, rel=1e-3)
    assert norms(step, "weight") == pytest.approx(by_name(before), rel=1e-5)
    grad = norms(step, "grad")
    assert set(grad) == NAMES
    total = sum(v**2 for v in grad.values())
    assert total == pytest.approx(step["optimizer/grad_norm"] ** 2, rel=1e-5)
    assert_noise_adds_up(step)
    # The console shows the scale and none of the norms.
    assert "norms/" not in said


def test_rl_with_all(tmp_path, capsys):
    lines, _ = trained(
        capsys,
        tmp_path / "rl",
        rl("rl", data="odd", steps=2, more=ALL),
        overrides=["stages.rl.samples=12", "stages.rl.updates=2"],
    )
    first, second = (line for line in lines if "loss/total" in line)
    for line in (first, second):
        assert set(norms(line, "grad")) == NAMES
        assert line["noise/tokens"] > 24 and line["noise/trace"] > 0
    assert norms(first, "weight") != norms(second, "weight")


def test_evaluations_along_the_way_are_of_the_average(tmp_path, capsys):
    # Enough steps to learn when an answer ends, and an average that hardly moves.
    found = {}
    for evaluate in ("true", "false"):
        more = f"""
        ema = {{ decay = 0.999, evaluate = {evaluate} }}
        eval = {{ every = 30, tasks = ["sums"] }}
        """
        lines, _ = trained(
            capsys,
            tmp_path / evaluate,
            sft("one", steps=30, more=more),
            evaluation("after"),
        )
        assert not any(k.startswith(("norms/", "noise/")) for line in lines for k in line)
        along, after = (x for x in lines if "eval/sums/length" in x)
        found[evaluate] = [
            {k: v for k, v in x.items() if k.startswith("eval/")} for x in (along, after)
        ]
    assert found["true"][0] == found["true"][1] == found["false"][1]
    assert found["false"][0] != found["false"][1]


def test_a_step_of_one_micro_batch_has_no_noise_scale_and_says_so(tmp_path, capsys):
    # 9 demonstrations could fill 9 rows, and fit into fewer.
    more = "diagnostics = { gradient_noise_scale = true }"
    lines, said = trained(
        capsys, tmp_path / "few", sft("one", steps=2, more=more), overrides=["stages.one.batch=9"]
    )
    assert len(lines) == 2 and not any(k.startswith("noise/") for x in lines for k in x)
    assert said.count("no gradient noise scale") == 1
    assert "one micro-batch of 8 rows; lower stages.one.micro.rows" in said

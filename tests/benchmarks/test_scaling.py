"""Plans against the number of chips: what grows, what is printed, what is drawn."""

import json

import jax
import pytest
from planned import CONFIG

from jaxrl_vr.plan import plan as plan_module
from jaxrl_vr.plan.topology import num_devices


@pytest.fixture
def benchmark(module):
    return module("scaling")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "planned.toml"
    path.write_text(CONFIG)
    return path


def test_work_grows_with_the_chips(benchmark, path):
    config = benchmark.grown(path, 8, 2)
    (stage,) = config.stages
    assert (stage.prompts, stage.micro.rows, config.engine.slots) == (16, 32, 64)
    assert (config.mesh.fsdp, config.mesh.data) == (2, 4)
    assert benchmark.grown(path, 2, 2).mesh.data == 1


def test_lines_and_picture(benchmark, path, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(benchmark, "has_libtpu", lambda: True)
    monkeypatch.setattr(
        plan_module, "devices", lambda topology, _: jax.devices()[: num_devices(topology)]
    )
    out = tmp_path / "scaling.svg"
    arguments = ["--config", str(path), "--topologies", "v5e:1x2", "v5e:2x2", "--out", str(out)]
    benchmark.main(arguments)
    two, four = map(json.loads, capsys.readouterr().out.splitlines())
    assert (two["devices"], four["devices"]) == (2, 4)
    assert four["sampled_tokens"] == 2 * two["sampled_tokens"] == 2 * 16 * 64
    assert four["tokens"] == 2 * two["tokens"] == 2 * 16 * 128
    assert two["tokens_per_s"] == pytest.approx(two["tokens"] / two["step_s"])
    # Each two hold all of the state, as the smallest does.
    assert (two["mesh"], four["mesh"]) == ({"fsdp": 2}, {"data": 2, "fsdp": 2})
    assert four["memory_bytes"] == pytest.approx(two["memory_bytes"], rel=0.05)
    drawn = out.read_text()
    assert "even growth" in drawn and "chips" in drawn


def test_without_libtpu_it_says_how_to_get_it(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "has_libtpu", lambda: False)
    benchmark.main([])
    assert "libtpu is not installed" in json.loads(capsys.readouterr().out)["skipped"]

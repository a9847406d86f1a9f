"""Hugging Face folders out: the round trip, and what an export replaces."""

import json

import jax
import jax.numpy as jnp
import pytest
from hf_folders import FIXTURES, read, same
from safetensors.numpy import load_file

from jaxrl_vr.models import hf, hf_export
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh


def test_round_trip_is_exact(tiny, tmp_path, one_device):
    hf_export.export(tmp_path / "out", tiny.arch, tiny.params)
    arch, params = read(tmp_path / "out", one_device)
    assert arch == tiny.arch
    assert same(params, tiny.params)


def test_round_trip_keeps_the_source_config(folder, tmp_path, one_device):
    arch, params = read(folder, one_device)
    source = hf.read_config(folder)
    hf_export.export(tmp_path / "out", arch, params, source_config=source, eos_ids=(2, 5))
    written = hf.read_config(tmp_path / "out")
    ours = {"dtype", "torch_dtype", "exported_by_jaxrl_vr"}
    assert {k: v for k, v in written.items() if k not in ours} == {
        k: v for k, v in source.items() if k not in ours
    }
    assert written["torch_dtype"] == "float32"
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": [2, 5]}
    again, other = read(tmp_path / "out", one_device)
    assert again == arch
    assert same(other, params)


def test_export_from_shards_equals_export_from_one_device(tiny, tmp_path):
    hf_export.export(tmp_path / "one", tiny.arch, tiny.params)
    mesh = make_mesh(MeshConfig(tensor=2, fsdp=4))
    _, split = hf.load(tmp_path / "one", rules=TRAIN_RULES, mesh=mesh)
    hf_export.export(tmp_path / "split", tiny.arch, split)
    one, two = (tmp_path / n / "model.safetensors" for n in ("one", "split"))
    assert one.read_bytes() == two.read_bytes()


def test_export_splits_large_weights(tiny, tmp_path, one_device):
    hf_export.export(tmp_path / "out", tiny.arch, tiny.params, max_file_bytes=20_000)
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert len(files) > 1
    assert files[0].name == f"model-00001-of-{len(files):05}.safetensors"
    sizes = [sum(x.nbytes for x in load_file(path).values()) for path in files]
    assert max(sizes) <= 20_000
    held = sum(x.nbytes for x in jax.tree.leaves(tiny.params))
    assert sum(sizes) == held == index["metadata"]["total_size"]
    for path in files:
        assert all(index["weight_map"][name] == path.name for name in load_file(path))
    assert same(read(tmp_path / "out", one_device)[1], tiny.params)


def test_export_as_bfloat16_rounds_once(tiny, tmp_path, one_device):
    hf_export.export(tmp_path / "out", tiny.arch, tiny.params, dtype="bfloat16")
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16), tiny.params)
    assert same(read(tmp_path / "out", one_device, dtype="bfloat16")[1], rounded)
    assert hf.read_config(tmp_path / "out")["torch_dtype"] == "bfloat16"


def test_export_without_source_names_no_token_of_another_family(tiny, tmp_path):
    hf_export.export(tmp_path / "a", tiny.arch, tiny.params, eos_ids=(7, 9))
    config = hf.read_config(tmp_path / "a")
    assert (config["bos_token_id"], config["pad_token_id"]) == (None, None)
    assert config["eos_token_id"] == [7, 9]
    generation = json.loads((tmp_path / "a" / "generation_config.json").read_text())
    assert generation == {"eos_token_id": [7, 9]}


def test_export_replaces_an_earlier_export_only(tiny, tmp_path, one_device):
    out = tmp_path / "out"
    hf_export.export(out, tiny.arch, tiny.params, max_file_bytes=20_000)
    twice = jax.tree.map(lambda x: x * 2, tiny.params)
    hf_export.export(out, tiny.arch, twice)
    assert same(read(out, one_device)[1], twice)
    assert not (out / "model.safetensors.index.json").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"foreign' exists and is not an earlier export"):
        hf_export.export(foreign, tiny.arch, tiny.params)
    assert (foreign / "thesis.tex").read_text() == "years of work"


ADDED = {
    "file": lambda out: (out / "notes.md").write_text("mine"),
    "hidden": lambda out: (out / ".gitignore").write_text("mine"),
    "weights": lambda out: (out / "adapter.safetensors").write_text("mine"),
    "deeper": lambda out: [(out / "logs").mkdir(), (out / "logs" / "a.txt").write_text("mine")],
    "link": lambda out: (out / "data").symlink_to(out.parent, target_is_directory=True),
    "broken link": lambda out: (out / "data").symlink_to("nowhere"),
}


def held(folder):
    """Relative path -> content of every file, None for a link."""
    return {
        str(p.relative_to(folder)): None if p.is_symlink() else p.read_bytes()
        for p in folder.rglob("*")
        if p.is_symlink() or p.is_file()
    }


@pytest.mark.parametrize("add", ADDED.values(), ids=ADDED)
def test_export_deletes_nothing_that_is_not_its_own(tiny, tmp_path, add):
    out = tmp_path / "out"
    hf_export.export(out, tiny.arch, tiny.params)
    add(out)
    before = held(out)
    with pytest.raises(ValueError) as caught:
        hf_export.export(out, tiny.arch, jax.tree.map(lambda x: x * 2, tiny.params))
    assert f"export folder '{out}' is an earlier export and would be replaced, but it also" in str(
        caught.value
    )
    (name,) = set(before) - set(hf.read_config(out)["exported_by_jaxrl_vr"])
    assert f"holds {name}; move that away, or choose another folder" in str(caught.value)
    assert held(out) == before
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_export_sees_what_came_while_it_was_writing(tiny, tmp_path):
    out = tmp_path / "out"
    hf_export.export(out, tiny.arch, tiny.params)

    def save(partial):
        (out / "notes.md").write_text("mine")

    with pytest.raises(ValueError, match="it also holds notes.md"):
        hf_export.export(out, tiny.arch, tiny.params, save_tokenizer=save)
    assert (out / "notes.md").read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_export_does_not_take_another_trainers_mark_for_its_own(tiny, tmp_path, one_device):
    out = tmp_path / "out"
    hf_export.export(out, tiny.arch, tiny.params)
    config = hf.read_config(out)
    for mark in (None, "jaxrl_vr", {"a": 1}, True):
        (out / "config.json").write_text(json.dumps(config | {"exported_by_jaxrl_vr": mark}))
        with pytest.raises(ValueError, match="not an earlier export: it holds config.json, gener"):
            hf_export.export(out, tiny.arch, tiny.params)
    # A model that was trained from an export is not that export.
    (out / "config.json").write_text(json.dumps(config))
    (out / "more.txt").write_text("mine")
    hf_export.export(tmp_path / "next", tiny.arch, tiny.params, source_config=hf.read_config(out))
    files = hf.read_config(tmp_path / "next")["exported_by_jaxrl_vr"]
    assert files == sorted(p.name for p in (tmp_path / "next").iterdir())


def test_export_into_the_working_directory_is_refused(tiny, tmp_path, monkeypatch):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    for folder in (".", "", inner, "..", "../../a", "./"):
        with pytest.raises(ValueError, match="holds the working directory, which cannot be repla"):
            hf_export.export(folder, tiny.arch, tiny.params)
    assert list(tmp_path.rglob("*")) == [tmp_path / "a", inner]
    hf_export.export("c/d", tiny.arch, tiny.params)
    assert (inner / "c" / "d" / "config.json").is_file()


def test_export_to_a_file_home_and_a_link(tiny, tmp_path, monkeypatch, one_device):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"file' is a file; choose a new or an empty folder"):
        hf_export.export(tmp_path / "file", tiny.arch, tiny.params)
    assert (tmp_path / "file").read_text() == "mine"
    monkeypatch.setenv("HOME", str(tmp_path))
    hf_export.export("~/out", tiny.arch, tiny.params)
    (tmp_path / "latest").symlink_to("out")
    twice = jax.tree.map(lambda x: x * 2, tiny.params)
    hf_export.export(tmp_path / "latest", tiny.arch, twice)
    assert (tmp_path / "latest").is_symlink()
    assert same(read(tmp_path / "out", one_device)[1], twice)


def test_export_does_not_replace_a_model_that_is_not_ours(copied, one_device):
    arch, params = read(copied, one_device)
    with pytest.raises(ValueError, match=r"exists and is not an earlier export"):
        hf_export.export(copied, arch, params, source_config=hf.read_config(copied))


def test_interrupted_export_leaves_the_earlier_one_whole(tiny, tmp_path, one_device):
    out = tmp_path / "out"
    hf_export.export(out, tiny.arch, tiny.params)

    def fail(partial):
        assert (partial / "model.safetensors").is_file()
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space left"):
        hf_export.export(
            out, tiny.arch, jax.tree.map(lambda x: x * 2, tiny.params), save_tokenizer=fail
        )
    assert same(read(out, one_device)[1], tiny.params)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_tokenizer_lands_with_the_weights(tiny, tmp_path):
    def save(partial):
        (partial / "tokenizer.json").write_text("{}")

    hf_export.export(tmp_path / "out", tiny.arch, tiny.params, save_tokenizer=save)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"


def test_export_refuses_what_does_not_fit(tiny, tmp_path):
    out = tmp_path / "out"
    other = tiny.arch.model_copy(update={"ffn": 44})
    with pytest.raises(ValueError, match=r"params\['layers'\]\['down'\]: expected shape \(2, 44,"):
        hf_export.export(out, other, tiny.params)
    lacking = {k: v for k, v in tiny.params.items() if k != "norm"}
    with pytest.raises(ValueError, match=r"params\['norm'\]: .* got no such parameter"):
        hf_export.export(out, tiny.arch, lacking)
    with pytest.raises(ValueError, match=r"dtype = 'float8': export as one of"):
        hf_export.export(out, tiny.arch, tiny.params, dtype="float8")
    source = hf.read_config(FIXTURES[0].parent / "llama-gqa-tied")
    with pytest.raises(ValueError, match=r"source_config describes .* params are of"):
        hf_export.export(out, tiny.arch, tiny.params, source_config=source)
    assert list(tmp_path.iterdir()) == []

"""Scopes in the programs of a run, which a profile shows: they read like the model."""

import jax
import pytest
from inprocess import ONES, config, rl
from jax.sharding import NamedSharding, PartitionSpec

from jaxrl_vr.config import load
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.plan.steps import Lowered
from jaxrl_vr.sharding import MeshConfig, make_mesh
from jaxrl_vr.train.config import RunConfig

BLOCK = [
    "attention/norm",
    "attention/query",
    "attention/key",
    "attention/value",
    "attention/rotary",
    "attention/attend",
    "attention/output",
    "ffn/norm",
    "ffn/gate",
    "ffn/up",
    "ffn/down",
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Name -> text of a lowered program, with where its operations come from."""
    path = config(tmp_path_factory.mktemp("scopes"), rl("grpo"), data=ONES)
    settings = load(RunConfig, [path], ["model.family=qwen3", "engine.attention=xla"])
    model = Transformer(settings.model.architecture(16))
    mesh = make_mesh(MeshConfig(data=1), jax.devices()[:1])
    lowered = Lowered(settings, settings.stages[0], model, mesh, 10**9, print)
    whole = NamedSharding(mesh, PartitionSpec())
    sync = lowered.view()
    view = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=whole), sync.out_info
    )
    found = {
        "update": lowered.update(),
        "weight_sync": sync,
        "prefill": lowered.prefill(view),
        "decode": lowered.decode(view),
    }
    return {name: program.as_text(debug_info=True) for name, program in found.items()}


def missing(text, *names):
    return [name for name in names if name not in text]


def test_an_update_has_the_layers_the_loss_and_the_optimizer(programs):
    names = ["update", "embed", "layers", *BLOCK, "head", "loss", "optimizer"]
    assert missing(programs["update"], *names) == []


def test_the_sampler_has_its_programs_and_each_layer(programs):
    layers = [f"layers/0/{name}" for name in BLOCK]
    assert missing(programs["prefill"], *(f"prefill/{n}" for n in ["embed", *layers])) == []
    assert missing(programs["decode"], *(f"decode/{n}" for n in ["embed", *layers])) == []
    assert missing(programs["decode"], "draw/head") == []
    assert missing(programs["weight_sync"], "weight_sync/") == []

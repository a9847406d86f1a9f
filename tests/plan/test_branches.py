"""Which branches of a compiled decode step a plan counts: those that run."""

import jax
import pytest

from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.params import abstract
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.plan.plan import branch_of
from jaxrl_vr.plan.program import scope_of
from jaxrl_vr.plan.steps import full_plan
from jaxrl_vr.sampler.programs import Programs
from jaxrl_vr.sampler.sizes import EngineConfig, cache_sizes
from jaxrl_vr.sharding import SAMPLE_RULES, MeshConfig, make_mesh
from jaxrl_vr.train.limits import Rollouts
from jaxrl_vr.train.stages import SamplingConfig


@pytest.mark.parametrize(
    "more, samples, runs",
    [
        ({}, 8, ""),
        ({}, 16, "shared"),
        ({"top_k": 5}, 8, "cut top_k"),
        ({"top_p": 0.9}, 8, "cut top_p"),
        ({"min_p": 0.1}, 9, "cut shared"),
        ({"temperature": 0.0}, 1, "greedy"),
    ],
    ids=str,
)
def test_of_a_decode_step_the_branches_count_that_run(more, samples, runs, decode_conditionals):
    branch = branch_of(SamplingConfig(max_new_tokens=8, **more), samples)
    found = {
        scope: branch(line)(["short", "long"], key={"short": 1, "long": 9}.get)
        for scope, line in decode_conditionals.items()
    }
    assert found == {
        scope: "long" if scope in runs.split() else "short"
        for scope in ("cut", "top_k", "top_p", "greedy", "shared")
    }


@pytest.fixture(scope="module")
def decode_conditionals():
    """The conditionals of a compiled decode step of plain XLA, by the last of their scopes."""
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    sizes = dict(vocab_size=32, width=16, layers=1, heads=4, kv_heads=2, head_dim=4, ffn=24)
    model = Transformer(Architecture(**sizes, max_length=64))
    engine = EngineConfig(slots=8, steps_per_call=2, cache_tokens=1024, attention="xla")
    of_cache = cache_sizes(model, engine, mesh)
    rollouts = Rollouts(prompts=1, samples=8, prompt_tokens=16, new_tokens=8)
    rows, plan = full_plan(of_cache, rollouts, 64)
    view = abstract(model.declare(), SAMPLE_RULES, mesh)
    view = jax.eval_shape(lambda p: model.sampler_view(p, as_rows=False), view)
    text = Programs(model, of_cache, mesh).lower_decode(view, rows, plan, 8).compile().as_text()
    lines = [line for line in text.splitlines() if " conditional(" in line]
    names = "cut", "top_k", "top_p", "greedy", "shared"
    return {[s for s in scope_of(line).split("/") if s in names][-1]: line for line in lines}

"""How the benchmarks read a program that was compiled for a TPU."""

import pytest


@pytest.fixture
def compiled(module):
    return module("compiled")


PROGRAM = """\
HloModule jit_step

%fused (p: f32[4]) -> f32[4] {
  ROOT %a = f32[4] add(%p, %p), backend_config={"estimated_cycles":"999"}
}

%skip.1 (t: (s32[])) -> f32[4] {
  ROOT %b = f32[4] broadcast(%c), backend_config={"estimated_cycles":"1"}
}

%work.2 (t: (s32[])) -> f32[4] {
  %d = f32[4] fusion(%c), calls=%fused, backend_config={"estimated_cycles":"40"}
  ROOT %e = f32[4] copy(%d), backend_config={"estimated_cycles":"2"}
}

%body.3 (t: (s32[], s32[3,4])) -> (s32[]) {
  %f = f32[4] conditional(%p, %t, %t), branch_computations={%skip.1, %work.2}
  ROOT %g = s32[] add(%t, %t), backend_config={"estimated_cycles":"5"}
}

ENTRY %main.4 (h: f32[10]) -> f32[] {
  %i = f32[] copy(%h), backend_config={"estimated_cycles":"100"}
  %j = (s32[], s32[3,4]) while(%k), condition=%test, body=%body.3
  ROOT %l = f32[] copy(%i)
}
"""


def test_estimate_counts_loops_by_trips_and_the_dearest_branch(compiled):
    # 100 + 3 x (42 + 5): 10 tokens in 3 chunks of 4; a fusion's own number holds what it calls
    assert compiled.Program(PROGRAM, compiled.chunk_trips(10)).cycles() == 241


def test_the_cheapest_branch_and_the_body_of_a_loop(compiled):
    program = compiled.Program(PROGRAM, lambda line: 3, min)
    assert program.loops() == ["body.3"] and program.cycles("body.3") == 1 + 5
    assert program.cycles() == 100 + 3 * 6


def test_a_loop_of_another_kind_is_an_error(compiled):
    with pytest.raises(ValueError, match="no loop over chunks of 100 tokens"):
        compiled.Program(PROGRAM, compiled.chunk_trips(100)).cycles()

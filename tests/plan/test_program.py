"""How a program that was compiled for a TPU is read."""

import pytest

from jaxrl_vr.plan.program import Program

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

%test.5 (t: (s32[], s32[3,4])) -> pred[] {
  %m = s32[] get-tuple-element(%t), index=0
  %n = s32[] constant(3)
  ROOT %o = pred[] compare(%m, %n), direction=LT
}

%body.3 (t: (s32[], s32[3,4])) -> (s32[]) {
  %f = f32[4] conditional(%p, %t, %t), branch_computations={%skip.1, %work.2}
  ROOT %g = s32[] add(%t, %t), backend_config={"estimated_cycles":"5"}
}

ENTRY %main.4 (h: f32[10]) -> f32[] {
  %i = f32[] copy(%h), backend_config={"estimated_cycles":"100"}
  %j = (s32[], s32[3,4]) while(%k), condition=%test.5, body=%body.3
  ROOT %l = f32[] copy(%i)
}
"""


def test_estimate_counts_loops_by_trips_and_the_dearest_branch():
    # 100 + 3 x (42 + 5); a fusion's own number holds what it calls.
    assert Program(PROGRAM).cycles() == 241


def test_the_cheapest_branch_and_the_body_of_a_loop():
    program = Program(PROGRAM, branch=lambda _: min)
    assert program.loops() == ["body.3"] and program.cycles("body.3") == 1 + 5
    assert program.cycles() == 100 + 3 * 6


def test_a_loop_of_unknown_length_is_asked_for():
    unknown = PROGRAM.replace("direction=LT", "direction=NE")
    with pytest.raises(ValueError, match="a loop of unknown length: %j = "):
        Program(unknown).cycles()
    assert Program(unknown, lambda line: 2).cycles() == 100 + 2 * 47


# Products


def flops_of(*lines):
    body = "\n".join(lines)
    return Program(f"ENTRY %main (p: f32[1]) -> f32[] {{\n{body}\n}}\n").flops()


def test_products_of_a_dot():
    assert (
        flops_of(
            "  %a = f32[5,7]{1,0} parameter(0)",
            "  %b = f32[7,3]{1,0} parameter(1)",
            "  ROOT %c = f32[5,3]{1,0} dot(%a, %b), lhs_contracting_dims={1}, "
            "rhs_contracting_dims={0}",
        )
        == 2 * 5 * 7 * 3
    )


def test_products_of_a_convolution_without_a_window():
    assert (
        flops_of(
            "  %a = bf16[5,7]{1,0} parameter(0)",
            "  %b = bf16[3,7]{1,0} parameter(1)",
            "  ROOT %c = f32[5,3]{1,0} convolution(%a, %b), dim_labels=bf_oi->bf",
        )
        == 2 * 5 * 7 * 3
    )


def test_products_of_a_batched_convolution_leave_its_padding_out():
    """A batch of 4 as places of a dilated window: XLA's way to write a batched product."""
    assert (
        flops_of(
            "  %a = f32[4,5,7]{2,1,0} parameter(0)",
            "  %b = f32[4,7,3]{2,1,0} parameter(1)",
            "  ROOT %c = f32[4,5,3]{2,1,0} convolution(%a, %b), "
            "window={size=4 stride=3 lhs_dilate=4}, dim_labels=0bf_0io->0bf",
        )
        == 4 * 2 * 5 * 7 * 3
    )


def test_products_of_a_window_that_is_padded():
    """Two parts of a weight side by side: each output place meets one of them."""
    assert (
        flops_of(
            "  %a = f32[1,5,7]{2,1,0} parameter(0)",
            "  %b = f32[2,7,3]{2,1,0} parameter(1)",
            "  ROOT %c = f32[2,5,3]{2,1,0} convolution(%a, %b), "
            "window={size=2 pad=1_1 rhs_reversal=1}, dim_labels=0bf_0io->0bf",
        )
        == 2 * 2 * 5 * 7 * 3
    )


# Exchanges


@pytest.mark.parametrize(
    "groups, devices",
    [
        ("{{0,2},{1,3}}", (0, 2)),
        ("[2,2]<=[4]", (0, 1)),
        ("[2,2]<=[2,2]T(1,0)", (0, 2)),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", (0, 1, 2, 3)),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_0'}", (0, 4)),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_0','axis_1':(1)2}", (0, 2, 4, 6)),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1':(2)2}", (0, 1)),
        ("mesh['axis_0'=4,'axis_1'=2], device_ids=([2,4]T(1,0)) {'axis_0'}", (0, 1, 2, 3)),
        ("mesh['axis_0'=4,'axis_1'=2], device_ids=([2,4]T(1,0)) {'axis_1'}", (0, 4)),
    ],
)
def test_groups_of_devices(groups, devices):
    line = f"  %a = f32[8,4]{{1,0}} all-gather(%p), replica_groups={groups}, dimensions={{0}}"
    text = f"ENTRY %main (p: f32[2,4]) -> f32[8,4] {{\n{line}\n}}\n"
    (found,) = Program(text).collectives()
    assert (found.kind, found.devices, found.bytes) == ("all-gather", devices, 8 * 4 * 4)

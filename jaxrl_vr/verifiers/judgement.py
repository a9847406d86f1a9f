"""What a verifier may return, checked: code from elsewhere may have put anything into a Score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

from jaxrl_vr.types import Score, Step, Verdict
from jaxrl_vr.verifiers.text import one_line

MAX_VALUE = 1e6
"""Largest size of a value, a component or a step's value. Far above any reward that trains, and its
square and the sums over a batch stay far from where float32 ends."""
_MAX_COMPONENTS = 1000  # each is a metric
_MAX_STEPS = 100_000


class BadScore(ValueError):
    """A verifier returned what is no score; the message names it."""


def checked(score: Score, verifier: str) -> Score:
    """`score` made of plain values: finite and bounded numbers, text of one printable line.

    Args:
      score: what the verifier returned.
      verifier: what messages call it.

    Raises:
      BadScore: what is wrong with the score.
    """
    fault = _fault(score)
    if fault:
        raise BadScore(f"{verifier} returned {fault}")
    names = [one_line(str(key), 100) for key in score.components]
    components = {
        name: number(x, verifier, f"component {name!r}")
        for name, x in zip(names, score.components.values(), strict=True)
    }
    steps = tuple(_step(step, verifier) for step in score.steps)
    value = number(score.value, verifier, "value")
    reason = "" if score.reason is None else one_line(str(score.reason))
    return Score(value, score.verdict, components, reason, steps)


def _fault(score: Score) -> str:
    """What is wrong with the form of a score, or nothing."""
    verdicts = get_args(Verdict)
    if not isinstance(score.verdict, str) or score.verdict not in verdicts:
        given = one_line(repr(score.verdict), 80)
        return f"the verdict {given}; return one of {', '.join(verdicts)}"
    if not isinstance(score.components, Mapping):
        got = type(score.components).__name__
        return f"components of type {got}; return a dict of numbers"
    if len(score.components) > _MAX_COMPONENTS:
        return f"{len(score.components)} components; return at most {_MAX_COMPONENTS}"
    if not isinstance(score.steps, list | tuple):
        return f"steps of type {type(score.steps).__name__}; return a tuple of Steps"
    if len(score.steps) > _MAX_STEPS:
        return f"{len(score.steps)} steps; return at most {_MAX_STEPS}"
    for step in score.steps:
        if not isinstance(step, Step):
            return f"a step of type {type(step).__name__}; return Step(end, value)"
    return ""


def number(x: Any, verifier: str, what: str) -> float:
    """`x` as a float that training can bear.

    Raises:
      BadScore: it is none; the message calls it the `what` of `verifier`.
    """
    try:
        value = math.nan if isinstance(x, str | bytes) else float(x)
    except OverflowError:
        value = math.inf
    except (TypeError, ValueError):
        value = math.nan
    if not abs(value) <= MAX_VALUE:
        raise BadScore(
            f"{verifier} returned the {what} {_shown(x)}; return a finite number between "
            f"{-MAX_VALUE:.0f} and {MAX_VALUE:.0f}"
        )
    return value


def _step(step: Step, verifier: str) -> Step:
    end = step.end
    if not isinstance(end, int) or isinstance(end, bool) or end < 0:
        raise BadScore(f"{verifier} returned a step that ends at {_shown(end)}; count characters")
    return Step(end, number(step.value, verifier, "step value"))


def _shown(x: Any) -> str:
    if isinstance(x, int) and abs(x) >= 1 << 64:
        return "of a huge integer"  # whose digits Python refuses to write out
    return one_line(repr(x), 80)

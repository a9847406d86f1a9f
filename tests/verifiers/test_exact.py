"""Exact match, with and without a marker."""

from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.exact import ExactMatch

TASK = Example(id="0", prompt="729+304=", reference=" 1033 ")


def test_whole_response():
    assert ExactMatch()(TASK, "1033\n").verdict == "right"
    assert ExactMatch()(TASK, "1033.").verdict == "wrong"
    assert ExactMatch()(TASK, "  ").verdict == "no_answer"


def test_last_marker_counts():
    verifier = ExactMatch(after=">")
    assert verifier(TASK, "9+4=13>1033").value == 1.0
    assert verifier(TASK, ">1033>1034").value == 0.0
    assert verifier(TASK, "1033").verdict == "no_answer"
    assert verifier(TASK, "1033>").verdict == "no_answer"
    assert verifier.answer(TASK, "a>b> 7 ") == "7"


def test_case():
    task = Example(id="0", prompt="", reference="Paris")
    assert ExactMatch()(task, "paris").verdict == "wrong"
    assert ExactMatch(ignore_case=True)(task, "paris").verdict == "right"


def test_empty_reference_is_unscorable():
    assert ExactMatch()(Example(id="0", prompt="", reference=" "), "").verdict == "unscorable"

"""Sums worked digit by digit: each term is a step."""

from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.data.procedural import worked
from jaxrl_vr.types import Example, Step
from jaxrl_vr.verifiers.worked import Worked

TASK = Example(id="0", prompt="729+304=", reference="1033")


def test_every_right_step():
    text = "9+4+0=13,2+0+1=03,7+3+0=10,>1033"
    score = Worked()(TASK, text)
    assert (score.value, score.verdict) == (1.0, "right")
    # A step ends behind its comma, the answer with the response.
    assert score.steps == (Step(9, 1.0), Step(18, 1.0), Step(27, 1.0), Step(32, 1.0))


def test_a_wrong_step_and_those_after_it():
    # 2+0+1 is 3, and the answer that follows from 4 is wrong; the last term is right again.
    score = Worked()(TASK, "9+4+0=13,2+0+1=04,7+3+0=10,>1043")
    assert (score.value, score.verdict) == (0.0, "wrong")
    assert [step.value for step in score.steps] == [1.0, 0.0, 1.0, 0.0]


def test_an_answer_at_once_is_one_step():
    assert Worked()(TASK, ">1033").steps == (Step(5, 1.0),)
    assert Worked()(TASK, ">1").steps == (Step(2, 0.0),)


def test_work_without_an_answer():
    score = Worked()(TASK, "9+4+0=13,2+0")
    assert score.verdict == "no_answer"
    assert score.steps == (Step(9, 1.0), Step(12, 0.0))
    assert Worked()(TASK, "").steps == ()


def test_more_steps_than_digits_are_wrong():
    score = Worked()(TASK, "9+4+0=13,2+0+1=03,7+3+0=10,9+9+9=99,>1033")
    assert [step.value for step in score.steps] == [1.0, 1.0, 1.0, 0.0, 1.0]


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from("+-"))
def test_every_demonstration_is_right(a, b, operation):
    a, b = max(a, b), min(a, b)
    answer = a + b if operation == "+" else a - b
    task = Example(id="0", prompt=f"{a}{operation}{b}=", reference=str(answer))
    score = Worked()(task, f"{worked(a, b, operation)}>{answer}")
    assert score.verdict == "right" and {step.value for step in score.steps} == {1.0}


@given(st.text(alphabet="0123456789+=>, x", max_size=60))
def test_steps_go_up_to_the_end(text):
    ends = [step.end for step in Worked()(TASK, text).steps]
    assert ends == sorted(set(ends)) and all(0 < end <= len(text) for end in ends)


def test_another_problem_is_unscorable():
    score = Worked()(Example(id="0", prompt="What is 2 + 2?", reference="4"), ">4")
    assert score.verdict == "unscorable" and "12+34=" in score.reason

"""The format checker: exactly one block of each tag, also where the prompt has opened one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.types import Example, Message
from jaxrl_vr.verifiers.format import Format

PLAIN = Example(id="0", prompt="Assistant:")
OPENED = Example(id="0", prompt="Assistant: <think>\n")


@pytest.mark.parametrize(
    ("task", "response", "value"),
    [
        (PLAIN, "<think>a</think><answer>b</answer>", 1.0),
        (PLAIN, " <think>a</think>\n\n<answer>b</answer>\n", 1.0),
        (PLAIN, "<think>a</think> so <answer>b</answer>", 0.0),
        (PLAIN, "Hm. <think>a</think><answer>b</answer>", 0.0),
        (PLAIN, "<think>a</think><answer>b</answer> done", 0.0),
        (PLAIN, "<answer>b</answer><think>a</think>", 0.0),
        (PLAIN, "<think>a</think><think>a</think><answer>b</answer>", 0.0),
        (PLAIN, "<think>a</think><answer>b</answer><answer>c</answer>", 0.0),
        (PLAIN, "<think>a<answer>b</answer></think>", 0.0),
        (PLAIN, "</think>a<think><answer>b</answer>", 0.0),
        (PLAIN, "<think>a</think><answer>b", 0.0),
        (PLAIN, "a</think><answer>b</answer>", 0.0),
        (PLAIN, "", 0.0),
        (PLAIN, "<think></think><answer>b</answer>", 0.0),
        (PLAIN, "<think>a</think><answer> \n</answer>", 0.0),
        (OPENED, "</think><answer>b</answer>", 0.0),
        (OPENED, "a</think><answer>b</answer>", 1.0),
        (OPENED, "<think>a</think><answer>b</answer>", 0.0),
        (OPENED, "a</think><answer>b</answer></answer>", 0.0),
    ],
)
def test_value(task, response, value):
    score = Format()(task, response)
    assert score.value == value
    assert score.verdict == ("right" if value else "wrong")
    assert bool(score.reason) == (value == 0.0)


@pytest.mark.parametrize(
    ("prompt", "response", "value"),
    [
        ("Assistant: <think>\nOkay, ", "so</think><answer>b</answer>", 1.0),
        ("Assistant: <think>\nOkay, ", "</think><answer>b</answer>", 1.0),
        ("Assistant: <think>\nOkay, ", "<think>so</think><answer>b</answer>", 0.0),
        ("<|assistant|>\n<think>Okay", "so</think><answer>b</answer>", 1.0),
        ("<think>x</think>\n<answer>It is", " b</answer>", 1.0),
        ("<think>x</think>\n<answer>It is", " b", 0.0),
        # What the user says of a tag opens none.
        ("First think in <think>, then answer.\nAssistant:", "a</think><answer>b</answer>", 0.0),
        ("Think in <think>, then answer.", "<think>a</think><answer>b</answer>", 1.0),
        ("Form: <think>x</think><answer>y</answer>", "<think>a</think><answer>b</answer>", 1.0),
        ((Message("user", "q"), Message("assistant", "Well: <think>I")), "</think>", 0.0),
        ((Message("user", "q"), Message("assistant", "<think>I")), "</think><answer>b</answer>", 1),
        ((Message("user", "<think>"),), "<think>a</think><answer>b</answer>", 1.0),
        ((), "<think>a</think><answer>b</answer>", 1.0),
    ],
)
def test_what_the_prompt_has_begun(prompt, response, value):
    assert Format()(Example(id="0", prompt=prompt), response).value == value


def test_prompt_that_opened_the_second_block():
    task = Example(id="0", prompt="<think>x</think><answer>")
    assert Format()(task, "b</answer>").value == 1.0
    assert Format()(task, "<think>x</think>b</answer>").value == 0.0


def test_other_tags():
    assert Format(tags=("plan",))(PLAIN, "<plan>x</plan>").value == 1.0
    for tags in ((), ("think", "think"), ("<think>",), ("",)):
        with pytest.raises(ValueError, match="tags"):
            Format(tags=tags)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "a", "\n"])))
def test_only_one_arrangement_of_tags_passes(pieces):
    tags = [piece for piece in pieces if "<" in piece]
    if Format()(PLAIN, "".join(pieces)).value:
        assert tags == ["<think>", "</think>", "<answer>", "</answer>"]

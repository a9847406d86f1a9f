"""Multiple choice: the usual forms pass, lists of letters never do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.choice import Choice
from jaxrl_vr.verifiers.spec import build

TASK = Example(id="0", prompt="q", reference="B")
FORMS = [
    "B", "b", " B\n", "(B)", "B)", "B.", "B:", "**B**", "[B]", "$B$", '"B"', "`B`",
    "B) the heart", "B. the heart", "(B) A large dog", "B: 12 (twelve)", "**B.** the heart",
    r"\boxed{B}", r"\boxed{\text{B}}", r"So \boxed{\textbf{(B)}} it is", r"\boxed{B. \text{x}}",
    r"\boxed{\text{B) heart}}", r"$\boxed{\mathrm{B}}$",
    "<answer>B</answer>", "<answer>\n(B)\n</answer>", "<answer>The answer is B.</answer>",
    "The answer is B", "The answer is B.", "the answer is: B", "The correct answer is (B).",
    "Answer: B", "**Answer:** B", "Answer: **B**", "Final answer: (B)", "Answer = B", "ANSWER: b",
    "The best option is B, because A is too small.", "The answer is option B since it fits.",
    "The answer is B) the heart.", "The answer is B. A and C are wrong.", "Answer:\nB\nBecause.",
    "I choose B.", "I would go with (B).", "Option B", "Option B.", "choice b",
    "A is too small and C too large.\nB", "First some thoughts on A.\n\n(B) the heart",
    "B\n\nThe others do not fit.",
    "The answer is A. No, wait, the answer is B.", "Answer: A\nI made a mistake.\nAnswer: B",
    "The answer is C. Final answer: B", "The answer is B. As said, the answer is B.",
    "<think>The answer is A</think>The answer is B",
]  # fmt: skip
LISTS = [
    "A, B", "A or B", "B and C", "A/B", "A B C D", "(A) (B)", "(A), (B)", "A. B.", "A-D", "B & C",
    "A) 3 B) 4 C) 5", "A) 3\nB) 4", "B) 4\nA) 3", "(B) or (C)", "b, c",
    r"\boxed{A, B}", r"\boxed{A} \boxed{B}", r"\boxed{A \text{ or } B}", r"\boxed{AB}",
    "<answer>A</answer><answer>B</answer>", "<answer>A or B</answer>", "Answer: A, B, C, D",
    "The answer is B or C.", "The answer is (A) or (B).", "The answer is A. The answer is B.",
    "The answer is B, C", "Answer: B/C", "A and B.", "The options are A and B",
]  # fmt: skip
OTHERS = [
    "", "A", "C.", "(D)", "The answer is A", "The answer is not B.", "The answer is a bee.",
    "Both", "BB", "Bee", "B is a letter", "B's", "Maybe B", "I think it could be B, who knows",
    r"\boxed{}", r"\boxed{7} or B", "<think>B", "<think>B</think>", "b or not to be", "I", "a dog",
    "The answer is Berlin.", "\u0412", "B\u0301x",
]  # fmt: skip


@pytest.mark.parametrize("response", FORMS)
def test_forms_of_a_choice(response):
    score = Choice()(TASK, response)
    assert (score.value, score.verdict) == (1.0, "right"), score.reason
    assert Choice().answer(TASK, response) == "B"
    for other in "AC":
        assert Choice()(Example("0", "q", other), response).value == 0.0


@pytest.mark.parametrize("response", LISTS)
@pytest.mark.parametrize("reference", list("ABCD"))
def test_a_list_of_letters_never_passes(response, reference):
    assert Choice()(Example("0", "q", reference), response).value == 0.0
    assert Choice().answer(TASK, response) is None


@pytest.mark.parametrize("response", OTHERS)
def test_what_is_no_choice_or_another(response):
    assert Choice()(TASK, response).value == 0.0


def test_verdicts():
    assert Choice()(TASK, "A").reason == "choice A, expected B"
    assert Choice()(TASK, "A or B").reason == "several letters: A, B"
    assert Choice()(TASK, "no idea").verdict == "no_answer"
    assert Choice()(TASK, "<think>B").reason == "the thinking is not closed"
    assert Choice(letters=4)(TASK, "E").verdict == "no_answer"
    assert Choice(letters=26)(Example("0", "q", "Z"), "(z)").value == 1.0


@pytest.mark.parametrize("reference", ["B", "(B)", "b", "B. the heart", r"\boxed{B}", "Option B"])
def test_forms_of_references(reference):
    assert Choice()(Example("0", "q", reference), "B").value == 1.0


@pytest.mark.parametrize("reference", ["", "the heart", "A, B", "K", "12"])
def test_faulty_references_are_unscorable(reference):
    score = Choice()(Example("0", "q", reference), "B")
    assert (score.verdict, score.value) == ("unscorable", 0.0)
    assert "is not one letter up to J" in score.reason


def test_wrong_configs_say_why():
    for letters in (1, 27):
        with pytest.raises(ValueError, match="letters"):
            build({"type": "choice", "letters": letters})


PIECES = st.sampled_from(
    ["A", "B", "(B)", " ", ",", " or ", "\n", "answer is ", "\\boxed{", "}", "."]
)


@settings(max_examples=300, derandomize=True)
@given(st.lists(PIECES, max_size=12).map("".join) | st.text(max_size=60))
def test_any_text_has_a_verdict(text):
    score = Choice()(TASK, text)
    assert (
        (score.value == 1.0) == (score.verdict == "right") == (Choice().answer(TASK, text) == "B")
    )


@pytest.mark.parametrize(
    "unit", ["A", "A, ", "(", "answer is ", "answer is A ", "<answer>", "\n", "*"]
)
def test_long_responses_of_one_piece_are_judged(unit):
    assert Choice()(TASK, unit * (200_000 // len(unit))).value == 0.0

"""Language consistency: shares worked by hand, code and formulas left out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_vr.types import Example, Message
from jaxrl_vr.verifiers.language import Language
from jaxrl_vr.verifiers.spec import build

TASK = Example(id="0", prompt="What is the sum of these numbers?")
ENGLISH = "The answer follows from the sum of all the numbers in the list."  # 13 words
GERMAN = "Die Antwort folgt aus der Summe aller Zahlen in der Liste hier."  # 12 words


def share(response: str, language: str = "en", **options) -> float:
    return Language(language=language, **options)(TASK, response).value


@pytest.mark.parametrize(
    ("language", "response", "expected"),
    [
        ("en", ENGLISH, 1.0),
        ("de", GERMAN, 1.0),
        ("de", ENGLISH, 0.0),
        ("en", f"{ENGLISH} {GERMAN}", 13 / 25),
        ("de", f"{ENGLISH} {GERMAN}", 12 / 25),
        ("en", f"{ENGLISH} 所以", 13 / 15),  # two characters are two words
        ("zh", "所以答案是五 because", 6 / 7),
        ("ja", "答えは五です。", 1.0),
        ("ru", "Ответ равен пяти, потому что это сумма всех чисел. Sum", 9 / 10),
        ("ko", "정답은 다섯 입니다 ok", 3 / 4),
        ("zh-CN", "答案", 1.0),
    ],
)
def test_share_of_words(language, response, expected):
    assert share(response, language) == pytest.approx(expected)


def test_share_of_characters():
    # 4 Han characters, 6 letters
    assert share("所以答案 abcdef", "zh", unit="characters") == pytest.approx(0.4)


@pytest.mark.parametrize(
    "left_out",
    ["```python\nдля всех\n```", "$\\text{так}$", "\\[ так \\]", "\\(так\\)", "`так`",
     "$$\nтак\n$$",
     "<think>", "</answer>", "https://example.org/так", "1 + 2 = 3"],
)  # fmt: skip
def test_code_and_formulas_have_no_language(left_out):
    assert share(f"{ENGLISH}\n{left_out}") == 1.0
    assert Language(language="en")(TASK, left_out).verdict == "no_answer"


def test_a_block_that_is_never_closed_is_judged():
    for mark in ("```", "$$", "\\[", "\\("):
        assert share(f"{ENGLISH}\n{mark} так") == 13 / 14


def test_verdict_and_reason():
    verifier = Language(language="en", least=0.5)
    score = verifier(TASK, f"{ENGLISH} {GERMAN}")
    assert (score.verdict, score.reason) == ("right", "en 0.52, de 0.48")
    assert Language(language="en")(TASK, f"{ENGLISH} {GERMAN}").verdict == "wrong"
    assert verifier(TASK, "").verdict == "no_answer"
    assert verifier.answer(TASK, ENGLISH) is None


def test_parts():
    response = f"<think>{GERMAN}</think>{ENGLISH}"
    assert share(response) == 13 / 25
    assert share(response, part="thinking") == 0.0
    assert share(response, part="answer") == 1.0
    assert share(f"<think>{ENGLISH}", part="thinking") == 1.0
    unclosed = Language(language="en", part="answer")(TASK, f"<think>{ENGLISH}")
    assert unclosed.verdict == "no_answer"
    opened = Example(id="0", prompt="Hi <think>")
    assert Language(language="de", part="thinking")(opened, f"{GERMAN}</think>x").value == 1.0


def test_language_of_the_prompt():
    verifier = build({"type": "language", "language": "prompt"})
    assert verifier(TASK, ENGLISH).value == 1.0
    assert verifier(Example(id="0", prompt="Was ist die Summe der Zahlen?"), ENGLISH).value == 0.0
    chat = (Message("user", "Was ist die Summe der Zahlen?"),)
    assert verifier(Example(id="0", prompt=chat), ENGLISH).value == 0.0
    assert verifier(Example(id="0", prompt="1+1="), ENGLISH).verdict == "unscorable"
    assert verifier(Example(id="0", prompt=(Message("user", "1"),)), "a").verdict == "unscorable"


def test_component_for_the_shaping():
    spec = {
        "type": "weighted",
        "parts": [
            {"verifier": {"type": "exact", "after": ">"}},
            {"verifier": {"type": "language", "language": "en"}, "weight": 0.0},
        ],
    }
    score = build(spec)(Example(id="0", prompt="q", reference="5"), f"{ENGLISH} {GERMAN} >5")
    assert score.components == {"exact": 1.0, "language": 13 / 25}
    assert score.value == 1.0


def test_unknown_language_is_named():
    with pytest.raises(ValueError, match="language is 'xx', which cannot be told; use prompt or"):
        build({"type": "language", "language": "xx"})


@settings(max_examples=100, derandomize=True)
@given(
    st.lists(st.sampled_from(["$", "`", "```", "\\[", "a ", "б", "中", "ก", "\n", "."])) | st.text()
)
def test_the_share_is_a_share(pieces):
    assert 0.0 <= share("".join(pieces)) <= 1.0


@pytest.mark.parametrize(
    "unit", ["$", "`", "```", "\\[", "\\(", "<", "https://", "a", "中", "$a\n"]
)
def test_long_responses_of_one_piece_are_judged(unit):
    assert share(unit * (200_000 // len(unit)), "zh") in (0.0, 1.0)

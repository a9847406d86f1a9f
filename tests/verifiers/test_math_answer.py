"""Math answers: hand cases, properties, and the labelled sets where they are at hand."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_vr.types import Example, Message
from jaxrl_vr.verifiers.equality import canonical, equal
from jaxrl_vr.verifiers.math_answer import MathAnswer, math_answer

SHARED = Path(__file__).parents[2] / "../shared"


def example(reference: str, prompt: str = "question") -> Example:
    return Example(id="0", prompt=prompt, reference=reference)


def lines(name: str) -> list[dict]:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{name} is not at hand beside the project")
    return [json.loads(line) for line in path.read_text().splitlines()]


EQUAL = [
    (r"\frac{1}{2}", "0.5"),
    (r"\frac{1}{2}", "1/2"),
    (r"\dfrac{9}{7}", r"\frac97"),
    (r"\frac{-3}{4}", r"-\frac{3}{4}"),
    (r"2\frac{1}{2}", "2.5"),
    ("5/4", "1 1/4"),
    (r"0.\overline{3}", r"\frac13"),
    (r"0.\overline{9}", "1"),
    (r"\frac{1}{3}", "0.333333333333"),
    (r"\frac{2}{3}", "0.666666666667"),
    ("1,000", "1000"),
    (r"11,\! 111,\! 111,\! 100", "11111111100"),
    (r"1{,}000{,}000", r"1\,000\,000"),
    (r"\$32,\!348", "32348"),
    ("150\\%", "1.5"),
    ("28\\%", "28 percent"),
    (r"5\text{ cm}", "5"),
    (r"5\text{ cm}", r"5 \mathrm{~cm}"),
    (r"864 \mbox{ inches}^2", "864 square inches"),
    (r"125\text{ miles per hour}", "125"),
    (r"90^\circ", "90"),
    ("1000", "1e3"),
    (r"3 \cdot 10^{-4}", "0.0003"),
    ("2^{2007}", r"2 \cdot 2^{2006}"),
    (r"\{1,2,3\}", r"\{3,2,1\}"),
    ("1, 2, 3", "3, 1 and 2"),
    ("(1,2)", "( 1 , 2 )"),
    ("(2,4)", "(2,4)"),
    (r"(3, \frac{\pi}{2})", r"\left(3, \pi/2\right)"),
    (r"1 \pm \sqrt{19}", r"1+\sqrt{19}, 1-\sqrt{19}"),
    (r"(-\infty,3)", "x<3"),
    (r"[2,\infty)", r"x \geqslant 2"),
    ("1<x<2", "(1,2)"),
    (r"(2,12) \cup (12,102)", r"(12,102)\cup(2,12)"),
    (r"\begin{pmatrix}0.5\\2\end{pmatrix}", r"\begin{bmatrix} \frac12 \\ 2 \\ \end{bmatrix}"),
    ("x=5", "5"),
    ("f(x)=x^2", "x^2"),
    ("34x+45y-20z+100=0", "-34x-45y+20z-100=0"),
    ("2x+4y-3=0", r"y=-\frac{1}{2}x+\frac{3}{4}"),
    ("a=1,b=2", "(1,2)"),
    ("(p,q)=(3,2)", "(3,2)"),
    ("x^2-1", "(x-1)(x+1)"),
    ("2(x+y)", "2x+2y"),
    ("x(x+1)", "x^2+x"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
    (r"\sin 2x", r"2\sin x\cos x"),
    (r"e^{i\pi}", "-1"),
    (r"\log_2 8", "3"),
    (r"\arctan 2", r"\tan^{-1} 2"),
    (r"\sin 30^\circ", r"\frac{1}{2}"),
    (r"\text{Evelyn}", "evelyn"),
    (r"\text{(C)}", "C"),
    (r"\text{ellipse}", "an ellipse"),
    ("x^2", "x\N{SUPERSCRIPT TWO}"),
    ("-5", "\N{MINUS SIGN}5"),
    (r"\frac{1}{2}", "\N{VULGAR FRACTION ONE HALF}"),
    ("12", "\N{FULLWIDTH DIGIT ONE}\N{FULLWIDTH DIGIT TWO}"),
    (r"\pi", "\N{GREEK SMALL LETTER PI}"),
    (r"{\color{red}{7}}", "7."),
]

DIFFERENT = [
    (r"\frac{1}{3}", "0.33"),
    (r"\frac{1}{3}", "0.3333333334"),
    ("0.3333333333", "0.3333333334"),
    ("0.000001", "0.0000011"),
    ("9007199254740993", "9007199254740992"),
    ("10^{15}", "1000000000000001"),
    ("1/2004!", "1/2006!"),
    ("1/2^{99}", "1/2^{98}"),
    (r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}", r"\frac{1}{3 \cdot 2^{2006}}"),
    (r"\frac{22}{7}", r"\pi"),
    (r"\pi", "3.14159"),
    ("4", r"4\sqrt{2}"),
    ("12", "1 2"),
    ("12", "1,2"),
    ("1234", "(1,234)"),
    ("10,000", "10,00"),
    ("5 meters", "5 feet"),
    ("5 inches", "5 square inches"),
    (r"\$5", "5 cents"),
    ("5", "5 million"),
    ("5", "not 5"),
    ("50\\%", "5"),
    ("7", "7 apples and 3 pears"),
    ("(1,2)", r"\{1,2\}"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", "[1,2]"),
    (r"\{1,2\}", r"\{1,2,3\}"),
    ("1,2,3", "1,2,3,..."),
    (r"1, 2, \ldots, n", r"1, n, \ldots, 2"),
    ("1331 and 1728", "1728"),
    (r"1\pm\sqrt{2}", r"1+\sqrt{2}"),
    ("a=1,b=2", "2,1"),
    ("x+y=3", "3"),
    ("0", "a+3z=0"),
    ("x=5", "y=5"),
    ("x>0", "y>0"),
    (r"x \geq 3", "x>3"),
    ("x=1", "x=1 or x=2"),
    ("204_5", "204_6"),
    ("a_1", "a_2"),
    ("n^2", "N^2"),
    ("x", "x!"),
    ("5!", "5"),
    (r"\sqrt{x^2}", "x"),
    ("BAC", "ABC"),
    ("CAT", "ACT"),
    ("east", "seat"),
    ("A", "ABCD"),
    ("42", "42 or anything"),
    ("42", "42=43"),
    ("42", "42=x=43"),
    ("42", r"42 \neq 43"),
    ("42", "40<x<44"),
    ("42", 'exec("x=42")'),
    ("0", r"\infty-\infty"),
    ("1", r"\frac{0}{0}"),
    (r"\frac{3}{0}", r"\frac{5}{0}"),
    ("1", r"\text{True}"),
    ("f(x)=0", "f(0)"),
    (r"\tan x", r"\tan x1"),
    ("5", r"\frac=5"),
    ("3:4", "4:3"),
    ("1/2x", r"\frac{x}{2}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1&2\end{pmatrix}"),
    ("5", "9^{9^{9^9}}"),
    ("5", r"\frac{1}{9^{9^{9^9}}}"),
    ("5", "7^{e^{e^{e^{10e}}}}+1"),
    ("5", "(10^{9})!"),
    ("5", r"\binom{10^{12}}{10^{6}}"),
    ("5", "(x+y+z+w)^{200}"),
    ("5", "1e999999999"),
    ("5", "{" * 3000 + "5" + "}" * 2999),
    ("5", "+".join(["1"] * 2000)),
    ("5", r"\sqrt{" * 500 + "5" + "}" * 500),
]


@pytest.mark.parametrize(("a", "b"), EQUAL)
def test_equal(a, b):
    assert equal(a, b) and equal(b, a)


@pytest.mark.parametrize(("a", "b"), DIFFERENT, ids=lambda text: text[:40])
def test_different(a, b):
    assert not equal(a, b) and not equal(b, a)


@pytest.mark.parametrize(
    ("response", "verdict"),
    [
        (r"so \boxed{72}", "right"),
        (r"\fbox{72}", "right"),
        (r"\boxed{\boxed{72}}", "right"),
        (r"\boxed{1} no wait, \boxed{72}", "right"),
        (r"\boxed{72} no wait, \boxed{1}", "wrong"),
        (r"\boxed{71}, \boxed{72}", "wrong"),
        (r"\boxed{72}, \boxed{72}", "right"),
        (r"<think>\boxed{1}</think> \boxed{72}", "right"),
        (r"<think>\boxed{72}</think> I do not know", "wrong"),
        (r"<think>\boxed{72}</think>", "no_answer"),
        (r"<think>\boxed{72}", "no_answer"),
        (r"<think>a</think>\boxed{72}<think>", "no_answer"),
        (r"\boxed{72} and then \boxed{7", "no_answer"),
        ("the answer is 72", "right"),
        (r"\boxed{ }", "no_answer"),
        ("", "no_answer"),
    ],
)
def test_verdicts_of_boxed(response, verdict):
    score = math_answer(example("She has 8 * 9 = <<8*9=72>>72.\n#### 72"), response)
    assert (score.verdict, score.value) == (verdict, float(verdict == "right"))


def test_list_of_boxes_is_one_answer():
    assert math_answer(example("1, 2"), r"$\boxed{2}$ and $\boxed{1}$").verdict == "right"
    assert math_answer(example("1, 2"), r"first \boxed{1}, then \boxed{2}").verdict == "right"
    assert math_answer(example("2"), r"first \boxed{1}, then \boxed{2}").verdict == "wrong"
    assert math_answer(example("1, 2"), r"\boxed{1}, sorry, \boxed{2}").verdict == "wrong"


@pytest.mark.parametrize(
    "prompt",
    [
        "User: 2+3? Assistant: <think>\nOkay, ",
        (Message("user", "2+3?"), Message("assistant", "<think>")),
        (Message("user", "2+3?"), Message("assistant", "<think> Okay, ")),
    ],
)
def test_thinking_that_the_prompt_has_begun_is_no_answer(prompt):
    task = Example("0", prompt, "5")
    assert MathAnswer()(task, r"so \boxed{5}").verdict == "no_answer"
    assert MathAnswer()(task, r"so \boxed{6}</think> \boxed{5}").verdict == "right"


def test_thinking_opened_by_the_prompt():
    opened = example("5", prompt="Solve it.<think>\n")
    assert math_answer(opened, r"\boxed{5}").verdict == "no_answer"
    assert math_answer(opened, r"so</think>\boxed{5}").verdict == "right"


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("6 times 12 is 72.", "72"),
        ("costs $1,234.50.", "2469/2"),
        ("from 10 to -3", "-3"),
        ("16-3", "3"),
        ("about 3/4", "3/4"),
        ("or 25%", "1/4"),
        (r"or 25\%", "1/4"),
        (r"\frac{1}{2}", "1/2"),
        ("#### 18.00", "18"),
        (r"\boxed{7}", "7"),
        ("minus \N{MINUS SIGN}7!", "-7"),
        ("none", None),
    ],
)
def test_last_number(response, answer):
    verifier = MathAnswer(extract="last_number")
    assert verifier.answer(example("1"), response) == answer
    if answer is not None:
        assert verifier(example(answer), response).verdict == "right"


@pytest.mark.parametrize("reference", ["", "  ", "$$", r"\frac{1}{2", "#### "])
def test_unreadable_reference_is_unscorable(reference):
    score = math_answer(example(reference), r"\boxed{5}")
    assert (score.verdict, score.value) == ("unscorable", 0.0)


def test_canonical_answers_meet():
    for a, b in [("0.5", r"\frac{1}{2}"), ("1,000", "1000.0"), ("50\\%", "1/2"), ("2,1", "1, 2")]:
        assert canonical(a) == canonical(b)
    assert canonical("(1,2)") != canonical("(2,1)")


def test_spec_is_checked():
    with pytest.raises(ValueError, match="extract"):
        MathAnswer(extract="first")  # type: ignore[arg-type]  (the point of the test)


MATH = st.text(alphabet=st.sampled_from(list(r"\{}()[]^_+-*/=<>,.!|%$&~ 0123456789abexyABNπ½²")))
PIECES = st.lists(
    st.sampled_from(
        r"\frac \sqrt \pi \pm \cup \infty \text \boxed \begin{pmatrix} \end{pmatrix} \\ \sin \log_ "
        r"\overline \left( \right] { } ( ) [ ] , . 1 2 10 3.5 x y e i ^ _ - + = < \le \in and or % "
        r"\circ ! | cm".split()
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(st.one_of(MATH, st.text(), PIECES.map("".join), PIECES.map(" ".join)), MATH)
def test_total_symmetric_reflexive(a, b):
    assert equal(a, b) == equal(b, a)
    assert equal(a, a) == bool(a.strip())
    score = math_answer(example(b), rf"\boxed{{{a}}}")
    assert score.verdict in ("right", "wrong", "no_answer", "unscorable")
    MathAnswer(extract="last_number").answer(example(b), a)
    canonical(a)


@given(st.fractions(), st.fractions())
def test_fractions_compare_exactly(x, y):
    a = rf"\frac{{{x.numerator}}}{{{x.denominator}}}"
    assert equal(a, f"{y.numerator}/{y.denominator}") == (x == y)
    assert canonical(a) == str(x)


@given(st.integers(), st.integers(0, 6))
def test_grouped_and_padded_integers(x, zeros):
    assert equal(f"{x:,}", str(x))
    assert equal(f"{x}.{'0' * zeros}", str(x))


WAYS = [
    "{}",
    "${}$",
    "**{}**",
    "#### {}",
    "<answer>{}</answer>",
    "The answer is {}.",
    "The answer is ${}$.",
    "Thus the value is ${}$.",
]


def test_every_reference_is_found_however_it_is_said():
    for record in lines("data/math500/test.jsonl"):
        assert math_answer(example(record["answer"]), record["solution"]).verdict == "right"
        for way in WAYS:
            score = math_answer(example(record["answer"]), way.format(record["answer"]))
            assert score.verdict == "right", (way, score)


def test_different_references_are_different():
    answers = sorted({record["answer"] for record in lines("data/math500/test.jsonl")})
    answers = [a for a in answers if not a.lstrip("-").isdigit()][::3]
    for i, a in enumerate(answers):
        for b in answers[i + 1 :]:
            assert not equal(a, b), (a, b)


@pytest.mark.parametrize("name", ["data/math500/test.jsonl", "data/gsm8k/test.jsonl"])
def test_every_reference_equals_itself(name):
    for record in lines(name):
        answer = record["answer"].rpartition("####")[2].strip()
        score = math_answer(example(record["answer"]), rf"so \boxed{{{answer}}}")
        assert score.verdict == "right", answer

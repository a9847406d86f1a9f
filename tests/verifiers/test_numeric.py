"""Numbers: forms, exactness, tolerances, and what is not one number."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.numeric import Numeric, read
from jaxrl_vr.verifiers.spec import build


def value(response: str, reference: str, **options) -> float:
    return Numeric(**options)(Example("0", "q", reference), response).value


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5), ("-5", -5), ("+5", 5), ("−5", -5), ("5.", 5), (".5", Fraction(1, 2)),
        ("1,000,000", 10**6), ("1{,}000", 1000), (r"1\,000", 1000), ("1000.25", Fraction(4001, 4)),
        ("2.5e-3", Fraction(1, 400)), ("1E5", 10**5), (r"1.5 \times 10^{5}", 150_000),
        ("2 * 10**3", 2000), ("2 × 10^-1", Fraction(1, 5)), ("3/4", Fraction(3, 4)),
        (r"-\frac{3}{4}", Fraction(-3, 4)), (r"\dfrac{1}{2}", Fraction(1, 2)),
        ("50%", Fraction(1, 2)), (r"50\%", Fraction(1, 2)), ("$5", 5), (r"\$5.20", Fraction(26, 5)),
        ("x = 7", 7), ("5 meters", 5), (r"5 \text{ cm}", 5), ("30 km/h", 30), ("20 °C", 20),
        ("$5$", 5), ("**5**", 5), ("0.1", Fraction(1, 10)),
        ("", None), (".", None), ("-", None), ("five", None), ("5 6", None), ("5, 6", None),
        ("5 or 6", None), ("5 plus x", None), ("2x+1", None), ("1/0", None), (r"\frac{1}{0}", None),
        ("1e10001", None), ("1e999999999", None), ("1,00", None), ("nan", None), ("inf", None),
        ("1_000", None), ("0x10", None), ("5 not", None),
    ],
)  # fmt: skip
def test_numbers(text, number):
    assert read(text) == number


def test_large_numbers_are_read_and_larger_ones_not():
    assert read("1e10000") == 10**10_000
    assert read("1" * 4001) is None


def test_exact_without_tolerances():
    assert value("0.3", "3/10") == 1.0
    assert value("0.30000000000000001", "0.3") == 0.0
    assert value("0.3333333333", "1/3") == 0.0
    assert value(r"so \boxed{1{,}000}", "#### 1000") == 1.0
    assert value("The answer is 5 meters.", "5") == 1.0
    assert value(f"1{'0' * 3000}", f"1{'0' * 3000}") == 1.0
    assert value(f"1{'0' * 3000}", f"1{'0' * 2999}1") == 0.0


def test_absolute_tolerance():
    assert value("5.1", "5", absolute=0.1) == 1.0  # as written: the difference is a tenth
    assert value("4.9", "5", absolute=0.1) == 1.0
    assert value("5.11", "5", absolute=0.1) == 0.0


def test_relative_tolerance():
    assert value("101", "100", relative=0.01) == 1.0
    assert value("99", "-100", relative=0.01) == 0.0
    assert value("101.1", "100", relative=0.01) == 0.0
    assert value("0.001", "0", relative=0.01) == 0.0
    # the larger of both: max(2, 1)
    assert value("102", "100", relative=0.01, absolute=2.0) == 1.0


def test_verdicts():
    task = Example("0", "q", "5")
    assert Numeric()(task, "").verdict == "no_answer"
    assert Numeric()(task, "<think>5").verdict == "no_answer"
    assert Numeric()(task, "<think>4</think>5").verdict == "right"
    assert Numeric()(task, r"\boxed{5, 6}").reason == "answer '5, 6' is not one number"
    assert Numeric()(task, "6").reason == "answer '6', expected '5'"
    for reference in ("", "five", "1/0"):
        assert Numeric()(Example("0", "q", reference), "5").verdict == "unscorable"
    assert Numeric().answer(task, "0.50") == Numeric().answer(task, "1/2") == "1/2"
    assert Numeric().answer(task, "5, 6") is None
    assert Numeric().answer(task, "1e9000") == Numeric().answer(task, "10e8999")
    assert Numeric(extract="last_number")(task, "it is 4 + 1 = 5, I think").value == 1.0


def test_wrong_configs_say_why():
    for wrong in ({"absolute": -1.0}, {"relative": 1.0}, {"extract": []}, {"extract": "box"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            build({"type": "numeric", **wrong})


@settings(max_examples=300, derandomize=True)
@given(st.text("0123456789.,/eE+-*^{}$% \\fracx°k", max_size=30) | st.text(max_size=30))
def test_any_text_is_a_number_or_none(text):
    number = read(text)
    assert number is None or number - number == 0
    assert value(text, "7") in (0.0, 1.0)


@pytest.mark.parametrize("unit", [" ", "1", ",", "1,", "a ", "{", "-", "1/", "$", "x="])
def test_long_answers_are_judged(unit):
    assert read(unit * (4000 // len(unit))) in (None, int("1" * 4000))

"""Sentences and capital words as IFEval's reference counts them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_vr.verifiers.sentences import count_capital_words, count_sentences


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        (" \n", 0),
        ("One", 1),
        ("One. Two! Three?", 3),
        ("Dr. Smith came at 5 p.m. today.", 1),
        ("He left at 5 p.m. The end.", 2),
        ("Pi is 3.14 and e.g. 2.72 is e.", 1),
        ("J. R. Smith wrote it.", 1),
        ("That is plan B. The end.", 2),
        ("1. Buy milk.\n2. Buy bread.", 4),  # a number and its point are a sentence to Punkt
        ("I scored 5. then left.", 1),
        ('"Yes." She left.', 2),
        ("“Yes.” She left.", 2),
        ("(It was late.) We left.", 2),
        ("Wait... what?", 1),
        ("Wait... The end.", 2),
        ("Hello!!! You", 2),
        ("Really?! Yes", 2),
        ("No break here\n\nnor here", 1),
        ("end.Next", 1),
        ("The U.S. Senate met. It voted.", 2),
    ],
)
def test_sentences(text, count):
    assert count_sentences(text) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("no Capitals Here", 0),
        ("I am A", 2),
        ("DON'T", 2),
        ("JOHN'S BOOK.", 3),
        ("CANNOT", 2),
        ("ALL-CAPS", 1),
        ("YES,NO", 2),
        ("1,000X 5,A", 2),
        ("(OK) <<HI>> $USD!", 3),
        ("NO--YES", 2),
        ("COVID-19 U.S. X1", 3),
        ("A/B", 1),
        ("ЭТО ДА", 2),
    ],
)
def test_capital_words(text, count):
    assert count_capital_words(text) == count


@settings(max_examples=200, derandomize=True)
@given(st.lists(st.sampled_from([". ", "!", "?", '"', ")", "a", "A ", "\n", "Dr.", "5."])))
def test_counts_are_bounded_by_the_text(pieces):
    text = "".join(pieces)
    assert 0 <= count_sentences(text) <= len(text)
    assert 0 <= count_capital_words(text) <= len(text)

"""Each instruction of IFEval by hand: what its reference says, odd places included."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_vr.verifiers.ifeval import IDS, BadKwargs, follows

RIGHT, WRONG = True, False
LESS, LEAST = "less than", "at least"

CASES = [
    ("keywords:existence", {"keywords": ["art", "We"]}, "we start smart.", RIGHT),
    ("keywords:existence", {"keywords": ["art", "dog"]}, "We start smart.", WRONG),
    ("keywords:existence", {"keywords": ["c++"]}, "A C compiler.", WRONG),
    ("keywords:existence", {"keywords": ["c++"]}, "I like C++.", RIGHT),
    (
        "keywords:frequency",
        {"keyword": " dog ", "frequency": 2, "relation": LEAST},
        "Dogdog",
        RIGHT,
    ),
    ("keywords:frequency", {"keyword": "dog", "frequency": 2, "relation": LESS}, "Dogdog", WRONG),
    ("keywords:frequency", {"keyword": "dog", "frequency": 3, "relation": LEAST}, "dog dog", WRONG),
    ("keywords:frequency", {"keyword": "aa", "frequency": 2, "relation": LESS}, "aaa", RIGHT),
    ("keywords:forbidden_words", {"forbidden_words": ["war"]}, "We move forward.", RIGHT),
    ("keywords:forbidden_words", {"forbidden_words": ["x", "war"]}, "No War.", WRONG),
    ("keywords:forbidden_words", {"forbidden_words": ["war"]}, "post-war", WRONG),
    ("keywords:forbidden_words", {"forbidden_words": ["war"]}, "war_", RIGHT),
    ("keywords:forbidden_words", {"forbidden_words": ["c++"]}, "I like C++.", WRONG),
    ("keywords:forbidden_words", {"forbidden_words": ["a.c"]}, "abc", RIGHT),
    (
        "keywords:letter_frequency",
        {"letter": "e", "let_frequency": 3, "let_relation": LESS},
        "eEe",
        WRONG,
    ),
    (
        "keywords:letter_frequency",
        {"letter": "E", "let_frequency": 3, "let_relation": LEAST},
        "eEe",
        RIGHT,
    ),
    (
        "keywords:letter_frequency",
        {"letter": "#", "let_frequency": 2, "let_relation": LESS},
        "# one",
        RIGHT,
    ),
    ("language:response_language", {"language": "de"}, "Das ist ein deutscher Satz.", RIGHT),
    ("language:response_language", {"language": "de"}, "This is an English sentence.", WRONG),
    ("language:response_language", {"language": "zh-cn"}, "这是一个句子。", RIGHT),
    ("language:response_language", {"language": "de"}, "12345 !!", RIGHT),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": LESS},
        "Dr. Smith came at 5 p.m. today.",
        RIGHT,
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": LEAST},
        "One. Two! Three?",
        RIGHT,
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": LESS},
        "One. Two! Three?",
        WRONG,
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "One\n***\nTwo", RIGHT),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "One\n\nTwo", WRONG),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 1}, "One\n\nTwo", RIGHT),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "***\nA\n***\nB\n***", RIGHT),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "A\n***\n\n***\nB", WRONG),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "A****B", RIGHT),
    ("length_constraints:number_words", {"num_words": 3, "relation": LEAST}, "I don't", RIGHT),
    ("length_constraints:number_words", {"num_words": 3, "relation": LESS}, "I don't", WRONG),
    ("length_constraints:number_words", {"num_words": 2.0, "relation": LESS}, "well_known", RIGHT),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Hello"},
        "Hi.\n\n \"'hello, all",
        WRONG,
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Hello"},
        "Hi.\n\n'\"hello, all",
        RIGHT,
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "hello"},
        "Hi.\n\n\n\nHello",
        WRONG,
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 1, "first_word": "hi"},
        "Hi.\n\nThere\n\nMore",
        WRONG,
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] [[b]", RIGHT),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[] [\n]", WRONG),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye\np. s. hi", RIGHT),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye PS hi", WRONG),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "p.p.s hi", RIGHT),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "P.S. hi", WRONG),
    ("detectable_content:postscript", {"postscript_marker": "NB:"}, "nb: hi", RIGHT),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* one\n  - two", RIGHT),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* one\n* two\n* three", WRONG),
    ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "**one**\n- two", RIGHT),
    ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "*\n* b", RIGHT),
    ("detectable_format:number_bullet_lists", {"num_bullets": 0}, "a * b - c\n*", RIGHT),
    ("detectable_format:constrained_response", {}, "Well. My answer is maybe. So", RIGHT),
    ("detectable_format:constrained_response", {}, "my answer is yes.", WRONG),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* **b**", RIGHT),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}, "** ** *\n*", WRONG),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "**b**", WRONG),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1\nfoo\nSection2 bar",
        RIGHT,
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section A\nfoo\nsection 2",
        WRONG,
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', RIGHT),
    ("detectable_format:json_format", {}, "[1, 2", WRONG),
    ("detectable_format:json_format", {}, "{'a': 1}", WRONG),
    ("detectable_format:json_format", {}, "[" * 100_000, WRONG),
    ("detectable_format:json_format", {}, "7" * 5000, WRONG),
    ("detectable_format:title", {}, "x <<A title>>\ntext", RIGHT),
    ("detectable_format:title", {}, "<< >>\n<<a\nb>>", WRONG),
    ("detectable_format:title", {}, ">>a<< <>", WRONG),
    ("combination:two_responses", {}, "One\n******\nTwo", RIGHT),
    ("combination:two_responses", {}, "******One\n******\nTwo******", RIGHT),
    ("combination:two_responses", {}, "One\n******\n One", WRONG),
    ("combination:two_responses", {}, "One\n************\nTwo", WRONG),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Write a poem. "},
        " write a POEM.\nR",
        RIGHT,
    ),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Write a poem."},
        "Sure. Write a poem.",
        WRONG,
    ),
    ("startend:end_checker", {"end_phrase": "The End."}, '"... the end."\n', RIGHT),
    ("startend:end_checker", {"end_phrase": "The End."}, "The end. Bye", WRONG),
    ("startend:quotation", {}, ' "Hi" ', RIGHT),
    ("startend:quotation", {}, '"', WRONG),
    ("startend:quotation", {}, "“Hi”", WRONG),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 3, "capital_relation": LEAST},
        "I DON'T know",
        RIGHT,
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": LESS},
        "ALL-CAPS Words.",
        RIGHT,
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": LESS},
        "YES,NO",
        WRONG,
    ),
    ("change_case:english_capital", {}, "THIS IS A SENTENCE, 100 %.", RIGHT),
    ("change_case:english_capital", {}, "This Is Title Case.", WRONG),
    ("change_case:english_capital", {}, "DAS IST EIN SATZ AUF DEUTSCH.", WRONG),
    ("change_case:english_lowercase", {}, "this is a small sentence.", RIGHT),
    ("change_case:english_lowercase", {}, "this is an English sentence.", WRONG),
    ("change_case:english_lowercase", {}, "ceci est une phrase en petites lettres.", WRONG),
    ("punctuation:no_comma", {}, "No commas at all.", RIGHT),
    ("punctuation:no_comma", {}, "One, two", WRONG),
]


@pytest.mark.parametrize(("id", "kwargs", "response", "expected"), CASES)
def test_follows(id, kwargs, response, expected):
    assert follows(id, kwargs, response) is expected


def test_all_25_have_cases_of_both_kinds():
    assert len(IDS) == 25
    for expected in (RIGHT, WRONG):
        assert {case[0] for case in CASES if case[3] is expected} == set(IDS)


@pytest.mark.parametrize("id", IDS)
def test_an_empty_response_follows_nothing(id):
    kwargs = next(case[1] for case in CASES if case[0] == id)
    assert follows(id, kwargs, " \n\t") is False


@pytest.mark.parametrize(
    ("id", "kwargs", "said"),
    [
        ("punctuation:no_comma", {"n": 1}, "punctuation:no_comma has no argument 'n'; it has none"),
        ("startend:end_checker", {"end_phrase": None}, "needs the argument 'end_phrase': a text"),
        ("keywords:existence", {"keywords": "art"}, "keywords = 'art'; it must be a list of texts"),
        ("keywords:existence", {"keywords": []}, r"keywords = \[\]; it must be a list of texts"),
        ("language:response_language", {"language": "xx"}, "it must be a code of ISO 639-1"),
        (
            "length_constraints:number_words",
            {"num_words": -1, "relation": LESS},
            "num_words = -1; it must be a whole number, 0 or more",
        ),
        (
            "length_constraints:number_words",
            {"num_words": 1, "relation": "around"},
            "relation = 'around'; it must be 'less than' or 'at least'",
        ),
        (
            "keywords:letter_frequency",
            {"letter": "ab", "let_frequency": 1, "let_relation": LESS},
            "letter = 'ab'; it must be one letter",
        ),
    ],
)
def test_wrong_arguments_say_why(id, kwargs, said):
    with pytest.raises(BadKwargs, match=said):
        follows(id, kwargs, "text")


def test_arguments_that_are_none_are_not_given():
    nulls = {"num_words": None, "relation": None, "keywords": None}
    assert follows("punctuation:no_comma", nulls, "text") is True


PIECES = st.sampled_from(
    ["*", "**", "***", "******", "<<", ">>", "[", "]", "-", '"', "'", ".", "p.s.", "```", "{", " ",
     "\n", "\n\n", "Section 1", "word", "N'T", "9" * 5000, "\x00", "\u202e", "é", "日本", "\ud800"]
)  # fmt: skip


@pytest.mark.parametrize("id", IDS)
@settings(max_examples=30, derandomize=True)
@given(text=st.lists(PIECES, max_size=12).map("".join) | st.text(max_size=40))
def test_any_text_has_a_verdict(id, text):
    for case in CASES:
        if case[0] == id:
            assert follows(id, case[1], text) in (True, False)


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize(
    "unit",
    ["*", "\n", "<", "[", "-", "a", " \n", "\r", ".", "a.", '"', "Section ", "'", "A,", "p."],
)
def test_long_responses_of_one_character_are_judged(id, unit):
    # 200,000 characters: a check of quadratic cost would take hours here, and the suite with it
    kwargs = next(case[1] for case in CASES if case[0] == id)
    assert follows(id, kwargs, unit * (200_000 // len(unit))) in (True, False)

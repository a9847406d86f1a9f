"""Number tasks: right answers, disjoint splits, random access."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from jaxrl_vr.data.procedural import ArithmeticSource, CompareSource, worked
from jaxrl_vr.data.sources import load


def arithmetic(**fields):
    return ArithmeticSource(name="a", **fields)


def examples(source, n, seed=0):
    return [source.example(i, seed) for i in range(n)]


def pair(example):
    return tuple(sorted(int(n) for n in example.id.replace("|", "+").split("+")))


@pytest.mark.parametrize("digits", [1, 2])
def test_the_splits_share_no_pair_and_cover_all(digits):
    smallest = 10 ** (digits - 1) if digits > 1 else 0
    numbers = range(smallest, 10**digits)
    every = set(itertools.combinations_with_replacement(numbers, 2))
    held = round(0.1 * len(every))
    sides = {}
    for split, size in (("train", len(every) - held), ("heldout", held)):
        # one epoch shows each pair of its side exactly once; another seed shows the same side
        for seed in (0, 1):
            found = [
                pair(e) for e in examples(arithmetic(digits=digits, split=split, seed=seed), size)
            ]
            assert len(set(found)) == size
            assert sides.setdefault(split, set(found)) == set(found)
    assert sides["train"].isdisjoint(sides["heldout"])
    assert sides["train"] | sides["heldout"] == every


def test_compare_splits_are_disjoint_and_cover_all():
    every = set(itertools.combinations(range(10, 100), 2))
    held = round(0.1 * len(every))
    train = {pair(e) for e in examples(CompareSource(name="c"), len(every) - held)}
    heldout = {pair(e) for e in examples(CompareSource(name="c", split="heldout"), held)}
    assert train.isdisjoint(heldout)
    assert train | heldout == every


def test_the_side_does_not_depend_on_operations_or_style():
    sides = [
        {
            tuple(sorted(map(int, e.id.replace("-", "+").replace("*", "+").split("+"))))
            for e in found
        }
        for found in (
            examples(arithmetic(digits=1, split="heldout"), 30),
            examples(arithmetic(digits=1, split="heldout", operations=("-", "*")), 30),
            examples(arithmetic(digits=1, split="heldout", style="words"), 30),
        )
    ]
    assert sides[0] == sides[1] == sides[2]


def test_heldout_problems_are_distinct_and_the_same_for_every_run_seed():
    source = arithmetic(split="heldout", limit=1000)
    one, other = load(source, seed=0), load(source, seed=1)
    assert len({e.prompt for e in one.items}) == 1000
    assert one == other
    train = arithmetic()
    assert examples(train, 50, seed=0) != examples(train, 50, seed=1)
    assert examples(arithmetic(seed=5), 50, seed=0) == examples(arithmetic(seed=5), 50, seed=1)


def test_prompts_are_distinct_over_two_epochs_of_the_pairs():
    # 410 of 4095 pairs would be too few for 700 prompts; the mirror images are prompts too
    source = arithmetic(digits=2, split="heldout", limit=700)
    assert len({e.prompt for e in load(source, seed=0).items}) == 700


def test_a_limit_beyond_the_problem_space():
    source = arithmetic(digits=1, split="heldout", limit=100)
    with pytest.raises(
        ValueError, match="limit = 100, but its heldout split has only about 9 dist"
    ):
        load(source, seed=0)


@given(
    st.integers(0, 2**60),
    st.integers(1, 6),
    st.sampled_from(["symbols", "words"]),
    st.sampled_from(["train", "heldout"]),
)
def test_answers_are_right(index, digits, style, split):
    source = arithmetic(digits=digits, style=style, split=split, operations=("+", "-", "*"))
    example = source.example(index, 0)
    assert example.reference == str(eval(example.id))
    assert example.completion.endswith(example.reference)
    assert int(example.reference) >= 0
    assert example.difficulty == digits
    assert example == source.example(index, 0)


def test_all_operations_and_both_orders_come():
    found = examples(arithmetic(digits=2, operations=("+", "-", "*")), 600)
    shares = {sign: sum(sign in e.id for e in found) / 600 for sign in "+-*"}
    assert all(abs(share - 1 / 3) < 0.06 for share in shares.values())
    larger_first = sum(eval(e.id.replace("+", ">")) for e in found if "+" in e.id)
    assert abs(larger_first / (600 * shares["+"]) - 0.5) < 0.12


def test_worked_by_hand():
    assert worked(729, 304, "+") == "9+4+0=13,2+0+1=03,7+3+0=10,"
    assert worked(123, 321, "+") == "3+1+0=04,2+2+0=04,1+3+0=04,"
    # 2-5 borrows: 12-5 = 7; 3-1-1 = 1; 9-0-0 = 9
    assert worked(932, 15, "-") == "2-5-0=17,3-1-1=01,9-0-0=09,"


@given(st.integers(100, 999), st.integers(100, 999))
def test_worked_terms_hold_the_answer(a, b):
    terms = [term.partition("=")[2] for term in worked(a, b, "+").split(",")[:-1]]
    digits = "".join(term[1] for term in reversed(terms))
    assert int(terms[-1][0] + digits) == a + b
    low, high = sorted((a, b))
    terms = [term.partition("=")[2] for term in worked(high, low, "-").split(",")[:-1]]
    assert int("".join(term[1] for term in reversed(terms))) == high - low
    assert terms[-1][0] == "0"


def test_demonstrations_of_the_quickstart():
    found = examples(arithmetic(worked=0.4), 1000)
    assert abs(sum("," in e.completion for e in found) / 1000 - 0.4) < 0.05
    direct = next(e for e in found if "," not in e.completion)
    assert direct.completion == ">" + direct.reference
    assert direct.verifier == {"type": "exact", "after": ">"}
    assert max(len(e.completion) for e in found) == 32


def test_words_and_compare():
    e = arithmetic(digits=2, style="words").example(0, 0)
    a, b = e.id.split("+")
    assert e.prompt == f"What is {a} + {b}?"
    assert e.verifier == {"type": "math_answer", "extract": "last_number"}
    c = CompareSource(name="c").example(0, 0)
    a, b = c.id.split("|")
    assert c.prompt == f"Which of the two numbers is larger, {a} or {b}?"
    assert c.reference == c.completion == max(a, b)
    found = examples(CompareSource(name="c"), 400)
    first = sum(e.id.startswith(e.reference) for e in found) / 400
    assert abs(first - 0.5) < 0.1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"worked": 0.4, "style": "words"}, "worked = 0.4: only sums and differences in symbols"),
        ({"worked": 0.4, "operations": ["+", "*"]}, "worked = 0.4"),
        ({"operations": ["+", "+"]}, "repeats one"),
        ({"operations": []}, "at least 1"),
        ({"digits": 0}, "greater than or equal to 1"),
        ({"split": "test"}, "'train' or 'heldout'"),
        ({"digit": 3}, "digit"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_impossible_settings(fields, message):
    with pytest.raises(ValidationError, match=message):
        arithmetic(**fields)

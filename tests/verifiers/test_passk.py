"""pass@k and maj@k against hand counts and brute force."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.verifiers.passk import maj_at_k, pass_at_k


def test_pass_at_k_by_hand():
    assert pass_at_k(4, 1, 1) == 0.25
    # of the C(4, 2) = 6 pairs, C(3, 2) = 3 hold no right sample
    assert pass_at_k(4, 1, 2) == 0.5
    assert pass_at_k(4, 0, 4) == 0.0
    assert pass_at_k(4, 3, 2) == 1.0
    assert pass_at_k(10_000, 1, 10) == pytest.approx(1e-3)


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_pass_at_k_is_the_share_of_subsets(right, data):
    k = data.draw(st.integers(1, len(right)))
    subsets = list(itertools.combinations(right, k))
    share = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k(len(right), sum(right), k) == pytest.approx(share)


def test_maj_at_k_by_hand():
    assert maj_at_k(["1", "2", "2"], [True, False, False]) == 0.0
    assert maj_at_k(["1", "2", "1"], [True, False, True]) == 1.0
    # a tie: "2" is the first to have two votes
    assert maj_at_k(["1", "2", "2", "1"], [True, False, False, True]) == 0.0
    assert maj_at_k([None, None, "1"], [False, False, True]) == 1.0
    assert maj_at_k([None, None], [False, False]) == 0.0
    # blocks (1 2 1) and (2 2 1), the seventh left out: one of two is right
    answers = ["1", "2", "1", "2", "2", "1", "1"]
    assert maj_at_k(answers, [a == "1" for a in answers], 3) == 0.5


def test_wrong_counts_are_named():
    for n, c, k in [(4, 5, 1), (4, 1, 5), (4, 1, 0)]:
        with pytest.raises(ValueError, match="expected"):
            pass_at_k(n, c, k)
    with pytest.raises(ValueError, match="k = 3 with 2 samples"):
        maj_at_k(["1", "2"], [True, False], 3)
    with pytest.raises(ValueError, match="one for each"):
        maj_at_k(["1"], [])

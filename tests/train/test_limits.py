"""Rows that a step takes at most."""

from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.rollout.batch import pack
from jaxrl_vr.train.limits import Rollouts, packed_rows


@given(st.integers(1, 60), st.integers(1, 20), st.integers(20, 80), st.none() | st.integers(1, 5))
def test_they_are_those_of_sequences_at_their_longest(count, longest, row_length, most):
    packed = pack([longest] * count, row_length, most=most)
    assert packed_rows(count, longest, row_length, most) == len(packed)


def test_rollouts_by_hand():
    rollouts = Rollouts(prompts=4, samples=8, prompt_tokens=6, new_tokens=10)
    # 32 of 16 tokens: four in a row of 64, of an update in two 16.
    assert rollouts.num_rows(64) == 8
    assert rollouts.num_rows(64, updates=2) == 4
    assert rollouts.num_rows(64, updates=2, most=3) == 6

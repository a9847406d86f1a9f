"""pass@k and maj@k of one problem from n samples of it."""

from __future__ import annotations

import math
from collections.abc import Sequence


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of k samples is right.

    1 - C(n - c, k) / C(n, k): the share of k-subsets of the n samples that hold a right one.
    Chen et al. 2021, https://arxiv.org/abs/2107.03374

    Args:
      n: samples drawn.
      c: right ones among them.
      k: samples allowed, at most n.
    """
    if not 0 <= c <= n:
        raise ValueError(f"c = {c} right samples of n = {n}: expected 0 <= c <= n")
    if not 1 <= k <= n:
        raise ValueError(f"k = {k} with n = {n} samples: expected 1 <= k <= n; draw more samples")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def maj_at_k(answers: Sequence[str | None], right: Sequence[bool], k: int | None = None) -> float:
    """How often the most frequent answer of k samples is right.

    The samples are taken k at a time in their order (a rest of fewer than k is left out) and the
    votes averaged. A sample without an answer does not vote; without any vote the block is wrong.
    Between answers with equally many votes, the one that reached that number first wins. An answer
    is right if the first sample that gave it is.

    Args:
      answers: the normalised answer of each sample, None where there is none.
      right: whether each sample is right.
      k: samples in a vote; None: all of them.
    """
    if len(answers) != len(right):
        raise ValueError(f"{len(answers)} answers, but {len(right)} verdicts: give one for each")
    k = len(answers) if k is None else k
    if not 1 <= k <= len(answers):
        raise ValueError(f"k = {k} with {len(answers)} samples: expected 1 <= k <= samples")
    starts = range(0, len(answers) - k + 1, k)
    wins = [_vote(answers[i : i + k], right[i : i + k]) for i in starts]
    return sum(wins) / len(wins)


def _vote(answers: Sequence[str | None], right: Sequence[bool]) -> bool:
    votes: dict[str, int] = {}
    winner = None
    for answer in answers:
        if answer is None:
            continue
        votes[answer] = votes.get(answer, 0) + 1
        if winner is None or votes[answer] > votes[winner]:
            winner = answer
    return winner is not None and right[list(answers).index(winner)]

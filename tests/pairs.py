"""Pairs of answers for tests, written one a line under the name of their kind."""

import pytest


def pairs(kinds: dict[str, str]) -> list:
    """The parameters of a test: the answers at both sides of ` ||| `."""
    return [
        pytest.param(*line.strip().split(" ||| "), id=f"{kind}-{line.strip()}")
        for kind, lines in kinds.items()
        for line in lines.strip().splitlines()
    ]

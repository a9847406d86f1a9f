"""Regular expressions on responses, hostile ones included."""

import pytest

from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.pattern import Regex
from jaxrl_vr.verifiers.spec import build

TASK = Example(id="0", prompt="q")


@pytest.mark.parametrize(
    ("pattern", "where", "response", "expected"),
    [
        (r"\d{4}-\d{2}-\d{2}", "anywhere", "on 2024-01-31.", 1.0),
        (r"\d{4}-\d{2}-\d{2}", "whole", "on 2024-01-31.", 0.0),
        (r"\d{4}-\d{2}-\d{2}", "whole", " 2024-01-31\n", 1.0),
        (r"^b$", "anywhere", "a\nb", 0.0),
        (r"(?m)^b$", "anywhere", "a\nb", 1.0),
        (r"(?i)yes", "anywhere", "YES", 1.0),
        (r"x", "anywhere", "<think>x</think>y", 0.0),
        (r"y", "whole", "<think>x</think>y", 1.0),
        (r".*", "whole", "", 1.0),
    ],
)
def test_matches(pattern, where, response, expected):
    score = Regex(pattern=pattern, where=where)(TASK, response)
    assert score.value == expected
    assert score.verdict == ("right" if expected else "wrong")


def test_thinking_that_is_not_closed_is_no_answer():
    assert Regex(pattern="x")(TASK, "<think>x").verdict == "no_answer"
    assert Regex(pattern="x").answer(TASK, "x") is None


def test_a_search_without_end_is_given_up():
    score = Regex(pattern=r"^(?:(a|aa)+)+\1b$", seconds=0.05)(TASK, "a" * 5000)
    assert (score.value, score.verdict) == (0.0, "wrong")
    assert score.reason == "limit: the search took more than 0.05 s"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"pattern": "("}, r"pattern.*is no regular expression \(missing \).*backslash"),
        ({"pattern": ""}, "pattern"),
        ({}, "pattern"),
        ({"pattern": "x", "where": "start"}, "where"),
        ({"pattern": "x", "seconds": 0.0}, "seconds"),
    ],
)
def test_wrong_configs_say_why(spec, said):
    with pytest.raises(ValueError, match=said):
        build({"type": "regex", **spec})

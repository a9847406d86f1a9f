"""What verifiers return, checked before it leaves their process."""

import pytest
from pooled import scores

from jaxrl_vr.types import Example, Score, Step
from jaxrl_vr.verifiers.pool import Pool

RETURNS = """
from jaxrl_vr.types import Score, Step

class Sly(str):
    def __reduce__(self):
        raise AssertionError("pickled")
    __str__ = lambda self: self

def act(example, response):
    return eval(response)
"""


@pytest.fixture
def returning(tmp_path, monkeypatch):
    """A task whose verifier returns what the response says."""
    (tmp_path / "returning.py").write_text(RETURNS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Example(id="0", prompt="q", verifier={"type": "custom", "path": "returning:act"})


RANGE = "return a finite number between -1000000 and 1000000"
VERDICTS = "return one of right, wrong, no_answer, unscorable"
BAD_RESULTS = {
    "None": "NoneType; return a Score, a float or a bool",
    "'1.0'": "str; return a Score, a float or a bool",
    "float('nan')": f"the value nan; {RANGE}",
    "-float('inf')": f"the value -inf; {RANGE}",
    "1e20": f"the value 1e+20; {RANGE}",
    "-1000001": f"the value -1000001; {RANGE}",
    "10 ** 5000": f"the value of a huge integer; {RANGE}",
    "Score(float('nan'), 'right')": f"the value nan; {RANGE}",
    "Score(1e38, 'right')": f"the value 1e+38; {RANGE}",
    "Score('1.0', 'right')": f"the value '1.0'; {RANGE}",
    "Score(None, 'right')": f"the value None; {RANGE}",
    "Score(1.0, 'correct')": f"the verdict 'correct'; {VERDICTS}",
    "Score(1.0, True)": f"the verdict True; {VERDICTS}",
    "Score(1.0, ['right'])": f"the verdict ['right']; {VERDICTS}",
    "Score(1.0, 'right', [1.0])": "components of type list; return a dict of numbers",
    "Score(1.0, 'right', {'a': 1e300})": f"the component 'a' 1e+300; {RANGE}",
    "Score(1.0, 'right', {i: 0 for i in range(1001)})": "1001 components; return at most 1000",
    "Score(1.0, 'right', steps=(Step(1, 0),) * 10**6)": "1000000 steps; return at most 100000",
    "Score(1.0, 'right', steps=((1, 2.0),))": "a step of type tuple; return Step(end, value)",
    "Score(1.0, 'right', steps=None)": "steps of type NoneType; return a tuple of Steps",
    "Score(1.0, 'right', steps=(Step(-1, 2.0),))": "a step that ends at -1; count characters",
    "Score(1.0, 'right', steps=(Step(1, 1e9),))": f"the step value 1000000000.0; {RANGE}",
}


def test_what_is_no_score_is_unscorable_and_says_whose_it_is(returning):
    with Pool(workers=1) as pool:
        *found, after = scores(pool, returning, *BAD_RESULTS, "True")
    assert [(s.value, s.verdict, s.reason) for s in found] == [
        (0.0, "unscorable", f"returning:act returned {said}") for said in BAD_RESULTS.values()
    ]
    assert after == Score(1.0, "right")


def test_values_up_to_the_bounds_pass(returning):
    with Pool(workers=1) as pool:
        found = scores(pool, returning, "1e6", "-1e6", "-0.5", "Score(-3, 'right', {'a': True})")
    assert found == [
        Score(1e6, "right"),
        Score(-1e6, "wrong"),
        Score(-0.5, "wrong"),
        Score(-3.0, "right", {"a": 1.0}),
    ]


def test_the_largest_score_passes(returning):
    components = "{f'{i:03}' + '\\U00010000' * 1000: i for i in range(1000)}"
    steps = "(Step(10**9, -1 / 3),) * 100_000"
    with Pool(workers=1, deadline=60.0) as pool:
        (score,) = scores(pool, returning, f"Score(1, 'right', {components}, 'é' * 999, {steps})")
    assert score.components == {f"{i:03}" + "\U00010000" * 96 + "…": float(i) for i in range(1000)}
    assert score.steps == (Step(10**9, -1 / 3),) * 100_000


def test_reasons_are_one_printable_line(returning):
    reasons = {
        r"'lone \ud800 and \udfff'": "lone \ufffd and \ufffd",
        r"'two\nlines\r\n\tand \u2028 more '": "two lines and more",
        r"'\x1b[31mred\0'": "\ufffd[31mred\ufffd",
        "'é ∑ 𝄞'": "é ∑ 𝄞",
        "'x' * 10**7": "x" * 499 + "…",
        "Sly('plain')": "plain",
        "None": "",
        "5": "5",
    }
    with Pool(workers=1) as pool:
        found = scores(pool, returning, *[f"Score(0, 'wrong', reason={r})" for r in reasons])
        (named,) = scores(pool, returning, r"Score(0, 'wrong', {'a\n\udc80': 1})")
        (raised,) = scores(pool, returning, r"{}['\ud800']" + "\n")
    assert [score.reason for score in found] == list(reasons.values())
    assert all(type(score.reason) is str for score in found)
    assert named.components == {"a \ufffd": 1.0}
    assert raised.reason == r"the verifier raised KeyError: '\ud800'"


def test_lone_surrogates_of_a_response_are_replaced(returning):
    with Pool(workers=1) as pool:
        (score,) = scores(pool, returning, "Score(0, 'wrong', reason='\ud800x'.encode().hex())")
    assert score.reason == "efbfbd78"

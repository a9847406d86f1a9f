"""Programs that are at hand beside the project: labelled cases, and HumanEval."""

import json
from pathlib import Path

import pytest
from isolated import LIMITS

from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.pool import Pool

SHARED = Path(__file__).parents[2] / "../shared"
ALWAYS_EQUAL = """
class Any:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
    def __len__(self): return 0
    def __iter__(self): return iter([])
    def __abs__(self): return 0
    def __float__(self): return 0.0
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    def __sub__(self, other): return self
    __add__ = __radd__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __call__ = __mod__ = __sub__
    def __getattr__(self, name): return self
def {}(*args, **kwargs): return Any()
"""


def lines(name: str) -> list[dict]:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{name} is not at hand beside the project")
    return [json.loads(line) for line in path.read_text().splitlines()]


def verdicts(verifier, tasks: list[tuple[dict, str]]) -> list[str]:
    """Of responses to references, in order."""
    spec = verifier.model_dump(mode="json")
    found = {}
    with Pool(workers=2) as pool:
        for i, (reference, program) in enumerate(tasks):
            pool.submit(i, Example(str(i), "", json.dumps(reference), verifier=spec), program)
        while pool.pending:
            found |= {i: score.verdict for i, score in pool.poll(60.0)}
    return [found[i] for i in range(len(tasks))]


@pytest.mark.slow
def test_labelled_programs(verifier):
    cases = lines("cases/code_cases.jsonl")
    limits = LIMITS.model_copy(update={"memory": 1 << 30, "wall": 6.0})
    tasks = [({k: case[k] for k in ("tests", "mode")}, case["program"]) for case in cases]
    found = verdicts(verifier.model_copy(update={"limits": limits}), tasks)
    passed = {case["id"] for case, verdict in zip(cases, found, strict=True) if verdict == "right"}
    assert passed == {case["id"] for case in cases if case["expect"] == "pass"}


@pytest.mark.slow
def test_canonical_solutions_pass_and_an_object_that_equals_everything_passes_none(verifier):
    tasks = lines("data/humaneval/HumanEval.jsonl")
    programs = [task["prompt"] + task["canonical_solution"] for task in tasks]
    programs += [ALWAYS_EQUAL.format(task["entry_point"]) for task in tasks]
    found = verdicts(verifier, list(zip([*tasks, *tasks], programs, strict=True)))
    assert found == ["right"] * len(tasks) + ["wrong"] * len(tasks)

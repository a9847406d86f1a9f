"""The benchmark of the verifiers, kept small: no input breaks one, the service loses nothing."""

import json
import sys

import pytest

from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.equality import equal
from jaxrl_vr.verifiers.math_answer import MathAnswer, math_answer
from jaxrl_vr.verifiers.spec import build

VERDICTS = {"right", "wrong", "no_answer", "unscorable"}


@pytest.fixture
def benchmark(module):
    return module("verifiers")


def test_inputs_are_the_same_each_time_and_break_no_verifier(benchmark):
    pairs = benchmark.pairs(300)
    assert pairs == benchmark.pairs(300) and len(set(pairs)) > 200
    assert max(len(text) for pair in pairs for text in pair) > 100_000
    for reference, response in pairs:
        for name in benchmark.SPECS:
            example = benchmark.task(0, reference, name)
            score = build(example.verifier)(example, response)
            assert score.verdict in VERDICTS and 0.0 <= score.value <= 1.0
        example = Example("0", "", reference)
        MathAnswer(extract="last_number").answer(example, response)
        assert equal(reference, response) == equal(response, reference)
        assert equal(response, response) == bool(response.strip())
        assert math_answer(example, response) == math_answer(example, response)


def test_fuzz_reports_what_it_found(benchmark, capsys):
    benchmark.main(["fuzz", "--inputs", "40", "--workers", "1"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["verifier"] for line in lines] == list(benchmark.SPECS)
    for line in lines:
        assert (line["inputs"], line["raised"], line["beyond_limits"]) == (40, 0, {})


def test_service_scores_everything_in_order(benchmark):
    found = benchmark.service(200, workers=2, deadline=1.0)
    assert (found["scores"], found["in_order"], found["as_expected"]) == (200, True, True)
    # 4 of 200 hang or crash; of the others every third has another number
    assert found["verdicts"] == {"right": 129, "wrong": 67, "timeout": 2, "crash": 2}
    assert (found["processes_left"], found["handles_left"]) == (0, 0)


def test_cases_are_judged(benchmark, tmp_path, capsys):
    lines = [
        {"gold": "1", "response": r"\boxed{1}", "equal": True},
        {"gold": "1", "response": r"\boxed{2}", "equal": True},
        {"gold": "1", "response": r"\boxed{1}", "equal": False},
        {"gold": "1", "response": r"\boxed{1}", "equal": False, "contested": True},
    ]
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    benchmark.main(["cases", str(path), "--workers", "1"])
    found = json.loads(capsys.readouterr().out)
    assert (found["lines"], found["uncontested"], found["over_the_limit"]) == (4, 3, 0)
    assert (found["agreement"], found["false_passes"], found["false_fails"]) == (0.3333, 1, 1)
    with pytest.raises(ValueError, match="math-verify does not run there; pip install"):
        benchmark.main(["cases", str(path), "--peer", sys.executable])

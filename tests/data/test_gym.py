"""reasoning-gym as a source and its scorers as a verifier; skipped where the extra is absent."""

import json

import pytest

from jaxrl_vr.data.gym import ReasoningGymSource
from jaxrl_vr.data.sources import load
from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.reasoning_gym import ReasoningGym
from jaxrl_vr.verifiers.spec import build

pytest.importorskip("reasoning_gym", reason="needs the extra `gym`")


def source(**options) -> ReasoningGymSource:
    return ReasoningGymSource(**{"name": "g", "task": "chain_sum", **options})


def test_examples_are_pure_functions_of_seed_split_and_index():
    first = [source().example(i, 7) for i in range(5)]
    assert [source().example(i, 7) for i in reversed(range(5))] == first[::-1]
    assert source().example(0, 8) != first[0]
    made = json.loads(first[0].reference)
    assert (made["task"], made["options"]) == ("chain_sum", {})
    assert first[0].prompt.endswith("\n\nWrite the answer between <answer> and </answer>.")
    assert first[0].completion == f"<answer>{made['answer']}</answer>"


def test_splits_are_disjoint():
    small = {"options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}}
    train = {e.id for e in load(source(**small, limit=50), seed=1).items}
    held = {e.id for e in load(source(**small, split="heldout", limit=5), seed=1).items}
    assert (len(train), len(held), train & held) == (50, 5, set())


@pytest.mark.parametrize("task", ["chain_sum", "letter_counting", "rearc", "knights_knaves"])
def test_the_given_answer_is_right(task):
    example = source(task=task).example(3, 0)
    verifier = build(example.verifier)
    assert verifier(example, f"<think>hm</think>{example.completion}").value == 1.0
    assert verifier(example, "<answer>zz</answer>").verdict == "wrong"
    assert verifier(example, f"<think>{example.completion}").verdict == "no_answer"
    assert verifier(example, "zz").verdict == "no_answer"


def test_partial_values():
    example = source(task="letter_counting").example(0, 0)
    answer = json.loads(example.reference)["answer"]
    response = f"<answer>it is {answer}, I think</answer>"
    value = ReasoningGym()(example, response).value
    assert 0 <= value < 1
    assert ReasoningGym(partial=False)(example, response).value == 0.0
    assert ReasoningGym(tag="")(example, f"<think>so</think>{answer}").value == 1.0


@pytest.mark.parametrize("task", ["n_queens", "puzzle24", "simple_integration", "composite"])
def test_scorers_that_evaluate_responses_are_refused(task):
    reference = json.dumps({"task": task, "options": {}, "seed": 1, "question": ""})
    score = ReasoningGym()(Example("0", "q", reference), "<answer>1</answer>")
    assert score.verdict == "unscorable"
    assert "evaluates responses as Python: use another task" in score.reason


def test_faults_say_why():
    for reference in ("", "5", "{}", '{"task": "no", "options": {}, "seed": 1}'):
        score = ReasoningGym()(Example("0", "q", reference), "<answer>1</answer>")
        assert score.verdict == "unscorable" and score.reason.startswith("the reference: ")
    changed = json.loads(source().example(0, 0).reference) | {"question": "other"}
    score = ReasoningGym()(Example("0", "q", json.dumps(changed)), "<answer>1</answer>")
    assert (score.verdict, score.reason.partition(";")[0]) == (
        "unscorable",
        "the problem came out differently",
    )
    with pytest.raises(ValueError, match="source 'g': task 'no'.*not registered"):
        source(task="no").example(0, 0)
    with pytest.raises(ValueError, match="options holds 'seed': use the source's seed"):
        source(options={"seed": 1})

"""Whatever a response holds, each verifier judges it: no exception, no overrun, no growth.

The math verifier, whose time is bounded by the pool, has tests of its own.
"""

import gc
import importlib.util
import json
import random
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.judgement import checked
from jaxrl_vr.verifiers.pool import Pool
from jaxrl_vr.verifiers.pool_config import PoolConfig
from jaxrl_vr.verifiers.spec import build

ALL = json.dumps(
    {
        "constraint": [
            "keywords:existence",
            "keywords:forbidden_words",
            "language:response_language",
            "length_constraints:number_sentences",
            "length_constraints:number_paragraphs",
            "detectable_content:number_placeholders",
            "detectable_format:number_bullet_lists",
            "detectable_format:number_highlighted_sections",
            "detectable_format:multiple_sections",
            "detectable_format:json_format",
            "detectable_format:title",
            "change_case:capital_word_frequency",
        ],
        "kwargs": [
            {"keywords": ["(a+)+$"]},
            {"forbidden_words": ["c++"]},
            {"language": "de"},
            {"num_sentences": 3, "relation": "at least"},
            {"num_paragraphs": 2},
            {"num_placeholders": 2},
            {"num_bullets": 1},
            {"num_highlights": 1},
            {"section_spliter": "Section", "num_sections": 1},
            {},
            {},
            {"capital_frequency": 2, "capital_relation": "less than"},
        ],
    }
)
FORMAT = {"type": "format"}
SPECS = {
    "exact": ({"type": "exact", "ignore_case": True}, "5"),
    "format": (FORMAT, ""),
    "language": ({"type": "language", "language": "en"}, ""),
    "strict": ({"type": "constraints"}, ALL),
    "loose": ({"type": "constraints", "mode": "loose"}, ALL),
    "choice": ({"type": "choice"}, "B"),
    "numeric": ({"type": "numeric", "relative": 0.1}, "5"),
    "regex": ({"type": "regex", "pattern": r"^\s*[\w ]+$"}, ""),
    "gate": (
        {
            "type": "gate",
            "gates": [{"verifier": FORMAT}],
            "of": {"verifier": {"type": "choice"}},
        },
        "B",
    ),
}
if importlib.util.find_spec("jsonschema"):
    SPECS["json_schema"] = ({"type": "json_schema", "definition": {"type": "array"}}, "")

HOSTILE = [
    unit * (50_000 // len(unit))
    for unit in ["[", "{", '{"a":', "<think>", "</think>", "<answer>", "\\boxed{", "$", "`", "```",
                 "9", "1e9", "-", "*", "\n", " ", "\t\n", "a", "A.", "A, ", "\x00", "\ud800",
                 "\u202e", "\u0301", "é", "中", "🙂", "answer is ", "Section 1 ", "<<", ">>", "\\"]
]  # fmt: skip
PIECES = st.sampled_from(
    [unit[:12] for unit in HOSTILE] + ["\n\n", "***", "9" * 5000, "1e400", "B"]
)
TEXTS = st.lists(PIECES, max_size=10).map("".join) | st.text(max_size=50)


def task(kind: str, prompt: str = "q") -> Example:
    spec, reference = SPECS[kind]
    return Example("0", prompt, reference, spec)


@pytest.mark.parametrize("kind", SPECS)
@settings(max_examples=60, derandomize=True)
@example(text="")
@given(text=TEXTS)
def test_short_responses(kind, text):
    verifier = build(SPECS[kind][0])
    for prompt in ("q", "q <think>"):
        score = checked(verifier(task(kind, prompt), text), kind)
        assert score.verdict in ("right", "wrong", "no_answer")
        assert 0 <= score.value <= 1
        assert checked(verifier(task(kind, prompt), text), kind) == score


@pytest.mark.parametrize("kind", SPECS)
def test_long_responses_in_the_pool(kind):
    # The deadline is far above what a busy machine needs, and far below what quadratic cost takes.
    with Pool(PoolConfig(workers=1, deadline=60.0)) as pool:
        for job, text in enumerate(HOSTILE):
            pool.submit(job, task(kind), text)
        scores = {}
        while pool.pending:
            scores |= dict(pool.poll(1.0))
    assert sorted(scores) == list(range(len(HOSTILE)))
    for score in scores.values():
        assert score.verdict in ("right", "wrong", "no_answer"), score.reason
        assert not score.reason.startswith("limit"), score.reason


@pytest.mark.parametrize("kind", SPECS)
def test_memory_does_not_grow(kind):
    verifier, rng = build(SPECS[kind][0]), random.Random(0)

    def round_of_responses() -> int:
        for _ in range(60):
            text = "".join(chr(rng.randrange(32, 0x3000)) for _ in range(200))
            verifier(task(kind), text)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        round_of_responses()  # fills what is kept: patterns, and a bounded number of words
        before = round_of_responses()
        assert round_of_responses() - before < 20_000_000
    finally:
        tracemalloc.stop()

"""JSON that fits a schema: strict, bounded, and without a network."""

import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.json_schema import JsonSchema
from jaxrl_vr.verifiers.spec import build, needs_reference

pytest.importorskip("jsonschema", reason="needs the extra `schema`")

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}
TASK = Example(id="0", prompt="q")


@pytest.mark.parametrize(
    ("response", "verdict", "reason"),
    [
        ('{"name": "A", "age": 3}', "right", ""),
        ('```json\n{"name": "A"}\n```', "right", ""),
        ('<think>[]</think> {"name": "A"}', "right", ""),
        ('{"name": "A", "age": 3.0}', "right", ""),  # an integer to JSON Schema
        ('{"age": 3}', "wrong", "$ does not fit 'required'"),
        ('{"name": "A", "age": -1}', "wrong", "$.age does not fit 'minimum'"),
        ('{"name": "A", "age": "3"}', "wrong", "$.age does not fit 'type'"),
        ('{"name": "A", "x": 1}', "wrong", "$ does not fit 'additionalProperties'"),
        ("{'name': 'A'}", "wrong", "not JSON"),
        ('Here: {"name": "A"}', "wrong", "not JSON"),
        ('{"name": "A", "age": NaN}', "wrong", "NaN is no number of JSON"),
        ('{"name": "A", "age": 1e999}', "wrong", "1e999 is no number of JSON"),
        ('{"name": "A", "age": ' + "9" * 5000 + "}", "wrong", "not JSON"),
        ("[" * 100_000, "wrong", "nested too deep"),
        ("", "no_answer", "no text"),
        ('<think>{"name": "A"}', "no_answer", "the thinking is not closed"),
    ],
)
def test_verdicts(response, verdict, reason):
    score = JsonSchema(definition=PERSON)(TASK, response)
    assert score.verdict == verdict
    assert score.value == float(verdict == "right")
    assert reason in score.reason


def test_last_fence():
    verifier = JsonSchema(definition={"type": "array"}, where="last_fence")
    assert verifier(TASK, "First\n```json\n{}\n```\nthen\n```\n[1]\n```\nDone.").value == 1.0
    assert verifier(TASK, "First\n```json\n[]\n```\nthen\n```json\n{}\n```").value == 0.0
    assert verifier(TASK, "[1]").verdict == "no_answer"
    assert verifier(TASK, "```\n[1]").verdict == "no_answer"


def test_schema_in_the_reference():
    spec = {"type": "json_schema"}
    assert needs_reference(spec) and not needs_reference({**spec, "definition": PERSON})
    task = Example("0", "q", json.dumps({"const": 5}))
    assert (build(spec)(task, "5").value, build(spec)(task, "6").value) == (1.0, 0.0)
    for reference in ("", "{", "5", '{"type": "no"}', "[" * 10_000):
        score = build(spec)(Example("0", "q", reference), "5")
        assert score.verdict == "unscorable" and score.reason.startswith("the reference: ")


def test_nothing_is_fetched():
    for target in ("https://example.org/schema", "#/$defs/none"):
        score = JsonSchema(definition={"$ref": target})(TASK, "5")
        assert (score.verdict, score.value) == ("unscorable", 0.0)


def test_numbers_beyond_floats_are_wrong():
    verifier = JsonSchema(definition={"multipleOf": 0.5})
    assert verifier(TASK, "1.5").value == 1.0
    assert verifier(TASK, "9" * 400).verdict in ("right", "wrong")


def test_wrong_schemas_say_why(monkeypatch):
    with pytest.raises(ValueError, match=r"definition.*no JSON Schema.*\$\.type.*mend it there"):
        build({"type": "json_schema", "definition": {"type": "texts"}})
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(
        ValueError, match=r"needs the extra `schema`: pip install 'jaxrl-vr\[schema\]"
    ):
        build({"type": "json_schema", "definition": PERSON})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
)


@settings(max_examples=100, derandomize=True)
@given(VALUES.map(json.dumps) | st.text(max_size=30))
def test_any_text_has_a_verdict(text):
    for schema in (PERSON, {"uniqueItems": True, "multipleOf": 0.1}):
        score = JsonSchema(definition=schema)(TASK, text)
        assert score.verdict in ("right", "wrong", "no_answer")

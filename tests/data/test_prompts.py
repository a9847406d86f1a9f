"""Prompts: rendered, tokenised, and dropped by their token ids."""

import json

import pytest
from pydantic import TypeAdapter

from jaxrl_vr.data.fakes import ByteTokenizer
from jaxrl_vr.data.prompts import Prompt, load_prompts
from jaxrl_vr.data.sources import Source
from jaxrl_vr.types import Example

BYTES = ByteTokenizer()


def sources(*tables):
    return [TypeAdapter(Source).validate_python(table) for table in tables]


def jsonl(path, prompts, **fields):
    path.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts))
    return {"type": "jsonl", "name": "file", "path": str(path), **fields}


def test_each_source_has_its_own_template_and_verifier(tmp_path):
    file = jsonl(
        tmp_path / "a.jsonl",
        ["é?"],
        template={"type": "plain", "suffix": "!"},
        verifier={"type": "x"},
    )
    sums = {"type": "arithmetic", "name": "sums", "split": "heldout", "limit": 3}
    mixture = load_prompts(sources(file, sums), BYTES, max_prompt_tokens=8, seed=0)
    first, *others = mixture.everything()
    assert first == Prompt(
        Example("0", "é?!", verifier={"type": "x"}, source="file"), tuple("é?!".encode())
    )
    for prompt in others:
        assert prompt.example.source == "sums"
        assert prompt.example.verifier == {"type": "exact", "after": ">"}
        assert prompt.ids == tuple(prompt.example.prompt.encode())


def test_too_long_is_measured_on_the_final_ids(tmp_path):
    # with the suffix: 3, 4 and 5 bytes; two of the four characters take two bytes
    file = jsonl(tmp_path / "a.jsonl", ["a", "é", "éé"], template={"type": "plain", "suffix": "=?"})
    mixture = load_prompts(sources(file), BYTES, max_prompt_tokens=4, seed=0)
    assert [p.example.prompt for p in mixture.everything()] == ["a=?", "é=?"]
    assert mixture.dropped == {"file": 1}


def test_every_prompt_too_long(tmp_path):
    file = jsonl(tmp_path / "a.jsonl", ["long", "longer"])
    message = r"source 'file': all 2 items are longer than max_prompt_tokens = 3 .*shortest has 4"
    with pytest.raises(ValueError, match=message):
        load_prompts(sources(file), BYTES, max_prompt_tokens=3, seed=0)


def test_a_changed_template_or_tokenizer_is_another_data_set(tmp_path):
    file = jsonl(tmp_path / "a.jsonl", ["q"])
    cursor = load_prompts(sources(file), BYTES, max_prompt_tokens=9, seed=0).start()
    changed = sources({**file, "template": {"type": "plain", "suffix": "?"}})
    with pytest.raises(ValueError, match="source 'file' changed since"):
        load_prompts(changed, BYTES, max_prompt_tokens=9, seed=0).take(1, cursor)


def test_endless_source_resumes_in_the_middle():
    table = {"type": "arithmetic", "name": "sums", "worked": 0.4}
    whole, _ = (m := load_prompts(sources(table), BYTES, max_prompt_tokens=8, seed=7)).take(
        20, m.start()
    )
    first, cursor = m.take(12, m.start())
    again = load_prompts(sources(table), BYTES, max_prompt_tokens=8, seed=7)
    second, _ = again.take(8, json.loads(json.dumps(cursor)))
    assert first + second == whole
    assert len({p.ids for p in whole}) == 20
    other_seed = load_prompts(sources(table), BYTES, max_prompt_tokens=8, seed=8)
    with pytest.raises(ValueError, match="source 'sums' changed since"):
        other_seed.take(1, cursor)

"""Demonstrations: what trains, and where it ends."""

import pytest
from pydantic import TypeAdapter

from jaxrl_vr.data.demonstrations import demonstration, load_demonstrations
from jaxrl_vr.data.fakes import ByteTokenizer
from jaxrl_vr.data.sources import Source
from jaxrl_vr.data.template import ChatTemplate, PlainTemplate
from jaxrl_vr.types import Example

BYTES = ByteTokenizer()
EXAMPLE = Example("3", "1+1=", completion=">2", source="s")


def test_prompt_is_masked_and_the_end_trains():
    found = demonstration(EXAMPLE, PlainTemplate(), BYTES, loss_on="completion")
    assert found.ids == (*b"1+1=", *b">2", 256)
    assert found.mask == (False,) * 4 + (True,) * 3


def test_loss_on_all():
    found = demonstration(EXAMPLE, PlainTemplate(), BYTES, loss_on="all")
    assert found.mask == (True,) * 7
    text = demonstration(
        Example("0", "", completion="once"), PlainTemplate(), BYTES, loss_on="completion"
    )
    assert (text.ids, text.mask) == ((*b"once", 256), (True,) * 5)


def test_prompt_and_completion_are_not_merged():
    class Pairs(ByteTokenizer):
        def encode(self, text):
            # a tokenizer that merges "=>" into one token, as a real one would
            return [ord("@") if c == "@" else ord(c) for c in text.replace("=>", "@")]

    found = demonstration(EXAMPLE, PlainTemplate(), Pairs(), loss_on="completion")
    assert found.ids == (*b"1+1=", *b">2", 256)


def test_a_chat_ends_with_the_end_of_turn():
    tokenizer = ByteTokenizer()
    tokenizer.eos_ids, tokenizer.end_of_turn_id = (256, 257), 257
    found = demonstration(EXAMPLE, ChatTemplate(), tokenizer, loss_on="completion")
    assert found.ids[-3:] == (*b">2", 257)
    assert found.example.prompt == "user: 1+1=\nassistant: "


def test_no_completion():
    with pytest.raises(ValueError, match="example s:3 has no completion to imitate"):
        demonstration(Example("3", "q", source="s"), PlainTemplate(), BYTES, loss_on="completion")


def test_mixture_of_demonstrations_drops_the_long_ones():
    table = {"type": "arithmetic", "name": "sums", "worked": 0.5}
    source = TypeAdapter(Source).validate_python(table)
    short = load_demonstrations([source], BYTES, loss_on="completion", max_tokens=20, seed=0)
    items, _ = short.take(50, short.start())
    assert all(len(item.ids) <= 20 for item in items)
    assert short.dropped["sums"] > 10
    whole = load_demonstrations([source], BYTES, loss_on="completion", max_tokens=41, seed=0)
    items, _ = whole.take(50, whole.start())
    assert whole.dropped == {"sums": 0}
    assert 10 < sum(len(item.ids) > 20 for item in items) < 40

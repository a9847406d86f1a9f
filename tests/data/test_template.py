"""Templates: what the model is shown."""

import pytest
from pydantic import TypeAdapter, ValidationError

from jaxrl_vr.data.fakes import ByteTokenizer
from jaxrl_vr.data.template import (
    R1_ZERO,
    RESERVED_ARGS,
    ChatTemplate,
    PlainTemplate,
    R1ZeroTemplate,
    Template,
)
from jaxrl_vr.types import Example, Message

BYTES = ByteTokenizer()
QUESTION = Example("0", "1+1?", source="s")


def test_plain():
    text, ids = PlainTemplate(prefix="Q: ", suffix="\nA:").render(QUESTION, BYTES)
    assert text == "Q: 1+1?\nA:"
    assert ids == tuple(text.encode())


def test_r1_zero():
    text, ids = R1ZeroTemplate(assistant_prefix=" <think>").render(QUESTION, BYTES)
    assert text.endswith("</answer>. User: 1+1? Assistant: <think>")
    assert text.startswith("A conversation between User and Assistant.")
    assert ids == tuple(text.encode())
    text, _ = R1ZeroTemplate().render(Example("0", "Add {1} and 1 "), BYTES)
    assert text == R1_ZERO.replace("{question}", "Add {1} and 1.")


def test_chat_order():
    template = ChatTemplate(
        system="Be brief.",
        prefix="Q: ",
        suffix=" Think.",
        shots=({"user": "2+2?", "assistant": "4"},),
        assistant_prefix="<think>\n",
    )
    text, ids = template.render(QUESTION, BYTES)
    assert text == (
        "system: Be brief.\nuser: 2+2?\nassistant: 4\nuser: Q: 1+1? Think.\nassistant: <think>\n"
    )
    assert ids == tuple(text.encode())


def test_a_chat_keeps_its_own_system_message():
    chat = (Message("system", "own"), Message("user", "a"), Message("assistant", "b"))
    example = Example("0", (*chat, Message("user", "c")))
    template = ChatTemplate(system="other", prefix=">", shots=({"user": "x", "assistant": "y"},))
    text, _ = template.render(example, BYTES)
    assert text == (
        "system: own\nuser: x\nassistant: y\nuser: a\nassistant: b\nuser: >c\nassistant: "
    )


def test_ends():
    tokenizer = ByteTokenizer()
    tokenizer.eos_ids, tokenizer.end_of_turn_id = (7, 8), 8
    ends = [t.end_id(tokenizer) for t in (PlainTemplate(), R1ZeroTemplate(), ChatTemplate())]
    assert ends == [7, 7, 8]


def test_errors_name_the_example():
    chat = Example("4", (Message("user", "a"), Message("assistant", "b")), source="s")
    with pytest.raises(ValueError, match="example s:4: its chat ends with 'assistant'"):
        ChatTemplate().render(chat, BYTES)
    with pytest.raises(ValueError, match="example s:4: it is a chat, and template 'plain' takes"):
        PlainTemplate().render(chat, BYTES)


class Picky(ByteTokenizer):
    def chat(self, messages, **template_args):
        raise ValueError("the chat template fails: no system message")


def test_a_template_that_fails_names_source_example_and_template():
    message = "example s:0, template 'chat': the chat template fails: no system message"
    with pytest.raises(ValueError, match=message):
        ChatTemplate().render(QUESTION, Picky())


@pytest.mark.parametrize("name", sorted(RESERVED_ARGS))
def test_what_the_trainer_sets_is_no_argument_of_a_template(name):
    with pytest.raises(ValidationError, match=f"template_args.{name} is set by the trainer"):
        ChatTemplate(template_args={"enable_thinking": False, name: True})


def test_every_option_of_transformers_is_reserved():
    import inspect

    from transformers import PreTrainedTokenizerFast
    from transformers.utils.chat_template_utils import render_jinja_template

    options = {
        name
        for function in (PreTrainedTokenizerFast.apply_chat_template, render_jinja_template)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    }
    assert "tokenize" in options and "add_generation_prompt" in options
    # these two are what a template reads
    assert options - RESERVED_ARGS == {"tools", "documents"}


def test_the_union_reads_the_type():
    adapter = TypeAdapter(Template)
    assert adapter.validate_python({"type": "r1_zero"}) == R1ZeroTemplate()
    with pytest.raises(ValidationError, match="system"):
        adapter.validate_python({"type": "plain", "system": "cannot act"})

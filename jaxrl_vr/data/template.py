"""Templates: how an example's question becomes the text that the model continues.

`plain` is the text itself, `chat` the tokenizer's own chat template, `r1_zero` the template for
base models of the DeepSeek-R1 paper.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from jaxrl_vr.config import Config
from jaxrl_vr.data.tokenizer import Tokenizer
from jaxrl_vr.types import Example, Message

# DeepSeek-R1 (https://arxiv.org/abs/2501.12948), table 1, word for word: its wording is the method;
# the full stop behind the question is left to the question where that ends with its own
R1_ZERO = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves "
    "it. The assistant first thinks about the reasoning process in the mind and then provides the "
    "user with the answer. The reasoning process and answer are enclosed within <think> </think> "
    "and <answer> </answer> tags, respectively, i.e., <think> reasoning process here </think> "
    "<answer> answer here </answer>. User: {question} Assistant:"
)


# what rendering sets itself, or what `transformers` would take for an option of its own
RESERVED_ARGS = frozenset(
    "self messages conversation conversations add_generation_prompt continue_final_message "
    "chat_template tokenize tokenizer_kwargs sanitize_control_tokens padding truncation max_length "
    "return_tensors return_dict return_assistant_tokens_mask".split()
)


class PlainTemplate(Config):
    """The question's text between a prefix and a suffix."""

    type: Literal["plain"] = "plain"
    """Which template this is."""
    prefix: str = ""
    """Text before the question."""
    suffix: str = ""
    """Text behind the question, for example an instruction or an opening tag."""

    def render(self, example: Example, tokenizer: Tokenizer) -> tuple[str, tuple[int, ...]]:
        """The prompt's text and ids."""
        text = self.prefix + _question(example, self.type) + self.suffix
        return text, tuple(tokenizer.prompt_ids(text))

    def end_id(self, tokenizer: Tokenizer) -> int:
        """The id that ends a demonstration."""
        return tokenizer.eos_ids[0]


class R1ZeroTemplate(Config):
    """The think-then-answer template for base models."""

    type: Literal["r1_zero"] = "r1_zero"
    """Which template this is."""
    assistant_prefix: str = ""
    """Text put into the assistant's mouth, such as " <think>"; the format verifier sees it."""

    def render(self, example: Example, tokenizer: Tokenizer) -> tuple[str, tuple[int, ...]]:
        """The prompt's text and ids."""
        question = _question(example, self.type).strip()
        if question[-1:] not in (".", "?", "!"):
            question += "."
        text = R1_ZERO.replace("{question}", question) + self.assistant_prefix
        return text, tuple(tokenizer.prompt_ids(text))

    def end_id(self, tokenizer: Tokenizer) -> int:
        """The id that ends a demonstration."""
        return tokenizer.eos_ids[0]


class Shot(Config):
    """A solved example shown before the question."""

    user: str
    """What the user asks; prefix and suffix are not added to it."""
    assistant: str
    """What the assistant answers."""


class ChatTemplate(Config):
    """The tokenizer's chat template."""

    type: Literal["chat"] = "chat"
    """Which template this is."""
    system: str | None = None
    """System message; a chat that brings its own keeps it. Unset leaves the template's default."""
    prefix: str = ""
    """Text before the question, inside the user's turn."""
    suffix: str = ""
    """Text behind the question, inside the user's turn, for example an instruction."""
    template_args: dict[str, Any] = {}
    """Arguments of the chat template, such as `enable_thinking`; only those that it reads."""
    assistant_prefix: str = ""
    """Text put into the assistant's mouth, such as "<think>\\n"; the format verifier sees it."""
    shots: tuple[Shot, ...] = ()
    """Solved examples placed before the question, as turns of the chat."""

    @model_validator(mode="after")
    def _args_are_the_templates(self) -> ChatTemplate:
        reserved = sorted(RESERVED_ARGS & self.template_args.keys())
        if reserved:
            raise ValueError(
                f"template_args.{reserved[0]} is set by the trainer, not by a template's argument: "
                "take it out"
            )
        return self

    def render(self, example: Example, tokenizer: Tokenizer) -> tuple[str, tuple[int, ...]]:
        """The prompt's text and ids."""
        messages = self.messages(example)
        try:
            chat = tokenizer.chat(messages, **self.template_args)
        except ValueError as error:
            raise ValueError(
                f"example {example.source}:{example.id}, template 'chat': {error}"
            ) from error
        text = chat + self.assistant_prefix
        return text, tuple(tokenizer.prompt_ids(text))

    def messages(self, example: Example) -> list[Message]:
        """The whole chat: system message, shots, and the example's turns."""
        prompt = example.prompt
        turns = [Message("user", prompt)] if isinstance(prompt, str) else list(prompt)
        if not turns or turns[-1].role != "user":
            raise ValueError(
                f"example {example.source}:{example.id}: its chat ends with "
                f"{turns[-1].role if turns else 'nothing'!r}: a prompt must end with a user's turn"
            )
        turns[-1] = Message("user", self.prefix + turns[-1].content + self.suffix)
        head: list[Message] = []
        if turns[0].role == "system":
            head = [turns.pop(0)]
        elif self.system is not None:
            head = [Message("system", self.system)]
        for shot in self.shots:
            head += [Message("user", shot.user), Message("assistant", shot.assistant)]
        return head + turns

    def end_id(self, tokenizer: Tokenizer) -> int:
        """The id that ends a demonstration."""
        return tokenizer.end_of_turn_id


Template = Annotated[PlainTemplate | ChatTemplate | R1ZeroTemplate, Field(discriminator="type")]


def _question(example: Example, template: str) -> str:
    if isinstance(example.prompt, str):
        return example.prompt
    raise ValueError(
        f"example {example.source}:{example.id}: it is a chat, and template {template!r} takes "
        "text: set template = {type = 'chat'} for its source"
    )

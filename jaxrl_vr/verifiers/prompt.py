"""What a prompt means for the response that goes on from it."""

from __future__ import annotations

from jaxrl_vr.types import Message

Prompt = str | tuple[Message, ...]


def text_of(prompt: Prompt) -> str:
    """The text of a prompt, whoever says it."""
    return prompt if isinstance(prompt, str) else "\n".join(m.content for m in prompt)


def opened(prompt: Prompt, tag: str) -> str | None:
    """What stands in the block of a tag that the prompt has opened for the response, or None.

    A template may put the beginning of the answer into the assistant's mouth: `<think>`, or more.
    In a rendered prompt, which also holds what the user says, such a tag begins a line or a turn,
    unless the prompt ends with it.
    """
    if isinstance(prompt, str):
        text, is_ours = prompt, False
    elif prompt and prompt[-1].role == "assistant":
        text, is_ours = prompt[-1].content, True
    else:
        return None
    before, mark, inside = text.rpartition(f"<{tag}>")
    if not mark or f"</{tag}>" in inside:
        return None
    before = before.rstrip(" \t")
    is_begin = not before or before[-1] in "\n:>"
    return inside if is_ours or is_begin or not inside.strip() else None

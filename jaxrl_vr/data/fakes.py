"""A shipped fake for tests: a tokenizer that knows every text and needs no file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxrl_vr.types import Message


class ByteTokenizer:
    """UTF-8 bytes as ids 0 to 255, then EOS and padding."""

    vocab_size = 258
    eos_ids = (256,)
    end_of_turn_id = 256
    pad_id = 257
    fingerprint = "bytes"

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def prompt_ids(self, text: str) -> list[int]:
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")

    def chat(self, messages: Sequence[Message], **template_args: Any) -> str:
        return "".join(f"{role}: {text}\n" for role, text in messages) + "assistant: "

    def save(self, folder: str | Path) -> None:
        raise NotImplementedError("a fake has no files")

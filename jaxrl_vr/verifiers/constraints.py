"""Instructions that a response can be held to, such as "at least 300 words": those of IFEval.

Which ones and with which arguments stands in the reference of each example, or in the config for
all of them. Lengths here are part of the task; rewards by length are `losses.shaping`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import model_validator

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.extract import after_thinking
from jaxrl_vr.verifiers.ifeval import IDS, BadKwargs, check_kwargs, follows

Instruction = tuple[str, Mapping[str, Any]]
_NAMES = ("constraint", "instruction_id_list", "instruction_id", "ids", "id")


class Constraints(Config):
    """The share of instructions that the response follows; right if it follows all of them.

    The reference of an example is JSON: `{"constraint": id or ids, "kwargs": arguments or a list of
    them}`, or `instruction_id_list` in place of `constraint`. An instruction that is not known
    counts as not followed.
    """

    type: Literal["constraints"] = "constraints"
    ids: tuple[str, ...] = ()
    """Instructions of every example, such as `punctuation:no_comma`; empty: those of its
    reference."""
    kwargs: tuple[dict[str, Any], ...] = ()
    """Arguments of each of `ids`, in the same order; empty where none has any."""
    mode: Literal["strict", "loose"] = "strict"
    """`strict` judges the response as it is; `loose` follows if it does without its first line, its
    last line, both, or its asterisks, for models that introduce what they say."""

    @property
    def needs_reference(self) -> bool:
        """Whether the instructions stand in the reference."""
        return not self.ids

    @model_validator(mode="after")
    def _are_known(self) -> Constraints:
        if self.kwargs and len(self.kwargs) != len(self.ids):
            raise ValueError(
                f"kwargs has {len(self.kwargs)} tables for {len(self.ids)} ids: give one each, "
                "{} where there is nothing to say"
            )
        for id, kwargs in self._configured():
            if id not in IDS:
                near = difflib.get_close_matches(id, IDS, 1)
                fix = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(IDS)}"
                raise ValueError(f"ids holds {id!r}, which is not known; {fix}")
            check_kwargs(id, kwargs)
        return self

    def answer(self, example: Example, response: str) -> None:
        """What follows instructions is no answer to vote on."""

    def __call__(self, example: Example, response: str) -> Score:
        """The share of instructions that the text behind the thinking follows."""
        try:
            instructions = self._configured() or read(example.reference)
        except ValueError as error:
            return Score(0.0, "unscorable", reason=f"the reference {error}")
        text = after_thinking(example.prompt, response)
        if text is None:
            return Score(0.0, "no_answer", reason="the thinking is not closed")
        if not text.strip():
            return Score(0.0, "no_answer", reason="the response is empty")
        texts = [text] if self.mode == "strict" else list(dict.fromkeys(_loosened(text)))
        missed, unknown = [], []
        try:
            for position, (id, kwargs) in enumerate(instructions, 1):
                if id not in IDS:
                    unknown.append(f"{id} ({position}) is not known")
                elif not any(follows(id, kwargs, text) for text in texts):
                    missed.append(f"{id} ({position})")
        except BadKwargs as error:
            return Score(0.0, "unscorable", reason=f"the reference: {error}")
        n, failed = len(instructions), len(missed) + len(unknown)
        if failed:
            reason = "not followed: " + ", ".join([*missed, *unknown])
            return Score((n - failed) / n, "wrong", reason=reason)
        return Score(1.0, "right", reason=f"follows {n} of {n}")

    def _configured(self) -> list[Instruction]:
        kwargs: Sequence[Mapping[str, Any]] = self.kwargs or [{}] * len(self.ids)
        return list(zip(self.ids, kwargs, strict=True))


def read(reference: str) -> list[Instruction]:
    """The instructions with their arguments that a reference holds.

    Raises:
      ValueError: what is wrong with it.
    """
    try:
        data = json.loads(reference)
    except (ValueError, RecursionError):
        raise ValueError(
            'is not JSON; write {"constraint": "punctuation:no_comma", "kwargs": {}}'
        ) from None
    found: list[Instruction] = []
    for item in data if isinstance(data, list) else [data]:
        if not isinstance(item, dict):
            raise ValueError(
                f"holds {str(item)[:40]!r}; write an object with constraint and kwargs"
            )
        found += _instructions(item)
    if not found:
        raise ValueError("has no instruction; name at least one as constraint")
    return found


def _instructions(item: Mapping[str, Any]) -> Iterator[Instruction]:
    name = next((name for name in _NAMES if name in item), None)
    if name is None:
        raise ValueError(f"has no 'constraint' among {sorted(item)}; name the instructions so")
    ids = item[name] if isinstance(item[name], list) else [item[name]]
    kwargs = item.get("kwargs")
    if not isinstance(kwargs, list):
        kwargs = [kwargs] * len(ids) if len(ids) == 1 or not kwargs else [kwargs]
    if len(kwargs) != len(ids):
        raise ValueError(f"has {len(kwargs)} kwargs for {len(ids)} instructions; give one each")
    for id, given in zip(ids, kwargs, strict=True):
        if not isinstance(id, str) or not isinstance(given or {}, dict):
            raise ValueError(f"has the instruction {str(id)[:40]!r} with kwargs that are no object")
        yield id, given or {}


def _loosened(text: str) -> Iterator[str]:
    """The response, then without its first line, its last, and both; each without asterisks too."""
    lines = text.split("\n")
    cut = [text]
    cut += ["\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1])]
    for variant in cut:
        yield variant
        yield variant.replace("*", "")

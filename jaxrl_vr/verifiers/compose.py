"""Compositions of verifiers into one score: weighted sum, gate, product, first by data source.

Each part's value is a component of the score under the part's own name. If any part that is asked
is unscorable, so is the whole.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.choice import Choice
from jaxrl_vr.verifiers.code_tests import CodeTests
from jaxrl_vr.verifiers.command import Command
from jaxrl_vr.verifiers.constraints import Constraints
from jaxrl_vr.verifiers.custom import Custom
from jaxrl_vr.verifiers.exact import ExactMatch
from jaxrl_vr.verifiers.format import Format
from jaxrl_vr.verifiers.json_schema import JsonSchema
from jaxrl_vr.verifiers.judgement import MAX_VALUE
from jaxrl_vr.verifiers.language import Language
from jaxrl_vr.verifiers.math_answer import MathAnswer
from jaxrl_vr.verifiers.numeric import Numeric
from jaxrl_vr.verifiers.pattern import Regex
from jaxrl_vr.verifiers.reasoning_gym import ReasoningGym
from jaxrl_vr.verifiers.remote import Http, Judge
from jaxrl_vr.verifiers.sql import Sql
from jaxrl_vr.verifiers.worked import Worked

Singles = (
    MathAnswer
    | ExactMatch
    | Worked
    | Format
    | CodeTests
    | Sql
    | Command
    | Http
    | Judge
    | Language
    | Constraints
    | ReasoningGym
    | JsonSchema
    | Regex
    | Numeric
    | Choice
    | Custom
)
"""The verifiers that are no composition."""

Single = Annotated[Singles, Field(discriminator="type")]
"""The verifiers that can be a part."""


class Part(Config):
    """One verifier and its share in the sum."""

    verifier: Single
    """What judges."""
    weight: float = Field(default=1.0, ge=-MAX_VALUE, le=MAX_VALUE)
    """Factor of its value in the sum; negative for a penalty."""
    name: str = ""
    """Name in the score's components and the metrics; empty: the verifier's type."""


class Named(Config):
    """One verifier under a name."""

    verifier: Single
    """What judges."""
    name: str = ""
    """Name in the score's components and the metrics; empty: the verifier's type."""


class Case(Config):
    """One verifier and the data sources that it is for."""

    verifier: Single
    """What judges."""
    sources: tuple[str, ...] = ()
    """Names of the data sources whose examples it judges; empty: all."""
    name: str = ""
    """Name in the score's components and the metrics; empty: the verifier's type."""


class Weighted(Config):
    """The weighted sum of its parts' values.

    The verdict and the answer are those of the part `decides`, whatever the other parts say: a
    well-formatted wrong answer is wrong.
    """

    type: Literal["weighted"] = "weighted"
    parts: tuple[Part, ...] = Field(min_length=1)
    """The parts, the one that decides first unless `decides` says otherwise."""
    decides: str = ""
    """Name of the part whose verdict is the verdict; empty: the first part."""

    @model_validator(mode="after")
    def _names(self) -> Weighted:
        names = _distinct("parts", self.parts)
        if self.decides and self.decides not in names:
            raise ValueError(f"decides is {self.decides!r}: name one of the parts {names}")
        return self

    @property
    def singles(self) -> list[Single]:
        """The verifiers it is made of."""
        return [part.verifier for part in self.parts]

    def answer(self, example: Example, response: str) -> str | None:
        """The answer as the deciding part takes it."""
        return self.parts[self._decider()].verifier.answer(example, response)

    def __call__(self, example: Example, response: str) -> Score:
        """Scores each part and adds them up; components holds the unweighted value of each."""
        scores = _scores(self.parts, example, response)
        if isinstance(scores, Score):
            return scores
        value = sum(part.weight * s.value for part, s in zip(self.parts, scores, strict=True))
        decided = scores[self._decider()]
        components = _components(self.parts, scores)
        return Score(value, decided.verdict, components, decided.reason, decided.steps)

    def _decider(self) -> int:
        return list(map(_name, self.parts)).index(self.decides) if self.decides else 0


class Gate(Config):
    """The verifier's score if every gate is passed, else a fixed value.

    A gate is passed where its verdict is right. A response that does not pass is wrong, however
    right its answer.
    """

    type: Literal["gate"] = "gate"
    gates: tuple[Named, ...] = Field(min_length=1)
    """What must be right, such as the format."""
    of: Named
    """What judges the answer."""
    otherwise: float = Field(default=0.0, ge=-MAX_VALUE, le=MAX_VALUE)
    """Value of a response that does not pass."""

    @model_validator(mode="after")
    def _names(self) -> Gate:
        _distinct("gates and of", (*self.gates, self.of))
        return self

    @property
    def singles(self) -> list[Single]:
        """The verifiers it is made of."""
        return [*(gate.verifier for gate in self.gates), self.of.verifier]

    def answer(self, example: Example, response: str) -> str | None:
        """The answer as the verifier behind the gates takes it."""
        return self.of.verifier.answer(example, response)

    def __call__(self, example: Example, response: str) -> Score:
        """The score behind the gates; all are asked, so that each has its metric."""
        parts = (*self.gates, self.of)
        scores = _scores(parts, example, response)
        if isinstance(scores, Score):
            return scores
        components, judged = _components(parts, scores), scores[-1]
        for gate, score in zip(self.gates, scores, strict=False):
            if score.verdict != "right":
                reason = f"{_name(gate)}: {score.reason or 'not passed'}"
                return Score(self.otherwise, "wrong", components, reason, judged.steps)
        return Score(judged.value, judged.verdict, components, judged.reason, judged.steps)


class Product(Config):
    """The product of its parts' values; right if all parts are right."""

    type: Literal["product"] = "product"
    parts: tuple[Named, ...] = Field(min_length=2)
    """The parts; the answer is the first one's, and without one there is no answer."""

    @model_validator(mode="after")
    def _names(self) -> Product:
        _distinct("parts", self.parts)
        return self

    @property
    def singles(self) -> list[Single]:
        """The verifiers it is made of."""
        return [part.verifier for part in self.parts]

    def answer(self, example: Example, response: str) -> str | None:
        """The answer as the first part takes it."""
        return self.parts[0].verifier.answer(example, response)

    def __call__(self, example: Example, response: str) -> Score:
        """Scores each part and multiplies the values."""
        scores = _scores(self.parts, example, response)
        if isinstance(scores, Score):
            return scores
        first, components = scores[0], _components(self.parts, scores)
        value = math.prod(score.value for score in scores)
        if first.verdict != "right":
            return Score(value, first.verdict, components, first.reason, first.steps)
        for part, score in zip(self.parts, scores, strict=True):
            if score.verdict != "right":
                reason = f"{_name(part)}: {score.reason or 'not right'}"
                return Score(value, "wrong", components, reason, first.steps)
        return Score(value, "right", components, first.reason, first.steps)


class First(Config):
    """The score of the first case that is for the example's data source."""

    type: Literal["first"] = "first"
    cases: tuple[Case, ...] = Field(min_length=1)
    """The cases in order; one without `sources` takes what is left."""

    @model_validator(mode="after")
    def _can_act(self) -> First:
        _distinct("cases", self.cases)
        seen: set[str] = set()
        for position, case in enumerate(self.cases):
            if any(not earlier.sources for earlier in self.cases[:position]):
                raise ValueError(
                    f"cases: {_name(case)!r} stands behind one without sources, which takes all: "
                    "put that one last"
                )
            if case.sources and not set(case.sources) - seen:
                raise ValueError(
                    f"cases: the sources {list(case.sources)} of {_name(case)!r} are those of "
                    "earlier cases: name others, or delete it"
                )
            seen |= set(case.sources)
        return self

    @property
    def singles(self) -> list[Single]:
        """The verifiers it is made of."""
        return [case.verifier for case in self.cases]

    def case(self, source: str) -> Case | None:
        """The case that is for a data source."""
        return next((c for c in self.cases if not c.sources or source in c.sources), None)

    def answer(self, example: Example, response: str) -> str | None:
        """The answer as the verifier of the example's source takes it."""
        case = self.case(example.source)
        return None if case is None else case.verifier.answer(example, response)

    def __call__(self, example: Example, response: str) -> Score:
        """The score of the case, which alone is a component."""
        case = self.case(example.source)
        if case is None:
            reason = (
                f"no case is for the source {example.source!r}: add one, or one without sources"
            )
            return Score(0.0, "unscorable", reason=reason)
        score = case.verifier(example, response)
        return dataclasses.replace(score, components=_components([case], [score]))


def named(verifier: Weighted | Gate | Product | First, source: str) -> dict[str, Single]:
    """The verifiers that judge examples of a data source, by the names of their components."""
    if isinstance(verifier, First):
        case = verifier.case(source)
        parts = [] if case is None else [case]
    else:
        parts = [*verifier.gates, verifier.of] if isinstance(verifier, Gate) else verifier.parts
    return {_name(part): part.verifier for part in parts}


def _name(part: Part | Named | Case) -> str:
    return part.name or part.verifier.type


def _distinct(field: str, parts: Sequence[Part | Named | Case]) -> list[str]:
    names = [_name(part) for part in parts]
    if len(set(names)) < len(names):
        raise ValueError(f"{field} have the names {names}: set `name` to tell them apart")
    return names


def _scores(parts: Sequence[Part | Named], example: Example, response: str) -> list[Score] | Score:
    """The score of each part, or the whole's if one cannot be scored."""
    scores: list[Score] = []
    for part in parts:
        score = part.verifier(example, response)
        if score.verdict == "unscorable":
            return Score(0.0, "unscorable", reason=f"{_name(part)}: {score.reason}")
        scores.append(score)
    return scores


def _components(parts: Sequence[Part | Named | Case], scores: Sequence[Score]) -> dict[str, float]:
    """The value of each part under its name, and what its own score is made of."""
    components: dict[str, float] = {}
    for part, score in zip(parts, scores, strict=True):
        name = _name(part)
        components[name] = score.value
        components |= {f"{name}/{key}": x for key, x in score.components.items()}
    return components

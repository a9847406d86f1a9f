"""Weighted composition of verifiers into one score."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.constraints import Constraints
from jaxrl_vr.verifiers.custom import Custom
from jaxrl_vr.verifiers.exact import ExactMatch
from jaxrl_vr.verifiers.format import Format
from jaxrl_vr.verifiers.judgement import MAX_VALUE
from jaxrl_vr.verifiers.language import Language
from jaxrl_vr.verifiers.math_answer import MathAnswer
from jaxrl_vr.verifiers.worked import Worked

Single = Annotated[
    MathAnswer | ExactMatch | Worked | Format | Language | Constraints | Custom,
    Field(discriminator="type"),
]
"""The verifiers that can be a part."""


class Part(Config):
    """One verifier and its share in the sum."""

    verifier: Single
    """What judges."""
    weight: float = Field(default=1.0, ge=-MAX_VALUE, le=MAX_VALUE)
    """Factor of its value in the sum; negative for a penalty."""
    name: str = ""
    """Name in the score's components and the metrics; empty: the verifier's type."""


class Weighted(Config):
    """The weighted sum of its parts' values.

    The verdict and the answer are those of the part `decides`, whatever the other parts say: a
    well-formatted wrong answer is wrong. If any part is unscorable, so is the whole.
    """

    type: Literal["weighted"] = "weighted"
    parts: tuple[Part, ...] = Field(min_length=1)
    """The parts, the one that decides first unless `decides` says otherwise."""
    decides: str = ""
    """Name of the part whose verdict is the verdict; empty: the first part."""

    @model_validator(mode="after")
    def _names(self) -> Weighted:
        names = self.names
        if len(set(names)) < len(names):
            raise ValueError(f"parts have the names {list(names)}: set `name` to tell them apart")
        if self.decides and self.decides not in names:
            raise ValueError(f"decides is {self.decides!r}: name one of the parts {list(names)}")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts in order."""
        return tuple(part.name or part.verifier.type for part in self.parts)

    def answer(self, example: Example, response: str) -> str | None:
        """The answer as the deciding part takes it."""
        return self._decider().verifier.answer(example, response)

    def __call__(self, example: Example, response: str) -> Score:
        """Scores each part and adds them up; components holds the unweighted value of each."""
        value, decided, components = 0.0, None, {}
        for name, part in zip(self.names, self.parts, strict=True):
            score = part.verifier(example, response)
            if score.verdict == "unscorable":
                return Score(0.0, "unscorable", reason=f"{name}: {score.reason}")
            components[name] = score.value
            components |= {f"{name}/{key}": x for key, x in score.components.items()}
            value += part.weight * score.value
            if part is self._decider():
                decided = score
        assert decided is not None, "one part decides"
        return Score(value, decided.verdict, components, decided.reason, decided.steps)

    def _decider(self) -> Part:
        return self.parts[self.names.index(self.decides) if self.decides else 0]

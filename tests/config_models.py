"""Config models for the tests of the loader, a run of theirs as text and as hypothesis draws it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pytest
from hypothesis import strategies as st
from pydantic import Field, PositiveInt, model_validator

from jaxrl_vr.config import Config, ConfigError, load


class Clip(Config):
    type: Literal["clip"] = "clip"
    low: float = Field(default=0.2, ge=0)


class Plain(Config):
    type: Literal["plain"] = "plain"
    scale: float = 1.0


Objective = Annotated[Clip | Plain, Field(discriminator="type")]


class Optimizer(Config):
    learning_rate: float
    warmup: int = 0


class From(Config):
    step: int
    updates: int


class Train(Config):
    type: Literal["train"] = "train"
    name: str = Field(min_length=1)
    steps: int = 10
    optimizer: Optimizer
    objective: Objective = Clip()
    updates: PositiveInt | tuple[From, ...] = 1
    micro: PositiveInt | Literal["auto"] = "auto"

    @model_validator(mode="after")
    def _check(self) -> "Train":
        if self.steps == 13:
            raise ValueError("steps = 13 brings bad luck; use 14")
        return self


class Score(Config):
    type: Literal["score"] = "score"
    name: str
    tasks: tuple[str, ...] = ()


class Run(Config):
    seed: int = 0
    is_fast: bool = False
    dtype: Literal["float32", "bfloat16"] = "float32"
    note: str | None = None
    extra: dict[str, Any] = {}
    shares: Mapping[str, float] = {}
    backup: Optimizer | None = None
    stages: tuple[Annotated[Train | Score, Field(discriminator="type")], ...] = Field(min_length=1)


BASE = """
seed = 1
[shares]
a = 0.5
[[stages]]
type = "train"
name = "sft"
optimizer.learning_rate = 1e-3
[[stages]]
type = "train"
name = "rl.v2"
optimizer = {learning_rate = 1e-4, warmup = 5}
objective = {type = "clip", low = 0.1}
[[stages]]
type = "score"
name = "end"
"""


def errors(files, *overrides, **texts):
    with pytest.raises(ConfigError) as caught:
        load(Run, files(**texts or {"base": BASE}), overrides)
    lines = str(caught.value).split("\n")
    return lines if len(lines) == 1 else [line.strip() for line in lines[1:]]


text = st.text(max_size=8)
values = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(text.filter(bool), inner, max_size=3)
    ),
    max_leaves=8,
)
finite = st.floats(allow_nan=False, allow_infinity=False)
optimizers = st.builds(Optimizer, learning_rate=finite, warmup=st.integers())
stages = st.builds(
    Train,
    name=st.text(min_size=1, max_size=5),
    steps=st.integers(20, 30),
    optimizer=optimizers,
    objective=st.builds(Plain, scale=finite) | st.just(Clip()),
    updates=st.integers(1, 3) | st.lists(st.builds(From), max_size=2).map(tuple),
) | st.builds(Score, name=text, tasks=st.lists(text, max_size=2).map(tuple))
runs = st.builds(
    Run,
    seed=st.integers(),
    note=st.none() | st.text(),
    extra=st.dictionaries(text, values, max_size=4),
    shares=st.dictionaries(text, finite, max_size=3),
    backup=st.none() | optimizers,
    stages=st.lists(stages, min_size=1, max_size=3).map(tuple),
)

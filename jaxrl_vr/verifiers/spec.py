"""The verifiers a spec can name, and how a spec becomes one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from jaxrl_vr.config import parse
from jaxrl_vr.verifiers.compose import Weighted
from jaxrl_vr.verifiers.custom import Custom
from jaxrl_vr.verifiers.exact import ExactMatch
from jaxrl_vr.verifiers.format import Format
from jaxrl_vr.verifiers.math_answer import MathAnswer

Verifier = Annotated[
    MathAnswer | ExactMatch | Format | Weighted | Custom, Field(discriminator="type")
]
"""A verifier's config model, which is the verifier: `verifier(example, response) -> Score`, and
`verifier.answer(example, response) -> str | None`, the answer in a form in which equal answers are
(as far as is cheap to say) equal strings, for majority votes."""


def build(spec: Mapping[str, Any]) -> Verifier:
    """The verifier that `spec` (`{"type": "math", ...}`) describes.

    Raises:
      ValueError: an unknown type or key, a value that does not fit, a path that cannot be imported.
    """
    return parse(Verifier, dict(spec))

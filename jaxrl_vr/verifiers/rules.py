"""How strict the comparison of two math answers is."""

from __future__ import annotations

import dataclasses
from typing import Literal

Percent = Literal["either", "value"]
Units = Literal["optional", "required", "ignored"]
Order = Literal["by_kind", "strict", "free"]


@dataclasses.dataclass(frozen=True)
class Rules:
    """The fields of `MathAnswer` of the same names, which describes them."""

    percent: Percent = "either"
    units: Units = "optional"
    order: Order = "by_kind"
    decimals: int = 8
    tolerance: float = 0.0


LENIENT = Rules()
"""What holds where a data set says nothing."""

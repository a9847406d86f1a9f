"""Lines of the sampler's benchmark against those of an earlier run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def compare(
    old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]], noise: float
) -> tuple[list[dict[str, Any]], int]:
    """Compares the ratios to the limit, which move less than tokens/s with what else runs.

    Args:
      old: lines of a file; the last one of a setting counts, and other lines are left out.
      new: lines of this run.
      noise: by what share of the old ratio a new one may be lower.

    Returns:
      A line for each new one, and an exit code: 0, 1 where a ratio is lower by more than the
      noise, else 2 where no setting was measured with the same sizes before.
    """
    before = {line["setting"]: line for line in old if line.get("benchmark") == "sampler"}
    found = []
    for line in new:
        number = line["setting"]
        was = before.get(number)
        verdict: dict[str, Any] = {"benchmark": "sampler_compare", "setting": number}
        if was is None or was["settings"] != line["settings"]:
            why = "was not measured" if was is None else "was measured with other settings"
            found.append({**verdict, "skipped": f"setting {number} {why}"})
            continue
        change = line["ratio_to_limit"] / was["ratio_to_limit"] - 1
        found.append(
            {
                **verdict,
                "ratio_to_limit": [was["ratio_to_limit"], line["ratio_to_limit"]],
                "tokens_per_s": [was["tokens_per_s"], line["tokens_per_s"]],
                "change": change,
                "is_worse": change < -noise,
                "same_machine": was["machine"] == line["machine"],
            }
        )
    compared = [line for line in found if "change" in line]
    if any(line["is_worse"] for line in compared):
        return found, 1
    return found, 0 if compared else 2

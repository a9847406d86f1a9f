"""Tokens per second of the sampler against the number of slots and against the answers' length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.sampler_runs import Loaded
from benchmarks.sampler_settings import Full, full

PROMPTS = 8
SLOTS = tuple(Full(min(PROMPTS, n), -(-n // PROMPTS), 64) for n in (1, 4, 16, 32, 64, 128, 256))
LENGTHS = tuple(Full(PROMPTS, 8, new) for new in (8, 32, 64, 128, 256, 512))
SWEEPS = {"slots": SLOTS, "answer length": LENGTHS}
"""What is on the horizontal axis, and the points."""


def sweep(loaded: Loaded, repeats: int) -> Iterator[dict[str, Any]]:
    """A line a point: that of the benchmark's setting 1 with other sizes."""
    for name, points in SWEEPS.items():
        for point in points:
            found = full(loaded, point, repeats, {})
            at = point.new if name == "answer length" else point.prompts * point.samples
            yield {**found, "benchmark": "sampler_sweep", "sweep": name, "at": at}


def draw(lines: Sequence[dict[str, Any]], out: Path) -> None:
    """A panel a sweep: ours, and the limit of the decode steps' products."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # Text stays text, and without random ids and a date: small, and the same when drawn again.
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "sampler"}):
        figure, axes = plt.subplots(1, len(SWEEPS), figsize=(4.1 * len(SWEEPS), 3.2))
        for axis, name in zip(axes, SWEEPS, strict=True):
            points = [line for line in lines if line["sweep"] == name]
            x = [line["at"] for line in points]
            limits = [line["limit_tokens_per_s"] for line in points]
            speeds = [line["tokens_per_s"] for line in points]
            axis.plot(
                x, limits, "--", color="C7", label="limit: products of decoding", linewidth=1.3
            )
            axis.plot(x, speeds, "o-", color="C0", label="sampler, with prefill", linewidth=1.8)
            axis.set_xscale("log", base=2)
            axis.set_xticks(x, [str(value) for value in x])
            axis.set_title("tokens/s", fontsize=10)
            axis.set_xlabel(name, fontsize=9)
            axis.set_ylim(bottom=0)
            axis.tick_params(labelsize=8)
            axis.grid(alpha=0.3)
        axes[0].legend(fontsize=8, frameon=False)
        figure.tight_layout()
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)
        plt.close(figure)

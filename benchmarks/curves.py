"""Draws a run: accuracy, answer length and entropy of its RL stages, and accuracy of evaluations.

python -m benchmarks.curves RUN_DIR --out curves.svg        # needs matplotlib
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

PANELS = {
    "accuracy of rollouts": ("reward/accuracy",),
    "tokens of an answer": ("length/mean", "length/right", "length/wrong"),
    "entropy [nats]": ("policy/entropy",),
    "share of groups": ("group/mixed", "group/all_right", "group/all_wrong"),
}


def read(run_dir: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Metric -> steps and values, over the run's RL steps."""
    curves: dict[str, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
    for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if "reward/mean" not in record:
            continue
        for name, value in record.items():
            if isinstance(value, int | float) and name != "step":
                curves[name][0].append(record["step"])
                curves[name][1].append(value)
    if not curves:
        raise ValueError(f"{run_dir}: metrics.jsonl holds no RL step; name the folder of an RL run")
    return curves


def draw(run_dir: Path, out: Path) -> None:
    """One panel a group of metrics."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    curves = read(run_dir)
    figure, axes = plt.subplots(1, len(PANELS), figsize=(3.4 * len(PANELS), 2.8))
    for axis, (title, names) in zip(axes, PANELS.items(), strict=True):
        for name in names:
            steps, values = curves.get(name, ([], []))
            axis.plot(steps, values, label=name.split("/")[1], linewidth=1.3)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("step", fontsize=8)
        axis.set_ylim(bottom=0)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
        if len(names) > 1:
            axis.legend(fontsize=7)
    figure.tight_layout()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="picture, .svg or .png")
    args = parser.parse_args()
    draw(args.run_dir, args.out)


if __name__ == "__main__":
    main()

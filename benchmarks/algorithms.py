"""The quickstart's task under algorithms of papers: one cold start a seed, the same budget for all.

python -m benchmarks.algorithms [NAMES] --seeds 0 1 --out runs/algorithms  # needs matplotlib
python -m benchmarks.algorithms --seeds 0 1 --out runs/algorithms --draw benchmarks/results

Every algorithm gets the quickstart's 60 steps of 256 rollouts, from the same weights and with the
same seeds. OVERRIDES holds what fits the values of its paper, made for models a thousand times as
large, to this one. Dynamic sampling (dapo, cispo) samples more rollouts than these by its nature.

Runs that are finished are not done again. Prints a JSON line a run, then draws the accuracy of all
runs, and the length of wrong rollouts under grpo and dr_grpo.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import curves
from benchmarks.machine import load_average, machine, versions
from jaxrl_vr.config import load
from jaxrl_vr.train.config import RunConfig

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "configs" / "quickstart.toml"
PRESETS = ROOT / "configs" / "presets"

# The overrides of each preset's first line: 256 rollouts a step, and updates of 64 of them or more
# (128 for dr_grpo, as its authors have): on fewer, this learning rate follows the noise.
OVERRIDES: dict[str, tuple[str, ...]] = {
    "grpo": ("stages.rl.samples=8",),
    "dr_grpo": ("stages.rl.updates=2",),
    "dapo": (
        "stages.rl.prompts=16",
        "stages.rl.updates=4",
        "stages.rl.shaping.0.buffer=8",
    ),
    "gspo": (),
    "cispo": ("stages.rl.updates=4", "stages.rl.shaping.0.buffer=8"),
    "rloo": ("stages.rl.prompts=64",),
    "ppo": (
        "stages.rl.prompts=256",
        "stages.rl.critic.optimizer.learning_rate=1e-3",
        "stages.rl.kl.coef=0.001",
    ),
    "kimi": ("stages.rl.updates=4", "stages.rl.objective.tau=0.1"),
    "reinforce": (),
}
# Greedy accuracy on held-out sums along the way; moves nothing in the training.
EVALUATIONS = 'stages.rl.eval={every=10, tasks=["addition"]}'
_COLD = ("cold_start", "before")  # stages that all algorithms share


def arguments(name: str, seed: int, run_dir: Path) -> list[str]:
    """What `jaxrl-vr train` gets for an algorithm."""
    own = (*OVERRIDES[name], EVALUATIONS, f"seed={seed}", f"run_dir={json.dumps(str(run_dir))}")
    return [str(QUICKSTART), str(PRESETS / f"{name}.toml"), *own]


def train(name: str, seed: int, out: Path) -> Path:
    """Trains one algorithm, unless that is done; the folder of its run.

    Raises:
      ValueError: a run of other settings lies there.
    """
    folder = run_folder(out, name, seed)
    args = arguments(name, seed, folder)
    if (folder / "summary.json").exists():
        found = load(RunConfig, [folder / "config.toml"])
        if found.stages != load(RunConfig, args[:2], args[2:]).stages:
            raise ValueError(f"{folder} holds a run of other settings; delete it or change --out")
        return folder
    if not folder.exists():
        _begin_from_cold_start(folder, seed, out)
    _jaxrl_vr(args)
    return folder


def run_folder(out: Path, name: str, seed: int) -> Path:
    """Where the run of an algorithm lies."""
    return out / f"{name}_seed{seed}"


def _begin_from_cold_start(folder: Path, seed: int, out: Path) -> None:
    """Makes the folder of a run whose first stages are done: the command goes on behind them."""
    cold = run_folder(out, "cold", seed)
    if not (cold / "summary.json").exists():
        own = ("stages.rl.steps=0", f"seed={seed}", f"run_dir={json.dumps(str(cold))}")
        _jaxrl_vr([str(QUICKSTART), *own])
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    for stage in _COLD:
        shutil.copytree(cold / "stages" / stage, part / "stages" / stage)
    shutil.copy(cold / "config.toml", part)
    part.rename(folder)


def _jaxrl_vr(args: Sequence[str]) -> None:
    """Runs `jaxrl-vr train`, whose console goes to stderr: stdout is for the lines."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    subprocess.run(
        [sys.executable, "-m", "jaxrl_vr", "train", *args],
        check=True,
        stdout=sys.stderr,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )


def accuracy(run_dir: Path) -> dict[int, float]:
    """RL step -> greedy accuracy on held-out sums; step 0 is before RL, the last one after it."""
    found = {}
    for evaluation in _summary(run_dir)["evaluations"]:
        step = evaluation["step"]
        if evaluation["stage"] == "before":
            step = 0
        if step is not None:
            found[step] = evaluation["accuracy"]
    return found


def rollout_metric(run_dir: Path, metric: str) -> dict[int, float]:
    """RL step -> a metric of its rollouts, at the steps that have it."""
    steps, values = curves.read(run_dir)[metric]
    return dict(zip(steps, values, strict=True))


def line(name: str, seed: int, run_dir: Path) -> dict[str, Any]:
    """What is printed of a run."""
    summary = _summary(run_dir)
    before, after = (
        next(e for e in summary["evaluations"] if e["stage"] == stage)
        for stage in ("before", "after")
    )
    rl = next(stage for stage in summary["stages"] if stage["stage"] == "rl")
    return {
        "benchmark": "algorithms",
        "algorithm": name,
        "seed": seed,
        "before": before["accuracy"],
        "after": after["accuracy"],
        "gain": round(after["accuracy"] - before["accuracy"], 6),
        "tokens_before": before["mean_length"],
        "tokens_after": after["mean_length"],
        "overrides": OVERRIDES[name],
        "seconds": rl["seconds"],
    }


def _summary(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))


# Pictures

Series = Mapping[str, Sequence[Mapping[int, float]]]  # algorithm -> of each seed, step -> value


def draw_accuracy(runs: Mapping[str, Sequence[Path]], out: Path) -> None:
    """Accuracy against the RL step: greedy on held-out sums, and of the rollouts."""
    greedy = {name: [accuracy(run) for run in of_it] for name, of_it in runs.items()}
    rollouts = _series(runs, "reward/accuracy")
    smooth = {name: [running_mean(seed) for seed in seeds] for name, seeds in rollouts.items()}
    panels = {"greedy accuracy, held-out sums": greedy, "rollouts right, mean of 5 steps": smooth}
    _draw(panels, out, width=4.1)


def draw_wrong_length(runs: Mapping[str, Sequence[Path]], out: Path) -> None:
    """Tokens of wrong rollouts against the RL step."""
    _draw({"tokens of a wrong rollout": _series(runs, "length/wrong")}, out, width=5.0)


def mean_of(seeds: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Step -> mean over seeds, where all of them have a value."""
    common = sorted(set.intersection(*(set(of_one) for of_one in seeds)))
    return {step: statistics.fmean(of_one[step] for of_one in seeds) for step in common}


def running_mean(values: Mapping[int, float], width: int = 5) -> dict[int, float]:
    """Step -> mean of the last `width` values up to it; fewer at the start."""
    steps = list(values)
    parts = {step: steps[max(i + 1 - width, 0) : i + 1] for i, step in enumerate(steps)}
    return {step: statistics.fmean(values[s] for s in part) for step, part in parts.items()}


def _series(runs: Mapping[str, Sequence[Path]], metric: str) -> Series:
    return {name: [rollout_metric(run, metric) for run in of_it] for name, of_it in runs.items()}


def _draw(panels: Mapping[str, Series], out: Path, *, width: float) -> None:
    """A panel for each title: a thin line a seed, a thick one their mean."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # Text stays text, and without random ids and a date: small, and the same when drawn again.
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "algorithms"}):
        figure, axes = plt.subplots(
            1, len(panels), figsize=(width * len(panels) + 1.0, 3.6), squeeze=False
        )
        for axis, (title, series) in zip(axes[0], panels.items(), strict=True):
            for i, (name, seeds) in enumerate(series.items()):
                # Dashes tell apart what lies on top of each other.
                style = dict(color=f"C{i}", linestyle=("-", "--", ":")[i % 3])
                for of_one in seeds if len(seeds) > 1 else ():
                    x, y = list(of_one), list(of_one.values())
                    axis.plot(x, y, linewidth=0.6, alpha=0.5, **style)
                mean = mean_of(seeds)
                axis.plot(list(mean), list(mean.values()), label=name, linewidth=1.8, **style)
            axis.set_title(title, fontsize=10)
            axis.set_xlabel("RL step", fontsize=9)
            axis.set_ylim(bottom=0)
            axis.tick_params(labelsize=8)
            axis.grid(alpha=0.3)
        place = dict(loc="center left", bbox_to_anchor=(1.01, 0.5))
        axes[0][-1].legend(fontsize=8, frameon=False, handlelength=3, **place)
        figure.tight_layout()
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)
        plt.close(figure)


def draw(names: Sequence[str], seeds: Sequence[int], out: Path, pictures: Path) -> None:
    """Both pictures of finished runs; the second one if grpo and dr_grpo are among them."""
    runs = {name: [run_folder(out, name, seed) for seed in seeds] for name in names}
    draw_accuracy(runs, pictures / "algorithms.svg")
    compared = ("grpo", "dr_grpo")
    if set(compared) <= set(names):
        draw_wrong_length({name: runs[name] for name in compared}, pictures / "wrong_length.svg")


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.algorithms", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAMES", help=", ".join(OVERRIDES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="of the runs")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument(
        "--draw", type=Path, metavar="DIR", help="only draw finished runs, into this folder"
    )
    args = parser.parse_args(argv)
    unknown = [name for name in args.names if name not in OVERRIDES]
    if unknown:
        parser.error(f"{', '.join(unknown)}: no such algorithm; there are {', '.join(OVERRIDES)}")
    names = args.names or list(OVERRIDES)
    if args.draw is None:
        shared = {"machine": machine(), "versions": versions()}
        for seed in args.seeds:  # so that all algorithms have the first seed before the second
            for name in names:
                load_before = load_average()
                found = line(name, seed, train(name, seed, args.out))
                print(json.dumps(found | {"load_average": load_before} | shared), flush=True)
    draw(names, args.seeds, args.out, args.draw or args.out)


if __name__ == "__main__":
    main()

"""What a person sees while a run goes on: a display that redraws in place, or plain lines.

Both show what there is: a metric that is absent has no row. Text of a model is untrusted, so its
control characters never reach the terminal. What nobody can read any more (a closed pipe, a full
disk behind it) is dropped, and the run goes on.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Literal, cast

import rich.console
from rich.box import SIMPLE_HEAD
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

Mode = Literal["auto", "live", "plain", "off"]

# Name -> (label, how the value reads), in the order of the display.
SHOWN: dict[str, tuple[str, Literal["share", "tokens", "count", "flops", "number"]]] = {
    "reward/mean": ("reward", "number"),
    "reward/accuracy": ("accuracy", "share"),
    "efficiency/accuracy_per_kilotoken": ("right per 1k tokens", "number"),
    "group/mixed": ("groups mixed", "share"),
    "group/all_right": ("groups all right", "share"),
    "group/all_wrong": ("groups all wrong", "share"),
    "length/mean": ("length", "tokens"),
    "length/right": ("length if right", "tokens"),
    "length/wrong": ("length if wrong", "tokens"),
    "length/truncated_rate": ("truncated", "share"),
    "reward/no_answer": ("no answer", "share"),
    "reward/unscorable": ("unscorable", "share"),
    "sft/nll": ("loss per token", "number"),
    "loss/total": ("loss", "number"),
    "policy/entropy": ("entropy", "number"),
    "policy/kl": ("KL to reference", "number"),
    "policy/approx_kl": ("KL to old policy", "number"),
    "policy/clip_frac": ("clipped", "share"),
    "policy/ratio_max": ("ratio, largest", "number"),
    "mismatch/mean": ("sampler gap", "number"),
    "mismatch/max": ("sampler gap, largest", "number"),
    "optimizer/grad_norm": ("gradient norm", "number"),
    "optimizer/learning_rate": ("learning rate", "number"),
    "optimizer/skipped": ("updates skipped", "share"),
    "noise/scale": ("noise scale, tokens", "count"),
    "speed/rollout_tokens_per_s": ("rollout tokens/s", "count"),
    "speed/update_tokens_per_s": ("update tokens/s", "count"),
    "speed/eval_tokens_per_s": ("eval tokens/s", "count"),
    "speed/rollout_mfu": ("rollout MFU", "share"),
    "speed/update_mfu": ("update MFU", "share"),
    "speed/update_flops_per_s": ("update FLOP/s", "flops"),
    "speed/rollout_idle_s": ("rollout, devices idle, s", "number"),
    "speed/rollout_wait_for_rewards_s": ("waiting for rewards, s", "number"),
    "speed/update_idle_s": ("update, devices idle, s", "number"),
    "time/step_s": ("seconds a step", "number"),
}
IN_LINE = (
    "reward/mean reward/accuracy length/mean group/mixed sft/nll policy/entropy policy/kl "
    "policy/clip_frac optimizer/grad_norm speed/rollout_tokens_per_s speed/update_tokens_per_s "
    "speed/update_mfu"
).split()
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
WIDTH = 100  # columns of the display at most
TWO_COLUMNS = 70  # columns of a terminal from which metrics stand in two columns
SPARK = 9  # columns of a trend
BARS = "▁▂▃▄▅▆▇█"
LINE_EVERY = 2.0  # seconds between two lines of steps, at least
PHASE_EVERY = 30.0  # seconds of silence after which plain mode says how far a phase is
RECENT = 20  # steps that the time left is estimated from
STYLES = {"right": "green", "wrong": "red", "no_answer": "yellow", "unscorable": "magenta"}
LONGEST = 400  # characters of a sample's text that are shown
TALLEST = 10  # and lines


class Console:
    """The display of a run.

    Args:
      mode: "live" redraws in place, "plain" prints lines, "off" prints warnings only; "auto" is
        live on a terminal and plain elsewhere.
      file: where to write; None is standard output.
      clock: seconds since any fixed moment.
    """

    def __init__(
        self,
        mode: Mode,
        *,
        file: IO[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        force = True if mode == "live" else None
        file = file or sys.stdout
        if file is not None:  # as it is where a process starts with a closed standard output
            file = cast(IO[str], _Forgiving(file))
        self._console = rich.console.Console(file=file, force_terminal=force, highlight=False)
        if mode == "auto":
            is_terminal = self._console.is_terminal and not self._console.is_dumb_terminal
            mode = "live" if is_terminal else "plain"
        self.mode = mode
        self._clock = clock
        self._live: Live | None = None
        self._begin("", 0, 0)

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stage(self, name: str, total_steps: int, done: int = 0) -> None:
        """Begins a stage of which `done` steps are done already."""
        if self.mode == "live" and self._metrics:
            self._print(Text(self._line(), style="dim"))
        self._begin(name, total_steps, done)
        if self.mode == "plain":
            steps = f"{total_steps} step" + "s" * (total_steps != 1)
            is_to_compile = total_steps > max(done, 1)
            self._print(
                Text(
                    f"{name}: {steps}"
                    + (f", {done} done" if done else "")
                    + ("; the first one takes longer, for it compiles" if is_to_compile else "")
                )
            )
        if self.mode == "live" and self._live is None:
            # A frame is made anew at each refresh, so that the clock runs while JAX compiles.
            self._live = Live(
                console=self._console, get_renderable=self.frame, refresh_per_second=4
            )
            self._live.start()

    def phase(self, name: str, done: int, total: int) -> None:
        """How far a phase of the current step is."""
        if self._is_step_over:
            kept = {n: (0, t) for n, (_, t) in self._phases.items() if not n.startswith("eval")}
            self._phases, self._is_step_over = kept, False
        self._phases = self._phases | {name: (done, total)}
        if self.mode == "plain" and self._clock() - self._said >= PHASE_EVERY:
            self._say(f"{self._title()}  {name} {done}/{total}")

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step is over: its number (from 1) and its metrics."""
        now = self._clock()
        self._durations.append(now - self._step_began)
        self._step_began, self._step, self._is_step_over = now, step, True
        self._metrics = dict(metrics)
        for name, value in metrics.items():
            self._history.setdefault(name, []).append(value)
        is_due = now - self._said >= LINE_EVERY or len(self._durations) == 1 or step == self._total
        if self.mode == "plain" and is_due:
            self._say(self._line())

    def message(self, text: str) -> None:
        """Something worth knowing."""
        if self.mode != "off":
            self._print(Text(clean(text)))

    def warn(self, text: str) -> None:
        """Something that may need a person; shown in every mode."""
        self._print(Text.assemble(("warning: ", "bold yellow"), clean(text)))

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table; columns of numbers are aligned to the right."""
        if self.mode == "off":
            return
        table = _titled(title)
        for index, column in enumerate(columns):
            is_number = bool(rows) and all(_is_number(row[index]) for row in rows)
            table.add_column(Text(clean(column)), justify="right" if is_number else "left")
        for row in rows:
            table.add_row(*(Text(clean(cell)) for cell in row))
        self._print(table)

    def samples(self, title: str, rows: Sequence[tuple[str, str, str]]) -> None:
        """Prompts, what the model answered, and the verdicts."""
        if self.mode == "off":
            return
        table = _titled(title)
        table.add_column("prompt", overflow="fold", ratio=2)
        table.add_column("answer", overflow="fold", ratio=3)
        table.add_column("verdict", no_wrap=True)
        for prompt, text, verdict in rows:
            mark = Text(verdict, style=STYLES.get(verdict, ""))
            table.add_row(Text(_middle_out(clean(prompt))), Text(_middle_out(clean(text))), mark)
        self._print(table)

    def close(self) -> None:
        """Ends the display, until the next stage; what it showed last stays."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def frame(self) -> rich.console.RenderableType:
        """The live display as it is now."""
        width = min(self._console.width, WIDTH)
        bars = Table.grid(padding=(0, 1), expand=True)
        bars.width = width
        bars.add_column(no_wrap=True, max_width=width // 3)
        bars.add_column(ratio=1)
        bars.add_column(justify="right", no_wrap=True)
        bars.add_column(justify="right", no_wrap=True)
        bars.add_row(
            Text(self._name, style="bold"),
            _bar(self._step, self._total, "blue"),
            f"{self._step}/{self._total}",
            self._time_left() or _time(self._clock() - self._began),
        )
        for name, (done, total) in self._phases.items():
            bars.add_row(Text(f"  {name}"), _bar(done, total, "cyan"), f"{done}/{total}", "")
        # A display taller than the terminal would flicker, so what matters less is left out.
        rows = max(self._console.height - len(self._phases) - 2, 4)
        return rich.console.Group(bars, self._metric_table(width, rows))

    def _metric_table(self, width: int, rows: int) -> Table:
        names = [n for n in SHOWN if n in self._metrics]
        names += [n for n in self._metrics if n.startswith(("eval/", "source/")) and "acc" in n]
        columns = 2 if width >= TWO_COLUMNS else 1
        if len(names) > columns * rows:
            names = sorted(names, key=lambda n: n not in IN_LINE)[: columns * rows]
        grid = Table.grid(padding=(0, 1))
        grid.width = width
        half = -(-len(names) // columns)
        for _ in range(columns):
            grid.add_column(no_wrap=True, style="dim", ratio=1)
            grid.add_column(no_wrap=True, justify="right", min_width=8)
            grid.add_column(no_wrap=True, min_width=SPARK + 1, style="cyan")
        for row in range(half):
            grid.add_row(*(cell for name in names[row::half] for cell in self._cells(name)))
        return grid

    def _cells(self, name: str) -> tuple[str | Text, ...]:
        value = self._metrics[name]
        is_bad = not math.isfinite(value) or (name == "optimizer/skipped" and value > 0)
        shown = Text(spell(name, value), style="bold red" if is_bad else "bold")
        label = SHOWN[name][0] if name in SHOWN else name
        return label, shown, sparkline(self._history[name])

    def _begin(self, name: str, total: int, done: int) -> None:
        self._name, self._total, self._step = clean(name), total, done
        self._metrics: dict[str, float] = {}
        self._history: dict[str, list[float]] = {}
        self._phases: dict[str, tuple[int, int]] = {}
        self._is_step_over = False
        self._began = self._step_began = self._said = self._clock()
        self._durations: deque[float] = deque(maxlen=RECENT)

    def _line(self) -> str:
        parts = [self._title()]
        for name in IN_LINE:
            if name in self._metrics:
                parts.append(f"{SHOWN[name][0]} {spell(name, self._metrics[name])}")
        others = [n for n in self._metrics if n.startswith("eval/") and n.endswith("/accuracy")]
        parts += [f"{name} {spell(name, self._metrics[name])}" for name in others]
        return "  ".join([*parts, *filter(None, [self._time_left()])])

    def _title(self) -> str:
        return f"{self._name} {self._step}/{self._total}"

    def _time_left(self) -> str:
        """The estimate, or nothing before there is one."""
        # The first step compiles, so it says little about the others.
        steady = list(self._durations)[1:] if len(self._durations) < RECENT else self._durations
        if not steady or self._step >= self._total:
            return ""
        return f"{_time(statistics.fmean(steady) * (self._total - self._step))} left"

    def _say(self, text: str) -> None:
        self._said = self._clock()
        self._print(Text(text))

    def _print(self, what: rich.console.RenderableType) -> None:
        if isinstance(what, Text):
            # Lines are for logs and grep, so they are never broken.
            self._console.print(what, soft_wrap=True)
        else:
            if self._step >= self._total:
                self.close()  # so that a table which concludes stands below the last frame
            self._console.print(what)


class _Forgiving:
    """A text file whose failures are nobody's: after the first, nothing is written any more."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._is_open = True

    def write(self, text: str) -> int:
        if self._is_open:
            try:
                self._file.write(text)
            except UnicodeEncodeError:
                encoding = getattr(self._file, "encoding", None) or "ascii"
                self.write(text.encode(encoding, "replace").decode(encoding))
            except (OSError, ValueError):  # ValueError: the file is closed
                self._give_up()
        return len(text)

    def flush(self) -> None:
        if self._is_open:
            try:
                self._file.flush()
            except (OSError, ValueError):
                self._give_up()

    def _give_up(self) -> None:
        self._is_open = False
        if self._file is sys.__stdout__:
            # What is still in its buffer would fail again when the process ends, with a traceback.
            with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), self._file.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def clean(text: str) -> str:
    """The text with control characters, which could steer the terminal, made visible."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


def spell(name: str, value: float) -> str:
    """A metric's value, short."""
    if not math.isfinite(value):
        return str(value)
    kind = SHOWN[name][1] if name in SHOWN else "number"
    if kind == "share" or name.endswith("/accuracy"):
        return f"{100 * value:.1f} %"
    if kind == "tokens":
        return f"{value:.1f}"
    if kind == "count":
        return f"{value / 1000:.1f}k" if value >= 10_000 else f"{value:.0f}"
    if kind == "flops":
        power = min((len(f"{value:.0f}") - 1) // 3, len(_PREFIXES) - 1)
        number = value / 1000**power
        digits = f"{number:.0f}" if number >= 100 else f"{number:.3g}"
        return f"{digits} {_PREFIXES[power]}".rstrip()
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def sparkline(values: Sequence[float]) -> str:
    """The whole course in at most `SPARK` columns, each the mean of its share; nan is a gap."""
    count = min(len(values), SPARK)
    edges = [len(values) * i // count for i in range(count + 1)] if count else [0]
    shares = [
        [v for v in values[a:b] if math.isfinite(v)]
        for a, b in zip(edges[:-1], edges[1:], strict=True)
    ]
    means = [statistics.fmean(share) if share else math.nan for share in shares]
    known = [m for m in means if math.isfinite(m)]
    if not known:
        return ""
    low, span = min(known), max(known) - min(known)
    top = len(BARS) - 1
    return "".join(
        " " if math.isnan(m) else BARS[round((m - low) / span * top) if span else 0] for m in means
    )


def _titled(title: str) -> Table:
    return Table(title=Text(clean(title), style="bold"), title_justify="left", box=SIMPLE_HEAD)


def _bar(done: int, total: int, style: str) -> ProgressBar:
    return ProgressBar(
        total=max(total, 1), completed=done, complete_style=style, finished_style="green"
    )


def _time(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _middle_out(text: str) -> str:
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"
    lines = text.split("\n")
    if len(lines) > TALLEST:
        lines = [*lines[: TALLEST // 2], "…", *lines[-TALLEST // 2 :]]
    return "\n".join(lines)


def _is_number(cell: str) -> bool:
    number = cell.rstrip(" %").replace("→", "").strip()
    try:
        float(number)
    except ValueError:
        return not number or number == "-"
    return True

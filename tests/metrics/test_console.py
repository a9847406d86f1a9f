"""The console: plain lines, live frames that fit, nothing that steers the terminal."""

import io
import math

import pytest
import rich.console
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.metrics import console
from jaxrl_vr.metrics.console import BARS, SHOWN, SPARK, Console, clean, sparkline, spell
from jaxrl_vr.metrics.names import METRICS

STEP = {
    "reward/mean": 0.5,
    "reward/accuracy": 0.25,
    "length/mean": 22.04,
    "speed/rollout_tokens_per_s": 12_340.0,
}


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def plain(clock=None):
    out = io.StringIO()
    return Console("plain", file=out, clock=clock or Clock()), out


def text(frame, width, height=40):
    """A frame as the lines of a terminal."""
    terminal = rich.console.Console(file=io.StringIO(), width=width, height=height, record=True)
    terminal.print(frame)
    return terminal.export_text().splitlines()


def test_a_line_has_stage_steps_key_metrics_and_time_left():
    clock = Clock()
    shown, out = plain(clock)
    shown.stage("rl", 10, done=2)
    for step, seconds in [(3, 60.0), (4, 5.0), (5, 5.0)]:
        clock.now += seconds
        shown.step(step, STEP)
    metrics = "reward 0.5  accuracy 25.0 %  length 22.0  rollout tokens/s 12.3k"
    # The first step compiles, so the estimate is 5 s for each that is left.
    assert out.getvalue().splitlines() == [
        "rl: 10 steps, 2 done; the first one takes longer, for it compiles",
        f"rl 3/10  {metrics}",
        f"rl 4/10  {metrics}  0:30 left",
        f"rl 5/10  {metrics}  0:25 left",
    ]


def test_fast_steps_do_not_flood_a_log():
    clock = Clock()
    shown, out = plain(clock)
    shown.stage("sft", 100)
    for step in range(1, 101):
        clock.now += 0.1
        shown.step(step, {"sft/nll": 1.0})
    steps = [line.split()[1] for line in out.getvalue().splitlines()[1:]]
    assert steps == ["1/100", "21/100", "41/100", "61/100", "81/100", "100/100"]


def test_messages_and_warnings_always_show():
    shown, out = plain()
    shown.stage("rl", 10)
    shown.step(1, STEP)
    shown.step(2, STEP)
    shown.message("saved [rl] at step 2")
    shown.warn("no contrast")
    assert out.getvalue().splitlines()[2:] == ["saved [rl] at step 2", "warning: no contrast"]


def test_a_long_line_is_not_broken():
    shown, out = plain()
    shown.message("word " * 100)
    assert out.getvalue().count("\n") == 1


def test_a_long_phase_shows_life():
    clock = Clock()
    shown, out = plain(clock)
    shown.stage("end", 1)
    for done in range(0, 100, 10):
        clock.now += 10.0
        shown.phase("eval held", done, 100)
    assert out.getvalue().splitlines()[1:] == [
        "end 0/1  eval held 20/100",
        "end 0/1  eval held 50/100",
        "end 0/1  eval held 80/100",
    ]


def test_off_shows_warnings_only():
    out = io.StringIO()
    with Console("off", file=out) as shown:
        shown.stage("rl", 10)
        shown.phase("rollout", 1, 2)
        shown.step(1, STEP)
        shown.message("m")
        shown.table("t", ["a"], [["1"]])
        shown.samples("s", [("p", "t", "right")])
        shown.warn("w")
    assert out.getvalue() == "warning: w\n"


def test_auto_is_plain_where_there_is_no_terminal(monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    assert Console("auto", file=io.StringIO()).mode == "plain"


def test_auto_is_live_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    assert Console("auto", file=terminal).mode == "live"
    monkeypatch.setenv("TERM", "dumb")
    assert Console("auto", file=terminal).mode == "plain"


def busy(monkeypatch, width, height):
    """A console in the middle of a step, with every metric that it knows."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", str(height))
    shown, _ = plain()
    shown.stage("rl", 100_000)
    for step in range(1, 30):
        shown.step(step, {name: step / 7 for name in SHOWN} | {"eval/held/accuracy": 0.5})
    shown.phase("rollout", 120, 256)
    shown.phase("verify", 90, 256)
    shown.phase("update", 0, 2)
    return shown


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (60, 24), (40, 12)])
def test_a_frame_fits_the_terminal(monkeypatch, width, height):
    lines = text(busy(monkeypatch, width, height).frame(), width, height)
    assert max(map(len, lines)) <= width
    assert len([line for line in lines if line.strip()]) < height


def test_a_frame_shows_progress_metrics_and_trends(monkeypatch):
    lines = text(busy(monkeypatch, 80, 40).frame(), 80)
    assert [line.split()[0] for line in lines[:4]] == ["rl", "rollout", "verify", "update"]
    assert [line.split()[-1] for line in lines[1:4]] == ["120/256", "90/256", "0/2"]
    assert "29/100000" in lines[0]
    row = next(line for line in lines if line.startswith("groups mixed"))
    assert row.split()[2:5] == ["414.3", "%", "▁▂▃▃▄▅▆▇█"]
    assert any("eval/held/accuracy" in line and "50.0 %" in line for line in lines)


def test_phases_begin_anew_with_each_step(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown, _ = plain()
    shown.stage("rl", 10)
    shown.phase("rollout", 4, 4)
    shown.phase("update", 1, 1)
    shown.step(1, STEP)
    shown.phase("eval held", 5, 9)
    assert [line.split()[-1] for line in text(shown.frame(), 80)[1:4]] == ["0/4", "0/1", "5/9"]
    shown.step(2, STEP)
    shown.phase("rollout", 2, 4)
    lines = text(shown.frame(), 80)
    assert [line.split()[0] for line in lines[1:3]] == ["rollout", "update"]
    assert not any("eval" in line for line in lines)


def test_live_redraws_in_place_and_leaves_the_last_frame(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    out = io.StringIO()
    with Console("live", file=out) as shown:
        shown.stage("rl", 10)
        shown.step(1, STEP)
        shown.message("saved rl")
        shown.stage("end", 1)
    assert "\x1b[2K" in out.getvalue()  # erases a line before it is drawn again
    assert out.getvalue().endswith("\x1b[?25h")  # the cursor is back
    assert "saved rl" in out.getvalue()
    assert "rl 1/10  reward 0.5" in out.getvalue()  # what the stage came to stays to be read
    shown.close()


def test_what_concludes_a_stage_stands_below_its_last_frame(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    out = io.StringIO()
    with Console("live", file=out) as shown:
        shown.stage("rl", 1)
        shown.step(1, STEP)
        shown.table("Evaluations", ["stage"], [["before"]])
        assert out.getvalue().rindex("reward") < out.getvalue().rindex("before")
        end = len(out.getvalue())
        shown.stage("more", 2)
    assert "more" in out.getvalue()[end:]


def test_table_and_samples():
    shown, out = plain()
    shown.table("Evaluations", ["stage", "n", "accuracy"], [["before", "1000", "21.0 %"]])
    shown.samples("Answers", [("1+1=", "line\n[bold]2", "right"), ("p" * 999, "\n" * 99, "wrong")])
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[0] == "Evaluations"
    assert "  before   1000     21.0 %" in lines
    assert any("[bold]2" in line for line in lines)
    assert len(lines) < 40


class Broken(io.StringIO):
    """A file that works for some writes and then fails, at `write` or at `flush`."""

    def __init__(self, good, error, at):
        super().__init__()
        self.calls, self.good, self.error, self.at = 0, good, error, at

    def fail(self, at):
        self.calls += at == self.at
        if at == self.at and self.calls > self.good:
            raise self.error

    def write(self, text):
        self.fail("write")
        return super().write(text)

    def flush(self):
        self.fail("flush")


@pytest.mark.parametrize(
    "error",
    [BrokenPipeError(32, "Broken pipe"), OSError(28, "No space"), ValueError("closed file")],
    ids=["pipe", "full", "closed"],
)
@pytest.mark.parametrize("at", ["write", "flush"])
@pytest.mark.parametrize("mode", ["plain", "live"])
def test_a_display_that_breaks_is_off_and_nothing_else_happens(mode, at, error):
    out = Broken(1, error, at)
    shown = Console(mode, file=out, clock=Clock())
    shown.stage("rl", 2)
    shown.message("first")
    shown.step(1, STEP)
    shown.phase("rollout", 1, 2)
    shown.warn("odd")
    shown.table("t", ["a"], [["1"]])
    calls = out.calls
    shown.samples("s", [("p", "a", "right")])
    shown.step(2, STEP)
    shown.close()
    # After the first failure nobody asks the file again.
    assert out.calls == calls == 2


def test_letters_that_the_output_cannot_spell_are_replaced():
    raw = io.BytesIO()
    shown = Console("plain", file=io.TextIOWrapper(raw, encoding="ascii"), clock=Clock())
    shown.message("drei Äpfel …")
    assert raw.getvalue() == b"drei ?pfel ?\n"


def test_without_standard_output_nothing_is_shown(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    shown = Console("auto", clock=Clock())
    shown.stage("rl", 2)
    shown.warn("odd")
    assert shown.mode == "plain"


def test_a_models_text_cannot_steer_the_terminal():
    shown, out = plain()
    shown.samples("s", [("\x1b[2Ja", "\x9b31m\r\x08b\x07", "wrong")])
    shown.table("t", ["\x1b[1mc"], [["\x1b]0;title\x07"]])
    shown.warn("\x1b[2J")
    assert not set(out.getvalue()) & set("\x1b\x9b\r\x08\x07")


@given(st.text())
def test_clean_leaves_only_what_can_be_printed(value):
    assert all(c.isprintable() or c in "\n\t" for c in clean(value))
    assert len(clean(value)) == len(value)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], ""),
        ([1.0], "▁"),
        ([2.0, 2.0], "▁▁"),
        ([0.0, 7.0], "▁█"),
        ([0.0, math.nan, 7.0], "▁ █"),
        ([math.nan], ""),
        (list(range(18)), "▁▂▃▄▅▅▆▇█"),
    ],
)
def test_sparkline(values, expected):
    assert sparkline(values) == expected


@given(st.lists(st.floats(-1e9, 1e9) | st.just(math.nan) | st.just(math.inf)))
def test_sparkline_stays_in_its_columns(values):
    line = sparkline(values)
    assert len(line) <= SPARK and set(line) <= set(BARS + " ")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("reward/accuracy", 0.12345, "12.3 %"),
        ("eval/x/accuracy", 1.0, "100.0 %"),
        ("length/mean", 12.345, "12.3"),
        ("speed/update_tokens_per_s", 941.4, "941"),
        ("speed/update_tokens_per_s", 123_456.0, "123.5k"),
        ("speed/update_flops_per_s", 0.0, "0"),
        ("speed/update_flops_per_s", 941.4, "941"),
        ("speed/update_flops_per_s", 1.234e9, "1.23 G"),
        ("speed/update_flops_per_s", 98.76e12, "98.8 T"),
        ("speed/update_flops_per_s", 999.9e12, "1000 T"),
        ("speed/update_flops_per_s", 3.2e24, "3200000 E"),
        ("speed/update_mfu", 0.4567, "45.7 %"),
        ("optimizer/learning_rate", 1e-5, "1e-05"),
        ("policy/ratio_max", 123_456.7, "123457"),
        ("loss/total", math.nan, "nan"),
        ("loss/total", -math.inf, "-inf"),
    ],
)
def test_spell(name, value, expected):
    assert spell(name, value) == expected


def test_what_the_console_shows_is_explained():
    assert set(SHOWN) <= set(METRICS)
    assert set(console.IN_LINE) <= set(SHOWN)
    assert all(METRICS.values())

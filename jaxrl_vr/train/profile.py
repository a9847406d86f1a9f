"""Traces of chosen steps by jax's profiler, in the run's folder."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import jax
from pydantic import Field, PositiveInt

from jaxrl_vr.config import Config
from jaxrl_vr.metrics.console import Console


class Profile(Config):
    """Traces of chosen steps: what the devices and the host did when, under the model's names."""

    steps: tuple[PositiveInt, ...] = Field(min_length=1)
    """Steps of the stage that are traced, as the console counts them: the first is 1, and it
    compiles, so a later one says more. Each gets a folder in `stages/NAME/profile/`."""

    def check(self, num_steps: int) -> None:
        """Raises ValueError if a stage of so many steps never comes to one of them."""
        beyond = [step for step in self.steps if step > num_steps]
        if beyond:
            fix = (
                f"name steps from 1 to {num_steps}, or raise steps" if num_steps else "raise steps"
            )
            raise ValueError(
                f"profile.steps = {list(self.steps)}: step {beyond[0]} never comes, for the stage "
                f"has {num_steps}; {fix}"
            )


def trace_folder(folder: Path, step: int) -> Path:
    """Where the trace of a step lies in the folder of its stage."""
    return folder / "profile" / f"step-{step:06d}"


def missed(profile: Profile, folder: Path, done: int) -> list[int]:
    """Steps to be traced that are done already and have no trace: a resumed run passes them by."""
    return [s for s in profile.steps if s <= done and not trace_folder(folder, s).exists()]


@contextlib.contextmanager
def traced(
    profile: Profile | None, step: int, *, name: str, folder: Path, console: Console
) -> Iterator[None]:
    """A context in which a step runs, traced if the profile names it.

    Args:
      profile: of the stage.
      step: from 1.
      name: of the stage.
      folder: of the stage.
      console: where it is said that the trace is written.
    """
    with contextlib.ExitStack() as stack:
        out = trace_folder(folder, step)
        is_traced = profile is not None and step in profile.steps
        if is_traced:
            shutil.rmtree(out, ignore_errors=True)  # of a step that is done again
            options = jax.profiler.ProfileOptions()
            # Every call of a Python function would hide what the names of phases and scopes say.
            options.python_tracer_level = 0
            stack.enter_context(jax.profiler.trace(out, profiler_options=options))
        with jax.profiler.StepTraceAnnotation(name, step_num=step):
            yield
    if is_traced:
        console.message(
            f"{name}: trace of step {step} in {out}; `pip install xprof`, then `xprof --logdir "
            f"{out}` shows it, or drop its .trace.json.gz on https://ui.perfetto.dev"
        )

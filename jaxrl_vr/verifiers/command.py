"""A command as verifier: any program that reads a question and writes a judgement, both JSON.

For checkers that are no Python, such as a proof checker. The command runs in the sandbox of
`code_tests`, because what it checks is a program as well; it sees `/usr` and the folders that
`readable` names. How question and judgement look is in `reply`, and so is what happens when it
fails: exits with an error, or says what is no judgement.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.judgement import BadScore
from jaxrl_vr.verifiers.reply import Unfinished, judged, question, score_of
from jaxrl_vr.verifiers.sandbox import (
    IsolationName,
    Limits,
    Outcome,
    SandboxLost,
    borrowed,
    content,
    limit_text,
    memory_file,
)
from jaxrl_vr.verifiers.sandbox_level import sandbox_level
from jaxrl_vr.verifiers.text import one_line


class Command(Config):
    """Runs `argv` for each response, and takes its judgement from its standard output."""

    needs_reference: ClassVar[bool] = False
    type: Literal["command"] = "command"
    argv: tuple[str, ...] = Field(min_length=1)
    """The command and its arguments. It starts in an empty folder that it may write to."""
    readable: tuple[str, ...] = ()
    """Folders that the command needs, absolute, besides `/usr`: its own, libraries, data."""
    limits: Limits = Limits()
    """What one run may use."""
    levels: tuple[IsolationName, ...] = ("bubblewrap", "landlock")
    """Levels of isolation that are good enough; the best that holds on the machine is used."""
    unsafe: bool = False
    """Run it where none of the levels holds: with limits, and with all rights of the run."""

    @field_validator("readable")
    @classmethod
    def _are_folders(cls, readable: tuple[str, ...]) -> tuple[str, ...]:
        for path in readable:
            if not Path(path).is_absolute():
                raise ValueError(f"holds {path!r}: name folders by their whole path")
        return readable

    @property
    def patience(self) -> float:
        """Seconds by the clock that a response may take before something is wrong with us."""
        return 4 * self.limits.wall + 60.0  # the response twice, two harmless ones

    def load(self) -> None:
        """Has a sandbox started.

        Raises:
          ValueError: there is none here, or a folder is missing.
        """
        missing = [path for path in self.readable if not Path(path).is_dir()]
        if missing:
            raise ValueError(f"readable: there is no folder {missing[0]!r}; correct it, or make it")
        level = sandbox_level(self.levels, unsafe=self.unsafe)
        with borrowed(level, "program", self.readable):
            pass

    def answer(self, example: Example, response: str) -> None:
        """A command does not tell what it took for the answer."""

    def __call__(self, example: Example, response: str) -> Score:
        """The command's judgement as a Score."""
        return judged(lambda text: self._judgement(example, text), example, response)

    def _judgement(self, example: Example, response: str) -> Score:
        try:
            outcome, said, note = self._run(json.dumps(question(example, response)))
        except SandboxLost:
            raise Unfinished("the sandbox was lost") from None
        if outcome.why == "wall":
            raise Unfinished(limit_text("wall", self.limits))
        if outcome.why or len(said) > self.limits.output:
            reason = f"limit: {limit_text(outcome.why or 'output', self.limits)}"
            return Score(0.0, "wrong", reason=reason)
        if outcome.status < 0:
            raise Unfinished(f"{self.argv[0]} was ended by signal {-outcome.status}")
        if outcome.status > 0:
            how = note or f"exit status {outcome.status}"
            raise BadScore(f"{self.argv[0]} failed: {one_line(how, 200)}")
        return score_of(said, self.argv[0])

    def _run(self, text: str) -> tuple[Outcome, bytes, str]:
        level = sandbox_level(self.levels, unsafe=self.unsafe)
        files = [memory_file(text.encode()), memory_file(), memory_file()]
        try:
            with borrowed(level, "program", self.readable) as sandbox:
                sandbox.begin("command", self.limits, files, argv=list(self.argv))
                outcome = sandbox.end()
            said, note = content(files[1], self.limits.output + 1), content(files[2], 500)
            return outcome, said, note.decode(errors="replace").strip()
        finally:
            for file in files:
                os.close(file)

"""The shell of a peer's script; `peers` says what goes in and out."""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

STEPS = 1_000
"""Of a trainer: more than anybody waits for."""


def torch_model(job: dict) -> tuple[Any, str]:
    """transformers' model of a job, on its device, and that device."""
    import torch
    import transformers

    torch.set_num_threads(job["threads"])
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        job["model"], dtype=getattr(torch, job["dtype"])
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device), device


class Channel:
    """The job that comes in, and the answers that go out."""

    def __init__(self) -> None:
        # Whatever a library prints goes to stderr: stdout is for the answers.
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self.job: dict = json.loads(sys.stdin.readline())

    def answer(self, **content: Any) -> None:
        """Says something."""
        print(json.dumps(content), file=self._answers, flush=True)

    def answer_run(self, seconds: float, tokens: int) -> None:
        """Says how a run went, and the most memory that the process has held so far."""
        kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.answer(seconds=seconds, tokens=tokens, peak_memory_bytes=kib * 1024)


Prepare = Callable[[dict], tuple[dict[str, str], Callable[..., Any]]]
"""From a job to the versions of what runs it, and to a function that does all of it. An ImportError
says that the peer is not installed."""


def _prepared(prepare: Prepare) -> tuple[Channel, dict[str, str], Callable[..., Any]]:
    """Reads the job and prepares it; ends the process where the peer is not installed."""
    channel = Channel()
    try:
        return channel, *prepare(channel.job)
    except ImportError as error:
        channel.answer(skipped=f"not installed: {error}")
        sys.exit()


def serve(prepare: Prepare) -> None:
    """Reads a job, prepares it, and does it once for every further line.

    Args:
      prepare: its function returns the number of tokens.
    """
    channel, versions, run = _prepared(prepare)
    channel.answer(versions=versions)
    for _ in sys.stdin:
        start = time.perf_counter()
        tokens = run()
        channel.answer_run(time.perf_counter() - start, tokens)


class Turns:
    """Steps of a trainer, each begun by a line: to it a step is a call of its own loop."""

    def __init__(self, channel: Channel, versions: dict[str, str]):
        self._channel = channel
        self._versions = versions
        self._start: float | None = None

    def begin(self, tokens: int) -> None:
        """To be called where a step begins; it waits for the next line, and ends without one.

        Args:
          tokens: sampled in the step that is over.
        """
        if self._start is None:
            self._channel.answer(versions=self._versions)
        else:
            self._channel.answer_run(time.perf_counter() - self._start, tokens)
        if not sys.stdin.readline():
            os._exit(0)  # nobody waits for what a trainer does at its end
        self._start = time.perf_counter()


def serve_trainer(prepare: Prepare) -> None:
    """As `serve`, for a program that has a loop of its own.

    Args:
      prepare: its function takes `Turns`, trains for `STEPS` steps and calls `begin` at each.
    """
    channel, versions, train = _prepared(prepare)
    train(Turns(channel, versions))


def vowels(text: str) -> float:
    """The reward that trainers give an answer."""
    return float(sum(c in "aeiou" for c in text) % 7)

"""The shell of a peer's script; `peers` says what goes in and out."""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any


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


def serve(prepare: Callable[[dict], tuple[dict[str, str], Callable[[], int]]]) -> None:
    """Reads a job, prepares it, and does it once for every further line.

    Args:
      prepare: from a job to the versions of what runs it, and to a function that does all of it
        and returns the number of tokens. An ImportError says that the peer is not installed.
    """
    channel = Channel()
    try:
        versions, run = prepare(channel.job)
    except ImportError as error:
        channel.answer(skipped=f"not installed: {error}")
        return
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


def serve_trainer(
    prepare: Callable[[dict], tuple[dict[str, str], Callable[[Turns], None]]],
) -> None:
    """As `serve`, for a program that has a loop of its own.

    Args:
      prepare: from a job to the versions, and to a function that trains without end and calls
        `Turns.begin` at every step.
    """
    channel = Channel()
    try:
        versions, train = prepare(channel.job)
    except ImportError as error:
        channel.answer(skipped=f"not installed: {error}")
        return
    train(Turns(channel, versions))

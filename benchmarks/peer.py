"""The shell of a peer's script; `peers` says what goes in and out."""

import json
import os
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


def serve(prepare: Callable[[dict], tuple[dict[str, str], Callable[[], int]]]) -> None:
    """Reads a job, prepares it, and samples once for every further line.

    Args:
      prepare: from a job to the versions of what runs it, and to a function that samples all of it
        and returns the number of tokens. An ImportError says that the peer is not installed.
    """
    # Whatever a library prints goes to stderr: stdout is for the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(content: dict) -> None:
        print(json.dumps(content), file=answers, flush=True)

    try:
        versions, run = prepare(json.loads(sys.stdin.readline()))
    except ImportError as error:
        answer({"skipped": f"not installed: {error}"})
        return
    answer({"versions": versions})
    for _ in sys.stdin:
        start = time.perf_counter()
        tokens = run()
        answer({"seconds": time.perf_counter() - start, "tokens": tokens})

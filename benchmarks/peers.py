"""Other programs on the same work, each in a process and an environment of its own.

A peer is a script run by its own interpreter. It reads a job, one JSON line on stdin, says whether
it is ready, and then does the job once for every further line, printing {"seconds", "tokens"}.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_HERE = Path(__file__).parent
SAMPLERS = {"transformers": "transformers_peer.py", "vllm": "vllm_peer.py"}
LEARNERS = {"torch": "torch_peer.py"}
TRAINERS = {"tunix": "tunix_peer.py", "trl": "trl_peer.py"}
_SCRIPTS = SAMPLERS | LEARNERS | TRAINERS | {"ours": "our_trainer.py"}
# Two allocator and OpenMP libraries that vLLM's CPU build asks to have loaded first.
_TCMALLOC = "/usr/lib/*/libtcmalloc_minimal.so.4"
_OPENMP = "lib/libiomp5.so"


class Updates(NamedTuple):
    """What a peer is to learn: one step of AdamW on rows of random tokens that all train."""

    model: str  # folder
    rows: int
    length: int  # tokens of a row
    micro: int  # rows of a micro-batch
    dtype: str
    threads: int

    @property
    def tokens(self) -> int:
        """Of one step."""
        return self.rows * self.length


class Steps(NamedTuple):
    """What a peer is to train: steps of GRPO without KL, one update of AdamW each.

    An answer's reward is the remainder of its vowels by seven.
    """

    model: str  # folder
    prompts: Sequence[str]
    longest_prompt: int  # tokens
    samples: int  # of each prompt, in each step
    new: int  # tokens of each, no more and no less
    micro: Mapping[str, int]  # name of a trainer -> sequences of its micro-batch
    dtype: str
    threads: int

    @property
    def tokens(self) -> int:
        """Sampled in a step."""
        return len(self.prompts) * self.samples * self.new


class Job(NamedTuple):
    """What a peer is to sample; T = 1 from the whole vocabulary, and no stop ids."""

    model: str  # folder
    prompts: Sequence[Sequence[int]]
    lengths: Sequence[Sequence[int]]  # new tokens of each sample of each prompt
    slots: int  # sequences at once
    dtype: str
    threads: int

    @property
    def tokens(self) -> int:
        """Sampled in one run."""
        return sum(map(sum, self.lengths))


Work = Job | Updates | Steps


class Peer:
    """A peer that is ready; called with the number of the turn, of which 0 does nothing.

    Attributes:
      versions: of what runs it.
      peak_memory_bytes: the most that its process held until its last run.
    """

    def __init__(self, process: subprocess.Popen[str], job: Work, versions: Mapping[str, str]):
        self.versions = versions
        self.peak_memory_bytes = 0
        self._process = process
        self._job = job

    def __call__(self, number: int) -> float:
        """Seconds of a run.

        Raises:
          RuntimeError: it died, or processed another number of tokens.
        """
        if number == 0:  # a peer compiles nothing that one discarded run would not warm
            return 0.0
        said = _ask(self._process, "run")
        if said.get("tokens") != self._job.tokens:
            raise RuntimeError(f"asked a peer for {self._job.tokens} tokens, and it said {said}")
        self.peak_memory_bytes = said["peak_memory_bytes"]
        return said["seconds"]


@contextlib.contextmanager
def started(
    pythons: Mapping[str, str], job: Work
) -> Iterator[tuple[dict[str, Peer], dict[str, str]]]:
    """Starts peers; yields those that are ready, and why the others are not.

    Args:
      pythons: name of a peer -> interpreter of its environment.
      job: what they will do.
    """
    ready: dict[str, Peer] = {}
    skipped: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for name, python in pythons.items():
            command = [python, str(_HERE / _SCRIPTS[name])]
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=_environment(name, python, job),
                )
            except OSError as error:
                skipped[name] = f"{python}: {error.strerror}"
                continue
            stack.callback(_end, process)
            said = _ask(process, json.dumps(job._asdict()))
            if "versions" in said:
                ready[name] = Peer(process, job, said["versions"])
            else:
                skipped[name] = said.get("skipped", "it ended before it was ready")
        yield ready, skipped


def _ask(process: subprocess.Popen[str], line: str) -> dict[str, Any]:
    """The answer to a line; empty where there is none: it has ended, or is no script of ours."""
    assert process.stdin is not None and process.stdout is not None, "opened with pipes"
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(line + "\n")
        process.stdin.flush()
    answer = process.stdout.readline()
    with contextlib.suppress(json.JSONDecodeError):
        return json.loads(answer)
    return {}


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def _environment(name: str, python: str, job: Work) -> dict[str, str]:
    """Ours, without what names our packages, with as many threads as we have."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "XLA_FLAGS")}
    env = {
        **kept,
        "OMP_NUM_THREADS": str(job.threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if name == "vllm":
        prefix = Path(python).absolute().parents[1]
        found = [*Path("/").glob(_TCMALLOC[1:]), *prefix.glob(_OPENMP)]
        env |= {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}
        if found:
            env["LD_PRELOAD"] = ":".join(map(str, found))
    return env

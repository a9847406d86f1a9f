"""Our own GRPO stage, as `jaxrl-vr train` runs it, in a process of its own beside other trainers.

`peers` says what goes in and out.
"""

import importlib.metadata
import json
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from peer import STEPS, Turns, serve_trainer, vowels
from rl_run import rl_run


def reward(example: Any, response: str) -> float:
    """That of a response, for the verifiers' workers."""
    return vowels(response)


def config_of(job: dict, folder: Path) -> dict[str, Any]:
    """The run."""
    questions = folder / "questions.jsonl"
    questions.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in job["prompts"]))
    longest, new = job["longest_prompt"], job["new"]
    return rl_run(
        folder,
        model={"path": job["model"], "dtype": job["dtype"], "max_length": longest + new},
        slots=len(job["prompts"]) * job["samples"],
        data={
            "path": str(questions),
            "fields": {"prompt": "prompt"},
            "template": {"type": "plain"},
            "verifier": {"type": "custom", "path": "our_trainer:reward"},
        },
        stage={
            "steps": STEPS,
            "prompts": len(job["prompts"]),
            "samples": job["samples"],
            "max_prompt_tokens": longest,
            "sampling": {"max_new_tokens": new},
            "micro": {"rows": job["micro"]["ours"]},
        },
    )


def prepare(job: dict) -> tuple[dict[str, str], Any]:
    """The run."""
    import jax

    from jaxrl_vr.config import parse
    from jaxrl_vr.sampler.engine import SlotEngine
    from jaxrl_vr.train import context
    from jaxrl_vr.train.config import RunConfig
    from jaxrl_vr.train.run import run
    from jaxrl_vr.types import Request

    def train(turns: Turns) -> None:
        class Engine(SlotEngine):
            """Begins a turn with the new weights, and samples to the limit."""

            tokens = 0

            def set_params(self, params: Any, version: int) -> None:
                jax.block_until_ready(params)
                turns.begin(self.counters.sampled_tokens - self.tokens)
                self.tokens = self.counters.sampled_tokens
                super().set_params(params, version)

            def submit(self, requests: Iterable[Request]) -> None:
                super().submit(
                    replace(r, sampling=replace(r.sampling, stop_ids=())) for r in requests
                )

        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(context, "SlotEngine", Engine),
        ):
            run(parse(RunConfig, config_of(job, Path(folder))))

    return {name: importlib.metadata.version(name) for name in ("jaxrl-vr", "jax")}, train


if __name__ == "__main__":
    # Of this checkout, whatever is installed. The workers that verify import this module by its
    # name, which they do from its folder.
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    serve_trainer(prepare)

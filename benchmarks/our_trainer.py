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

from peer import Turns, serve_trainer

# More than anybody will wait for.
_STEPS = 100_000


def vowels(example: Any, response: str) -> float:
    """The reward."""
    return float(sum(c in "aeiou" for c in response) % 7)


def config_of(job: dict, folder: Path) -> dict[str, Any]:
    """The run: every setting is the default, but for what the job says."""
    questions = folder / "questions.jsonl"
    questions.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in job["prompts"]))
    return {
        "run_dir": str(folder / "run"),
        "model": {
            "type": "pretrained",
            "path": job["model"],
            "dtype": job["dtype"],
            "max_length": job["longest_prompt"] + job["new"],
        },
        "tokenizer": {"type": "hf"},
        "engine": {"slots": len(job["prompts"]) * job["samples"]},
        "checkpoint": {"every": _STEPS},
        "logging": {"console": "off", "tensorboard": False},
        "data": [
            {
                "name": "questions",
                "type": "jsonl",
                "path": str(questions),
                "fields": {"prompt": "prompt"},
                "template": {"type": "plain"},
                "verifier": {"type": "custom", "path": "our_trainer:vowels"},
            }
        ],
        "stages": [
            {
                "type": "rl",
                "name": "grpo",
                "data": ["questions"],
                "steps": _STEPS,
                "prompts": len(job["prompts"]),
                "samples": job["samples"],
                "max_prompt_tokens": job["longest_prompt"],
                "sampling": {"max_new_tokens": job["new"]},
                "micro": {"rows": job["micro"]["ours"]},
                "optimizer": {"type": "adamw", "learning_rate": 1e-6},
            }
        ],
    }


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
    # The workers that verify import this module by its name.
    sys.path.insert(0, str(Path(__file__).parent))
    serve_trainer(prepare)

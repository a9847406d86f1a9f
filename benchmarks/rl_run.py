"""The config of a run that has one RL stage on prompts from a file; every setting that is not given
has its default. Without imports of ours: peers' scripts use it too."""

from pathlib import Path
from typing import Any


def rl_run(
    folder: Path, *, model: dict[str, Any], slots: int, data: dict[str, Any], stage: dict[str, Any]
) -> dict[str, Any]:
    """What `parse` takes.

    Args:
      folder: where the run goes.
      model: path, dtype and context of a Hugging Face folder.
      slots: of the engine.
      data: path, fields, template and verifier of the prompts, a JSONL file.
      stage: its steps and sizes.
    """
    return {
        "run_dir": str(folder / "run"),
        "model": {"type": "pretrained", **model},
        "tokenizer": {"type": "hf"},
        "engine": {"slots": slots},
        "checkpoint": {"every": stage["steps"]},
        "logging": {"console": "off", "tensorboard": False},
        "data": [{"name": "questions", "type": "jsonl", **data}],
        "stages": [
            {
                "type": "rl",
                "name": "rl",
                "data": ["questions"],
                "optimizer": {"type": "adamw", "learning_rate": 1e-6},
                **stage,
            }
        ],
    }

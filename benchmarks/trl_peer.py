"""TRL's GRPOTrainer in a process of its own, sampling with transformers' `generate`.

`peers` says what goes in and out.
"""

import tempfile
from collections.abc import Callable
from typing import Any

from peer import STEPS, Turns, serve_trainer, torch_model, vowels


def rewards(completions: list[str], **_: Any) -> list[float]:
    """Those of the completions."""
    return [vowels(text) for text in completions]


def prepare(job: dict) -> tuple[dict[str, str], Callable[[Turns], None]]:
    """The trainer."""
    import torch
    import transformers
    import trl
    from datasets import Dataset

    model, device = torch_model(job)
    sequences = len(job["prompts"]) * job["samples"]
    micro = min(job["micro"]["trl"], sequences)
    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=rewards,
        args=trl.GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=sequences // micro,
            num_generations=job["samples"],
            max_completion_length=job["new"],
            generation_kwargs={"min_new_tokens": job["new"]},
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            beta=0.0,
            learning_rate=1e-6,
            max_steps=STEPS,
            report_to=[],
            use_cpu=device == "cpu",
            bf16=False,
            fp16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            shuffle_dataset=False,
            disable_tqdm=True,
            optim="adamw_torch",
        ),
        train_dataset=Dataset.from_list([{"prompt": p} for p in job["prompts"]] * STEPS),
        processing_class=transformers.AutoTokenizer.from_pretrained(job["model"]),
    )

    def train(turns: Turns) -> None:
        sample, sampled = trainer._generate_and_score_completions, [0]

        def in_turn(*args: Any, **kwargs: Any) -> Any:
            turns.begin(sampled[0])
            out = sample(*args, **kwargs)
            sampled[0] = int(out["completion_mask"].sum())
            return out

        trainer._generate_and_score_completions = in_turn
        trainer.train()

    versions = {module.__name__: module.__version__ for module in (trl, transformers, torch)}
    return versions, train


if __name__ == "__main__":
    serve_trainer(prepare)

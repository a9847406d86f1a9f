"""Makes `fixtures/`: tiny random models by transformers and torch, and the logits they compute.

Run once, where both are installed: `python tests/models/make_fixtures.py`. Each folder is a model
folder as `save_pretrained` writes it plus `logits.npz` (tokens_<i> [T] and logits_<i> [T, V] of
each prompt, float32 arithmetic on the file's weights).
"""

import shutil
from pathlib import Path

import numpy as np
import torch
import transformers

FOLDER = Path(__file__).parent / "fixtures"
SIZES = dict(
    vocab_size=48,
    hidden_size=32,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=64,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=None,
    attn_implementation="eager",
)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 1.5,
    "beta_slow": 0.1,
}
# name: configuration, dtype of the file, largest file
MODELS = {
    "llama-gqa-tied": (
        transformers.LlamaConfig(
            **SIZES, num_key_value_heads=2, tie_word_embeddings=True, rms_norm_eps=1e-5
        ),
        "float32",
        "5GB",
    ),
    "llama-mha-untied-sharded": (
        transformers.LlamaConfig(**SIZES, num_key_value_heads=4, rms_norm_eps=1e-5),
        "bfloat16",
        "16KB",
    ),
    "llama3-scaled": (
        transformers.LlamaConfig(
            **SIZES, num_key_value_heads=1, rope_parameters=LLAMA3, rms_norm_eps=1e-5
        ),
        "float16",
        "5GB",
    ),
    "qwen2-bias": (
        transformers.Qwen2Config(
            **SIZES,
            num_key_value_heads=2,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        ),
        "bfloat16",
        "5GB",
    ),
    "qwen3-head-dim": (
        transformers.Qwen3Config(
            **SIZES,
            num_key_value_heads=2,
            head_dim=12,
            rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        ),
        "bfloat16",
        "5GB",
    ),
    "qwen2-yarn": (
        transformers.Qwen2Config(
            **SIZES, num_key_value_heads=2, tie_word_embeddings=True, rope_parameters=YARN
        ),
        "bfloat16",
        "5GB",
    ),
}
LENGTHS = (36, 5, 1)


def randomise(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Weights large enough for logits of about 1 to 10; no norm is 1, no bias 0."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1 + 0.3 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(noise * 1.5 * parameter.shape[-1] ** -0.5)


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    generator = torch.Generator().manual_seed(0)
    rng = np.random.default_rng(0)
    for name, (config, dtype, max_shard_size) in MODELS.items():
        model = transformers.AutoModelForCausalLM.from_config(config)
        randomise(model, generator)
        model.to(getattr(torch, dtype))
        model.save_pretrained(FOLDER / name, max_shard_size=max_shard_size)
        # Read again, because `to` has rounded the rotary frequencies as well.
        model = transformers.AutoModelForCausalLM.from_pretrained(
            FOLDER / name, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        arrays = {}
        for i, length in enumerate(LENGTHS):
            tokens = rng.integers(0, config.vocab_size, length)
            with torch.no_grad():
                logits = model(torch.tensor(tokens)[None]).logits[0].numpy()
            arrays |= {f"tokens_{i}": tokens.astype(np.int32), f"logits_{i}": logits}
        np.savez_compressed(FOLDER / name / "logits.npz", **arrays)


if __name__ == "__main__":
    main()

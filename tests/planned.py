"""A small run to plan, whose rows and model 8 devices divide."""

CONFIG = """
run_dir = "runs/planned"
[mesh]
data = 1
fsdp = -1
[model]
type = "random"
width = 256
layers = 3
heads = 4
kv_heads = 2
ffn = 512
max_length = 128
attention = "xla"
[tokenizer]
type = "char"
alphabet = "0123456789+=>,"
[engine]
slots = 16
steps_per_call = 4
[[data]]
name = "train"
type = "arithmetic"
digits = 1
[[stages]]
type = "rl"
name = "rl"
data = ["train"]
steps = 2
prompts = 4
samples = 4
max_prompt_tokens = 64
sampling = { max_new_tokens = 64 }
micro = { rows = 8 }
optimizer = { type = "adamw", learning_rate = 1e-3 }
"""

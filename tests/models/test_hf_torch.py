"""Live parity with transformers and torch, where they are installed: in, out, generation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pages_by_hand import ByHand
from pretrained import smollm2

from jaxrl_vr.models import hf, hf_export
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.sharding import TRAIN_RULES

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TINY = dict(
    vocab_size=50,
    hidden_size=24,
    intermediate_size=36,
    num_hidden_layers=2,
    max_position_embeddings=96,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
    attn_implementation="eager",
)
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 300.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 300.0,
    "factor": 8.0,
    "original_max_position_embeddings": 12,
    "beta_fast": 1.5,
    "beta_slow": 0.1,
}
CONFIGS = {
    "llama-6-2": ("Llama", dict(num_attention_heads=6, num_key_value_heads=2)),
    "llama-tied-mha": (
        "Llama",
        dict(num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=True),
    ),
    "llama-head-dim": (
        "Llama",
        dict(num_attention_heads=4, num_key_value_heads=1, head_dim=14, rms_norm_eps=1e-3),
    ),
    "llama3-scaled": (
        "Llama",
        dict(num_attention_heads=4, num_key_value_heads=2, rope_parameters=SCALED),
    ),
    "qwen2-untied": ("Qwen2", dict(num_attention_heads=4, num_key_value_heads=1)),
    "qwen2-tied-mha": (
        "Qwen2",
        dict(num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=True),
    ),
    "qwen3-tied": (
        "Qwen3",
        dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True),
    ),
    "qwen2-yarn": (
        "Qwen2",
        dict(num_attention_heads=4, num_key_value_heads=2, head_dim=12, rope_parameters=YARN),
    ),
    "qwen3-yarn-mscale": (
        "Qwen3",
        dict(
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=12,
            rope_parameters=YARN | {"mscale": 2.0, "mscale_all_dim": 0.5, "truncate": False},
        ),
    ),
    "llama-linear": (
        "Llama",
        dict(
            num_attention_heads=4,
            num_key_value_heads=2,
            rope_parameters={"rope_type": "linear", "rope_theta": 300.0, "factor": 3.0},
        ),
    ),
    "qwen3-mha": ("Qwen3", dict(num_attention_heads=3, num_key_value_heads=3, head_dim=4)),
}


def random_model(kind, values, seed=0):
    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind}Config")(**TINY, **values)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape)
            if "norm" in name:
                parameter.copy_(1 + 0.3 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(noise * 1.5 * parameter.shape[-1] ** -0.5)
    return model


def torch_logits(model, tokens):
    with torch.no_grad():
        return model(torch.tensor(tokens)).logits.numpy()


def logits_program(model):
    """[B, T] rows without padding -> [B, T, V]."""

    @jax.jit
    def run(params, tokens):
        B, T = tokens.shape
        positions = jnp.broadcast_to(jnp.arange(T)[None], (B, T))
        hidden = model.hidden(params, tokens, positions, jnp.ones((B, T), jnp.int32))
        return jnp.einsum("BTD,VD->BTV", hidden, model.head(params))

    return run


def greedy(model, params, prompt, n):
    """Completion of one prompt by prefill and decode."""
    by_hand = ByHand(model, model.sampler_view(params), 1)
    last, out = by_hand.prefill([prompt]), []
    for position in range(len(prompt), len(prompt) + n):
        out.append(int(jnp.argmax(last @ model.view_head(by_hand.view).T)))
        last = by_hand.decode([out[-1]], [position])
    return out


@pytest.mark.parametrize("kind, values", CONFIGS.values(), ids=list(CONFIGS))
def test_in_and_out(kind, values, tmp_path, one_device):
    theirs = random_model(kind, values)
    theirs.save_pretrained(tmp_path / "theirs")
    arch, params = hf.load(tmp_path / "theirs", rules=TRAIN_RULES, mesh=one_device)
    tokens = np.random.default_rng(0).integers(0, 50, (2, 60)).astype(np.int32)
    expected = torch_logits(theirs, tokens)
    assert np.abs(expected).max() > 1.0
    got = logits_program(Transformer(arch))(params, tokens)
    assert np.abs(got - expected).max() <= 1e-4

    hf_export.export(tmp_path / "ours", arch, params, max_file_bytes=8_000)
    again, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", attn_implementation="eager", output_loading_info=True
    )
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert again.dtype == torch.float32
    np.testing.assert_array_equal(torch_logits(again, tokens), expected)


@pytest.mark.parametrize("name", ["llama3-scaled", "qwen2-yarn", "qwen2-untied", "qwen3-tied"])
def test_greedy_completion_equals_that_of_the_export(name, tmp_path, one_device):
    random_model(*CONFIGS[name]).save_pretrained(tmp_path / "theirs")
    arch, params = hf.load(tmp_path / "theirs", rules=TRAIN_RULES, mesh=one_device)
    hf_export.export(tmp_path / "ours", arch, params)
    exported = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    prompt = [3, 1, 4, 1, 5, 9, 2]
    generated = exported.generate(
        torch.tensor([prompt]), max_new_tokens=30, do_sample=False, pad_token_id=0
    )
    assert greedy(Transformer(arch), params, prompt, 30) == generated[0, len(prompt) :].tolist()


def test_exported_source_config_and_eos_ids_reach_transformers(tmp_path, one_device):
    kind, values = CONFIGS["llama3-scaled"]
    theirs = random_model(kind, values)
    theirs.save_pretrained(tmp_path / "theirs")
    arch, params = hf.load(tmp_path / "theirs", rules=TRAIN_RULES, mesh=one_device)
    source = hf.read_config(tmp_path / "theirs")
    prompt = [3, 1, 4, 1, 5]
    completion = greedy(Transformer(arch), params, prompt, 8)
    eos = completion[3]
    hf_export.export(
        tmp_path / "ours",
        arch,
        params,
        dtype="bfloat16",
        source_config=source,
        eos_ids=(eos, 49),
    )
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", dtype=torch.float32, attn_implementation="eager"
    )
    assert again.generation_config.eos_token_id == [eos, 49]
    assert again.config.rope_parameters == theirs.config.rope_parameters
    rounded = torch_logits(again, [prompt])
    exact = torch_logits(theirs, [prompt])
    assert 0 < np.abs(rounded - exact).max() < 0.05 * np.abs(exact).max()
    hf_export.export(tmp_path / "exact", arch, params, source_config=source, eos_ids=(eos, 49))
    exact = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exact")
    generated = exact.generate(
        torch.tensor([prompt]), max_new_tokens=8, do_sample=False, pad_token_id=0
    )
    stop = completion.index(eos)
    assert generated[0, len(prompt) :].tolist() == completion[: stop + 1]


@pytest.mark.slow
def test_smollm2_equals_transformers(one_device):
    folder = smollm2()
    arch, params = hf.load(hf.locate(folder), rules=TRAIN_RULES, mesh=one_device)
    model = Transformer(arch)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = (
        "The capital of France is",
        "def add(a, b):\n    return",
        "<|im_start|>user\nWhich is larger, 41 or 14?<|im_end|>\n<|im_start|>assistant\n",
    )
    run = logits_program(model)
    for text in texts:
        tokens = np.asarray([tokenizer(text)["input_ids"]], np.int32)
        expected = torch_logits(theirs, tokens)
        difference = np.abs(np.asarray(run(params, tokens)) - expected).max()
        print(f"{tokens.shape[1]} tokens, logits to {np.abs(expected).max():.1f}: {difference:.1e}")
        assert difference <= 2e-3
    prompt = tokenizer(texts[2])["input_ids"]
    generated = theirs.generate(
        torch.tensor([prompt]), max_new_tokens=12, min_new_tokens=12, do_sample=False
    )[0, len(prompt) :].tolist()
    ours = greedy(model, params, prompt, 12)
    if tokenizer.eos_token_id in ours:  # theirs must go on behind it, ours does anyway
        end = ours.index(tokenizer.eos_token_id)
        ours, generated = ours[:end], generated[:end]
    assert len(ours) > 0 and ours == generated

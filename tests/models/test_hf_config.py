"""config.json in: spellings of both transformers versions, what is refused, what is missing."""

import math

import pytest
from pydantic import ValidationError

from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.hf_config import architecture_from_config, config_of, with_rotary
from jaxrl_vr.models.rope_scaling import LinearScaling, Llama3Scaling, YarnScaling

SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}
LLAMA_3_2_1B = {
    **SMOLLM2,
    "head_dim": 64,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "vocab_size": 128256,
}
QWEN25_1B = {
    "model_type": "qwen2",
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "num_attention_heads": 12,
    "num_hidden_layers": 28,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3_06B = {
    **QWEN25_1B,
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "rope_scaling": None,
    "sliding_window": None,
}
PUBLIC = {
    "smollm2": (
        SMOLLM2,
        Architecture(
            family="llama",
            vocab_size=49152,
            width=576,
            layers=30,
            heads=9,
            kv_heads=3,
            head_dim=64,
            ffn=1536,
            tied=True,
            rope_theta=100_000.0,
            norm_eps=1e-5,
            max_length=8192,
        ),
    ),
    "llama-3.2": (
        LLAMA_3_2_1B,
        Architecture(
            family="llama",
            vocab_size=128256,
            width=2048,
            layers=16,
            heads=32,
            kv_heads=8,
            head_dim=64,
            ffn=8192,
            tied=True,
            rope_theta=500_000.0,
            rope_scaling=Llama3Scaling(
                factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192
            ),
            norm_eps=1e-5,
            max_length=131072,
        ),
    ),
    "qwen2.5": (
        QWEN25_1B,
        Architecture(
            family="qwen2",
            vocab_size=151936,
            width=1536,
            layers=28,
            heads=12,
            kv_heads=2,
            head_dim=128,
            ffn=8960,
            tied=True,
            rope_theta=1_000_000.0,
            norm_eps=1e-6,
            max_length=32768,
        ),
    ),
    "qwen3": (
        QWEN3_06B,
        Architecture(
            family="qwen3",
            vocab_size=151936,
            width=1024,
            layers=28,
            heads=16,
            kv_heads=8,
            head_dim=128,
            ffn=3072,
            tied=True,
            rope_theta=1_000_000.0,
            norm_eps=1e-6,
            max_length=40960,
        ),
    ),
}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
PUBLIC["qwen2.5 for 128k"] = (
    {**QWEN25_1B, "max_position_embeddings": 131072, "rope_scaling": YARN},
    PUBLIC["qwen2.5"][1].model_copy(
        update={
            "rope_scaling": YarnScaling(factor=4.0, original_length=32768),
            "max_length": 131072,
        }
    ),
)
PUBLIC["linear"] = (
    {**SMOLLM2, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    PUBLIC["smollm2"][1].model_copy(update={"rope_scaling": LinearScaling(factor=4.0)}),
)


def without(config, *names):
    return {k: v for k, v in config.items() if k not in names}


@pytest.mark.parametrize("config, expected", PUBLIC.values(), ids=list(PUBLIC))
def test_public_configs(config, expected):
    assert architecture_from_config(config) == expected


@pytest.mark.parametrize("config, expected", PUBLIC.values(), ids=list(PUBLIC))
def test_spelling_of_transformers_5(config, expected):
    rope = config.get("rope_scaling") or {"rope_type": "default"}
    new = without(config, "rope_scaling", "rope_theta")
    new["rope_parameters"] = {**rope, "rope_theta": config["rope_theta"]}
    assert architecture_from_config(new) == expected


@pytest.mark.parametrize("config, expected", PUBLIC.values(), ids=list(PUBLIC))
def test_written_config_reads_back(config, expected):
    assert architecture_from_config(config_of(expected)) == expected


def test_early_spelling_of_the_rope_type():
    rope = without(LLAMA_3_2_1B["rope_scaling"], "rope_type")
    config = {**LLAMA_3_2_1B, "rope_scaling": {**rope, "type": "llama3"}}
    assert architecture_from_config(config) == PUBLIC["llama-3.2"][1]


# As a config.json may say it -> how transformers reads it.
YARNS = {
    "all numbers": (
        {"beta_fast": 16, "beta_slow": 2, "attention_factor": 1.5, "truncate": False}
        | {"mscale": 0.7, "mscale_all_dim": 1.0},
        {"beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.5, "truncate": False}
        | {"mscale": 0.7, "mscale_all_dim": 1.0},
    ),
    "nulls and zeros": (
        dict.fromkeys(("beta_fast", "beta_slow", "mscale", "mscale_all_dim"), 0)
        | {"attention_factor": None, "truncate": None},
        {"truncate": False},
    ),
    "no factor": ({"factor": None}, {"factor": 1.25}),
    "no original length": (
        {"original_max_position_embeddings": None, "factor": 2.0},
        {"original_length": 40960, "factor": 2.0},
    ),
    "early spelling": ({"type": "yarn", "rope_type": None}, {}),
}


@pytest.mark.parametrize("changed, expected", YARNS.values(), ids=list(YARNS))
def test_yarn_is_read_as_transformers_reads_it(changed, expected):
    rope = {k: v for k, v in (YARN | changed).items() if (k, v) != ("rope_type", None)}
    config = {**QWEN25_1B, "max_position_embeddings": 40960, "rope_scaling": rope}
    arch = architecture_from_config(config)
    numbers = {"factor": 4.0, "original_length": 32768} | expected
    assert arch.rope_scaling == YarnScaling(**numbers)
    assert (arch.max_length, arch.longest) == (
        40960,
        numbers["factor"] * numbers["original_length"],
    )
    assert architecture_from_config(config_of(arch)) == arch


def test_original_length_beside_the_scaling_comes_first():
    config = {**QWEN25_1B, "rope_scaling": YARN, "original_max_position_embeddings": 16384}
    assert architecture_from_config(config).rope_scaling.original_length == 16384


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"factor": 0.5}, "rope_scaling.factor = 0.5: must be greater than or equal to 1"),
        ({"factor": "4"}, "factor = '4' must be a number"),
        ({"attention_factor": 0}, "rope_scaling.attention_factor = 0: must be greater than 0"),
        ({"truncate": "no"}, "truncate = 'no' must be true or false"),
        ({"original_max_position_embeddings": 0}, "rope_scaling.original_length = 0: must be"),
        (
            {"original_max_position_embeddings": 8000},
            "max_length = 32768 exceeds rope_scaling.factor = 4 x original_length = 8000, 32000 "
            "tokens; lower it, set factor to 4.1, or original_length to what",
        ),
    ],
    ids=str,
)
def test_faulty_yarn_is_one_message(changed, message):
    with pytest.raises(ValueError) as caught:
        architecture_from_config({**QWEN25_1B, "rope_scaling": YARN | changed})
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith("config.json")


def test_linear_scaling_without_its_factor_is_refused():
    with pytest.raises(ValueError, match=r"config.json: rope_type = 'linear' lacks factor"):
        architecture_from_config({**SMOLLM2, "rope_scaling": {"type": "linear"}})


def test_another_rotary_embedding_is_written_over_that_of_a_config():
    arch = PUBLIC["qwen2.5 for 128k"][1]
    rope = {"rope_type": "default", "rope_theta": 1e6}
    source = without(QWEN25_1B, "rope_theta") | {"rope_parameters": rope}
    written = with_rotary(source, arch)
    assert architecture_from_config(written) == arch
    assert "rope_parameters" not in written and written["bos_token_id"] == 151643
    assert written["max_position_embeddings"] == 131072


def test_defaults_of_llama():
    arch = architecture_from_config(
        without(SMOLLM2, "num_key_value_heads", "head_dim", "tie_word_embeddings", "rope_theta")
    )
    assert (arch.kv_heads, arch.head_dim, arch.tied, arch.rope_theta) == (9, 64, False, 10_000.0)


@pytest.mark.parametrize("model_type", ["mistral", "gemma3_text", "qwen3_moe", "qwen2_vl", None])
def test_unsupported_architecture_names_what_is_supported(model_type):
    message = (
        rf"model_type = {model_type!r} is not supported; supported are llama .* qwen2 .* qwen3"
    )
    with pytest.raises(ValueError, match=message):
        architecture_from_config({**SMOLLM2, "model_type": model_type})


REFUSED = {
    "llama attention_bias": (SMOLLM2, {"attention_bias": True}),
    "qwen3 attention_bias": (QWEN3_06B, {"attention_bias": True}),
    "mlp_bias": (LLAMA_3_2_1B, {"mlp_bias": True}),
    "use_sliding_window": (QWEN25_1B, {"use_sliding_window": True}),
    "hidden_act": (SMOLLM2, {"hidden_act": "gelu"}),
    "pretraining_tp": (SMOLLM2, {"pretraining_tp": 4}),
    "num_local_experts": (SMOLLM2, {"num_local_experts": 8}),
    "num_experts": (QWEN3_06B, {"num_experts": 128}),
    "partial_rotary_factor": (SMOLLM2, {"partial_rotary_factor": 0.5}),
    "quantization_config": (SMOLLM2, {"quantization_config": {"bits": 4}}),
}


@pytest.mark.parametrize("config, change", REFUSED.values(), ids=list(REFUSED))
def test_features_we_lack_are_refused_by_name_and_value(config, change):
    ((name, value),) = change.items()
    with pytest.raises(ValueError) as caught:
        architecture_from_config({**config, **change})
    assert f"config.json: {name} = {value!r} is not supported" in str(caught.value)


def test_attention_bias_says_nothing_about_qwen2():
    assert architecture_from_config({**QWEN25_1B, "attention_bias": True}).has_qkv_bias


def test_sliding_layers_are_refused():
    types = ["full_attention", "sliding_attention"]
    with pytest.raises(ValueError, match=r"layer_types holds \['sliding_attention'\]"):
        architecture_from_config({**QWEN3_06B, "layer_types": types})
    assert architecture_from_config({**QWEN3_06B, "layer_types": ["full_attention"] * 28}).layers


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "proportional"])
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_other_rotary_scalings_are_refused(kind, key):
    rope = {"rope_type": kind, "factor": 4.0}
    message = (
        rf"rope_type = '{kind}' is not supported; only 'default', 'linear', 'llama3' and 'yarn'"
    )
    with pytest.raises(ValueError, match=message):
        architecture_from_config({**without(QWEN25_1B, "rope_scaling"), key: rope})


def test_partial_and_layerwise_rotary_are_refused():
    with pytest.raises(ValueError, match=r"partial_rotary_factor = 0.25"):
        rope = {"rope_type": "default", "partial_rotary_factor": 0.25}
        architecture_from_config({**SMOLLM2, "rope_parameters": rope})
    with pytest.raises(ValueError, match=r"rope_parameters by layer \(\['full_attention'\]\)"):
        rope = {"full_attention": {"rope_type": "default"}}
        architecture_from_config({**SMOLLM2, "rope_parameters": rope})


def test_llama3_scaling_without_its_numbers_is_refused():
    rope = without(LLAMA_3_2_1B["rope_scaling"], "factor", "original_max_position_embeddings")
    message = r"rope_type = 'llama3' lacks factor, original_max_position_embeddings"
    with pytest.raises(ValueError, match=message):
        architecture_from_config({**LLAMA_3_2_1B, "rope_scaling": rope})


def test_missing_fields_are_named():
    with pytest.raises(ValueError, match=r"config.json of a llama model lacks hidden_size, rms_n"):
        architecture_from_config(without(SMOLLM2, "hidden_size", "rms_norm_eps"))
    with pytest.raises(ValueError, match=r"a qwen3 model lacks num_key_value_heads, head_dim"):
        architecture_from_config(without(QWEN3_06B, "num_key_value_heads", "head_dim"))


def test_heads_that_do_not_divide_are_named():
    with pytest.raises(ValueError, match=r"kv_heads = 2 does not divide heads = 9"):
        architecture_from_config({**SMOLLM2, "num_key_value_heads": 2})


SIZES = (
    "vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "intermediate_size max_position_embeddings"
).split()


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [0, -1, 2**31, 10**400, 2.5, "9", True, [9], math.nan], ids=str)
def test_a_size_that_is_none_is_named(name, value):
    with pytest.raises(ValueError) as caught:
        architecture_from_config({**LLAMA_3_2_1B, name: value})
    said = f"config.json: {name} = {repr(value)[:60]} must be a whole number from 1 to 2147483647"
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("name", ["rms_norm_eps", "rope_theta", "factor", "low_freq_factor"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 10**400, "1e-5", True, [1]], ids=str)
def test_a_number_that_is_none_is_named(name, value):
    rope = LLAMA_3_2_1B["rope_scaling"]
    changed = {"rope_scaling": {**rope, name: value}} if name in rope else {name: value}
    with pytest.raises(ValueError) as caught:
        architecture_from_config({**LLAMA_3_2_1B, **changed})
    said = f"config.json: {name} = {repr(value)[:60]} must be a number"
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes' must be true or false"),
        ({"rope_theta": 0}, r"rope_theta = 0.0: must be greater than 0"),
        ({"rms_norm_eps": -1}, r"norm_eps = -1: must be greater than or equal to 0"),
        ({"head_dim": 7}, "head_dim = 7 is odd"),
        ({"num_key_value_heads": 5}, "kv_heads = 5 does not divide heads = 32"),
        ({"rope_scaling": [1]}, r"rope_scaling = \[1\] is not an object"),
        ({"rope_scaling": "linear"}, "rope_scaling = 'linear' is not an object"),
        ({"layer_types": 3}, r"layer_types holds \['3'\]"),
        ({"layer_types": [["full_attention"]]}, "layer_types holds"),
        ({"model_type": ["llama"]}, r"model_type = \['llama'\] is not supported"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_other_faulty_values_are_one_message(changed, message):
    with pytest.raises(ValueError, match=message) as caught:
        architecture_from_config({**LLAMA_3_2_1B, **changed})
    assert not isinstance(caught.value, ValidationError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name, value",
    [("layers", 2**31), ("vocab_size", 10**12), ("rope_theta", 0.0), ("rope_theta", 1e300)]
    + [("norm_eps", -1e-5), ("norm_eps", math.nan), ("rope_theta", math.inf)],
)
def test_bounds_of_an_architecture(name, value):
    arch = PUBLIC["smollm2"][1]
    with pytest.raises(ValidationError, match=name):
        Architecture(**arch.model_dump() | {name: value})

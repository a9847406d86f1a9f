"""config.json of the Hugging Face families we compute, to `Architecture` and back.

Whatever would change the computation and is not ours is refused by name. Not here: files (hf.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl_vr.config import parse
from jaxrl_vr.models.architecture import Architecture

CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "ffn",
    "tie_word_embeddings": "tied",
    "rms_norm_eps": "norm_eps",
    "max_position_embeddings": "max_length",
}
# Kind of rotary scaling -> its fields in a config.json -> ours.
_SCALINGS = {
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
        "original_max_position_embeddings": "original_length",
    },
    "yarn": {
        "factor": "factor",
        "original_max_position_embeddings": "original_length",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "attention_factor": "attention_factor",
        "mscale": "mscale",
        "mscale_all_dim": "mscale_all_dim",
        "truncate": "truncate",
    },
}
# Of YaRN, that transformers takes its default for where they are missing, null or 0.
_OPTIONAL = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
# Keys of a config.json that change the computation, and the only value we compute.
_ONLY = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "pretraining_tp": 1,
    "partial_rotary_factor": 1,
    "num_experts": 0,
    "num_local_experts": 0,
    "quantization_config": None,
}


def architecture_from_config(config: Mapping[str, Any]) -> Architecture:
    """The architecture that a config.json describes.

    Reads the spelling of transformers 4 (`rope_theta`, `rope_scaling`) and of 5
    (`rope_parameters`). What is missing takes transformers' default only where that follows from
    the rest (kv heads and head size of llama, an untied head, plain rotary embedding).

    Raises:
      ValueError: an unsupported model or feature, by name and value; or a missing field.
    """
    family = config.get("model_type")
    if not isinstance(family, str) or family not in CLASSES:
        raise ValueError(
            f"model_type = {family!r} is not supported; supported are llama (Llama, SmolLM2), "
            "qwen2 (Qwen2, Qwen2.5) and qwen3"
        )
    _refuse_features(config)
    derived = {"llama": ("num_key_value_heads", "head_dim"), "qwen2": ("head_dim",)}.get(family, ())
    values = {name: value for name, value in config.items() if value is not None}
    values.setdefault("tie_word_embeddings", False)
    missing = [name for name in _FIELDS if name not in values and name not in derived]
    if missing:
        raise ValueError(f"config.json of a {family} model lacks {', '.join(missing)}")
    for name in _FIELDS:
        _check_value(name, values.get(name))
    heads = values["num_attention_heads"]
    values.setdefault("num_key_value_heads", heads)
    values.setdefault("head_dim", values["hidden_size"] // heads)
    theta, scaling = _rope(config)
    found = {ours: values[name] for name, ours in _FIELDS.items()}
    found |= {"family": family, "rope_theta": theta, "rope_scaling": scaling}
    try:
        return parse(Architecture, found)
    except ValueError as error:
        raise ValueError(f"config.json does not describe a model that we compute: {error}") from (
            error
        )


def _check_value(name: str, value: Any) -> None:
    if value is None:
        return
    if name == "tie_word_embeddings":
        is_right, expected = isinstance(value, bool), "true or false"
    elif name == "rms_norm_eps":
        is_right, expected = _is_number(value), "a number"
    else:
        is_right = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31
        expected = "a whole number from 1 to 2147483647"
    if not is_right:
        raise ValueError(
            f"config.json: {name} = {repr(value)[:60]} must be {expected}; download it again"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _refuse_features(config: Mapping[str, Any]) -> None:
    for name, only in _ONLY.items():
        if name == "attention_bias" and config["model_type"] == "qwen2":
            continue  # qwen2 has the bias whatever the key says
        value = config.get(name)
        if value is not None and value != only:
            fix = "" if only is None else f"; only {name} = {only!r} is"
            raise ValueError(f"config.json: {name} = {value!r} is not supported{fix}")
    layers = config.get("layer_types") or []
    others = [kind for kind in layers if kind != "full_attention"] if _is_list(layers) else [layers]
    if others:
        unique = list(dict.fromkeys(map(str, others)))
        raise ValueError(
            f"config.json: layer_types holds {unique}; only full_attention is supported"
        )


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _rope(config: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """Base and scaling of the rotary embedding."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(rope, Mapping):
        raise ValueError(f"config.json: rope_scaling = {repr(rope)[:60]} is not an object")
    theta = rope.get("rope_theta", config.get("rope_theta"))
    if theta is not None and not _is_number(theta):
        raise ValueError(f"config.json: rope_theta = {repr(theta)[:60]} must be a number")
    theta = 10_000.0 if theta is None else float(theta)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if rope.get("partial_rotary_factor", 1) != 1:
        value = rope["partial_rotary_factor"]
        raise ValueError(f"config.json: partial_rotary_factor = {value!r} is not supported")
    if any(isinstance(value, dict) for value in rope.values()):
        raise ValueError(f"config.json: rope_parameters by layer ({list(rope)}) is not supported")
    if kind == "default":
        return theta, None
    if not isinstance(kind, str) or kind not in _SCALINGS:
        raise ValueError(
            f"config.json: rope_type = {kind!r} is not supported; only 'default', 'linear', "
            "'llama3' and 'yarn' are"
        )
    found = _with_defaults(config, rope) if kind == "yarn" else rope
    return theta, {"type": kind} | _numbers(kind, found)


def _with_defaults(config: Mapping[str, Any], rope: Mapping[str, Any]) -> dict[str, Any]:
    """What YaRN is given, with what transformers puts where something is missing."""
    found = {k: v for k, v in rope.items() if not (k in _OPTIONAL and v in (None, 0))}
    if found.get("attention_factor") is None:
        found.pop("attention_factor", None)
    if found.get("truncate", True) is None:
        found["truncate"] = False
    original = "original_max_position_embeddings"
    longest = config["max_position_embeddings"]
    given = (config.get(original), rope.get(original), longest)
    found[original] = next(value for value in given if value is not None)
    if found.get("factor") is None and _is_number(found[original]) and found[original]:
        found["factor"] = longest / found[original]
    return found


def _numbers(kind: str, rope: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a scaling in our words.

    Raises:
      ValueError: one is missing or of another type.
    """
    needed = _SCALINGS["llama3"] if kind == "llama3" else ("factor",)
    missing = [name for name in needed if rope.get(name) is None]
    if missing:
        raise ValueError(f"config.json: rope_type = {kind!r} lacks {', '.join(missing)}")
    given = {name: rope[name] for name in _SCALINGS[kind] if name in rope}
    for name, value in given.items():
        if name == "truncate":
            is_right, expected = isinstance(value, bool), "true or false"
        else:
            is_right, expected = _is_number(value), "a number"
        if not is_right:
            raise ValueError(f"config.json: {name} = {repr(value)[:60]} must be {expected}")
    return {_SCALINGS[kind][name]: value for name, value in given.items()}


def config_of(arch: Architecture) -> dict[str, Any]:
    """A config.json for `arch`, in the spelling that transformers 4 and 5 both read."""
    values = arch.model_dump()
    rope = values["rope_scaling"]
    if rope is not None:
        kind = rope["type"]
        named = {name: rope[ours] for name, ours in _SCALINGS[kind].items()}
        rope = {name: value for name, value in named.items() if value is not None}
        rope["rope_type"] = kind
    config = {
        "model_type": arch.family,
        **{name: values[ours] for name, ours in _FIELDS.items()},
        "hidden_act": "silu",
        "rope_theta": arch.rope_theta,
        "rope_scaling": rope,
    }
    if arch.family == "llama":
        return {**config, "attention_bias": False, "mlp_bias": False}
    config["use_sliding_window"] = False
    return config if arch.family == "qwen2" else {**config, "attention_bias": False}


def with_rotary(config: Mapping[str, Any], arch: Architecture) -> dict[str, Any]:
    """A config.json with the rotary embedding and the context of `arch`."""
    written = config_of(arch)
    changed = ("rope_theta", "rope_scaling", "max_position_embeddings")
    kept = {name: value for name, value in config.items() if name != "rope_parameters"}
    return kept | {name: written[name] for name in changed}

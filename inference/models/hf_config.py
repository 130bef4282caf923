"""A decoder's shape from a Hugging Face config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inference.models.config import FAMILIES, Attention, ModelConfig, UnsupportedModel
from inference.models.rope import (
    LinearScaling,
    Llama3Scaling,
    Rope,
    RopeScaling,
    YarnScaling,
    yarn_magnitude,
)

FULL, SLIDING = "full_attention", "sliding_attention"
# What a config.json may leave out, since transformers' class of the family knows it.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 128},
    "gemma3_text": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
    },
}


class _Json:
    """A config.json (or a part of one) whose missing keys are named."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path = path
        self.values = values

    def __getitem__(self, key: str) -> Any:
        if (value := self.values.get(key)) is None:
            raise UnsupportedModel(f"{self.path}: {key} is missing")
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """The value; the default where the key is absent or null."""
        value = self.values.get(key)
        return default if value is None else value

    def part(self, values: dict[str, Any]) -> _Json:
        return _Json(self.path, values)


def from_hf(folder: Path) -> ModelConfig:
    """Read `config.json`, as transformers 4 or 5 writes it. Raises UnsupportedModel for what the engine does not run,
    and names a missing key."""
    path = folder / "config.json"
    given: dict[str, Any] = json.loads(path.read_text())
    if given.get("model_type") == "gemma3":  # with images; the engine runs the part that reads text
        outer: dict[str, Any] = {
            key: given[key] for key in ("tie_word_embeddings", "quantization_config") if key in given
        }
        given = {**given.get("text_config", {}), **outer, "model_type": "gemma3_text"}
    family = str(given.get("model_type"))
    if family not in FAMILIES:
        raise UnsupportedModel(f"{path}: model_type {family!r} is not known; known are {', '.join(FAMILIES)}")
    present = {key: value for key, value in given.items() if value is not None}
    raw = _Json(path, {**_DEFAULTS.get(family, {}), **present})
    _refuse_unknown(raw, family)
    gemma = family == "gemma3_text"
    heads = raw["num_attention_heads"]
    head_dim = raw.get("head_dim", raw["hidden_size"] // heads)
    return ModelConfig(
        family=family,
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_heads=heads,
        num_kv_heads=raw.get("num_key_value_heads", heads),
        head_dim=head_dim,
        rms_norm_eps=raw["rms_norm_eps"],
        max_position_embeddings=raw["max_position_embeddings"],
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        attention=_attention(raw, family, raw.get("query_pre_attn_scalar", head_dim) ** -0.5),
        activation="gelu_tanh" if gemma else "silu",
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3" or gemma,
        output_norms=gemma,
        wide_norms=gemma,
        embedding_scale=raw["hidden_size"] ** 0.5 if gemma else 1.0,
        logit_softcap=float(raw.get("final_logit_softcapping", 0.0)),
    )


def _refuse_unknown(raw: _Json, family: str) -> None:
    known = "gelu_pytorch_tanh" if family == "gemma3_text" else "silu"
    for key in ("hidden_act", "hidden_activation"):
        if (activation := raw.get(key, known)) != known:
            raise UnsupportedModel(f"{raw.path}: {key} {activation!r} is not known for {family}; known is {known}")
    # Qwen2 has biases on q, k and v whatever this key says.
    if raw.get("mlp_bias") or (raw.get("attention_bias") and family != "qwen2"):
        raise UnsupportedModel(f"{raw.path}: biases in the MLP or on this family's attention are not known")
    if raw.get("use_bidirectional_attention"):
        raise UnsupportedModel(f"{raw.path}: bidirectional attention is not known; known are decoders")
    if family != "gemma3_text":
        for key in ("query_pre_attn_scalar", "final_logit_softcapping", "attn_logit_softcapping"):
            if raw.get(key) is not None:
                raise UnsupportedModel(f"{raw.path}: {key} is not known for {family}")
    if quantization := raw.get("quantization_config"):
        method = quantization.get("quant_method", "unnamed")
        raise UnsupportedModel(
            f"{raw.path}: weights quantised by {method!r} are not known in safetensors; use a GGUF file of this model"
        )


def _attention(raw: _Json, family: str, scale: float) -> tuple[Attention, ...]:
    """`scale` is that of queries and keys as they are before the rotation."""
    kinds = _layer_types(raw, family)
    window = int(raw["sliding_window"]) if SLIDING in kinds else None
    if window is not None and window >= raw["max_position_embeddings"]:
        window = None  # it never hides anything
    made = {}
    for kind in dict.fromkeys(kinds):
        rope = _rope(raw, _rope_values(raw, family, kind))
        made[kind] = Attention(
            rope,
            scale * rope.magnitude**2,
            window=window if kind == SLIDING else None,
            softcap=float(raw.get("attn_logit_softcapping", 0.0)),
        )
    return tuple(made[kind] for kind in kinds)


def _layer_types(raw: _Json, family: str) -> list[str]:
    """FULL or SLIDING for each layer: listed by newer files, implied by keys of the family in older ones."""
    layers = range(int(raw["num_hidden_layers"]))
    windowed = raw.get("sliding_window") is not None
    if family == "llama":
        implied = [FULL for _ in layers]
    elif family == "mistral":
        implied = [SLIDING if windowed else FULL for _ in layers]
    elif family == "gemma3_text":
        period = int(raw.get("sliding_window_pattern", raw.get("_sliding_window_pattern", 6)))
        implied = [SLIDING if (layer + 1) % period else FULL for layer in layers]
    else:
        first = int(raw.get("max_window_layers", 28)) if windowed and raw.get("use_sliding_window") else len(layers)
        implied = [SLIDING if layer >= first else FULL for layer in layers]
    listed = raw.get("layer_types", implied)
    if unknown := set(listed) - {FULL, SLIDING}:
        raise UnsupportedModel(f"{raw.path}: layer type {unknown.pop()!r} is not known; known are {FULL} and {SLIDING}")
    if len(listed) != len(layers):
        raise UnsupportedModel(f"{raw.path}: {len(listed)} layer_types for {len(layers)} layers")
    if listed != implied and family != "gemma3_text" and not (windowed and raw.get("use_sliding_window")):
        raise UnsupportedModel(f"{raw.path}: these layer_types are not known for {family} without use_sliding_window")
    return list(listed)


def _rope_values(raw: _Json, family: str, kind: str) -> dict[str, Any]:
    """transformers 5 writes `rope_parameters`, of each layer type where they differ; before it, the base and the
    scaling had keys of their own, and Gemma's local layers another."""
    values = dict(raw.get("rope_parameters", {}))
    if not values and family == "gemma3_text" and kind == SLIDING:
        return {"rope_theta": raw["rope_local_base_freq"]}
    if not values:
        return dict(raw.get("rope_scaling", {}))
    return dict(values.get(kind) or {}) if FULL in values or SLIDING in values else values


def _rope(raw: _Json, values: dict[str, Any]) -> Rope:
    if (part := values.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))) not in (None, 1, 1.0):
        raise UnsupportedModel(f"{raw.path}: partial_rotary_factor {part} is not known; known are whole heads")
    theta = values.get("rope_theta") or raw.get("rope_theta", 10_000.0)
    return Rope(float(theta), _scaling(raw, raw.part(values)))


def _scaling(raw: _Json, rope: _Json) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type", "default")
    if kind == "default":
        return None
    if kind not in ("linear", "llama3", "yarn"):
        raise UnsupportedModel(
            f"{rope.path}: rotary scaling {kind!r} is not known; known are default, linear, llama3 and yarn"
        )
    factor = float(rope["factor"])
    if kind == "linear":
        return LinearScaling(factor)
    original = int(rope.get("original_max_position_embeddings", raw["max_position_embeddings"]))
    if kind == "llama3":
        return Llama3Scaling(factor, float(rope["low_freq_factor"]), float(rope["high_freq_factor"]), original)
    return YarnScaling(
        factor,
        original,
        magnitude=_yarn_magnitude(rope, factor),
        beta_fast=float(rope.get("beta_fast", 32.0)),
        beta_slow=float(rope.get("beta_slow", 1.0)),
        truncate=bool(rope.get("truncate", True)),
    )


def _yarn_magnitude(rope: _Json, factor: float) -> float:
    if (given := rope.get("attention_factor")) is not None:
        return float(given)
    # DeepSeek's pair of keys, which other checkpoints took over.
    if (above := rope.get("mscale")) and (below := rope.get("mscale_all_dim")):
        return yarn_magnitude(factor, above) / yarn_magnitude(factor, below)
    return yarn_magnitude(factor)

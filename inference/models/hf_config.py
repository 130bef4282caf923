"""A decoder's shape from a Hugging Face config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inference.models.config import FAMILIES, ModelConfig, UnsupportedModel, uniform
from inference.models.rope import (
    LinearScaling,
    Llama3Scaling,
    Rope,
    RopeScaling,
    YarnScaling,
    yarn_magnitude,
)


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
    raw = _Json(path, json.loads(path.read_text()))
    family = str(raw.get("model_type"))
    if family not in FAMILIES.values():
        raise UnsupportedModel(f"{path}: model_type {family!r} is not known; known are {', '.join(FAMILIES.values())}")
    _refuse_unknown(raw)
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
        attention=uniform(raw["num_hidden_layers"], _rope(raw, _rope_values(raw)), head_dim**-0.5),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
    )


def _refuse_unknown(raw: _Json) -> None:
    if (activation := raw.get("hidden_act", "silu")) != "silu":
        raise UnsupportedModel(f"{raw.path}: hidden_act {activation!r} is not known; known is silu")
    # Qwen2 has biases on q, k and v whatever this key says.
    if raw.get("mlp_bias") or (raw.get("attention_bias") and raw["model_type"] != "qwen2"):
        raise UnsupportedModel(f"{raw.path}: biases in the MLP or on this family's attention are not known")
    if raw.get("use_sliding_window"):
        raise UnsupportedModel(f"{raw.path}: sliding-window attention is not known")
    if quantization := raw.get("quantization_config"):
        method = quantization.get("quant_method", "unnamed")
        raise UnsupportedModel(
            f"{raw.path}: weights quantised by {method!r} are not known in safetensors; use a GGUF file of this model"
        )


def _rope_values(raw: _Json) -> dict[str, Any]:
    """transformers 5 writes `rope_parameters`; before it, the base and the scaling had keys of their own."""
    return dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})


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

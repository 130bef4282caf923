"""A decoder's shape, read from a Hugging Face config.json or from GGUF metadata."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# GGUF's architecture name -> ours, which is Hugging Face's model_type.
FAMILIES = {"llama": "llama", "qwen2": "qwen2"}


class UnsupportedModel(ValueError):
    """The checkpoint is of a kind the engine does not run. The message names what was found and what is known."""


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's frequency scaling; the fields carry the names of config.json."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class ModelConfig:
    """Shape and constants of a decoder with grouped-query attention."""

    family: str
    vocab_size: int  # rows of the head; may exceed the tokenizer's
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    rope_scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModel(
                f"{self.num_heads} query heads cannot be shared evenly by {self.num_kv_heads} KV heads"
            )

    def kv_bytes_per_token(self, element_size: int) -> int:
        """Bytes that one token takes in the cache, keys and values of all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_size

    def inv_freq(self) -> list[float]:
        """The D/2 rotary frequencies, Llama 3's scaling applied where the checkpoint has it."""
        base = [self.rope_theta ** (-2 * i / self.head_dim) for i in range(self.head_dim // 2)]
        return base if self.rope_scaling is None else [_llama3_frequency(f, self.rope_scaling) for f in base]


def _llama3_frequency(frequency: float, scaling: RopeScaling) -> float:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended (Llama 3.1 model card)."""
    turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
    if turns < scaling.low_freq_factor:
        return frequency / scaling.factor
    if turns > scaling.high_freq_factor:
        return frequency
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return (1 - share) * frequency / scaling.factor + share * frequency


def from_hf(folder: Path) -> ModelConfig:
    """Read `config.json`. Raises UnsupportedModel for other families, activations or rotary scalings."""
    raw: dict[str, Any] = json.loads((folder / "config.json").read_text())
    family = str(raw.get("model_type"))
    if family not in FAMILIES.values():
        raise UnsupportedModel(
            f"{folder}: model_type {family!r} is not known; known are {', '.join(FAMILIES.values())}"
        )
    if (activation := raw.get("hidden_act", "silu")) != "silu":
        raise UnsupportedModel(f"{folder}: hidden_act {activation!r} is not known; known is silu")
    if raw.get("mlp_bias") or (family == "llama" and raw.get("attention_bias")):
        raise UnsupportedModel(f"{folder}: biases in the MLP or on Llama's attention are not known")
    if raw.get("use_sliding_window"):
        raise UnsupportedModel(f"{folder}: sliding-window attention is not known")
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    return ModelConfig(
        family=family,
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=raw["num_attention_heads"],
        num_kv_heads=raw.get("num_key_value_heads") or raw["num_attention_heads"],
        head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
        rms_norm_eps=raw["rms_norm_eps"],
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0),
        max_position_embeddings=raw["max_position_embeddings"],
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2",
        rope_scaling=_hf_scaling(folder, rope),
    )


def _hf_scaling(folder: Path, rope: dict[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise UnsupportedModel(f"{folder}: rotary scaling {kind!r} is not known; known are default and llama3")
    return RopeScaling(
        float(rope["factor"]),
        float(rope["low_freq_factor"]),
        float(rope["high_freq_factor"]),
        int(rope["original_max_position_embeddings"]),
    )


def from_gguf(metadata: dict[str, Any], shapes: dict[str, tuple[int, ...]], path: Path) -> ModelConfig:
    """Read GGUF metadata (key -> value) and tensor shapes. Raises UnsupportedModel as `from_hf` does."""
    architecture = metadata.get("general.architecture")
    if architecture not in FAMILIES:
        raise UnsupportedModel(f"{path}: architecture {architecture!r} is not known; known are {', '.join(FAMILIES)}")
    if "rope_freqs.weight" in shapes:
        raise UnsupportedModel(f"{path}: rotary scaling by rope_freqs is not known; use a safetensors checkpoint")

    def get(key: str, default: Any = None) -> Any:
        value = metadata.get(f"{architecture}.{key}", default)
        if value is None:
            raise UnsupportedModel(f"{path}: metadata key {architecture}.{key} is missing")
        return value

    heads = int(get("attention.head_count"))
    hidden = int(get("embedding_length"))
    return ModelConfig(
        family=FAMILIES[architecture],
        vocab_size=shapes["token_embd.weight"][0] if "token_embd.weight" in shapes else int(get("vocab_size")),
        hidden_size=hidden,
        intermediate_size=int(get("feed_forward_length")),
        num_layers=int(get("block_count")),
        num_heads=heads,
        num_kv_heads=int(get("attention.head_count_kv", heads)),
        head_dim=int(get("attention.key_length", hidden // heads)),
        rms_norm_eps=float(get("attention.layer_norm_rms_epsilon")),
        rope_theta=float(get("rope.freq_base", 10_000.0)),
        max_position_embeddings=int(get("context_length")),
        tie_word_embeddings="output.weight" not in shapes,
        qkv_bias=architecture == "qwen2",
    )

"""A decoder's shape from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from inference.models.config import Attention, ModelConfig, UnsupportedModel
from inference.models.rope import Divisors, LinearScaling, Rope, RopeScaling, YarnScaling, yarn_magnitude

# GGUF's architecture -> the family. A GGUF file of a Mistral model says llama.
ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}
ROPE_DIVISORS = "rope_freqs.weight"
_GEMMA_PERIOD = 6  # every sixth layer of Gemma 3 sees everything
_GEMMA_27B_LAYERS = 62


class _Metadata:
    """The keys under the file's architecture, without that prefix."""

    def __init__(self, path: Path, architecture: str, values: dict[str, Any]) -> None:
        self.path = path
        self.architecture = architecture
        self._values = values

    def __getitem__(self, key: str) -> Any:
        if (value := self.get(key)) is None:
            raise UnsupportedModel(f"{self.path}: metadata key {self.architecture}.{key} is missing")
        return value

    def get(self, key: str, default: Any = None) -> Any:
        return self._values.get(f"{self.architecture}.{key}", default)


def from_gguf(
    values: dict[str, Any], shapes: dict[str, tuple[int, ...]], path: Path, read: Callable[[str], list[float]]
) -> ModelConfig:
    """Read metadata (key -> value) and tensor shapes; `read` gives the values of a small tensor.

    Raises UnsupportedModel as `from_hf` does.
    """
    architecture = values.get("general.architecture")
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedModel(f"{path}: architecture {architecture!r} is not known; known are {known}")
    metadata = _Metadata(path, architecture, values)
    family = ARCHITECTURES[architecture]
    gemma = family == "gemma3_text"
    heads = int(metadata["attention.head_count"])
    hidden = int(metadata["embedding_length"])
    head_dim = int(metadata.get("attention.key_length", hidden // heads))
    _refuse_unknown(metadata, head_dim)
    divisors = Divisors(tuple(read(ROPE_DIVISORS))) if ROPE_DIVISORS in shapes else None
    if divisors is not None and len(divisors.values) != head_dim // 2:
        raise UnsupportedModel(
            f"{path}: {ROPE_DIVISORS} has {len(divisors.values)} values; a head of {head_dim} has {head_dim // 2}"
        )
    rope = Rope(float(metadata.get("rope.freq_base", 10_000.0)), _scaling(metadata, divisors))
    layers = int(metadata["block_count"])
    # Gemma 3's largest model alone scales by the hidden size over the heads. The files do not say so: llama.cpp
    # goes by the number of layers, and so must whoever reads them.
    scale = (hidden / heads if gemma and layers == _GEMMA_27B_LAYERS else head_dim) ** -0.5
    return ModelConfig(
        family=family,
        vocab_size=shapes["token_embd.weight"][0] if "token_embd.weight" in shapes else int(metadata["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(metadata["feed_forward_length"]),
        num_heads=heads,
        num_kv_heads=int(metadata.get("attention.head_count_kv", heads)),
        head_dim=head_dim,
        rms_norm_eps=float(metadata["attention.layer_norm_rms_epsilon"]),
        max_position_embeddings=int(metadata["context_length"]),
        tie_word_embeddings="output.weight" not in shapes,
        attention=_attention(metadata, family, rope, scale, layers),
        activation="gelu_tanh" if gemma else "silu",
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3" or gemma,
        output_norms=gemma,
        wide_norms=gemma,
        embedding_scale=hidden**0.5 if gemma else 1.0,
        logit_softcap=float(metadata.get("final_logit_softcapping", 0.0)) if gemma else 0.0,
    )


def _attention(metadata: _Metadata, family: str, rope: Rope, scale: float, layers: int) -> tuple[Attention, ...]:
    """`scale` is that of queries and keys as they are before the rotation."""
    full = Attention(rope, scale * rope.magnitude**2)
    window: int | None = int(metadata.get("attention.sliding_window", 0))
    if not window:
        return (full,) * layers
    if window >= metadata["context_length"]:
        window = None  # it never hides anything
    if family == "llama":  # Mistral's first: every layer has the window
        return (replace(full, window=window),) * layers
    if family != "gemma3_text":
        raise UnsupportedModel(
            f"{metadata.path}: {metadata.architecture}.attention.sliding_window is set, and the file does not "
            "say for which layers; use a safetensors checkpoint"
        )
    # Local layers have a base of their own, and no scaling.
    local = Attention(Rope(float(metadata.get("rope.freq_base_swa", 10_000.0))), scale, window=window)
    pattern = metadata.get("attention.sliding_window_pattern", _GEMMA_PERIOD)
    if not isinstance(pattern, list):
        pattern = [bool((layer + 1) % int(pattern)) for layer in range(layers)]
    if len(pattern) != layers:
        raise UnsupportedModel(f"{metadata.path}: a sliding_window_pattern of {len(pattern)} for {layers} layers")
    return tuple(local if is_local else full for is_local in pattern)


def _refuse_unknown(metadata: _Metadata, head_dim: int) -> None:
    if experts := metadata.get("expert_count"):
        raise UnsupportedModel(f"{metadata.path}: {experts} experts; mixtures of experts are not known")
    for key in ("rope.dimension_count", "attention.value_length"):
        if (size := metadata.get(key, head_dim)) != head_dim:
            raise UnsupportedModel(
                f"{metadata.path}: {metadata.architecture}.{key} is {size}, the head {head_dim}; they must be equal"
            )
    for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
        if isinstance(metadata.get(key), list):
            raise UnsupportedModel(
                f"{metadata.path}: {metadata.architecture}.{key} differs by layer, which is not known"
            )


def _scaling(metadata: _Metadata, divisors: Divisors | None) -> RopeScaling | None:
    """The tensor of divisors stands for a scaling (Llama 3.1's); the metadata of such a file name none."""
    # Before there was a type, a linear scaling had a key of its own.
    factor = float(metadata.get("rope.scaling.factor", metadata.get("rope.scale_linear", 0.0)))
    kind = metadata.get("rope.scaling.type", "linear" if factor else "none")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModel(f"{metadata.path}: rotary scaling {kind!r} is not known; known are linear and yarn")
    magnitude = float(metadata.get("rope.scaling.attn_factor", 1.0))
    if magnitude != 1.0 and kind != "yarn":
        raise UnsupportedModel(f"{metadata.path}: rope.scaling.attn_factor {magnitude} is known with yarn only")
    if divisors is not None:
        if kind != "none":
            raise UnsupportedModel(f"{metadata.path}: both {ROPE_DIVISORS} and rotary scaling {kind!r}; known is one")
        return divisors
    if kind == "none":
        return None
    if not factor:
        raise UnsupportedModel(
            f"{metadata.path}: rotary scaling {kind!r} without {metadata.architecture}.rope.scaling.factor"
        )
    if kind == "linear":
        return LinearScaling(factor)
    for key, usual in (("yarn_log_multiplier", 0.0), ("yarn_ext_factor", 1.0), ("yarn_attn_factor", 1.0)):
        if (value := metadata.get(f"rope.scaling.{key}", usual)) != usual:
            raise UnsupportedModel(f"{metadata.path}: rope.scaling.{key} {value} is not known; known is {usual}")
    return YarnScaling(
        factor,
        int(metadata.get("rope.scaling.original_context_length", metadata["context_length"])),
        magnitude=yarn_magnitude(factor) * magnitude,
        beta_fast=float(metadata.get("rope.scaling.yarn_beta_fast", 32.0)),
        beta_slow=float(metadata.get("rope.scaling.yarn_beta_slow", 1.0)),
    )

"""From a checkpoint to a decoder: a table says which tensor goes where; nothing may be left over on either side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from inference.models.config import ModelConfig
from inference.models.decoder import Decoder, DecoderWeights, LayerWeights
from inference.models.sources import CheckpointError, GGUFSource, TensorSource, open_source
from kernels.ops import GatedLinear, Linear

# Our name -> (GGUF name, Hugging Face name). `{i}` is the layer.
_MODEL_NAMES = {
    "embedding": ("token_embd.weight", "model.embed_tokens.weight"),
    "norm": ("output_norm.weight", "model.norm.weight"),
    "head": ("output.weight", "lm_head.weight"),
}
_LAYER_NAMES = {
    "input_norm": ("blk.{i}.attn_norm.weight", "model.layers.{i}.input_layernorm.weight"),
    "q": ("blk.{i}.attn_q.weight", "model.layers.{i}.self_attn.q_proj.weight"),
    "k": ("blk.{i}.attn_k.weight", "model.layers.{i}.self_attn.k_proj.weight"),
    "v": ("blk.{i}.attn_v.weight", "model.layers.{i}.self_attn.v_proj.weight"),
    "q_bias": ("blk.{i}.attn_q.bias", "model.layers.{i}.self_attn.q_proj.bias"),
    "k_bias": ("blk.{i}.attn_k.bias", "model.layers.{i}.self_attn.k_proj.bias"),
    "v_bias": ("blk.{i}.attn_v.bias", "model.layers.{i}.self_attn.v_proj.bias"),
    "o": ("blk.{i}.attn_output.weight", "model.layers.{i}.self_attn.o_proj.weight"),
    "post_norm": ("blk.{i}.ffn_norm.weight", "model.layers.{i}.post_attention_layernorm.weight"),
    "gate": ("blk.{i}.ffn_gate.weight", "model.layers.{i}.mlp.gate_proj.weight"),
    "up": ("blk.{i}.ffn_up.weight", "model.layers.{i}.mlp.up_proj.weight"),
    "down": ("blk.{i}.ffn_down.weight", "model.layers.{i}.mlp.down_proj.weight"),
}
# In some checkpoints and of no use: derived from the configuration.
_DERIVED = ("rotary_emb.inv_freq",)


@dataclass(frozen=True)
class _Expected:
    name: str  # in the checkpoint
    shape: tuple[int, ...]


def expected_tensors(config: ModelConfig, *, is_gguf: bool) -> dict[str, _Expected]:
    """Our name (layers as `3.q`) -> the checkpoint's name and shape for it."""
    column = 0 if is_gguf else 1
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "embedding": (config.vocab_size, hidden), "norm": (hidden,), "head": (config.vocab_size, hidden),
        "input_norm": (hidden,), "q": (q, hidden), "k": (kv, hidden), "v": (kv, hidden),
        "q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,), "o": (hidden, q),
        "post_norm": (hidden,), "gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner),
    }  # fmt: skip
    expected = {
        ours: _Expected(names[column], shapes[ours])
        for ours, names in _MODEL_NAMES.items()
        if not (ours == "head" and config.tie_word_embeddings)
    }
    for layer in range(config.num_layers):
        for ours, names in _LAYER_NAMES.items():
            if ours.endswith("_bias") and not config.qkv_bias:
                continue
            expected[f"{layer}.{ours}"] = _Expected(names[column].format(i=layer), shapes[ours])
    return expected


def check_tensors(source: TensorSource, expected: dict[str, _Expected], config: ModelConfig) -> None:
    """Raise CheckpointError naming every missing, misshapen or surplus tensor (the first few of each)."""
    shapes = source.shapes()
    wanted = {item.name: item.shape for item in expected.values()}
    faults = [f"missing {name}" for name in wanted if name not in shapes]
    faults += [
        f"{name} has shape {list(shapes[name])}, not {list(shape)}"
        for name, shape in wanted.items()
        if name in shapes and shapes[name] != shape
    ]
    # A tied checkpoint may still carry a copy of its embedding as the head.
    allowed = set(_MODEL_NAMES["head"]) if config.tie_word_embeddings else set()
    faults += [
        f"surplus {name}"
        for name in shapes
        if name not in wanted and name not in allowed and not name.endswith(_DERIVED)
    ]
    if faults:
        shown = "; ".join(faults[:5]) + (f"; and {len(faults) - 5} more" if len(faults) > 5 else "")
        raise CheckpointError(f"{source.path}: the tensors do not fit the configuration: {shown}")


def load_decoder(path: Path, dtype: torch.dtype, device: torch.device) -> Decoder:
    """Read, check, merge (q, k, v) and place the weights of the checkpoint at `path`.

    Tensors are read one by one, so that host memory holds the model once. Raises CheckpointError, UnsupportedModel.
    """
    source = open_source(path)
    config = source.config()
    expected = expected_tensors(config, is_gguf=isinstance(source, GGUFSource))
    check_tensors(source, expected, config)

    def read(name: str) -> Tensor:
        return source.read(expected[name].name).to(device=device, dtype=dtype)

    def merge(names: Iterable[str]) -> Tensor:
        return torch.cat([read(name) for name in names])

    def layer(i: int) -> LayerWeights:
        bias = merge((f"{i}.q_bias", f"{i}.k_bias", f"{i}.v_bias")) if config.qkv_bias else None
        return LayerWeights(
            input_norm=read(f"{i}.input_norm"),
            qkv=Linear(merge((f"{i}.q", f"{i}.k", f"{i}.v")), bias),
            o=Linear(read(f"{i}.o")),
            post_norm=read(f"{i}.post_norm"),
            gated=GatedLinear(read(f"{i}.gate"), read(f"{i}.up")),
            down=Linear(read(f"{i}.down")),
        )

    embedding = read("embedding")
    weights = DecoderWeights(
        embedding=embedding,
        layers=[layer(i) for i in range(config.num_layers)],
        norm=read("norm"),
        head=Linear(embedding if config.tie_word_embeddings else read("head")),
    )
    return Decoder(config, weights, dtype, device)


def read_state_dict(path: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The checkpoint as Hugging Face names -> fp32 tensors: how a benchmark runs a rival on the same weights."""
    source = open_source(path)
    config = source.config()
    is_gguf = isinstance(source, GGUFSource)
    theirs = expected_tensors(config, is_gguf=False)
    ours = expected_tensors(config, is_gguf=is_gguf)
    check_tensors(source, ours, config)
    return config, {theirs[key].name: source.read(item.name).float() for key, item in ours.items()}

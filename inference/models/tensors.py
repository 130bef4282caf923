"""Which tensors a checkpoint of a configuration holds, under which names and in which shapes: a table.

A checkpoint must hold all of them and no others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from inference.models.config import ModelConfig
from inference.models.sources import CheckpointError, TensorSource

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
    "q_norm": ("blk.{i}.attn_q_norm.weight", "model.layers.{i}.self_attn.q_norm.weight"),
    "k_norm": ("blk.{i}.attn_k_norm.weight", "model.layers.{i}.self_attn.k_norm.weight"),
    "o": ("blk.{i}.attn_output.weight", "model.layers.{i}.self_attn.o_proj.weight"),
    "o_norm": ("blk.{i}.post_attention_norm.weight", "model.layers.{i}.post_attention_layernorm.weight"),
    "mlp_norm": ("blk.{i}.ffn_norm.weight", "model.layers.{i}.post_attention_layernorm.weight"),
    "gate": ("blk.{i}.ffn_gate.weight", "model.layers.{i}.mlp.gate_proj.weight"),
    "up": ("blk.{i}.ffn_up.weight", "model.layers.{i}.mlp.up_proj.weight"),
    "down": ("blk.{i}.ffn_down.weight", "model.layers.{i}.mlp.down_proj.weight"),
    "down_norm": ("blk.{i}.post_ffw_norm.weight", "model.layers.{i}.post_feedforward_layernorm.weight"),
}
# With norms behind attention and MLP, Hugging Face calls the one before the MLP by another name.
_OUTPUT_NORM_NAMES = {"mlp_norm": ("blk.{i}.ffn_norm.weight", "model.layers.{i}.pre_feedforward_layernorm.weight")}
# In some checkpoints and of no use as weights: derived from the configuration, or read into it.
_DERIVED = ("rotary_emb.inv_freq", "rope_freqs.weight")


@dataclass(frozen=True)
class Expected:
    name: str  # in the checkpoint
    shape: tuple[int, ...]


def expected_tensors(config: ModelConfig, *, is_gguf: bool) -> dict[str, Expected]:
    """Our name (layers as `3.q`) -> the checkpoint's name and shape for it."""
    column = 0 if is_gguf else 1
    head_dim, hidden, inner = config.head_dim, config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * head_dim, config.num_kv_heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "embedding": (config.vocab_size, hidden), "norm": (hidden,), "head": (config.vocab_size, hidden),
        "input_norm": (hidden,), "q": (q, hidden), "k": (kv, hidden), "v": (kv, hidden),
        "q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,), "q_norm": (head_dim,), "k_norm": (head_dim,),
        "o": (hidden, q), "o_norm": (hidden,),
        "mlp_norm": (hidden,), "gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner),
        "down_norm": (hidden,),
    }  # fmt: skip
    absent = _absent(config)
    expected = {
        ours: Expected(names[column], shapes[ours]) for ours, names in _MODEL_NAMES.items() if ours not in absent
    }
    layer_names = {**_LAYER_NAMES, **(_OUTPUT_NORM_NAMES if config.output_norms else {})}
    for layer in range(config.num_layers):
        for ours, names in layer_names.items():
            if ours not in absent:
                expected[f"{layer}.{ours}"] = Expected(names[column].format(i=layer), shapes[ours])
    return expected


def _absent(config: ModelConfig) -> set[str]:
    """Names of the table that this configuration has no use for."""
    absent: set[str] = set()
    if config.tie_word_embeddings:
        absent |= {"head"}
    if not config.qkv_bias:
        absent |= {"q_bias", "k_bias", "v_bias"}
    if not config.qk_norm:
        absent |= {"q_norm", "k_norm"}
    if not config.output_norms:
        absent |= {"o_norm", "down_norm"}
    return absent


def parameter_count(config: ModelConfig) -> int:
    """Number of weights, a tied head counted once."""
    return sum(math.prod(item.shape) for item in expected_tensors(config, is_gguf=False).values())


def check_tensors(source: TensorSource, expected: dict[str, Expected], config: ModelConfig) -> None:
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

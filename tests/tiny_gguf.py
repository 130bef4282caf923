"""Tiny models written as GGUF files, as llama.cpp's converter would write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType as Quantization
from transformers import PreTrainedModel

K_QUANTS = (Quantization.Q4_K, Quantization.Q5_K, Quantization.Q6_K)
# Bytes of a block where its half-precision factors stand. The other bytes may be anything.
_FACTORS = {Quantization.Q4_K: (0, 2), Quantization.Q5_K: (0, 2), Quantization.Q6_K: (208,)}
_ARCHITECTURES = {"mistral": "llama", "gemma3_text": "gemma3"}
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# The same words stand for other norms in Gemma 3.
_GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(name: str, family: str) -> str:
    """`model.layers.0.mlp.up_proj.weight` -> `blk.0.ffn_up.weight`."""
    names = {**_NAMES, **_GEMMA_NAMES} if family == "gemma3_text" else _NAMES
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        layer, _, part = stem.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{names[part]}.{kind}"
    return f"{names[stem]}.{kind}"


def store_as(model: PreTrainedModel, kind: Quantization) -> dict[str, npt.NDArray[Any]]:
    """Round every matrix of the model to what `kind` can hold -> name: its blocks, [rows, bytes].

    The library does not write K-quants: their blocks are random bytes around small factors, and the model gets the
    values that the library reads from them.
    """
    random = np.random.default_rng(0)
    blocks = {}
    for name, tensor in model.state_dict().items():
        if tensor.ndim == 2 and not (name == "lm_head.weight" and model.config.tie_word_embeddings):
            raw = _random_blocks(tuple(tensor.shape), kind, random) if kind in K_QUANTS else None
            blocks[name] = gguf.quants.quantize(tensor.numpy(), kind) if raw is None else raw
            tensor.copy_(torch.from_numpy(gguf.quants.dequantize(blocks[name], kind)))
    return blocks


def _random_blocks(shape: tuple[int, ...], kind: Quantization, random: np.random.Generator) -> npt.NDArray[np.uint8]:
    rows, columns = shape
    values, size = gguf.GGML_QUANT_SIZES[kind]
    assert columns % values == 0, f"rows of {columns} do not divide into blocks of {values}"
    blocks = random.integers(0, 256, (rows * columns // values, size), dtype=np.uint8)
    for start in _FACTORS[kind]:
        factors = random.uniform(1e-4, 3e-4, (len(blocks), 1)).astype(np.float16)
        blocks[:, start : start + 2] = factors.view(np.uint8)
    return blocks.reshape(rows, -1)


def save_gguf(
    model: PreTrainedModel,
    path: Path,
    kind: Quantization = Quantization.F32,
    *,
    divisors: list[float] | None = None,
    changes: dict[str, Any] | None = None,
) -> Path:
    """The model, its matrices rounded to `kind` in place (see `store_as`), as a GGUF file.

    `divisors` becomes the `rope_freqs` tensor and stands for the model's own rotary scaling; `changes` are further
    metadata, whole keys, which win; None leaves a key out.
    """
    config: Any = model.config
    family = config.model_type
    architecture = _ARCHITECTURES.get(family, family)
    blocks = {} if kind == Quantization.F32 else store_as(model, kind)
    metadata = {**_metadata(config, architecture, divisors), **(changes or {})}
    writer = gguf.GGUFWriter(path, metadata.pop("general.architecture", architecture))
    for key, value in metadata.items():
        if value is not None:
            _ADD[type(value)](writer, key, value)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(divisors, dtype=np.float32))
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = blocks[name] if name in blocks else tensor.numpy()
        if architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            values = _interleaved(values, config.num_attention_heads if "q_" in name else config.num_key_value_heads)
        if family == "gemma3_text" and "norm" in name:
            values = values + 1
        writer.add_tensor(
            gguf_name(name, family), np.ascontiguousarray(values), raw_dtype=kind if name in blocks else None
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


_ADD: dict[type, Any] = {
    int: gguf.GGUFWriter.add_uint32,
    float: gguf.GGUFWriter.add_float32,
    str: gguf.GGUFWriter.add_string,
    list: gguf.GGUFWriter.add_array,
}


def _interleaved(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Rows of q or k in the order of llama.cpp's rotary embedding, where element 2i is paired with 2i + 1."""
    return rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def _metadata(config: Any, architecture: str, divisors: list[float] | None) -> dict[str, Any]:
    ropes = config.rope_parameters
    rope = ropes.get("full_attention", ropes)
    values: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(rope["rope_theta"]),
    }
    if (head_dim := getattr(config, "head_dim", None)) is not None:
        values |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if divisors is None and rope["rope_type"] != "default":
        values |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
        if "original_max_position_embeddings" in rope:
            values["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if (window := getattr(config, "sliding_window", None)) is not None:
        values["attention.sliding_window"] = window
    if architecture == "gemma3":
        local = [kind == "sliding_attention" for kind in config.layer_types]
        if local != [bool((layer + 1) % 6) for layer in range(len(local))]:
            values["attention.sliding_window_pattern"] = local
        if (base := ropes["sliding_attention"]["rope_theta"]) != 10_000:
            values["rope.freq_base_swa"] = float(base)
    if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
        values["final_logit_softcapping"] = float(cap)
    return {f"{architecture}.{key}": value for key, value in values.items()}

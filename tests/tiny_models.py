"""Tiny random checkpoints and a byte-level tokenizer: the engine's tests run real models without a download."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Quantization
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from inference.executor import Executor
from inference.request import Request, Response
from inference.tokenizer import Tokenizer

HEAD_SIZE = 288  # above the tokenizer's vocabulary, as real heads are padded
END = 256
SHAPE: dict[str, Any] = {
    "vocab_size": HEAD_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    # Large enough that the random model's choices are not near ties.
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": END,
    "pad_token_id": None,
}


def byte_tokenizer() -> Tokenizer:
    """One token per byte, and an end token. Ids: the byte alphabet in order, then the end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: index for index, symbol in enumerate(alphabet)}
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    assert backend.token_to_id("<|end|>") == END
    return Tokenizer(backend, backend.to_str(), END + 1, (END,), None)


def make_model(family: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A random fp32 model of the family `llama` or `qwen2`, its biases and norms not at their trivial values."""
    torch.manual_seed(seed)
    kinds = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}
    config_class, model_class = kinds[family]
    model = model_class(config_class(**{**SHAPE, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.5)
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model


def save(model: PreTrainedModel, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """`model.layers.0.mlp.up_proj.weight` -> `blk.0.ffn_up.weight`."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        layer, _, part = stem.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{_GGUF_NAMES[part]}.{kind}"
    return f"{_GGUF_NAMES[stem]}.{kind}"


def save_gguf(model: PreTrainedModel, path: Path, quantization: Quantization = Quantization.F32) -> Path:
    """The model as llama.cpp's converter would write it: its names, its row order of q and k for Llama."""
    config: Any = model.config
    architecture = config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            tensor = tensor.view(heads, 2, -1, tensor.shape[-1]).transpose(1, 2).reshape(tensor.shape)  # noqa: PLW2901
        values = tensor.numpy().astype(np.float32)
        kind = quantization if values.ndim == 2 and values.shape[-1] % 32 == 0 else Quantization.F32
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def greedy(model: PreTrainedModel, prompt: Iterable[int], count: int) -> tuple[int, ...]:
    """What transformers generates, the end token included; tokens beyond the tokenizer's vocabulary are barred."""
    ids = list(prompt)
    start = len(ids)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1, : END + 1].argmax()))
            if ids[-1] == END:
                break
    return tuple(ids[start:])


def collect(executor: Executor, ids: Iterable[str], seconds: float = 120.0) -> dict[str, list[Response]]:
    """All responses of these requests, each list ending with the finished one."""
    waiting, got = set(ids), {}
    deadline = time.monotonic() + seconds
    while waiting:
        assert time.monotonic() < deadline, f"no end of {waiting}"
        for response in executor.await_responses(timeout=1.0):
            got.setdefault(response.request_id, []).append(response)
            if response.finished:
                waiting.discard(response.request_id)
    return got


def generate(executor: Executor, *requests: Request) -> list[tuple[tuple[int, ...], Response]]:
    """Tokens and last response of each request, all handed in at once."""
    for request in requests:
        executor.enqueue_request(request)
    got = collect(executor, [request.id for request in requests])
    return [(tuple(t for r in got[q.id] for t in r.token_ids), got[q.id][-1]) for q in requests]

"""Tiny random checkpoints and a byte-level tokenizer: the engine's tests run real models without a download."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from inference.executor import Executor
from inference.request import Request, Response
from inference.tokenizer import Tokenizer

HEAD_SIZE = 288  # above the tokenizer's vocabulary, as real heads are padded
END = 256
EMBEDDER_WORDS = "quarry stone table recipe flour vector index page of the and a".split()
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

# Family -> its classes in transformers, and what its tiny shape has beside SHAPE.
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 32}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": 24}),
    "gemma3": (
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        # Two local layers to a global one.
        {
            "head_dim": 24,
            "sliding_window": 24,
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 24,
            "final_logit_softcapping": 5.0,
            "tie_word_embeddings": True,
        },
    ),
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
    """A random fp32 model of one of the FAMILIES, its biases and norms not at their trivial values."""
    torch.manual_seed(seed)
    config_class, model_class, own = FAMILIES[family]
    model = model_class(config_class(**{**SHAPE, **own, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.5)
            if "norm" in name:
                parameter.uniform_(*((-0.5, 0.5) if family == "gemma3" else (0.5, 1.5)))
    return model


def save(model: PreTrainedModel, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder


def save_with_tokenizer(model: PreTrainedModel, folder: Path) -> Path:
    """The checkpoint as one that is loaded by its path alone."""
    save(model, folder)
    (folder / "tokenizer.json").write_text(byte_tokenizer().json)
    return folder


def save_embedder(folder: Path) -> BertModel:
    """A random BERT with a tokenizer of whole words, saved as a sentence embedder -> the model."""
    torch.manual_seed(3)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *EMBEDDER_WORDS]
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 48}
    model = BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=64, initializer_range=0.3, **shape))
    model.eval().save_pretrained(folder)
    backend = Backend(models.WordLevel(vocab={word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", words.index("[CLS]")), ("[SEP]", words.index("[SEP]"))]
    )
    backend.save(str(folder / "tokenizer.json"))
    return model


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

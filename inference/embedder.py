"""Sentence embeddings: the encoder of all-MiniLM-L6-v2 and its kin (BERT, mean pooling, unit length).

Loaded from a sentence-transformers folder. Texts are sorted by length and batched with little padding.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from inference.models.sources import CheckpointError, SafetensorsSource

BATCH_TOKENS = 4096  # tokens of a batch, padding included


@dataclass(frozen=True)
class EmbedderConfig:
    """The fields of config.json that shape the encoder, and the truncation length of sentence_bert_config.json."""

    num_layers: int
    num_heads: int
    hidden_size: int
    layer_norm_eps: float
    max_tokens: int


class Embedder:
    """Thread-safe: one call computes at a time."""

    def __init__(self, folder: Path, *, device: str = "cpu") -> None:
        """Raises CheckpointError when the folder is not such a model."""
        self.name = folder.name
        self._device = torch.device(device)
        raw = _read_json(folder / "config.json")
        if raw.get("model_type") != "bert" or raw.get("hidden_act", "gelu") != "gelu":
            raise CheckpointError(
                f"{folder}: model_type {raw.get('model_type')!r} is not known; known is bert with gelu"
            )
        pooling = _read_json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
        if not pooling.get("pooling_mode_mean_tokens"):
            raise CheckpointError(f"{folder}: the pooling is not the mean of the tokens, the only one known")
        longest = _read_json(folder / "sentence_bert_config.json", {}).get("max_seq_length")
        self.config = EmbedderConfig(
            num_layers=raw["num_hidden_layers"],
            num_heads=raw["num_attention_heads"],
            hidden_size=raw["hidden_size"],
            layer_norm_eps=raw["layer_norm_eps"],
            max_tokens=min(longest or raw["max_position_embeddings"], raw["max_position_embeddings"]),
        )
        source = SafetensorsSource(folder)
        self._weights = {
            name.removeprefix("bert."): source.read(name).float().to(self._device)
            for name in source.shapes()
            if not name.endswith("position_ids")
        }
        self._check(folder)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.config.max_tokens)
        self._lock = threading.Lock()

    @property
    def dimension(self) -> int:
        return self.config.hidden_size

    def _check(self, folder: Path) -> None:
        layers = range(self.config.num_layers)
        wanted = {f"embeddings.{n}.weight" for n in ("word_embeddings", "position_embeddings", "token_type_embeddings")}
        wanted |= {f"encoder.layer.{i}.attention.self.{n}.weight" for i in layers for n in ("query", "key", "value")}
        wanted |= {f"encoder.layer.{i}.{n}.dense.weight" for i in layers for n in ("intermediate", "output")}
        if missing := sorted(wanted - set(self._weights)):
            raise CheckpointError(f"{folder}: missing tensors {', '.join(missing[:5])}")

    def embed(self, texts: list[str]) -> tuple[list[list[float]], int]:
        """One unit vector per text, in order, and the number of tokens read. Texts beyond `max_tokens` (256 for
        all-MiniLM-L6-v2) are cut there; an empty text has a vector too."""
        encoded = [encoding.ids for encoding in self._tokenizer.encode_batch(texts)]
        order = sorted(range(len(texts)), key=lambda i: len(encoded[i]))
        vectors: list[list[float]] = [[] for _ in texts]
        start = 0
        while start < len(order):
            stop = start + 1
            # Sorted by length: the last of a batch is its longest, and tells how much padding it takes.
            while stop < len(order) and len(encoded[order[stop]]) * (stop + 1 - start) <= BATCH_TOKENS:
                stop += 1
            batch = order[start:stop]
            with self._lock, torch.inference_mode():
                result = self._forward([encoded[i] for i in batch]).tolist()
            for i, vector in zip(batch, result, strict=True):
                vectors[i] = vector
            start = stop
        return vectors, sum(map(len, encoded))

    def _forward(self, batch: list[list[int]]) -> Tensor:
        """Token ids -> [B, N] unit vectors."""
        width = max(map(len, batch))
        ids = torch.zeros(len(batch), width, dtype=torch.int64)
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)] = torch.tensor(tokens)
        lengths = torch.tensor([len(tokens) for tokens in batch])
        present = (torch.arange(width) < lengths.unsqueeze(1)).to(self._device)
        hidden = self._embed_tokens(ids.to(self._device))
        mask = None if bool(present.all()) else present[:, None, None, :]
        for layer in range(self.config.num_layers):
            hidden = self._layer(hidden, f"encoder.layer.{layer}.", mask)
        weight = present.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1)
        return F.normalize(mean, dim=-1)

    def _embed_tokens(self, ids: Tensor) -> Tensor:
        w = self._weights
        positions = torch.arange(ids.shape[1], device=ids.device)
        total = F.embedding(ids, w["embeddings.word_embeddings.weight"])
        total = total + F.embedding(positions, w["embeddings.position_embeddings.weight"])
        total = total + w["embeddings.token_type_embeddings.weight"][0]
        return self._norm(total, "embeddings.LayerNorm")

    def _layer(self, x: Tensor, prefix: str, mask: Tensor | None) -> Tensor:
        batch, width, size = x.shape

        def heads(name: str) -> Tensor:
            return (
                self._linear(x, f"{prefix}attention.self.{name}")
                .view(batch, width, self.config.num_heads, -1)
                .transpose(1, 2)
            )

        attended = F.scaled_dot_product_attention(heads("query"), heads("key"), heads("value"), attn_mask=mask)
        attended = attended.transpose(1, 2).reshape(batch, width, size)
        x = self._norm(
            x + self._linear(attended, f"{prefix}attention.output.dense"), f"{prefix}attention.output.LayerNorm"
        )
        inner = F.gelu(self._linear(x, f"{prefix}intermediate.dense"))
        return self._norm(x + self._linear(inner, f"{prefix}output.dense"), f"{prefix}output.LayerNorm")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return F.layer_norm(x, (x.shape[-1],), weight, bias, self.config.layer_norm_eps)


def _read_json(file: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    if not file.exists():
        if default is None:
            raise CheckpointError(f"{file}: not there; an embedder is a folder with config.json and safetensors")
        return default
    return json.loads(file.read_text(encoding="utf-8"))
